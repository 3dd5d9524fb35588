//! The fabric: its connections and what the lane asks of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use railhead_core::port::{ConnectionIndex, FabricEvent, Nanos, RegionIndex};
use rdma_core_sys::ibv_wc;

use crate::bits::Bits;
use crate::closer::Caller;
use crate::connection::{Connection, State};
use crate::counters::RailCounters;
use crate::fault::Fault;
use crate::flush::{FlushTarget, Flusher, Flushes};
use crate::post::Chain;
use crate::rail::{ConnectionFacts, ConnectionSizes, Rail, Ready};
use crate::tables::{RAILS_MAX, RegionEntry, Regions, RemoteMemory, Remotes};

/// Completions taken from a queue at a time.
const BATCH: usize = 32;
/// Batches of one poll and rail.
const BATCHES: usize = 4;
/// Completions kept for connections that are not attached yet.
const EARLY: usize = 1024;

/// Sizes of a [`VerbsFabric`], fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The first connection that is this fabric's, see [`railhead_core::port::Both`].
    pub first: ConnectionIndex,
    /// Connections from `first` on.
    pub connections: u16,
    /// Slots of the table of local memories; slot 0 is the lane's staging arena.
    pub regions: u32,
    /// Peers.
    pub peers: u8,
    /// Slots of each peer's table of memories.
    pub regions_of_peer: u32,
    /// Most bytes of one write or read; a device may allow less.
    pub write_bytes_max: u32,
    /// What came in is visible only after a flush, see [`Flusher`].
    pub flush_needed: bool,
    /// How long a farewell may take before the connection is ended without.
    pub leave_ns: Nanos,
    /// How long a device may take to give back what was posted on a connection that ends; then its queue pair is destroyed.
    pub give_back_ns: Nanos,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            first: ConnectionIndex(0),
            connections: 64,
            regions: 1024,
            peers: 64,
            regions_of_peer: 1024,
            write_bytes_max: 64 << 20,
            flush_needed: false,
            leave_ns: 100_000_000,
            give_back_ns: 1_000_000_000,
        }
    }
}

/// What a connection is attached with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachInfo {
    /// The peer at the other end.
    pub peer: u8,
    /// Which of the fabric's rails the connection was prepared on.
    pub rail: u8,
    /// The staging arena of the peer's lane, key index 0.
    pub arena: RemoteMemory,
}

/// A connection that was not attached, given back.
#[derive(Debug, thiserror::Error)]
#[error("connection cannot be attached: {reason}")]
pub struct AttachError {
    /// The connection.
    pub ready: Ready,
    /// Why.
    pub reason: &'static str,
}

/// Events being handed out by one poll.
pub(crate) struct Events<'a> {
    pub(crate) slice: &'a mut [FabricEvent],
    pub(crate) count: usize,
}

impl Events<'_> {
    pub(crate) const fn is_full(&self) -> bool {
        self.count == self.slice.len()
    }

    pub(crate) fn push(&mut self, event: FabricEvent) {
        self.slice[self.count] = event;
        self.count += 1;
    }
}

/// A rail with what the lane keeps of it.
#[derive(Debug)]
pub(crate) struct LaneRail {
    pub(crate) rail: Arc<Rail>,
    pub(crate) counters: RailCounters,
    pub(crate) flushes: Flushes,
}

/// A completion that came before its connection was attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) at: usize,
    pub(crate) stamp: u16,
    pub(crate) completion: ibv_wc,
}

/// Reliable connections over RDMA. One lane's; made anywhere, then moved to its thread. After construction it allocates
/// nothing, takes no lock of its own, and makes no system call but the wake of the [`crate::Closer`] when a connection ends.
#[derive(Debug)]
pub struct VerbsFabric {
    pub(crate) config: VerbsConfig,
    pub(crate) sizes: ConnectionSizes,
    pub(crate) connections: Box<[Connection]>,
    pub(crate) regions: Regions,
    pub(crate) remotes: Remotes,
    pub(crate) rails: Box<[LaneRail]>,
    pub(crate) chain: Chain,
    pub(crate) caller: Caller,
    /// Connections with something to tell, or whose end is awaited.
    pub(crate) busy: Bits,
    /// Connections with something to post.
    pub(crate) queued: Bits,
    pub(crate) early: Vec<Early>,
    pub(crate) batch: Box<[ibv_wc]>,
    pub(crate) now: Nanos,
    /// Connection that the next poll begins with.
    pub(crate) turn: usize,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<VerbsFabric>();
};

impl VerbsFabric {
    /// A fabric without connections and memory over 1 to [`RAILS_MAX`] rails of equal connection sizes.
    ///
    /// # Panics
    /// If there are no rails or too many, or their sizes differ.
    #[must_use]
    pub fn new(config: VerbsConfig, rails: &[Arc<Rail>]) -> Self {
        assert!((1..=RAILS_MAX).contains(&rails.len()), "a lane has 1 to {RAILS_MAX} rails");
        let sizes = rails[0].sizes();
        assert!(
            rails.iter().all(|rail| rail.sizes() == sizes),
            "rails of a lane have one size of connections"
        );
        let connections = usize::from(config.connections);
        let lane_rail = |rail: &Arc<Rail>| LaneRail {
            rail: Arc::clone(rail),
            counters: RailCounters::default(),
            flushes: Flushes::new(),
        };
        Self {
            sizes,
            connections: (0..connections).map(|_| Connection::new()).collect(),
            regions: Regions::new(config.regions),
            remotes: Remotes::new(config.peers, config.regions_of_peer),
            caller: rails[0].closer().caller(),
            rails: rails.iter().map(lane_rail).collect(),
            chain: Chain::new(),
            busy: Bits::new(connections),
            queued: Bits::new(connections),
            early: Vec::with_capacity(EARLY),
            batch: vec![ibv_wc::default(); BATCH].into(),
            now: 0,
            turn: 0,
            config,
        }
    }

    /// Puts local memory into a slot and gives back what stood there.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(&mut self, region: RegionIndex, entry: RegionEntry) -> Option<RegionEntry> {
        // What waits for a kick may name the old memory by address.
        self.post_queued();
        self.regions.install(region, entry)
    }

    /// Takes local memory out of a slot. Posts that name it and are with the NIC go on: the registration may be given up
    /// when they have ended, which is when the engine says so; given up before, their connections fail.
    pub fn remove(&mut self, region: RegionIndex) -> Option<RegionEntry> {
        self.post_queued();
        self.regions.remove(region)
    }

    /// Makes a peer's memory known under its key index. False if peer or index are outside the tables.
    pub fn install_remote(&mut self, peer: u8, index: u32, memory: RemoteMemory) -> bool {
        self.remotes.install(peer, index, memory)
    }

    /// Forgets a peer's memory: posts that name it are refused from now on, here. Those with the NIC go on. False if the
    /// key names nothing.
    pub fn remove_remote(&mut self, peer: u8, index: u32, epoch: u32) -> bool {
        self.remotes.remove(peer, index, epoch)
    }

    /// Forgets all memory of a peer, as when it was restarted.
    pub fn forget_peer(&mut self, peer: u8) {
        self.remotes.clear(peer);
    }

    /// Gives a connection its queue pair. Returns what is left of the connection before it, to be dropped elsewhere.
    ///
    /// # Errors
    /// [`AttachError`]: the index is not this fabric's or has not said `Down`, or the rail is unknown.
    #[expect(clippy::result_large_err, reason = "a lane has no heap to put it on")]
    pub fn attach(&mut self, ready: Ready, info: AttachInfo) -> Result<Option<Ready>, AttachError> {
        let refuse = |ready, reason| Err(AttachError { ready, reason });
        let Some(at) = self.index(ready.connection) else {
            return refuse(ready, "not a connection of this fabric");
        };
        if self.connections[at].state != State::Free {
            return refuse(ready, "the connection before it has not ended");
        }
        if usize::from(info.rail) >= self.rails.len() {
            return refuse(ready, "no such rail");
        }
        if self.early.len() == self.early.capacity() {
            // Something of this connection may have been lost among them.
            self.early.clear();
            return refuse(ready, "too much came before it");
        }
        let stamp = ready.stamp;
        let retired = self.connections[at].retired.take();
        self.connections[at].start(ready, info.rail, info.peer, info.arena);
        self.busy.set(at, true);
        self.take_early(at, stamp);
        Ok(retired)
    }

    /// What is left of a connection after its `Down`, to be dropped on a registrar thread: dropping it is slow.
    pub fn take_retired(&mut self, connection: ConnectionIndex) -> Option<Ready> {
        let at = self.index(connection)?;
        self.connections[at].retired.take()
    }

    /// What was agreed on for a connection that is up.
    #[must_use]
    pub fn facts(&self, connection: ConnectionIndex) -> Option<ConnectionFacts> {
        Some(self.connections[self.index(connection)?].ready.as_ref()?.facts)
    }

    /// What its NIC said first when a connection failed, until its index is used anew. `None` where it ended otherwise.
    #[must_use]
    pub fn fault(&self, connection: ConnectionIndex) -> Option<Fault> {
        self.connections[self.index(connection)?].first_fault
    }

    /// Work requests of a connection that the NIC has: 0 means that it touches no memory for them.
    #[must_use]
    pub fn outstanding(&self, connection: ConnectionIndex) -> u32 {
        self.index(connection).map_or(0, |at| self.connections[at].outstanding())
    }

    /// Connections of a rail that are up.
    #[must_use]
    pub fn connections(&self, rail: usize) -> usize {
        let is_up = |connection: &&Connection| {
            usize::from(connection.rail) == rail && connection.state == State::Open
        };
        self.connections.iter().filter(is_up).count()
    }

    /// What a rail has done.
    ///
    /// # Panics
    /// If there is no such rail.
    #[must_use]
    pub const fn counters(&self, rail: usize) -> RailCounters {
        self.rails[rail].counters
    }

    /// Sets what flushes of a rail go through, and the memories that each flush reads one byte of. Returns what was there.
    ///
    /// # Panics
    /// If there is no such rail, or there are more than [`crate::FLUSH_TARGETS_MAX`] targets.
    pub fn set_flusher(&mut self, rail: usize, flusher: Flusher, targets: &[FlushTarget]) -> Option<Flusher> {
        self.rails[rail].flushes.set(flusher, targets)
    }

    /// Prepares to sleep: after true, one of [`Self::descriptors`] becomes readable when anything happens. After false
    /// there is something to do.
    pub fn prepare_sleep(&mut self) -> bool {
        for rail in &self.rails {
            rail.rail.completions().clear_events();
            if !rail.rail.completions().arm() {
                return false;
            }
        }
        // What came before arming says nothing any more.
        self.take_completions();
        self.may_sleep()
    }

    /// Whether nothing is to be told or posted, and no connection ends.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.busy.is_empty() && self.queued.is_empty() && self.rails.iter().all(|rail| rail.flushes.is_idle())
    }

    /// Rails of the lane.
    #[must_use]
    pub const fn rails(&self) -> usize {
        self.rails.len()
    }

    /// The descriptors to wait on, one per rail.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rails.iter().map(|rail| rail.rail.completions().as_fd())
    }

    pub(crate) fn index(&self, connection: ConnectionIndex) -> Option<usize> {
        let at = usize::from(connection.0.checked_sub(self.config.first.0)?);
        (at < self.connections.len()).then_some(at)
    }

    pub(crate) fn name(&self, at: usize) -> ConnectionIndex {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most u16::MAX connections")]
        ConnectionIndex(self.config.first.0 + at as u16)
    }

    /// Takes completions off all rails, a bounded number.
    pub(crate) fn take_completions(&mut self) {
        for rail in 0..self.rails.len() {
            for _ in 0..BATCHES {
                let mut batch = core::mem::take(&mut self.batch);
                let count = self.rails[rail].rail.completions().poll(&mut batch);
                self.rails[rail].counters.completions += count as u64;
                for completion in &batch[..count] {
                    self.take_completion(rail, completion);
                }
                let is_more = count == batch.len();
                self.batch = batch;
                if !is_more {
                    break;
                }
            }
        }
    }
}
