//! The fabric: its connections and what the lane asks of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Nanos, Place, PostError, PostId, Read, RegionIndex,
    RemotePlace, Write,
};
use rdma_core_sys::ibv_wc;

use crate::bits::Bits;
use crate::closer::Caller;
use crate::connection::{Connection, Posted, State, Work};
use crate::counters::RailCounters;
use crate::fault::Fault;
use crate::flush::{FlushTarget, Flusher, Flushes};
use crate::message::{self, MESSAGE_BYTES_MAX};
use crate::post::Chain;
use crate::rail::{ConnectionFacts, ConnectionSizes, Rail, Ready};
use crate::tables::{Address, RAILS_MAX, RegionEntry, Regions, RemoteMemory, Remotes, Want};

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
    turn: usize,
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
            connections: (0..connections).map(|_| Connection::new(sizes)).collect(),
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

    fn open(&self, connection: ConnectionIndex) -> Result<usize, PostError> {
        let at = self.index(connection).ok_or(PostError::Down)?;
        if self.connections[at].state == State::Open { Ok(at) } else { Err(PostError::Down) }
    }

    /// Queues a post whose addresses are known, or one that ends here. A write that does ends its connection as one that
    /// the peer's NIC refuses does: else records behind it would speak of what never arrived.
    fn queue_post(
        &mut self,
        at: usize,
        work: Work,
        post: PostId,
        bytes: u32,
        addresses: Result<(Address, Address, bool), Code>,
    ) {
        let is_write = work == Work::Write;
        let (work, (local, remote, is_inline)) = match addresses {
            Ok(addresses) => (work, addresses),
            Err(code) => {
                self.rails[usize::from(self.connections[at].rail)].counters.refused += 1;
                self.busy.set(at, true);
                (Work::Refused(code), (Address::default(), Address::default(), false))
            }
        };
        self.connections[at].queue(Posted { work, post, needs: 0, bytes, local, remote, is_inline });
        self.queued.set(at, true);
        if let Work::Refused(code) = work
            && is_write
        {
            self.leave(at, code);
        }
    }

    /// Sends a farewell behind what is queued, so that the other end ends too, and takes nothing more. When the farewell has
    /// arrived, or after `leave_ns`, the queue pair is made to fail.
    fn leave(&mut self, at: usize, cause: Code) {
        let until = self.now.saturating_add(self.config.leave_ns);
        let entry = &mut self.connections[at];
        let sends = entry.ready.as_ref().map(|ready| ready.mailbox.sends());
        let Some(sends) = sends.filter(|_| entry.credits > 0) else {
            self.fail(at, cause);
            return;
        };
        let slot = entry.take_slot(sends);
        entry.credits -= 1;
        entry.queue(Posted { work: Work::Bye { slot }, ..Posted::NOTHING });
        entry.cause = Some(cause);
        entry.state = State::Leaving { until };
        self.queued.set(at, true);
        self.busy.set(at, true);
    }

    /// Says what has happened, connection by connection in turn.
    fn tell(&mut self, events: &mut Events<'_>) {
        let mut from = self.turn;
        let mut wrapped = false;
        while !events.is_full() {
            let Some(at) = self.busy.next(from).filter(|at| !wrapped || *at < self.turn) else {
                if wrapped || self.turn == 0 {
                    break;
                }
                (wrapped, from) = (true, 0);
                continue;
            };
            self.tell_of(at, events);
            from = at + 1;
        }
        if !self.connections.is_empty() {
            self.turn = (self.turn + 1) % self.connections.len();
        }
    }

    fn tell_of(&mut self, at: usize, events: &mut Events<'_>) {
        let name = self.name(at);
        let connection = &mut self.connections[at];
        while !events.is_full() {
            let Some((ended, status)) = connection.next_ended() else { break };
            if ended.work.is_post() {
                events.push(FabricEvent::Done { connection: name, post: ended.post, status });
            }
            if matches!(ended.work, Work::Bye { .. }) {
                self.fail(at, Code::ConnectionReset);
                return;
            }
        }
        self.tell_arrived(at, events);
        self.settle(at, events);
    }

    fn tell_arrived(&mut self, at: usize, events: &mut Events<'_>) {
        let name = self.name(at);
        let connection = &mut self.connections[at];
        let Some(ready) = &connection.ready else { return };
        while !events.is_full() {
            let Some((slot, words)) = connection.arrived.pop() else { break };
            let mut message = [0; MESSAGE_BYTES_MAX];
            ready.mailbox.read(slot, &mut message[..8 + 8 * usize::from(words)]);
            connection.spare.push(slot);
            events.push(FabricEvent::Record {
                connection: name,
                record: message::decode_record(words, &message),
            });
        }
    }

    /// Goes on with a connection's end, and decides whether it is to be looked at again.
    fn settle(&mut self, at: usize, events: &mut Events<'_>) {
        let (name, now) = (self.name(at), self.now);
        let give_back_ns = self.config.give_back_ns;
        self.post_receives(at);
        let connection = &mut self.connections[at];
        match connection.state {
            State::Open => {
                let more = !connection.arrived.is_empty() || connection.has_ended();
                self.busy.set(at, more);
            }
            State::Leaving { until } if now >= until => self.fail(at, Code::ConnectionReset),
            State::Leaving { .. } | State::Free => {}
            State::Failing { until, is_destroying } => {
                let is_destroyed = connection.ready.as_ref().is_none_or(|ready| ready.pair.is_destroyed());
                if is_destroyed {
                    connection.give_up();
                } else if now >= until && !connection.is_quiet() && !is_destroying {
                    connection.destroy(now.saturating_add(give_back_ns));
                    self.caller.call();
                    return;
                }
                let all_told =
                    connection.queue.is_empty() && connection.arrived.is_empty() && connection.flushes == 0;
                if connection.is_quiet() && all_told && !events.is_full() {
                    let cause = connection.cause.unwrap_or(Code::ConnectionReset);
                    events.push(FabricEvent::Down { connection: name, cause });
                    connection.state = State::Free;
                    connection.retired = connection.ready.take();
                    let rail = usize::from(connection.rail);
                    self.rails[rail].counters.downs += 1;
                    self.busy.set(at, false);
                    self.queued.set(at, false);
                }
            }
        }
    }

    /// Ends a connection.
    pub(crate) fn fail(&mut self, at: usize, cause: Code) {
        let until = self.now.saturating_add(self.config.give_back_ns);
        if self.connections[at].fail(cause, until) {
            self.caller.call();
            self.busy.set(at, true);
            self.queued.set(at, false);
        }
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

impl Fabric for VerbsFabric {
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities {
        let ready = self.index(connection).and_then(|at| self.connections[at].ready.as_ref());
        let write_bytes_max = self.config.write_bytes_max;
        Capabilities {
            write_bytes_max: ready
                .map_or(write_bytes_max, |ready| write_bytes_max.min(ready.message_bytes_max)),
            posts_max: self.sizes.posts_max,
            records_max: self.sizes.records_max,
            flush_needed: self.config.flush_needed,
            reads: ready.is_some_and(|ready| ready.facts.reads_made > 0),
            acknowledged: ready.is_some_and(|ready| ready.facts.reads_made > 0),
            windows: false,
        }
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        let records_max = self.sizes.records_max;
        let at = self.open(connection)?;
        let entry = &mut self.connections[at];
        // The last one is for giving receives back.
        if entry.records == records_max || entry.credits < 2 {
            return Err(PostError::Full);
        }
        let Some(sends) = entry.ready.as_ref().map(|ready| ready.mailbox.sends()) else {
            return Err(PostError::Down);
        };
        let slot = entry.take_slot(sends);
        let mut message = [0; MESSAGE_BYTES_MAX];
        let words = message::encode_record(record, &mut message);
        let bytes = 8 + 8 * usize::from(words);
        if let Some(ready) = &entry.ready {
            ready.mailbox.write(slot, &message[..bytes]);
        }
        entry.credits -= 1;
        entry.queue(Posted { work: Work::Record { slot, words }, ..Posted::NOTHING });
        self.queued.set(at, true);
        Ok(())
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &self.connections[at];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let (rail, bytes) = (usize::from(entry.rail), write.bytes);
        let inline_bytes = entry.ready.as_ref().map_or(0, |ready| ready.facts.inline_bytes);
        let local = self.regions.resolve(write.from, bytes, rail).ok_or(Code::RegionLost);
        let remote = self.remotes.resolve(entry.peer, &entry.arena, write.to, Want::write(bytes, rail));
        let addresses = local.and_then(|(local, is_readable)| {
            Ok((local, remote.ok_or(Code::RemoteRefused)?, is_readable && bytes <= inline_bytes))
        });
        self.queue_post(at, Work::Write, write.post, bytes, addresses);
        Ok(())
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &self.connections[at];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let (rail, bytes) = (usize::from(entry.rail), read.bytes);
        let local = self.regions.resolve(read.into, bytes, rail).ok_or(Code::RegionLost);
        let remote = self.remotes.resolve(entry.peer, &entry.arena, read.from, Want::read(bytes, rail));
        let addresses = local.and_then(|(local, _)| Ok((local, remote.ok_or(Code::RemoteRefused)?, false)));
        self.queue_post(at, Work::Read, read.post, bytes, addresses);
        Ok(())
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &mut self.connections[at];
        let rail = &mut self.rails[usize::from(entry.rail)];
        if entry.posts.saturating_add(entry.flushes) >= self.sizes.posts_max
            || !rail.flushes.request(at, post)
        {
            return Err(PostError::Full);
        }
        entry.flushes += 1;
        Ok(())
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        let index = self.open(connection)?;
        let entry = &self.connections[index];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let rail = usize::from(entry.rail);
        let scratch = entry.ready.as_ref().map(|ready| Address {
            address: ready.mailbox.scratch_address(),
            key: ready.mailbox.local_key(),
        });
        let remote = self.remotes.resolve(entry.peer, &entry.arena, at, Want::confirm(rail));
        let addresses = scratch
            .ok_or(Code::ConnectionReset)
            .and_then(|local| Ok((local, remote.ok_or(Code::RemoteRefused)?, false)));
        self.queue_post(index, Work::Confirm, post, 1, addresses);
        Ok(())
    }

    fn open_window(&mut self, _: ConnectionIndex, _: u16, _: Place, _: u64) {}

    fn close_window(&mut self, _: ConnectionIndex, _: u16) {}

    fn close(&mut self, connection: ConnectionIndex) {
        if let Ok(at) = self.open(connection) {
            self.leave(at, Code::ConnectionReset);
        }
    }

    fn kick(&mut self, now: Nanos) {
        self.now = now;
        self.post_queued();
        for rail in &mut self.rails {
            rail.flushes.post(&mut rail.counters);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        self.now = now;
        self.take_completions();
        let mut events = Events { slice: events, count: 0 };
        self.tell_flushed(&mut events);
        self.tell(&mut events);
        events.count
    }
}
