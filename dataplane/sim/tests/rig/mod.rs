//! Two nodes of one lane each over a simulated network, one session each, driven by hand.

use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::settings::{Plan, Settings};
use railhead_abi::submission::{Completion, OPERATION_WRITE, SessionEvent, Submission};
use railhead_core::pool::PoolShape;
use railhead_core::port::{ConnectionIndex, Key, RegionIndex};
use railhead_core::storage::Bounds;
use railhead_core::tables::{ConnectionInfo, PortParts, RegionInfo, RemoteInfo, Role, SessionParts};
use railhead_core::{Engine, EngineConfig};
use railhead_ring::{Bell, Consumer, Producer, ring_words};
use railhead_sim::world::tables::{Tables, Words, observe, words};
use railhead_sim::{
    CopierConfig, LaneId, Network, NetworkConfig, Rng, SimClock, SimCopier, SimFabric, SimMemory,
};

/// The region that the session reads from.
const SOURCE: RegionIndex = RegionIndex(1);
/// The region that the peer's session writes to.
const DESTINATION: RegionIndex = RegionIndex(2);
/// Entries of every ring.
const ENTRIES: usize = 64;

/// Pool and tables that suffice for a test.
pub(crate) const POOL: PoolShape = PoolShape {
    large_bytes: 32 << 10,
    small_bytes: 4096,
    large_send: 4,
    large_receive: 4,
    small_send: 4,
    small_receive: 8,
};

/// Tables for one engine.
pub(crate) fn tables() -> Tables {
    Tables::new(&Bounds {
        transfers: 64,
        chunks: 64,
        connections: 4,
        regions: 3,
        remotes: 1,
        sessions: 1,
        ports: 1,
        pool: POOL,
    })
}

/// One node: its engine, and its one client.
pub(crate) struct Node<'s> {
    engine: Engine<'s, SimFabric, SimCopier, Words>,
    submissions: Producer<Words, { Submission::WORDS }>,
    completions: Consumer<Words, { Completion::WORDS }>,
    events: Consumer<Words, { SessionEvent::WORDS }>,
    /// What the client sends from.
    pub(crate) source: SimMemory,
    /// What the peer writes to.
    pub(crate) destination: SimMemory,
}

impl<'s> Node<'s> {
    fn new(network: &Network, lane: LaneId, tables: &'s mut Tables, bytes: usize, rng: &mut Rng) -> Self {
        let regions = network.regions(lane);
        let arena = SimMemory::new("arena", usize::try_from(POOL.bytes()).expect("a small pool"));
        regions.install(RegionIndex::ARENA, 1, &arena, ACCESS_WRITE);
        let config = EngineConfig {
            lane: 0,
            unix_offset_ns: 0,
            pool: POOL,
            pool_epoch: 1,
            settings: Settings::default(),
            generation: 1,
        };
        let copier = SimCopier::new(regions.clone(), CopierConfig::default(), rng.fork());
        let mut engine = Engine::new(config, tables.storage(), observe(), network.fabric(lane), copier);
        let source = SimMemory::new("source", bytes);
        let destination = SimMemory::new("destination", bytes);
        for (region, memory, access) in
            [(SOURCE, &source, ACCESS_READ), (DESTINATION, &destination, ACCESS_WRITE)]
        {
            regions.install(region, 1, memory, access);
            let info = RegionInfo {
                generation: 1,
                bytes: bytes as u64,
                access,
                session: 0,
                flush: false,
                direct_possible: true,
                peers: u64::MAX,
                readers: 0,
            };
            assert!(engine.install_region(region, info));
        }
        let remote = RemoteInfo {
            generation: 1,
            session: 0,
            peer: 1,
            access: ACCESS_WRITE,
            connections: [ConnectionIndex(0), ConnectionIndex(1)],
            readers: [ConnectionIndex(0), ConnectionIndex(1)],
            one_sided: false,
            key: Key { index: DESTINATION.0, epoch: 1 },
            bytes: bytes as u64,
            plan: Plan::of(&Settings::default(), 1, true),
            read_plan: Plan::of(&Settings::default(), 1, false),
        };
        assert!(engine.install_remote(0, remote));
        let ring = |item| words(ring_words(ENTRIES, item));
        let (submissions, completions) = (ring(Submission::WORDS), ring(Completion::WORDS));
        let events = ring(SessionEvent::WORDS);
        let bell = || Bell::new(words(1)).expect("one word");
        let session = SessionParts {
            signals: words(64),
            events: Producer::new(events.clone(), ENTRIES).expect("a sound ring"),
            bell: bell(),
            name: [0; 4],
        };
        assert!(engine.attach_session(0, session).is_ok());
        let port = PortParts {
            submissions: Consumer::new(submissions.clone(), ENTRIES).expect("a sound ring"),
            completions: Producer::new(completions.clone(), ENTRIES).expect("a sound ring"),
            bell: bell(),
        };
        engine.attach_port(0, port).expect("a free port");
        Self {
            engine,
            submissions: Producer::new(submissions, ENTRIES).expect("a sound ring"),
            completions: Consumer::new(completions, ENTRIES).expect("a sound ring"),
            events: Consumer::new(events, ENTRIES).expect("a sound ring"),
            source,
            destination,
        }
    }

    /// Submits a write from the source to the peer's destination; what is not named here is taken from `rest`.
    pub(crate) fn write(&mut self, from: usize, to: usize, bytes: usize, rest: Submission) {
        let submission = Submission {
            operation: OPERATION_WRITE,
            local_index: SOURCE.0,
            local_generation: 1,
            local_offset: from as u64,
            remote_index: 0,
            remote_generation: 1,
            remote_offset: to as u64,
            bytes: bytes as u64,
            ..rest
        };
        self.submissions.push_publish(&submission.encode()).expect("room in the ring");
    }

    /// The next completion.
    pub(crate) fn completion(&mut self) -> Option<Completion> {
        let words = self.completions.pop().expect("a sound ring")?;
        self.completions.release();
        Some(Completion::decode(&words))
    }

    /// The next event from the peer.
    pub(crate) fn event(&mut self) -> Option<SessionEvent> {
        let words = self.events.pop().expect("a sound ring")?;
        self.events.release();
        Some(SessionEvent::decode(&words))
    }
}

/// Two nodes, connected.
pub(crate) struct Rig<'s> {
    /// Both.
    pub(crate) nodes: [Node<'s>; 2],
    clock: SimClock,
    rng: Rng,
}

impl<'s> Rig<'s> {
    /// Nodes with a source and a destination of `bytes` each.
    pub(crate) fn new(seed: u64, bytes: usize, [first, second]: [&'s mut Tables; 2]) -> Self {
        let mut rng = Rng::new(seed);
        let network = Network::new(NetworkConfig::default(), rng.fork());
        let lanes = [network.add_lane(), network.add_lane()];
        let mut nodes = [
            Node::new(&network, lanes[0], first, bytes, &mut rng),
            Node::new(&network, lanes[1], second, bytes, &mut rng),
        ];
        let clock = SimClock::new();
        // Each node initiates on connections 0 and 1, by class, and is the target on 2 and 3.
        for from in 0..2 {
            for class in 0..2 {
                let (out, into) = (ConnectionIndex(u16::from(class)), ConnectionIndex(2 + u16::from(class)));
                network.connect((lanes[from], out), (lanes[1 - from], into));
                let info = |role| ConnectionInfo {
                    role,
                    peer: 1,
                    class,
                    serves: false,
                    slots: 16,
                    small_bytes: POOL.small_bytes,
                    large_bytes: POOL.large_bytes,
                    pool_epoch: 1,
                };
                assert!(nodes[1 - from].engine.connection_up(into, info(Role::Target), clock.now()));
                assert!(nodes[from].engine.connection_up(out, info(Role::Initiator), clock.now()));
            }
        }
        Self { nodes, clock, rng }
    }

    /// A little time: both engines take a turn.
    pub(crate) fn step(&mut self) {
        let nanos = self.rng.between(100, 2_000);
        let now = self.clock.pass(nanos);
        for node in &mut self.nodes {
            node.engine.turn(now);
            while node.engine.next_wake().is_some() {}
            assert!(node.engine.next_notice().is_none(), "nothing breaks here");
        }
    }
}
