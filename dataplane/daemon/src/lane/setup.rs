//! Everything of a lane that is made before its seal: arena, tables, adapters, engine.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_abi::observe::{EventEntry, Flight};
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::segment::{
    FLIGHT_ENTRIES, LANE_EVENT_ENTRIES, LaneStatus, PORTS_PER_LANE_MAX, SESSIONS_MAX,
};
use railhead_abi::settings::{Setting, Settings};
use railhead_abi::submission::{CLASS_BULK, CLASS_LATENCY};
use railhead_core::list::Link;
use railhead_core::notice::Notice;
use railhead_core::pool::{PoolShape, Quota};
use railhead_core::port::{Both, ConnectionIndex, Nanos, RegionIndex};
use railhead_core::storage::{Bounds, Observe, Storage};
use railhead_core::tables::{
    BlockEntry, ChunkEntry, Connection, ConnectionInfo, Inbound, Port, Region, Remote, Role, SessionParts,
    SessionQueue, Transfer,
};
use railhead_core::{Engine, EngineConfig};
use railhead_host::{CopierConfig, Helper, HostCopier, LocalConfig, LocalFabric};
use railhead_memory::{Arena, ArenaConfig, Extent, StepDown};
use railhead_ring::{Bell, CellReader, Counters, LogWriter, Word};
use railhead_shm::{OwnedSpan, Words};
use railhead_tcp::{RegionEntry, TcpConfig, TcpFabric};
use railhead_verbs::{VerbsError, VerbsFabric};
use rustix::event::epoll;

use super::connections::{self, Map};
use super::handle::{LaneMail, Lanes, TOKEN_FABRIC};
use super::mail::{Parcel, SPARES};
use super::{Lane, LaneEngine, fabric_descriptor};
use crate::clock;
use crate::copies::{Copies, RunningCopies};
use crate::error::StartError;
use crate::machine::{self, ThreadUsage};
use crate::places::{LanePlaces, node_word};
use crate::rdma::Rdma;
use crate::segment::{LaneWords, word_of};
use crate::tables::{REGIONS, REMOTES, SELF};

/// Transfers in flight on a lane.
const TRANSFERS: usize = 4096;
/// Chunks on their way on a lane.
const CHUNKS: usize = 2048;
/// Posts that one connection takes.
const POSTS: u16 = 256;
/// Records that one connection takes.
const RECORDS: u16 = 512;
/// Copies that the copy engine takes.
const COPIES: u16 = 1024;

/// What a lane is made from.
#[derive(Debug)]
pub(crate) struct LaneSetup {
    /// Its number.
    pub(crate) index: usize,
    /// Blocks of its pool.
    pub(crate) pool: PoolShape,
    /// Where the blocks shall lie.
    pub(crate) arena: ArenaConfig,
    /// Epoch of the pool: random, so that a block granted before a restart is not one of today's.
    pub(crate) pool_epoch: u32,
    /// Which connection is which.
    pub(crate) map: Map,
    /// The NICs, where they are used.
    pub(crate) rdma: Option<Arc<Rdma>>,
    /// Without a rail on every NIC the node shall not start.
    pub(crate) is_rdma_required: bool,
    /// The settings to start with.
    pub(crate) settings: Settings,
    /// Their generation.
    pub(crate) generation: u64,
    /// What it writes in the control segment.
    pub(crate) words: LaneWords,
    /// Its word of the lanes' page.
    pub(crate) bell: Words,
    /// Where prepared snapshots come from.
    pub(crate) prepared: CellReader<Words>,
    /// Commands and returns.
    pub(crate) mail: LaneMail,
    /// All lanes, for its epoll set.
    pub(crate) lanes: Arc<Lanes>,
    /// Rung when a parcel goes home.
    pub(crate) notices_doorbell: Arc<OwnedFd>,
    /// Whether it has a copy thread.
    pub(crate) copies: Copies,
}

/// What a lane reports once it is ready.
#[derive(Debug)]
pub(crate) struct LaneReady {
    /// Its number.
    pub(crate) index: usize,
    /// Bytes of its arena.
    pub(crate) pool_bytes: u64,
    /// Bytes of the arena's pages.
    pub(crate) page_bytes: u64,
    /// What was not to be had.
    pub(crate) steps: Vec<StepDown>,
    /// Why it goes without RDMA, if it shall have it.
    pub(crate) rdma_refused: Option<VerbsError>,
    /// Where its memory lies.
    pub(crate) places: LanePlaces,
}

/// Says how the set-up of a lane went.
pub(crate) type Ready = flume::Sender<Result<LaneReady, StartError>>;

impl LaneSetup {
    /// The thread of a lane: sets up, reports, turns until it is stopped.
    pub(crate) fn run(self, ready: &Ready) {
        let arena = match Arena::reserve(self.arena) {
            Ok(arena) => arena,
            Err(error) => {
                let what = format!("pool of lane {}", self.index);
                // Main waits for each lane's report.
                let _ = ready.send(Err(StartError::new(Code::MemoryShort, what, error)));
                return;
            }
        };
        let mut tables = TableMemory::new(self.bounds());
        let (verbs, rdma_refused) = match self.verbs(&arena.span()) {
            Ok(verbs) => (verbs, None),
            Err(error) if self.is_rdma_required => {
                let what = format!("rdma of lane {}", self.index);
                let _ = ready.send(Err(StartError::new(Code::RdmaAbsent, what, error)));
                return;
            }
            Err(error) => (None, Some(error)),
        };
        let report = LaneReady {
            rdma_refused,
            index: self.index,
            pool_bytes: arena.len() as u64,
            page_bytes: arena.page_bytes() as u64,
            steps: arena.steps().to_vec(),
            places: LanePlaces { pool: arena.extent(), tables: tables.extents() },
        };
        self.write_facts(&arena);
        let (copies, helper) = match self.start_copies() {
            Ok(started) => started.unzip(),
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let allocations = copies.as_ref().map(|copies| Arc::clone(&copies.allocations));
        match self.build(arena.span(), tables.storage(), verbs, helper, allocations) {
            Ok(mut lane) => {
                machine::populate_private();
                let _ = ready.send(Ok(report));
                lane.run();
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
        // The copier has gone with the lane, and that ends the thread.
        copies.into_iter().for_each(RunningCopies::join);
    }

    /// Starts the copy thread, if the lane shall have one.
    fn start_copies(&self) -> Result<Option<(RunningCopies, Helper)>, StartError> {
        let set = |word: usize, value: u64| self.words.status[word].store_release(value);
        set(word_of::<LaneStatus>("copy_thread"), self.copies.word());
        if self.copies != Copies::Threads {
            return Ok(None);
        }
        let (running, helper) = RunningCopies::start(self.index)?;
        set(word_of::<LaneStatus>("copy_tid"), running.tid);
        Ok(Some((running, helper)))
    }

    /// The lane's RDMA fabric, if the node has NICs.
    fn verbs(&self, arena: &OwnedSpan) -> Result<Option<VerbsFabric>, VerbsError> {
        let Some(rdma) = &self.rdma else { return Ok(None) };
        rdma.lane(self.index, arena, self.pool_epoch, self.map).map(Some)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            transfers: TRANSFERS,
            chunks: CHUNKS,
            connections: self.map.count(),
            regions: REGIONS,
            remotes: REMOTES,
            sessions: SESSIONS_MAX,
            ports: PORTS_PER_LANE_MAX,
            pool: self.pool,
        }
    }

    /// What never changes of a lane's status.
    fn write_facts(&self, arena: &Arena) {
        let set = |word: usize, value: u64| self.words.status[word].store_release(value);
        set(word_of::<LaneStatus>("tid"), machine::thread_id());
        set(word_of::<LaneStatus>("small_send"), u64::from(self.pool.small_send));
        set(word_of::<LaneStatus>("small_receive"), u64::from(self.pool.small_receive));
        set(word_of::<LaneStatus>("large_send"), u64::from(self.pool.large_send));
        set(word_of::<LaneStatus>("large_receive"), u64::from(self.pool.large_receive));
        set(word_of::<LaneStatus>("page_bytes"), arena.page_bytes() as u64);
        set(word_of::<LaneStatus>("numa_node"), node_word(arena.verify().ok().as_ref()));
    }

    fn build<'s>(
        self,
        arena: OwnedSpan,
        storage: Storage<'s, Words>,
        verbs: Option<VerbsFabric>,
        helper: Option<Helper>,
        copy_allocations: Option<Arc<Word>>,
    ) -> Result<Lane<'s>, StartError> {
        let failed = |what: &str, error: &dyn core::fmt::Display| {
            StartError::new(Code::DeviceError, format!("lane {}: {what}", self.index), error)
        };
        let tcp = TcpFabric::new(self.tcp()).map_err(|error| failed("tcp fabric", &error))?;
        let rdma_first = ConnectionIndex(u16::try_from(self.map.rdma_first()).unwrap_or(u16::MAX));
        let remote = Both::new(tcp, verbs, rdma_first);
        let mut fabric =
            Both::new(LocalFabric::new(self.local()), remote, ConnectionIndex(connections::LOCAL));
        let mut copier = self.copier(helper);
        let peers = u64::MAX;
        let entry = RegionEntry { span: arena.clone(), epoch: self.pool_epoch, access: ACCESS_WRITE, peers };
        fabric.first.install(RegionIndex::ARENA, self.pool_epoch, arena.clone(), ACCESS_WRITE);
        fabric.second.first.install(RegionIndex::ARENA, entry);
        copier.install(RegionIndex::ARENA, arena);
        let observe = self.observe().map_err(|error| failed("logs", &error))?;
        let engine = Engine::new(self.engine(), storage, observe, fabric, copier);
        let token = epoll::EventData::new_u64(TOKEN_FABRIC);
        let verbs = engine.fabric().second.second.iter().flat_map(VerbsFabric::descriptors);
        for descriptor in core::iter::once(fabric_descriptor(&engine)).chain(verbs) {
            epoll::add(self.lanes.get(self.index).epoll(), descriptor, token, epoll::EventFlags::IN)
                .map_err(|error| failed("epoll", &error))?;
        }
        let bell =
            Bell::new(self.bell).map_err(|error| StartError::new(Code::DeviceError, "lanes' page", error))?;
        // One more than ever come back at once, so that pushing one never grows the vector.
        let mut spares = Vec::with_capacity(SPARES + 1);
        spares.extend((0..SPARES).map(|_| Parcel::empty()));
        let now = clock::monotonic_ns();
        let mut lane = Lane {
            index: self.index,
            engine,
            mail: self.mail,
            lanes: self.lanes,
            bell,
            notices_doorbell: self.notices_doorbell,
            spares,
            prepared: self.prepared,
            status: self.words.status,
            rails: self.words.rails,
            settings: self.settings,
            applied: 0,
            idle_policy: self.settings.idle_policy(),
            spin: 0,
            idle_since: now,
            status_at: 0,
            usage_at: 0,
            usage_at_seal: ThreadUsage::default(),
            local_down: [false; connections::LOCAL as usize],
            pool_epoch: self.pool_epoch,
            copy_allocations,
            is_stopping: false,
        };
        local_up(&mut lane.engine, self.pool_epoch, 0, now);
        local_up(&mut lane.engine, self.pool_epoch, 2, now);
        lane.apply(self.generation);
        Ok(lane)
    }

    fn tcp(&self) -> TcpConfig {
        TcpConfig {
            first: ConnectionIndex(connections::LOCAL),
            connections: u16::try_from(self.map.rdma_first()).unwrap_or(u16::MAX) - connections::LOCAL,
            regions: REGIONS as u32,
            posts_max: POSTS,
            records_max: RECORDS,
            slice_bytes: self.bytes(Setting::SliceBytes),
            coalesce_bytes: self.bytes(Setting::CoalesceBytes),
            ..TcpConfig::default()
        }
    }

    fn local(&self) -> LocalConfig {
        LocalConfig {
            connections: connections::LOCAL,
            regions: REGIONS as u32,
            posts_max: POSTS,
            records_max: RECORDS,
            write_bytes_max: TcpConfig::default().write_bytes_max,
            slice_bytes: self.bytes(Setting::SliceBytes),
        }
    }

    fn copier(&self, helper: Option<Helper>) -> HostCopier {
        let slice_bytes = self.bytes(Setting::SliceBytes);
        let config = CopierConfig { regions: REGIONS as u32, copies: COPIES, slice_bytes };
        match helper {
            Some(helper) => HostCopier::with_helper(config, helper),
            None => HostCopier::new(config),
        }
    }

    fn engine(&self) -> EngineConfig {
        EngineConfig {
            lane: u16::try_from(self.index).unwrap_or(u16::MAX),
            unix_offset_ns: clock::unix_ns().wrapping_sub(clock::monotonic_ns()),
            pool: self.pool,
            pool_epoch: self.pool_epoch,
            settings: self.settings,
            generation: self.generation,
        }
    }

    fn observe(&self) -> Result<Observe<Words>, railhead_ring::LayoutError> {
        Ok(Observe {
            counters: Counters::new(self.words.counters.clone()),
            flight: LogWriter::<_, { Flight::WORDS }>::new(self.words.flight.clone(), FLIGHT_ENTRIES)?,
            events: LogWriter::<_, { EventEntry::WORDS }>::new(
                self.words.events.clone(),
                LANE_EVENT_ENTRIES,
            )?,
        })
    }

    /// A setting of bytes; the bounds of all of them fit.
    fn bytes(&self, setting: Setting) -> u32 {
        u32::try_from(self.settings.get(setting)).unwrap_or(u32::MAX)
    }
}

/// Tells the engine that a pair of the local fabric is open: `first` the initiator's end, the next the target's.
pub(super) fn local_up(engine: &mut LaneEngine<'_>, pool_epoch: u32, first: u16, now: Nanos) {
    let shape = *engine.pool().shape();
    for (connection, role) in [(first, Role::Initiator), (first + 1, Role::Target)] {
        let info = ConnectionInfo {
            role,
            peer: SELF,
            class: if first == 0 { CLASS_LATENCY } else { CLASS_BULK },
            serves: false,
            slots: SLOTS_MAX,
            small_bytes: shape.small_bytes,
            large_bytes: shape.large_bytes,
            pool_epoch,
        };
        let is_up = engine.connection_up(ConnectionIndex(connection), info, now);
        debug_assert!(is_up, "a local connection was up already");
    }
}

/// Writes how many blocks are free.
pub(super) fn write_free_blocks(status: &Words, engine: &LaneEngine<'_>) {
    let pool = engine.pool();
    let set = |word: usize, quota| status[word].store_relaxed(pool.free(quota) as u64);
    set(word_of::<LaneStatus>("small_send_free"), Quota::SmallSend);
    set(word_of::<LaneStatus>("small_receive_free"), Quota::SmallReceive);
    set(word_of::<LaneStatus>("large_send_free"), Quota::LargeSend);
    set(word_of::<LaneStatus>("large_receive_free"), Quota::LargeReceive);
}

/// The memory of an engine's tables.
#[derive(Debug)]
struct TableMemory {
    transfers: Vec<Transfer>,
    transfer_links: Vec<Link>,
    chunks: Vec<ChunkEntry>,
    chunk_links: Vec<Link>,
    connections: Vec<Connection>,
    slots: Vec<u32>,
    inbound: Vec<Inbound>,
    demand_links: Vec<Link>,
    answer_links: Vec<Link>,
    pool_links: Vec<Link>,
    blocks: Vec<BlockEntry>,
    block_links: Vec<Link>,
    regions: Vec<Region>,
    remotes: Vec<Remote>,
    sessions: Vec<Option<SessionParts<Words>>>,
    session_queues: Vec<SessionQueue>,
    session_links: [Vec<Link>; 2],
    ports: Vec<Option<Port<Words>>>,
    notices: Vec<Option<Notice<Words>>>,
}

impl TableMemory {
    fn new(bounds: Bounds) -> Self {
        let links = |count| vec![Link::UNLINKED; count];
        Self {
            transfers: vec![Transfer::FREE; bounds.transfers],
            transfer_links: links(bounds.transfers),
            chunks: vec![ChunkEntry::default(); bounds.chunks],
            chunk_links: links(bounds.chunks),
            connections: vec![Connection::FREE; bounds.connections],
            slots: vec![0; bounds.inbound()],
            inbound: vec![Inbound::IDLE; bounds.inbound()],
            demand_links: links(bounds.inbound()),
            answer_links: links(bounds.inbound()),
            pool_links: links(bounds.pool.blocks()),
            blocks: vec![BlockEntry::default(); bounds.pool.blocks()],
            block_links: links(bounds.pool.blocks()),
            regions: vec![Region::default(); bounds.regions],
            remotes: vec![Remote::default(); bounds.remotes],
            sessions: (0..bounds.sessions).map(|_| None).collect(),
            session_queues: vec![SessionQueue::EMPTY; bounds.sessions],
            session_links: [links(bounds.sessions), links(bounds.sessions)],
            ports: (0..bounds.ports).map(|_| None).collect(),
            notices: (0..bounds.notices()).map(|_| None).collect(),
        }
    }

    /// The larger tables, for moving them: small ones share their pages with others.
    fn extents(&self) -> Vec<Extent> {
        vec![
            Extent::of_slice(&self.transfers),
            Extent::of_slice(&self.chunks),
            Extent::of_slice(&self.connections),
            Extent::of_slice(&self.slots),
            Extent::of_slice(&self.inbound),
            Extent::of_slice(&self.demand_links),
            Extent::of_slice(&self.answer_links),
            Extent::of_slice(&self.regions),
            Extent::of_slice(&self.remotes),
            Extent::of_slice(&self.sessions),
            Extent::of_slice(&self.notices),
        ]
    }

    fn storage(&mut self) -> Storage<'_, Words> {
        let [first, second] = &mut self.session_links;
        Storage {
            transfers: &mut self.transfers,
            transfer_links: &mut self.transfer_links,
            chunks: &mut self.chunks,
            chunk_links: &mut self.chunk_links,
            connections: &mut self.connections,
            slots: &mut self.slots,
            inbound: &mut self.inbound,
            demand_links: &mut self.demand_links,
            answer_links: &mut self.answer_links,
            pool_links: &mut self.pool_links,
            blocks: &mut self.blocks,
            block_links: &mut self.block_links,
            regions: &mut self.regions,
            remotes: &mut self.remotes,
            sessions: &mut self.sessions,
            session_queues: &mut self.session_queues,
            session_links: [first, second],
            ports: &mut self.ports,
            notices: &mut self.notices,
        }
    }
}
