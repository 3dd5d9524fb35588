//! The engine: tables, devices and the turn that drives them.
//!
//! One turn, in this order, each part with its own budget: device events (so that resources come back
//! before they are asked for), copies that ended, new submissions, chunks by fair share, blocks for
//! peers, answers to peers, timers. Nothing in a turn waits.

mod active;
mod connections;
mod course;
mod fetch;
mod finish;
mod grants;
mod inbound;
mod intake;
mod post;
mod read;
mod records;
mod regions;
mod route;
mod schedule;
mod seal;
mod send;
mod serve;

use self::active::Active;
use crate::list::{Link, List};
use crate::notice::{Notice, Notices};
use crate::pool::{Pool, PoolShape};
use crate::port::{ConnectionIndex, CopyDone, CopyEngine, Fabric, FabricEvent, Nanos, PostId};
use crate::storage::{Observe, Storage};
use crate::tables::{
    BlockEntry, BlockPhase, ChunkEntry, Connection, ConnectionPhase, Inbound, Phase, Port, PortIndex, Region,
    Remote, SessionParts, SessionQueue, Transfer,
};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::observe::{Counter, EventCode, EventEntry};
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::segment::{SESSIONS_MAX, SIGNALS};
use railhead_abi::settings::{Plan, Settings};
use railhead_abi::submission::CLASSES;
use railhead_ring::Word;

/// Slot of this node in the peer table.
pub const PEER_SELF: u32 = 0;

/// Most connections of a lane.
pub const CONNECTIONS_MAX: usize = 1024;

/// Device events taken in one turn.
const EVENTS_PER_TURN: usize = 64;
/// Fills the table of events until the first poll.
const NO_EVENT: FabricEvent =
    FabricEvent::Done { connection: ConnectionIndex(0), post: PostId(0), status: Code::Ok };
/// Submissions taken in one turn.
const INTAKE_PER_TURN: usize = 64;
/// Chunk attempts in one turn.
const VISITS_PER_TURN: usize = 64;
/// Bytes of chunks made in one turn.
const BYTES_PER_TURN: u64 = 4 << 20;
/// Transfers looked at for timers in one turn.
const TIMERS_PER_TURN: usize = 64;

/// Posts of the engine are told apart by their top bits; the rest is a table index.
const POST_CHUNK_WRITE: u32 = 0;
const POST_CHUNK_COPY: u32 = 1 << 30;
const POST_BLOCK_COPY: u32 = 2 << 30;
const POST_FLUSH: u32 = 3 << 30;
/// For fabrics, which are given no copies.
const POST_SEAL: u32 = 1 << 30;
const POST_INDEX: u32 = (1 << 30) - 1;

/// Facts of a lane that never change.
#[derive(Debug, Clone, Copy)]
pub struct EngineConfig {
    /// The lane's number.
    pub lane: u16,
    /// What to add to `now` to get nanoseconds since 1970.
    pub unix_offset_ns: u64,
    /// The pool.
    pub pool: PoolShape,
    /// Epoch of the pool.
    pub pool_epoch: u32,
    /// Settings at the start.
    pub settings: Settings,
    /// Their generation.
    pub generation: u64,
}

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Something happened, or something waits that only another turn can find: do not sleep.
    pub is_busy: bool,
    /// The next deadline.
    pub wake_at: Option<Nanos>,
}

/// A lane's engine over fabric `F`, copy engine `C` and memory of rings `M`.
#[derive(Debug)]
pub struct Engine<'s, F, C, M> {
    fabric: F,
    copier: C,
    /// What the devices said last: kept, so that a turn need not clear it.
    events: [FabricEvent; EVENTS_PER_TURN],
    copies_done: [CopyDone; EVENTS_PER_TURN],
    config: EngineConfig,
    active: Active,
    observe: Observe<M>,
    pool: Pool<'s>,

    transfers: &'s mut [Transfer],
    transfer_links: &'s mut [Link],
    transfers_free: List,
    transfers_stopping: List,
    /// Transfers that serve reads of peers.
    serving: usize,
    chunks: &'s mut [ChunkEntry],
    chunk_links: &'s mut [Link],
    chunks_free: List,
    /// Chunks that were read into a block and wait for room in the copy engine.
    chunks_landed: List,
    connections: &'s mut [Connection],
    slots: &'s mut [u32],

    inbound: &'s mut [Inbound],
    demand_links: &'s mut [Link],
    demands: List,
    /// Reads that peers asked for and that wait for a transfer, by the links of demands: they are of other connections.
    requests: List,
    answer_links: &'s mut [Link],
    answers: List,
    blocks: &'s mut [BlockEntry],
    block_links: &'s mut [Link],
    copies_waiting: List,
    /// A delivery waits for room in an event ring.
    events_full: bool,

    regions: &'s mut [Region],
    remotes: &'s mut [Remote],
    sessions: &'s mut [Option<SessionParts<M>>],
    session_queues: &'s mut [SessionQueue],
    session_links: [&'s mut [Link]; CLASSES],
    sessions_active: [List; CLASSES],
    /// When a send block was last taken: small, large.
    block_given_at: [Nanos; 2],
    /// What the latency class has had above its share, in bytes times percent.
    latency_balance: i64,
    /// Visits by class since something last happened: when all were visited in vain, the lane may sleep.
    visits_in_vain: [usize; CLASSES],
    ports: &'s mut [Option<Port<M>>],
    /// Ports attached, one bit each.
    ports_used: u64,
    /// The bit of the port whose turn is next.
    intake_next: u32,
    ports_dirty: u64,
    ports_to_wake: u64,
    sessions_to_wake: [u64; SESSIONS_MAX / 64],
    notices: Notices<'s, M>,

    /// No timer is due before this.
    timer_next: Nanos,
    timer_scan: usize,
    timer_found: Nanos,
    /// Connections that are up, closing or draining, one bit each.
    connections_used: [u64; CONNECTIONS_MAX / 64],
    connections_up: u32,
    /// Of these, connections that peers write on.
    targets_up: u32,
    connections_unsettled: bool,
    progressed: bool,
}

impl<'s, F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'s, F, C, M> {
    /// Takes devices and memory.
    ///
    /// # Panics
    /// If the tables have not the lengths that belong together; this is before the seal.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        mut storage: Storage<'s, M>,
        observe: Observe<M>,
        fabric: F,
        copier: C,
    ) -> Self {
        prepare(&config, &mut storage);
        let (transfers_free, chunks_free) =
            (all_listed(storage.transfer_links), all_listed(storage.chunk_links));
        Self {
            active: Active::of(&config.settings, config.generation, &config.pool),
            pool: Pool::new(config.pool, storage.pool_links),
            fabric,
            copier,
            events: [NO_EVENT; EVENTS_PER_TURN],
            copies_done: [CopyDone { post: PostId(0), status: Code::Ok }; EVENTS_PER_TURN],
            config,
            observe,
            transfers: storage.transfers,
            transfer_links: storage.transfer_links,
            transfers_free,
            transfers_stopping: List::EMPTY,
            serving: 0,
            chunks: storage.chunks,
            chunk_links: storage.chunk_links,
            chunks_free,
            chunks_landed: List::EMPTY,
            connections: storage.connections,
            slots: storage.slots,
            inbound: storage.inbound,
            demand_links: storage.demand_links,
            demands: List::EMPTY,
            requests: List::EMPTY,
            answer_links: storage.answer_links,
            answers: List::EMPTY,
            blocks: storage.blocks,
            block_links: storage.block_links,
            copies_waiting: List::EMPTY,
            events_full: false,
            regions: storage.regions,
            remotes: storage.remotes,
            sessions: storage.sessions,
            session_queues: storage.session_queues,
            session_links: storage.session_links,
            sessions_active: [List::EMPTY; CLASSES],
            block_given_at: [0; 2],
            latency_balance: 0,
            visits_in_vain: [0; CLASSES],
            ports: storage.ports,
            ports_used: 0,
            intake_next: 0,
            ports_dirty: 0,
            ports_to_wake: 0,
            sessions_to_wake: [0; SESSIONS_MAX / 64],
            notices: Notices::new(storage.notices),
            timer_next: Nanos::MAX,
            timer_scan: 0,
            timer_found: Nanos::MAX,
            connections_used: [0; CONNECTIONS_MAX / 64],
            connections_up: 0,
            targets_up: 0,
            connections_unsettled: false,
            progressed: false,
        }
    }

    /// One turn. Bounded; call it again at once while it is busy.
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.progressed = false;
        self.poll_fabric(now);
        self.poll_copier(now);
        self.push_connections(now);
        self.push_requests(now);
        self.intake(now);
        self.schedule(now);
        self.post_homing(now);
        self.push_stopping(now);
        self.push_inbound(now);
        self.fabric.kick(now);
        self.copier.kick(now);
        self.publish_completions();
        self.run_timers(now);
        self.observe.add(Counter::Turns, 1);
        if self.progressed {
            self.observe.add(Counter::BusyTurns, 1);
        }
        let waits = self.sessions_active.iter().any(|list| !list.is_empty()) && !self.all_visited();
        let is_busy = self.progressed || waits || !self.notices.is_empty() || self.copier.is_busy();
        Turn { is_busy, wake_at: (self.timer_next != Nanos::MAX).then_some(self.timer_next) }
    }

    /// Whether no input waits: to be asked after the lane announced its sleep. Timers are in [`Turn::wake_at`].
    #[must_use]
    pub fn may_sleep(&mut self) -> bool {
        let mut used = if self.may_admit() { self.ports_used } else { 0 };
        while let Some(at) = take_bit(core::slice::from_mut(&mut used)) {
            let port = self.ports[at].as_ref().filter(|port| !port.is_closing);
            if port.is_some_and(|port| !port.parts.submissions.is_empty()) {
                return false;
            }
        }
        // Deliveries that wait for room in a client's event ring: it rings nobody when it makes some.
        let has_room = |session: &mut SessionParts<M>| session.events.free() > 0;
        let deliveries =
            !self.answers.is_empty() && self.events_full && self.sessions.iter_mut().flatten().any(has_room);
        !deliveries && self.notices.is_empty() && !self.copier.is_busy()
    }

    /// Uses a new snapshot for all transfers taken from now on, for the receive legs of this node itself, too.
    pub fn apply(&mut self, settings: &Settings, generation: u64) {
        self.active = Active::of(settings, generation, &self.config.pool);
        self.update_plan(PEER_SELF, &Plan::of(settings, generation, true));
        self.observe.add(Counter::SnapshotsApplied, 1);
        self.visits_in_vain = [0; CLASSES];
    }

    /// The next thing for the registrar.
    pub fn next_notice(&mut self) -> Option<Notice<M>> {
        self.notices.pop()
    }

    /// The bell word of the next client that sleeps and has to be woken (`FUTEX_WAKE` on its low half).
    pub fn next_wake(&mut self) -> Option<&M> {
        if let Some(port) = take_bit(core::slice::from_mut(&mut self.ports_to_wake)) {
            self.observe.add(Counter::Wakes, 1);
            return self.ports[port].as_ref().map(|port| port.parts.bell.memory());
        }
        let session = take_bit(&mut self.sessions_to_wake)?;
        self.observe.add(Counter::Wakes, 1);
        self.sessions[session].as_ref().map(|session| session.bell.memory())
    }

    /// The fabric, for attaching sockets and installing memory.
    pub const fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The fabric.
    pub const fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The copy engine, for installing memory.
    pub const fn copier_mut(&mut self) -> &mut C {
        &mut self.copier
    }

    /// The copy engine.
    pub const fn copier(&self) -> &C {
        &self.copier
    }

    /// Where the engine writes what others look at.
    pub const fn observe(&self) -> &Observe<M> {
        &self.observe
    }

    /// Free staging blocks.
    pub const fn pool(&self) -> &Pool<'s> {
        &self.pool
    }

    /// Transfers in flight that this lane initiated.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.transfers.len() - self.transfers_free.count()
    }

    /// Connections that are up.
    #[must_use]
    pub const fn connections_up(&self) -> u32 {
        self.connections_up
    }

    /// Inbound transfers that have not been answered.
    #[must_use]
    pub fn inbound_in_flight(&self) -> usize {
        self.connections.iter().map(|connection| usize::from(connection.inbound)).sum()
    }

    fn poll_fabric(&mut self, now: Nanos) {
        let count = self.fabric.poll(now, &mut self.events).min(EVENTS_PER_TURN);
        if count > 0 {
            self.progress();
        }
        for at in 0..count {
            match self.events[at] {
                FabricEvent::Done { connection, post, status } => match post.0 & !POST_INDEX {
                    POST_CHUNK_WRITE => self.chunk_written(post.0 & POST_INDEX, status, now),
                    POST_SEAL => self.sealed(post.0 & POST_INDEX, status, now),
                    POST_FLUSH => self.inbound_flushed(post.0 & POST_INDEX, status, now),
                    _ => debug_assert!(
                        false,
                        "a fabric gave back a post that it was not given: {connection:?}"
                    ),
                },
                FabricEvent::Record { connection, record } => self.record_arrived(connection, &record, now),
                FabricEvent::Refused { connection, slot, status } => {
                    self.inbound_refused(connection, slot, status, now);
                }
                FabricEvent::Down { connection, cause } => self.connection_down(connection, cause, now),
            }
        }
    }

    fn poll_copier(&mut self, now: Nanos) {
        let count = self.copier.poll(now, &mut self.copies_done).min(EVENTS_PER_TURN);
        if count > 0 {
            self.progress();
        }
        for at in 0..count {
            let copy = self.copies_done[at];
            let index = copy.post.0 & POST_INDEX;
            match copy.post.0 & !POST_INDEX {
                POST_CHUNK_COPY => self.chunk_copied(index, copy.status, now),
                POST_BLOCK_COPY => self.block_copied(index, copy.status, now),
                _ => debug_assert!(false, "a copy engine gave back a post that it was not given"),
            }
        }
    }

    fn progress(&mut self) {
        self.progressed = true;
        self.visits_in_vain = [0; CLASSES];
    }

    fn event(&mut self, code: EventCode, cause: Code, first: u64, second: u64, now: Nanos) {
        let entry = EventEntry {
            event: code as u16,
            severity: code.severity(),
            code: cause.number(),
            lane: self.config.lane + 1,
            unix_ns: now.wrapping_add(self.config.unix_offset_ns),
            first,
            second,
            text: [0; 16],
        };
        self.observe.events.append(&entry.encode());
    }

    /// The ticket of a transfer: lane, slot and generation.
    fn ticket(&self, index: u32) -> u64 {
        u64::from(self.config.lane) << 48
            | u64::from(index & 0xffff) << 32
            | u64::from(self.transfers[index as usize].generation)
    }
}

/// Checks that lengths of tables belong together; nothing is linked.
fn prepare<M>(config: &EngineConfig, storage: &mut Storage<'_, M>) {
    assert!(
        storage.ports.len() <= 64 && storage.sessions.len() <= SESSIONS_MAX,
        "too many ports or sessions"
    );
    assert!(
        storage.inbound.len() == storage.connections.len() * usize::from(SLOTS_MAX),
        "inbound table length"
    );
    assert!(storage.slots.len() == storage.inbound.len(), "slot table length");
    assert!(storage.connections.len() <= CONNECTIONS_MAX, "too many connections");
    assert!(storage.blocks.len() == config.pool.blocks(), "block table length");
    for links in [&mut *storage.demand_links, storage.answer_links, storage.block_links] {
        links.fill(Link::UNLINKED);
    }
    storage.session_links.iter_mut().for_each(|links| links.fill(Link::UNLINKED));
}

/// A list of all entries of a table.
fn all_listed(links: &mut [Link]) -> List {
    let mut list = List::EMPTY;
    links.fill(Link::UNLINKED);
    for index in 0..to_u32(links.len()) {
        list.push_back(links, index);
    }
    list
}

/// Tables are far smaller than 2^32.
#[expect(clippy::cast_possible_truncation, reason = "table lengths")]
const fn to_u32(index: usize) -> u32 {
    index as u32
}

/// Takes the lowest set bit.
fn take_bit(words: &mut [u64]) -> Option<usize> {
    let at = words.iter().position(|word| *word != 0)?;
    let bit = words[at].trailing_zeros() as usize;
    words[at] &= words[at] - 1;
    Some(64 * at + bit)
}

const _: () = assert!(SIGNALS > 0 && BlockPhase::Home as u8 == 0 && Phase::Free as u8 == 0);
const _: () = assert!(ConnectionPhase::Free as u8 == 0 && PortIndex(0).0 == 0);
