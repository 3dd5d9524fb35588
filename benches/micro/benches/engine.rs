//! What a transfer costs the engine itself: one lane that writes to its own regions over the local fabric.
//!
//! `cargo bench -p railhead-micro --bench engine`. Every iteration submits a batch, turns the engine until all of it is
//! complete, and checks the statuses. The memcpy that the local fabric does is part of the figure; compare sizes.

use divan::counter::{BytesCount, ItemsCount};
use railhead_abi::observe::{COUNTER_WORDS, EventEntry, Flight};
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::settings::{Plan, Settings};
use railhead_abi::submission::{
    Completion, LEG_DIRECT, LEG_STAGED, OPERATION_WRITE, SessionEvent, Submission,
};
use railhead_core::list::Link;
use railhead_core::pool::PoolShape;
use railhead_core::port::{ConnectionIndex, Key, RegionIndex};
use railhead_core::storage::{Bounds, Observe, Storage};
use railhead_core::tables::{
    BlockEntry, ChunkEntry, Connection, ConnectionInfo, Inbound, PortParts, Region, RegionInfo, Remote,
    RemoteInfo, Role, SessionParts, SessionQueue, Transfer,
};
use railhead_core::{Engine, EngineConfig};
use railhead_host::{CopierConfig, HostCopier, LocalConfig, LocalFabric};
use railhead_ring::{Bell, Consumer, Counters, LogWriter, Producer, log_words, ring_words};
use railhead_shm::{Mapping, Words};

const BATCH: u64 = 64;
const ENTRIES: usize = 256;
const REGION_BYTES: u64 = 64 << 20;
const POOL: PoolShape = PoolShape {
    large_bytes: 256 << 10,
    small_bytes: 16 << 10,
    large_send: 16,
    large_receive: 16,
    small_send: 64,
    small_receive: 64,
};

fn main() {
    divan::main();
}

fn table<T: Clone>(entry: T, count: usize) -> &'static mut [T] {
    vec![entry; count].leak()
}

fn empty<T>(count: usize) -> &'static mut [Option<T>] {
    (0..count).map(|_| None).collect::<Vec<_>>().leak()
}

fn words(count: usize) -> Words {
    Mapping::anonymous(8 * count).expect("memory").words(0, count).expect("aligned")
}

fn storage(bounds: &Bounds) -> Storage<'static, Words> {
    Storage {
        transfers: table(Transfer::FREE, bounds.transfers),
        transfer_links: table(Link::UNLINKED, bounds.transfers),
        chunks: table(ChunkEntry::default(), bounds.chunks),
        chunk_links: table(Link::UNLINKED, bounds.chunks),
        connections: table(Connection::FREE, bounds.connections),
        slots: table(0, bounds.inbound()),
        inbound: table(Inbound::IDLE, bounds.inbound()),
        demand_links: table(Link::UNLINKED, bounds.inbound()),
        answer_links: table(Link::UNLINKED, bounds.inbound()),
        pool_links: table(Link::UNLINKED, bounds.pool.blocks()),
        blocks: table(BlockEntry::default(), bounds.pool.blocks()),
        block_links: table(Link::UNLINKED, bounds.pool.blocks()),
        regions: table(Region::default(), bounds.regions),
        remotes: table(Remote::default(), bounds.remotes),
        sessions: empty(bounds.sessions),
        session_queues: table(SessionQueue::EMPTY, bounds.sessions),
        session_links: [table(Link::UNLINKED, bounds.sessions), table(Link::UNLINKED, bounds.sessions)],
        ports: empty(bounds.ports),
        notices: empty(bounds.notices()),
    }
}

/// The local fabric with its connections open, and the copy engine, both with the arena and one region.
fn devices() -> (LocalFabric, HostCopier) {
    let local = LocalConfig {
        connections: 4,
        regions: 8,
        posts_max: 512,
        records_max: 512,
        write_bytes_max: 1 << 30,
        slice_bytes: 128 << 10,
    };
    let mut fabric = LocalFabric::new(local);
    let mut copier = HostCopier::new(CopierConfig { regions: 8, copies: 256, slice_bytes: 128 << 10 });
    let arena = Mapping::anonymous(usize::try_from(POOL.bytes()).expect("small")).expect("memory");
    let memory = Mapping::anonymous(usize::try_from(2 * REGION_BYTES).expect("small")).expect("memory");
    for (index, epoch, mapping) in [(0, 1, &arena), (1, 7, &memory)] {
        fabric.install(RegionIndex(index), epoch, mapping.span(), 3);
        copier.install(RegionIndex(index), mapping.span());
    }
    for connection in 0..4 {
        fabric.open(ConnectionIndex(connection));
    }
    (fabric, copier)
}

/// Connections, the region, and the remote handle that names it.
fn install(engine: &mut Engine<'static, LocalFabric, HostCopier, Words>, settings: &Settings) {
    for connection in 0..4u16 {
        let info = ConnectionInfo {
            role: if connection % 2 == 0 { Role::Initiator } else { Role::Target },
            peer: 0,
            class: u8::try_from(connection / 2).expect("small"),
            serves: false,
            slots: SLOTS_MAX,
            small_bytes: POOL.small_bytes,
            large_bytes: POOL.large_bytes,
            pool_epoch: 1,
        };
        assert!(engine.connection_up(ConnectionIndex(connection), info, 0));
    }
    let plan = Plan::of(settings, 1, true);
    let region = RegionInfo {
        generation: 7,
        bytes: 2 * REGION_BYTES,
        access: 3,
        session: 0,
        flush: false,
        direct_possible: true,
        peers: 1,
        readers: 1,
    };
    assert!(engine.install_region(RegionIndex(1), region));
    let remote = RemoteInfo {
        generation: 3,
        session: 0,
        peer: 0,
        access: 3,
        connections: [ConnectionIndex(0), ConnectionIndex(2)],
        readers: [ConnectionIndex(0), ConnectionIndex(2)],
        one_sided: true,
        key: Key { index: 1, epoch: 7 },
        bytes: 2 * REGION_BYTES,
        plan,
        read_plan: plan,
    };
    assert!(engine.install_remote(2, remote));
}

/// One lane with one client, and the client's ends.
struct Bench {
    engine: Engine<'static, LocalFabric, HostCopier, Words>,
    submissions: Producer<Words, { Submission::WORDS }>,
    completions: Consumer<Words, { Completion::WORDS }>,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        let bounds = Bounds {
            transfers: 256,
            chunks: 512,
            connections: 4,
            regions: 8,
            remotes: 8,
            sessions: 4,
            ports: 4,
            pool: POOL,
        };
        let (fabric, copier) = devices();
        let observe = Observe {
            counters: Counters::new(words(COUNTER_WORDS)),
            flight: LogWriter::new(words(log_words(1024, Flight::WORDS)), 1024).expect("fits"),
            events: LogWriter::new(words(log_words(256, EventEntry::WORDS)), 256).expect("fits"),
        };
        let settings = Settings::default();
        let config =
            EngineConfig { lane: 0, unix_offset_ns: 0, pool: POOL, pool_epoch: 1, settings, generation: 1 };
        let mut engine = Engine::new(config, storage(&bounds), observe, fabric, copier);
        install(&mut engine, &settings);
        let (submission_ring, completion_ring, bell) = (
            words(ring_words(ENTRIES, Submission::WORDS)),
            words(ring_words(ENTRIES, Completion::WORDS)),
            words(1),
        );
        let parts = PortParts {
            submissions: Consumer::new(submission_ring.clone(), ENTRIES).expect("fits"),
            completions: Producer::new(completion_ring.clone(), ENTRIES).expect("fits"),
            bell: Bell::new(bell.clone()).expect("fits"),
        };
        let session = SessionParts {
            signals: words(64),
            events: Producer::new(words(ring_words(64, SessionEvent::WORDS)), 64).expect("fits"),
            bell: Bell::new(bell).expect("fits"),
            name: [0; 4],
        };
        engine.attach_session(0, session).expect("free");
        engine.attach_port(0, parts).expect("free");
        Self {
            engine,
            submissions: Producer::new(submission_ring, ENTRIES).expect("fits"),
            completions: Consumer::new(completion_ring, ENTRIES).expect("fits"),
            now: 1,
        }
    }

    /// A batch of writes from the first half of the memory to the second; turns until all are complete.
    fn batch(&mut self, bytes: u64, send_leg: u8, receive_leg: u8) {
        for at in 0..BATCH {
            let offset = at * bytes % (REGION_BYTES - bytes + 1);
            let submission = Submission {
                operation: OPERATION_WRITE,
                class: 1,
                send_leg,
                receive_leg,
                cookie: at,
                local_index: 1,
                local_generation: 7,
                local_offset: offset,
                remote_index: 2,
                remote_generation: 3,
                remote_offset: REGION_BYTES + offset,
                bytes,
                ..Submission::default()
            };
            self.submissions.push(&submission.encode()).expect("the ring holds a batch");
        }
        self.submissions.publish();
        let mut open = BATCH;
        let mut turns = 0;
        while open > 0 {
            self.now += 100;
            self.engine.turn(self.now);
            turns += 1;
            assert!(turns < 1_000_000, "the batch does not end");
            while let Some(words) = self.completions.pop().expect("our own ring") {
                let completion = Completion::decode(&words);
                assert_eq!(completion.status, 0, "{completion:?}");
                open -= 1;
            }
            self.completions.release();
        }
    }
}

#[divan::bench(args = [0, 64, 4096, 65536, 1 << 20], min_time = 0.3)]
fn direct_direct(bencher: divan::Bencher<'_, '_>, bytes: u64) {
    run(bencher, bytes, LEG_DIRECT, LEG_DIRECT);
}

#[divan::bench(args = [64, 4096, 65536, 1 << 20], min_time = 0.3)]
fn staged_staged(bencher: divan::Bencher<'_, '_>, bytes: u64) {
    run(bencher, bytes, LEG_STAGED, LEG_STAGED);
}

fn run(bencher: divan::Bencher<'_, '_>, bytes: u64, send_leg: u8, receive_leg: u8) {
    let mut bench = Bench::new();
    bencher
        .counter(ItemsCount::new(BATCH))
        .counter(BytesCount::new(BATCH * bytes))
        .bench_local(|| bench.batch(bytes, send_leg, receive_leg));
}
