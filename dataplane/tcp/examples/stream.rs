//! How fast the fabric is against a plain socket, on this machine's loopback interface: two threads, one way.
//!
//! Run it in a network namespace of its own with reno, where nothing else is on the wire:
//! `unshare -rn sh -c 'ip link set lo up; sysctl -qw net.ipv4.tcp_congestion_control=reno; exec target/release/examples/stream'`
//!
//! Prints gigabits per second of payload, and system calls per transfer; with `cpu` as the first argument, processor time
//! per KiB of payload instead, of one thread that serves both ends in turn: that figure stands even on a busy machine.
//! Figures of one run are to be compared with each other only.

use std::hint::black_box;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::{Ack, Fin, Record};
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Nanos, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_tcp::{AttachInfo, RegionEntry, TcpConfig, TcpCounters, TcpFabric};

const WIRE: ConnectionIndex = ConnectionIndex(0);
const REGION: RegionIndex = RegionIndex(1);
const EPOCH: u32 = 1;

/// One measurement.
#[derive(Clone, Copy)]
struct Shape {
    bytes: usize,
    outstanding: usize,
    transfers: usize,
}

impl Shape {
    fn total(self) -> u64 {
        (self.bytes * self.transfers) as u64
    }

    /// Bytes of memory at either end that are written over and over.
    fn span(self) -> usize {
        self.bytes * self.outstanding
    }
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    (near, listener.accept().expect("accepted").0)
}

fn gigabits(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64() / 1e9
}

/// `write_all` of each transfer on one thread, `read_exact` of each on another.
fn plain(shape: Shape) -> f64 {
    let (mut near, mut far) = streams();
    near.set_nodelay(true).expect("set");
    let reader = thread::spawn(move || {
        let mut memory = vec![0u8; shape.span()];
        for transfer in 0..shape.transfers {
            let at = transfer % shape.outstanding * shape.bytes;
            far.read_exact(&mut memory[at..at + shape.bytes]).expect("read");
        }
        black_box(&memory);
    });
    let memory = vec![1u8; shape.span()];
    let start = Instant::now();
    for transfer in 0..shape.transfers {
        let at = transfer % shape.outstanding * shape.bytes;
        near.write_all(&memory[at..at + shape.bytes]).expect("write");
    }
    reader.join().expect("the reader ends");
    gigabits(shape.total(), start.elapsed())
}

fn memory(bytes: usize) -> OwnedSpan {
    let mapping = Mapping::anonymous(bytes).expect("memory");
    mapping.populate().expect("pages");
    mapping.span()
}

fn fabric(stream: TcpStream, takes_writes: bool, bytes: usize, buffers: u32) -> TcpFabric {
    let config = TcpConfig {
        connections: 2,
        regions: 4,
        send_buffer_bytes: buffers,
        receive_buffer_bytes: buffers,
        ..TcpConfig::default()
    };
    let mut fabric = TcpFabric::new(config).expect("a fabric");
    let entry =
        RegionEntry { span: memory(bytes), epoch: EPOCH, access: ACCESS_READ | ACCESS_WRITE, peers: 1 };
    fabric.install(REGION, entry);
    fabric.attach(WIRE, stream.into(), AttachInfo { peer: 0, takes_writes }).expect("attached");
    fabric
}

const NOTHING: FabricEvent = FabricEvent::Down { connection: WIRE, cause: Code::Ok };

fn now(start: Instant) -> Nanos {
    u64::try_from(start.elapsed().as_nanos()).expect("centuries")
}

/// The end that is written: answers every FIN with an ACK.
struct Target {
    fabric: TcpFabric,
    due: usize,
    acked: usize,
    is_down: bool,
}

impl Target {
    fn step(&mut self, now: Nanos) {
        let mut events = [NOTHING; 64];
        let count = self.fabric.poll(now, &mut events);
        for event in &events[..count] {
            match event {
                FabricEvent::Record { .. } => self.due += 1,
                FabricEvent::Down { .. } => self.is_down = true,
                _ => {}
            }
        }
        while self.acked < self.due && self.fabric.send(WIRE, &Record::Ack(Ack::default()).encode()).is_ok() {
            self.acked += 1;
        }
        self.fabric.kick(now);
    }
}

/// The end that writes: keeps transfers under way, a write and a FIN each, ended by an ACK.
struct Initiator {
    fabric: TcpFabric,
    shape: Shape,
    posted: usize,
    acked: usize,
}

impl Initiator {
    fn step(&mut self, now: Nanos) {
        let shape = self.shape;
        while self.posted < shape.transfers && self.posted - self.acked < shape.outstanding {
            let offset = (self.posted % shape.outstanding * shape.bytes) as u64;
            let write = Write {
                from: Place { region: REGION, offset },
                bytes: u32::try_from(shape.bytes).expect("small"),
                to: RemotePlace { key: Key { index: REGION.0, epoch: EPOCH }, offset },
                slot: 0,
                post: PostId(0),
            };
            if self.fabric.write(WIRE, &write).is_err() {
                break;
            }
            self.fabric.send(WIRE, &Record::Fin(Fin::default()).encode()).expect("fewer records than posts");
            self.posted += 1;
        }
        self.fabric.kick(now);
        let mut events = [NOTHING; 64];
        let count = self.fabric.poll(now, &mut events);
        for event in &events[..count] {
            match event {
                FabricEvent::Record { .. } => self.acked += 1,
                FabricEvent::Down { cause, .. } => panic!("down: {cause}"),
                _ => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.acked == self.shape.transfers
    }
}

fn ends(shape: Shape, buffers: u32) -> (Initiator, Target) {
    let (near, far) = streams();
    let (near, far) = (fabric(near, false, shape.span(), buffers), fabric(far, true, shape.span(), buffers));
    let initiator = Initiator { fabric: near, shape, posted: 0, acked: 0 };
    (initiator, Target { fabric: far, due: 0, acked: 0, is_down: false })
}

fn railhead(shape: Shape, buffers: u32) -> (f64, TcpCounters, TcpCounters) {
    let (mut near, mut far) = ends(shape, buffers);
    let start = Instant::now();
    let far = thread::spawn(move || {
        while !far.is_down {
            far.step(now(start));
        }
        far.fabric.counters()
    });
    while !near.is_over() {
        near.step(now(start));
    }
    let time = start.elapsed();
    near.fabric.close(WIRE);
    (gigabits(shape.total(), time), near.fabric.counters(), far.join().expect("the target ends"))
}

/// Processor time of this thread.
fn spent() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("below a second"))
}

fn ns_per_kib(shape: Shape, time: Duration) -> f64 {
    time.as_nanos() as f64 / (shape.total() as f64 / 1024.0)
}

/// Both ends of a plain stream by one thread: writes until it is full, then reads until it is empty.
fn plain_cpu(shape: Shape) -> f64 {
    let (mut near, mut far) = streams();
    for stream in [&near, &far] {
        stream.set_nonblocking(true).expect("set");
        stream.set_nodelay(true).expect("set");
    }
    let (mut source, mut target) = (vec![1u8; shape.span()], vec![0u8; shape.span()]);
    source[0] = black_box(2);
    let (mut sent, mut got) = (0, 0);
    let total = shape.bytes * shape.transfers;
    let rest = |done: usize| {
        done % shape.span()..(done / shape.bytes * shape.bytes + shape.bytes - 1) % shape.span() + 1
    };
    let start = spent();
    while got < total {
        while sent < total && sent - got < shape.span() {
            let Ok(count) = near.write(&source[rest(sent)]) else { break };
            sent += count;
        }
        while got < sent {
            let Ok(count) = far.read(&mut target[rest(got)]) else { break };
            got += count;
        }
    }
    black_box(&target);
    ns_per_kib(shape, spent().saturating_sub(start))
}

fn railhead_cpu(shape: Shape, buffers: u32) -> f64 {
    let (mut near, mut far) = ends(shape, buffers);
    let clock = Instant::now();
    let start = spent();
    while !near.is_over() {
        near.step(now(clock));
        far.step(now(clock));
    }
    ns_per_kib(shape, spent().saturating_sub(start))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

const SHAPES: [(usize, usize, u64); 7] = [
    (64, 64, 16 << 20),
    (4 << 10, 1, 64 << 20),
    (4 << 10, 64, 2 << 30),
    (64 << 10, 16, 4 << 30),
    (256 << 10, 8, 8 << 30),
    (1 << 20, 4, 8 << 30),
    (4 << 20, 4, 8 << 30),
];

/// `stream [wall|cpu] [SOCKET_BUFFER_BYTES] [ROUNDS]`
fn main() {
    let argument = |at| std::env::args().nth(at);
    let is_cpu = argument(1).is_some_and(|text| text == "cpu");
    let buffers = argument(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    let rounds = argument(3).and_then(|text| text.parse().ok()).unwrap_or(5);
    let unit = if is_cpu { "processor ns per KiB" } else { "Gb/s; calls per transfer: send, receive, epoll" };
    println!("{:>9} {:>4} {:>8} {:>8} {:>6}  {unit}", "bytes", "out", "plain", "fabric", "ratio");
    for (bytes, outstanding, total) in SHAPES {
        let total = if is_cpu { total / 8 } else { total };
        let transfers = usize::try_from(total / bytes as u64).expect("fits");
        let shape = Shape { bytes, outstanding, transfers };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut calls = String::new();
        for _ in 0..rounds {
            if is_cpu {
                theirs.push(plain_cpu(shape));
                ours.push(railhead_cpu(shape, buffers));
                continue;
            }
            theirs.push(plain(shape));
            let (rate, near, far) = railhead(shape, buffers);
            ours.push(rate);
            let per = |count: u64| count as f64 / transfers as f64;
            calls = format!(
                "near {:.2} {:.2} {:.2}, far {:.2} {:.2} {:.2}, copied {:.2}",
                per(near.sends),
                per(near.receives),
                per(near.looks),
                per(far.sends),
                per(far.receives),
                per(far.looks),
                far.bytes_copied as f64 / shape.total() as f64,
            );
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!("{bytes:>9} {outstanding:>4} {theirs:>8.2} {ours:>8.2} {:>6.2}  {calls}", ours / theirs);
    }
}
