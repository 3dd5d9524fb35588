//! Two nodes in one process, on a stand-in library or on devices of this machine.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Nanos, Place, PostError, PostId, Read, RegionIndex,
    RemotePlace, Write,
};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_sim::conformance::{End, FabricHarness, PAIRS};
use railhead_verbs::{
    AttachInfo, Closer, ConnectionSizes, Endpoint, EndpointInfo, FlushTarget, Flusher, Library, MemoryAccess,
    MemoryRegion, Nic, NicConfig, QueuePair, Rail, RegionEntry, RemoteMemory, VerbsConfig, VerbsFabric,
};

pub(crate) mod stand_in;
pub(crate) mod world;

/// First connection of each end: other numbers at either side, as between two nodes.
pub(crate) const FIRST: [u16; 2] = [4, 10];
/// How each end knows the other.
pub(crate) const PEER: [u8; 2] = [3, 1];

/// What a pair of nodes is made of.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) library: &'static Library,
    pub(crate) devices: [String; 2],
    pub(crate) sizes: ConnectionSizes,
    pub(crate) write_bytes_max: u32,
    pub(crate) flush_needed: bool,
}

impl Setup {
    /// On the stand-in.
    pub(crate) fn stand_in() -> Self {
        Self::on(stand_in::library(), ["stand-in0".into(), "stand-in1".into()])
    }

    /// On devices of this machine.
    pub(crate) fn installed(devices: [String; 2]) -> Self {
        Self::on(Library::open(None).expect("libibverbs is installed where devices are"), devices)
    }

    fn on(library: &'static Library, devices: [String; 2]) -> Self {
        let sizes = ConnectionSizes { posts_max: 64, records_max: 48, receives: 50 };
        Self { library, devices, sizes, write_bytes_max: 2 << 20, flush_needed: false }
    }
}

/// A node.
pub(crate) struct Node {
    pub(crate) nic: Arc<Nic>,
    pub(crate) rail: Arc<Rail>,
    pub(crate) fabric: VerbsFabric,
    memories: Vec<Option<Memory>>,
}

impl Node {
    /// Waits until the port carries traffic again.
    pub(crate) fn nic_comes_back(&self) {
        let start = Instant::now();
        while let Err(error) = self.nic.refresh() {
            assert!(start.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Memory {
    span: OwnedSpan,
    _registration: Option<Arc<MemoryRegion>>,
    remote: RemoteMemory,
}

/// Two nodes, connected.
pub(crate) struct Harness {
    pub(crate) nodes: [Node; 2],
    pub(crate) pairs: [Option<[Arc<QueuePair>; 2]>; PAIRS],
    pub(crate) closer: Arc<Closer>,
    start: Instant,
    passes: u64,
}

impl Harness {
    pub(crate) fn new(setup: &Setup) -> Self {
        let closer = Closer::start().expect("a thread");
        let node = |end: usize| {
            let config = NicConfig { device: setup.devices[end].clone(), ..NicConfig::default() };
            let nic = Nic::open(setup.library, config).expect("a NIC");
            let rail = Rail::new(&nic, &closer, 4, setup.sizes).expect("a rail");
            let config = VerbsConfig {
                first: ConnectionIndex(FIRST[end]),
                connections: 4,
                regions: 64,
                peers: 4,
                regions_of_peer: 64,
                write_bytes_max: setup.write_bytes_max,
                flush_needed: setup.flush_needed,
                ..VerbsConfig::default()
            };
            let mut fabric = VerbsFabric::new(config, &[Arc::clone(&rail)]);
            let mut memories: Vec<Option<Memory>> = (0..64).map(|_| None).collect();
            if setup.flush_needed {
                let memory =
                    register(&nic, &Mapping::anonymous(4096).expect("memory").span(), ACCESS_READ, 0);
                let (address, remote_key) = (memory.remote.address, memory.remote.keys[0]);
                let flusher = Flusher::new(&rail).expect("a flusher");
                assert!(fabric.set_flusher(0, flusher, &[FlushTarget { address, remote_key }]).is_none());
                memories[63] = Some(memory);
            }
            Node { nic, rail, fabric, memories }
        };
        let nodes = [node(0), node(1)];
        let mut harness =
            Self { nodes, pairs: [const { None }; PAIRS], closer, start: Instant::now(), passes: 0 };
        for pair in 0..PAIRS {
            harness.connect(pair);
        }
        harness
    }

    pub(crate) fn span(&self, end: End, region: RegionIndex) -> &OwnedSpan {
        &self.nodes[end as usize].memories[region.0 as usize].as_ref().expect("an installed region").span
    }

    pub(crate) fn prepare(&self, end: End, pair: usize) -> Endpoint {
        self.nodes[end as usize].rail.prepare(self.connection(end, pair)).expect("an endpoint")
    }

    /// Connects an end and attaches it.
    pub(crate) fn attach(&mut self, end: End, endpoint: Endpoint, peer: &EndpointInfo) -> Arc<QueuePair> {
        let ready = endpoint.connect(peer).expect("connected");
        let pair = Arc::clone(ready.queue_pair());
        let info = AttachInfo { peer: PEER[end as usize], rail: 0, arena: RemoteMemory::default() };
        self.nodes[end as usize].fabric.attach(ready, info).expect("attached");
        pair
    }

    /// Lets both ends run until the NICs have nothing of theirs to do.
    fn drain(&mut self) {
        for _ in 0..200_000 {
            let now = self.pass();
            for node in &mut self.nodes {
                node.fabric.kick(now);
                assert_eq!(node.fabric.poll(now, &mut []), 0);
            }
            let is_quiet = |end: usize| {
                let fabric = &self.nodes[end].fabric;
                (0..PAIRS).all(|pair| fabric.outstanding(self.connection(End::BOTH[end], pair)) == 0)
            };
            if is_quiet(0) && is_quiet(1) {
                return;
            }
        }
        panic!("the NICs never came to rest");
    }
}

fn register(nic: &Nic, memory: &OwnedSpan, access: u32, epoch: u32) -> Memory {
    let rights = MemoryAccess { local_write: true, ..MemoryAccess::granting(access, true) };
    let registration = MemoryRegion::register(nic.domain(), memory, rights).expect("registered");
    let remote = RemoteMemory {
        epoch,
        access,
        address: registration.address(),
        bytes: registration.bytes(),
        keys: [registration.remote_key(), 0, 0, 0],
    };
    Memory { span: memory.clone(), _registration: Some(registration), remote }
}

impl FabricHarness for Harness {
    type Fabric = VerbsFabric;

    fn fabric(&mut self, end: End) -> &mut VerbsFabric {
        &mut self.nodes[end as usize].fabric
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(FIRST[end as usize] + 2 * u16::try_from(pair).expect("few"))
    }

    fn install(&mut self, end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        // One page more than asked for, cut off again: so that bytes past the end are there to be spoiled.
        let memory = Mapping::anonymous(bytes + 4096).expect("memory").span();
        let span = memory.part(0, bytes as u64).expect("inside");
        let node = &mut self.nodes[end as usize];
        let memory = register(&node.nic, &span, access, epoch);
        let registration = memory._registration.as_ref().expect("registered");
        node.fabric.install(region, RegionEntry::of_host(&span, &[registration]));
        let remote = memory.remote;
        node.memories[region.0 as usize] = Some(memory);
        let other = end.other() as usize;
        assert!(self.nodes[other].fabric.install_remote(PEER[other], region.0, remote));
    }

    /// As a revocation does: first the holders stop, then what they have posted ends, then the key goes.
    fn remove(&mut self, end: End, region: RegionIndex) {
        let memory = self.nodes[end as usize].memories[region.0 as usize].as_ref().expect("installed");
        let (other, epoch) = (end.other() as usize, memory.remote.epoch);
        assert!(self.nodes[other].fabric.remove_remote(PEER[other], region.0, epoch));
        self.drain();
        let node = &mut self.nodes[end as usize];
        node.fabric.remove(region);
        node.memories[region.0 as usize].as_mut().expect("installed")._registration = None;
    }

    fn write_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.span(end, region).write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.span(end, region).read(offset as u64, bytes).expect("inside");
    }

    /// Both queue pairs fail, as when each node was told that the other is gone.
    fn cut(&mut self, pair: usize) {
        for end in self.pairs[pair].as_ref().expect("connected") {
            end.fail().expect("failed");
        }
    }

    fn connect(&mut self, pair: usize) {
        for end in End::BOTH {
            let connection = self.connection(end, pair);
            drop(self.nodes[end as usize].fabric.take_retired(connection));
        }
        let (near, far) = (self.prepare(End::Initiator, pair), self.prepare(End::Target, pair));
        let (near_info, far_info) = (near.info(), far.info());
        let near = self.attach(End::Initiator, near, &far_info);
        let far = self.attach(End::Target, far, &near_info);
        self.pairs[pair] = Some([near, far]);
    }

    fn pass(&mut self) -> Nanos {
        self.passes += 1;
        // Now and then the machine gets time for its own part: the closer, and a software NIC.
        if self.passes % 64 == 1 {
            std::thread::sleep(Duration::from_micros(50));
        }
        u64::try_from(self.start.elapsed().as_nanos()).expect("soon") + 1
    }
}

/// Where this test binary may write.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Runs a command and expects it to succeed without a word.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command:?} (needs cc and libibverbs-dev):\n{said}");
}

/// A region of each end that tests of their own use.
pub(crate) const SOURCE: RegionIndex = RegionIndex(1);
pub(crate) const TARGET: RegionIndex = RegionIndex(17);
pub(crate) const EPOCH: u32 = 5;
const NOTHING: FabricEvent = FabricEvent::Down { connection: ConnectionIndex(0), cause: Code::Ok };

/// What tests of their own do with the nodes.
impl Harness {
    /// Two nodes with a source of random bytes and a target of zeroes.
    pub(crate) fn with_memory(setup: &Setup, bytes: usize) -> Self {
        let mut harness = Self::new(setup);
        harness.install(End::Initiator, SOURCE, 1, bytes, 0);
        harness.install(End::Target, TARGET, EPOCH, bytes, ACCESS_READ | ACCESS_WRITE);
        let mut random = vec![0; bytes];
        railhead_sim::Rng::new(bytes as u64).fill(&mut random);
        harness.write_bytes(End::Initiator, SOURCE, 0, &random);
        harness
    }

    pub(crate) fn near(&self) -> ConnectionIndex {
        self.connection(End::Initiator, 0)
    }

    pub(crate) fn place(offset: u64) -> RemotePlace {
        RemotePlace { key: Key { index: TARGET.0, epoch: EPOCH }, offset }
    }

    pub(crate) fn write(&mut self, post: u32, offset: u64, bytes: u32) -> Result<(), PostError> {
        let from = Place { region: SOURCE, offset };
        let write = Write { from, bytes, to: Self::place(offset), slot: 0, post: PostId(post) };
        let near = self.near();
        self.fabric(End::Initiator).write(near, &write)
    }

    /// Writes the first bytes of the source to some offset.
    pub(crate) fn write_from_start(&mut self, post: u32, offset: u64, bytes: u32) -> Result<(), PostError> {
        let from = Place { region: SOURCE, offset: 0 };
        let write = Write { from, bytes, to: Self::place(offset), slot: 0, post: PostId(post) };
        let near = self.near();
        self.fabric(End::Initiator).write(near, &write)
    }

    /// Gives up memory and its registration.
    pub(crate) fn unmap(&mut self, end: End, region: RegionIndex) {
        drop(self.nodes[end as usize].memories[region.0 as usize].take());
    }

    /// The key that peers name a target's region by.
    pub(crate) fn remote_key(&self, region: RegionIndex) -> u32 {
        self.nodes[1].memories[region.0 as usize].as_ref().expect("an installed region").remote.keys[0]
    }

    pub(crate) fn read(&mut self, post: u32, offset: u64, bytes: u32) -> Result<(), PostError> {
        let into = Place { region: SOURCE, offset };
        let read = Read { into, bytes, from: Self::place(offset), post: PostId(post) };
        let near = self.near();
        self.fabric(End::Initiator).read(near, &read)
    }

    /// Sends a record of two words.
    pub(crate) fn send(&mut self, end: End, tag: u64) -> Result<(), PostError> {
        let mut record = RawRecord { words: [0; 16] };
        record.words[..2].copy_from_slice(&[7 | 2 << 8, tag]);
        let connection = self.connection(end, 0);
        self.fabric(end).send(connection, &record)
    }

    /// Kicks and polls both ends once; what they say is appended.
    pub(crate) fn step(&mut self, said: &mut [Vec<FabricEvent>; 2]) {
        let now = self.pass();
        for (node, said) in self.nodes.iter_mut().zip(said) {
            node.fabric.kick(now);
            let mut events = [NOTHING; 32];
            let count = node.fabric.poll(now, &mut events);
            said.extend_from_slice(&events[..count]);
        }
    }

    /// Steps until `done` likes what was said; at most ten seconds.
    pub(crate) fn until(
        &mut self,
        what: &str,
        done: impl Fn(&[Vec<FabricEvent>; 2]) -> bool,
    ) -> [Vec<FabricEvent>; 2] {
        let mut said = [Vec::new(), Vec::new()];
        let start = Instant::now();
        while !done(&said) {
            assert!(start.elapsed() < Duration::from_secs(10), "waited in vain until {what}: {said:?}");
            self.step(&mut said);
        }
        said
    }

    /// Steps until the post has ended at the initiator, and returns its status.
    pub(crate) fn status_of(&mut self, post: u32) -> Code {
        let said = self.until("the post has ended", |said| status(&said[0], post).is_some());
        status(&said[0], post).expect("it has")
    }
}

/// How a post ended, if it did.
pub(crate) fn status(said: &[FabricEvent], wanted: u32) -> Option<Code> {
    said.iter().find_map(|event| match event {
        FabricEvent::Done { post, status, .. } if post.0 == wanted => Some(*status),
        _ => None,
    })
}

/// Why a connection ended, if it did.
pub(crate) fn down(said: &[FabricEvent]) -> Option<Code> {
    said.iter().find_map(|event| match event {
        FabricEvent::Down { cause, .. } => Some(*cause),
        _ => None,
    })
}

/// Tags of the records that came.
pub(crate) fn tags(said: &[FabricEvent]) -> Vec<u64> {
    said.iter()
        .filter_map(|event| match event {
            FabricEvent::Record { record, .. } => Some(record.words[1]),
            _ => None,
        })
        .collect()
}
