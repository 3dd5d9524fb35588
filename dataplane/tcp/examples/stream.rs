//! How fast the fabric is against a plain socket, on this machine's loopback interface: two threads, one way.
//!
//! Run it in a network namespace of its own with reno, where nothing else is on the wire:
//! `unshare -rn sh -c 'ip link set lo up; sysctl -qw net.ipv4.tcp_congestion_control=reno; exec target/release/examples/stream'`
//!
//! Prints gigabits per second of payload, and system calls per transfer. Figures of one run are to be compared with each
//! other only.

use std::hint::black_box;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::{Ack, Fin, RawRecord, Record};
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

fn fabric(stream: TcpStream, bytes: usize, buffers: u32) -> TcpFabric {
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
    fabric.attach(WIRE, stream.into(), AttachInfo { peer: 0 }).expect("attached");
    fabric
}

const NOTHING: FabricEvent = FabricEvent::Down { connection: WIRE, cause: Code::Ok };

fn now(start: Instant) -> Nanos {
    u64::try_from(start.elapsed().as_nanos()).expect("centuries")
}

fn record(record: Record) -> RawRecord {
    record.encode()
}

/// Answers every FIN with an ACK, until all have come.
fn target(mut fabric: TcpFabric, shape: Shape) -> TcpCounters {
    let start = Instant::now();
    let mut events = [NOTHING; 64];
    let (mut due, mut acked) = (0, 0);
    while acked < shape.transfers {
        let count = fabric.poll(now(start), &mut events);
        for event in &events[..count] {
            match event {
                FabricEvent::Record { .. } => due += 1,
                FabricEvent::Down { cause, .. } => panic!("down: {cause}"),
                _ => {}
            }
        }
        while acked < due && fabric.send(WIRE, &record(Record::Ack(Ack::default()))).is_ok() {
            acked += 1;
        }
        fabric.kick(now(start));
    }
    // The other end closes when it has all answers.
    while fabric.poll(now(start), &mut events) == 0 || !matches!(events[0], FabricEvent::Down { .. }) {}
    fabric.counters()
}

/// Keeps `outstanding` transfers under way: a write and a FIN each, ended by an ACK.
fn initiator(fabric: &mut TcpFabric, shape: Shape) {
    let start = Instant::now();
    let mut events = [NOTHING; 64];
    let (mut posted, mut acked) = (0, 0);
    while acked < shape.transfers {
        while posted < shape.transfers && posted - acked < shape.outstanding {
            let offset = (posted % shape.outstanding * shape.bytes) as u64;
            let write = Write {
                from: Place { region: REGION, offset },
                bytes: u32::try_from(shape.bytes).expect("small"),
                to: RemotePlace { key: Key { index: REGION.0, epoch: EPOCH }, offset },
                slot: 0,
                post: PostId(0),
            };
            if fabric.write(WIRE, &write).is_err() {
                break;
            }
            fabric.send(WIRE, &record(Record::Fin(Fin::default()))).expect("fewer records than posts");
            posted += 1;
        }
        fabric.kick(now(start));
        let count = fabric.poll(now(start), &mut events);
        for event in &events[..count] {
            match event {
                FabricEvent::Record { .. } => acked += 1,
                FabricEvent::Down { cause, .. } => panic!("down: {cause}"),
                _ => {}
            }
        }
    }
}

fn railhead(shape: Shape, buffers: u32) -> (f64, TcpCounters, TcpCounters) {
    let (near, far) = streams();
    let mut near = fabric(near, shape.span(), buffers);
    let far = thread::spawn(move || target(fabric(far, shape.span(), buffers), shape));
    let start = Instant::now();
    initiator(&mut near, shape);
    let time = start.elapsed();
    near.close(WIRE);
    let counters = near.counters();
    (gigabits(shape.total(), time), counters, far.join().expect("the target ends"))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let buffers = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1 << 20);
    let rounds = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(5);
    println!(
        "{:>9} {:>4} {:>8} {:>8} {:>6}  calls per transfer: send, receive, epoll",
        "bytes", "out", "plain", "fabric", "ratio"
    );
    for (bytes, outstanding, total) in [
        (64, 64, 16 << 20),
        (4 << 10, 1, 64 << 20),
        (4 << 10, 64, 2 << 30),
        (64 << 10, 16, 4 << 30),
        (256 << 10, 8, 8 << 30),
        (1 << 20, 4, 8 << 30),
        (4 << 20, 4, 8u64 << 30),
    ] {
        let transfers = usize::try_from(total / bytes as u64).expect("fits");
        let shape = Shape { bytes, outstanding, transfers };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut calls = String::new();
        for _ in 0..rounds {
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
