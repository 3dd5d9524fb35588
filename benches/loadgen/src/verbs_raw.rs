//! The fabric over RDMA alone, without engine and dataplane, to stand beside perftest: writes of one size from one device
//! to another, in two processes. What was written is compared at the end.
//!
//! This is the one place where the load generator links an adapter: everywhere else it is an ordinary client.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use railhead_client::{ACCESS_READ, ACCESS_WRITE, Code};
use railhead_core::port::{
    ConnectionIndex, Fabric as _, FabricEvent, Key, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_verbs::{
    AttachInfo, Closer, ConnectionSizes, EndpointInfo, INFO_WORDS, Library, MemoryAccess, MemoryRegion, Nic,
    NicConfig, RAILS_MAX, Rail, RegionEntry, RemoteMemory, VerbsConfig, VerbsFabric,
};

use crate::args::VerbsRaw;
use crate::error::{BenchError, Result};

const WIRE: ConnectionIndex = ConnectionIndex(0);
/// How long the other process may take for anything but the measurement.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Without any completion for so long, the run is given up.
const STALL: Duration = Duration::from_secs(30);
/// Events taken at a time.
const BATCH: usize = 64;
/// Uncounted messages before a latency is measured.
const WARM_UP: u64 = 16;
/// What one end tells the other: the queue pair, then the memory.
const HELLO_WORDS: usize = INFO_WORDS + 3 + RAILS_MAX;

/// `railhead-bench verbs-raw`.
pub(crate) fn run(args: &VerbsRaw) -> Result<()> {
    let end = End::open(args)?;
    match (args.listen, args.connect) {
        (Some(address), _) => serve(end, address),
        (None, Some(address)) => measure(args, end, address),
        (None, None) => Err(wrong("either --listen or --connect is needed")),
    }
}

/// Waits for one client, lets it write, and says whether what is here is what it wrote.
fn serve(end: End, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).map_err(|error| wrong(format!("{address}: {error}")))?;
    let (mut stream, _) = listener.accept().map_err(|error| wrong(format!("accepting: {error}")))?;
    let memory = end.memory.clone();
    memory.write(0, &vec![0; memory.len()]).map_err(|error| wrong(error.to_string()))?;
    // Its end of the connection must live until the client has finished.
    let _fabric = end.connect(&mut stream)?;
    let mut done = [0; 1];
    stream.set_read_timeout(None).and_then(|()| stream.read_exact(&mut done)).map_err(other_end)?;
    let mut found = vec![0; memory.len()];
    memory.read(0, &mut found).map_err(|error| wrong(error.to_string()))?;
    let is_right = found == pattern(found.len());
    stream.write_all(&[u8::from(is_right)]).map_err(other_end)?;
    if is_right { Ok(()) } else { Err(wrong("the bytes that arrived are not those that were sent")) }
}

fn measure(args: &VerbsRaw, end: End, address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)
        .map_err(|error| wrong(format!("{address}: {error}")))?;
    let device = args.device.as_str();
    end.memory.write(0, &pattern(end.memory.len())).map_err(|error| wrong(error.to_string()))?;
    let mut wire = end.connect(&mut stream)?;
    println!("device {device}, packets of {} B", wire.mtu_bytes);
    let messages_per_s = if args.latency {
        wire.latency(args.messages)?
    } else {
        let start = Instant::now();
        wire.write_all(args.messages, args.outstanding.into())?;
        args.messages as f64 / start.elapsed().as_secs_f64()
    };
    stream.write_all(&[1]).map_err(other_end)?;
    let mut verified = [0; 1];
    stream.read_exact(&mut verified).map_err(other_end)?;
    if verified != [1] {
        return Err(wrong("the bytes that arrived are not those that were sent"));
    }
    if args.latency {
        println!("post to completion {:.2} us, median of {}", 1e6 / messages_per_s, args.messages);
    } else {
        println!(
            "{:.3} MB/s, {} outstanding",
            messages_per_s * f64::from(args.bytes) / 1e6,
            args.outstanding
        );
    }
    println!("verified: the last write is whole at the other end");
    println!("messages_per_s {messages_per_s:.3}");
    Ok(())
}

/// One process's device and memory.
struct End {
    rail: Arc<Rail>,
    memory: OwnedSpan,
    registration: Arc<MemoryRegion>,
}

impl End {
    fn open(args: &VerbsRaw) -> Result<Self> {
        let unable = |error: &dyn std::fmt::Display| wrong(format!("--device {}: {error}", args.device));
        let library = Library::open(None).map_err(|error| unable(&error))?;
        let config = NicConfig { device: args.device.clone(), ..NicConfig::default() };
        let nic = Nic::open(library, config).map_err(|error| unable(&error))?;
        let closer = Closer::start().map_err(|error| unable(&error))?;
        let rail = Rail::new(&nic, &closer, 1, ConnectionSizes::default()).map_err(|error| unable(&error))?;
        let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
        let memory = Mapping::anonymous(bytes).map_err(|error| unable(&error))?.span();
        let access = MemoryAccess { local_write: true, remote_write: true, ..MemoryAccess::default() };
        let registration =
            MemoryRegion::register(nic.domain(), &memory, access).map_err(|error| unable(&error))?;
        Ok(Self { rail, memory, registration })
    }

    /// Agrees with the other process on everything and waits until its end is up, too.
    fn connect(self, stream: &mut TcpStream) -> Result<Wire> {
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(TIMEOUT))).map_err(other_end)?;
        let unable = |error: &dyn std::fmt::Display| wrong(format!("connecting: {error}"));
        let endpoint = self.rail.prepare(WIRE).map_err(|error| unable(&error))?;
        let mut hello = [0; HELLO_WORDS];
        hello[..INFO_WORDS].copy_from_slice(&endpoint.info().to_words());
        hello[INFO_WORDS..][..4].copy_from_slice(&[
            self.registration.address(),
            self.registration.bytes(),
            u64::from(self.rail.sizes().posts_max),
            self.registration.remote_key().into(),
        ]);
        let answer = exchange(stream, &hello)?;
        let (info, rest) = answer.split_at(INFO_WORDS);
        let info = info.try_into().ok().and_then(EndpointInfo::from_words);
        let info = info.ok_or(BenchError::Answer("an endpoint of another version"))?;
        let arena = RemoteMemory {
            epoch: 0,
            access: ACCESS_READ | ACCESS_WRITE,
            address: rest[0],
            bytes: rest[1],
            keys: [u32::try_from(rest[3]).map_err(|_| BenchError::Answer("a key"))?, 0, 0, 0],
        };
        if arena.bytes < self.registration.bytes() {
            return Err(wrong("--bytes must be the same at both ends"));
        }
        let ready = endpoint.connect(&info).map_err(|error| unable(&error))?;
        let mtu_bytes = ready.facts().mtu_bytes;
        let config = VerbsConfig {
            connections: 1,
            regions: 1,
            peers: 1,
            regions_of_peer: 1,
            ..VerbsConfig::default()
        };
        let mut fabric = VerbsFabric::new(config, &[Arc::clone(&self.rail)]);
        fabric.install(RegionIndex::ARENA, RegionEntry::of_host(&self.memory, &[&self.registration]));
        fabric.attach(ready, AttachInfo { peer: 0, rail: 0, arena }).map_err(|error| unable(&error))?;
        exchange(stream, &[1])?;
        let bytes = u32::try_from(self.registration.bytes()).unwrap_or(u32::MAX);
        Ok(Wire { fabric, bytes, mtu_bytes, start: Instant::now(), _end: self })
    }
}

/// A connection that is up at both ends.
struct Wire {
    fabric: VerbsFabric,
    bytes: u32,
    mtu_bytes: u32,
    start: Instant,
    // Memory and registration, dropped behind the fabric that names them.
    _end: End,
}

impl Wire {
    /// Writes so many messages, keeping up to `outstanding` posted.
    fn write_all(&mut self, messages: u64, outstanding: u64) -> Result<()> {
        let (mut posted, mut done) = (0, 0);
        let mut last = Instant::now();
        while done < messages {
            while posted < messages && posted - done < outstanding && self.post(posted) {
                posted += 1;
            }
            match self.poll()? {
                0 if last.elapsed() > STALL => return Err(stalled(posted - done)),
                0 => {}
                count => {
                    done += count;
                    last = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Messages a second that the median time from post to completion comes to.
    fn latency(&mut self, messages: u64) -> Result<f64> {
        self.write_all(WARM_UP, 1)?;
        let mut times: Vec<Duration> = Vec::with_capacity(usize::try_from(messages).unwrap_or_default());
        for _ in 0..messages {
            let start = Instant::now();
            self.write_all(1, 1)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).ok_or_else(|| wrong("--messages must not be 0"))?;
        Ok(1.0 / median.as_secs_f64())
    }

    /// Posts one write; false when it was not taken.
    fn post(&mut self, number: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "names need only differ among those outstanding")]
        let post = PostId(number as u32);
        let write = Write {
            from: Place { region: RegionIndex::ARENA, offset: 0 },
            bytes: self.bytes,
            to: RemotePlace { key: Key { index: 0, epoch: 0 }, offset: 0 },
            slot: 0,
            post,
        };
        // When it is down, why is what the next poll says.
        self.fabric.write(WIRE, &write).is_ok()
    }

    /// Hands over what was posted, and counts what has ended.
    fn poll(&mut self) -> Result<u64> {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.fabric.kick(now);
        let mut events = [FabricEvent::Down { connection: WIRE, cause: Code::Ok }; BATCH];
        let count = self.fabric.poll(now, &mut events);
        let mut done = 0;
        for event in &events[..count] {
            match event {
                FabricEvent::Done { status: Code::Ok, .. } => done += 1,
                FabricEvent::Done { status, .. } => {
                    return Err(wrong(format!("a write failed: {}", status.name())));
                }
                FabricEvent::Down { cause, .. } => {
                    return Err(wrong(format!("the connection ended: {}", cause.name())));
                }
                FabricEvent::Record { .. } | FabricEvent::Refused { .. } => {}
            }
        }
        Ok(done)
    }
}

/// Sends words and returns as many of the other end.
fn exchange<const N: usize>(stream: &mut TcpStream, words: &[u64; N]) -> Result<[u64; N]> {
    for word in words {
        stream.write_all(&word.to_le_bytes()).map_err(other_end)?;
    }
    let mut answer = [0; N];
    for word in &mut answer {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).map_err(other_end)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(answer)
}

/// What is written: each byte depends on its place.
fn pattern(bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|at| (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut out: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    out.truncate(bytes);
    out
}

fn stalled(in_flight: u64) -> BenchError {
    BenchError::Stalled { in_flight: usize::try_from(in_flight).unwrap_or(usize::MAX), after: STALL }
}

fn other_end(error: std::io::Error) -> BenchError {
    wrong(format!("the other end: {error}"))
}

fn wrong(text: impl Into<String>) -> BenchError {
    BenchError::Wrong(text.into())
}
