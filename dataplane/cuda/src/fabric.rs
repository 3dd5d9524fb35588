//! The local fabric of a node with GPUs: both ends of every connection are this lane, and the wire is a copy engine.
//!
//! Between GPUs that reach each other a write is then one copy from memory to memory, by NVLink or PCIe, and between host
//! and GPU one over PCIe; nothing is staged. Connections come in pairs: what is posted on `i` arrives on `i ^ 1`.

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Copy, CopyDone, CopyEngine, Fabric, FabricEvent, Nanos, Place, PostError,
    PostId, Read, RegionIndex, RemotePlace, Write,
};
use railhead_shm::OwnedSpan;

use connection::{Connection, Outcome, Phase, Posted, State};
use keys::{Keys, Stamped};

mod connection;
mod keys;
#[cfg(test)]
mod tests;

/// Sizes of a [`CopyFabric`], fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricConfig {
    /// Connections, an even number: 0 and 1 are a pair, 2 and 3, and so on.
    pub connections: u16,
    /// Slots of the table of memories; slot 0 is the lane's staging arena.
    pub regions: u32,
    /// Writes, reads and flushes that one connection takes.
    pub posts_max: u16,
    /// Records that one connection takes.
    pub records_max: u16,
    /// Most bytes of one write or read.
    pub write_bytes_max: u32,
}

/// Copies whose ends are taken at once.
const ENDS: usize = 16;

/// The fabric of transfers from this lane to this lane, by a copy engine of its own.
///
/// Memory is installed twice: here with what a peer may do, and in [`CopyFabric::copier`] for the bytes. A copy that has
/// begun cannot be called back: memory that is removed is touched until its copies have ended, which the copier says (for
/// GPUs [`crate::CudaCopier::take_removed`]). Writes that are under way at the same time may land in any order, so none
/// that overlap may be posted before the first is done; a read sees all writes posted before it on its connection.
#[derive(Debug)]
pub struct CopyFabric<C> {
    /// Moves the bytes. Only for installing and removing memory, and for its events.
    pub copier: C,
    keys: Keys,
    connections: Box<[Connection]>,
    config: FabricConfig,
    /// Connection that the next poll begins with.
    turn: usize,
}

/// Events being handed out by one poll.
struct Events<'a> {
    slice: &'a mut [FabricEvent],
    count: usize,
}

impl Events<'_> {
    fn is_full(&self) -> bool {
        self.count == self.slice.len()
    }

    fn push(&mut self, event: FabricEvent) {
        self.slice[self.count] = event;
        self.count += 1;
    }
}

impl<C: CopyEngine> CopyFabric<C> {
    /// A fabric with all pairs open and no memory. Beside the copier it allocates all that it ever needs.
    ///
    /// # Panics
    /// If `connections` is odd, or a size that must be at least 1 is 0.
    #[must_use]
    pub fn new(config: FabricConfig, copier: C) -> Self {
        assert!(config.connections.is_multiple_of(2), "local connections come in pairs");
        assert!(config.posts_max > 0 && config.records_max > 0, "a local fabric moves something");
        let posts = usize::from(config.posts_max) + usize::from(config.records_max);
        assert!(posts <= usize::from(u16::MAX), "a copy is named by connection and place");
        Self {
            copier,
            keys: Keys::new(config.regions),
            connections: (0..config.connections).map(|_| Connection::new(posts)).collect(),
            config,
            turn: 0,
        }
    }

    /// Says what a slot holds: `bytes` bytes, for own use, and under the key (`region`, `epoch`) as a destination of writes
    /// if `access` has [`ACCESS_WRITE`] and a source of reads if it has [`ACCESS_READ`]. `span` is for host memory that can
    /// be lost (see [`OwnedSpan::poisoned`]). The same memory is to be installed in the copier.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(
        &mut self,
        region: RegionIndex,
        epoch: u32,
        bytes: u64,
        access: u32,
        span: Option<OwnedSpan>,
    ) {
        self.keys.install(region, epoch, bytes, access, span);
    }

    /// Forgets a slot: own work on it that has not begun ends with [`Code::RegionLost`], what comes under its key is
    /// refused. The memory is to be removed from the copier too. Gives back the span, which must not be dropped on a lane.
    pub fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.keys.remove(region)
    }

    /// Opens the pair of `connection` again. Returns false, and does nothing, before both ends said `Down`.
    pub fn open(&mut self, connection: ConnectionIndex) -> bool {
        let first = usize::from(connection.0 & !1);
        let Some(pair) = self.connections.get_mut(first..first + 2) else { return false };
        if pair.iter().any(|end| end.state != State::Down) {
            return false;
        }
        for end in pair {
            end.state = State::Open;
        }
        true
    }

    /// Whether anything waits for a poll: the lane must not sleep.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let waits = |end: &Connection| !end.is_empty() || end.state == State::Closing;
        self.connections.iter().any(waits) || self.copier.is_busy()
    }

    fn post(&mut self, connection: ConnectionIndex, posted: Posted) -> Result<(), PostError> {
        let (posts_max, records_max) = (self.config.posts_max, self.config.records_max);
        let end = self.connections.get_mut(usize::from(connection.0)).ok_or(PostError::Down)?;
        if end.state != State::Open {
            return Err(PostError::Down);
        }
        end.push(posted, posts_max, records_max)
    }

    /// Begins what can begin on a connection, in order.
    fn begin(&mut self, at: usize) {
        while let Some((place, entry)) = self.connections[at].next_to_begin() {
            let phase = match entry.posted {
                Posted::Record(_) | Posted::Flush { .. } => Phase::Ended(Outcome::OK),
                Posted::Write { own, keyed, epoch, bytes, .. } => {
                    self.begin_copy(at, place, (own, keyed, epoch, bytes), ACCESS_WRITE)
                }
                Posted::Read { own, keyed, epoch, bytes, .. } => {
                    // It sees what was written before.
                    if self.connections[at].copying > 0 {
                        return;
                    }
                    self.begin_copy(at, place, (own, keyed, epoch, bytes), ACCESS_READ)
                }
            };
            if phase == Phase::Waiting {
                return;
            }
            self.connections[at].begun(phase);
        }
    }

    /// [`Phase::Waiting`] if the copier is full.
    fn begin_copy(
        &mut self,
        at: usize,
        place: u16,
        (own, keyed, epoch, bytes): (Stamped, Place, u32, u32),
        access: u32,
    ) -> Phase {
        if !self.keys.permits(keyed, u64::from(bytes), epoch, access) {
            return Phase::Ended(Outcome { refused: Some(Code::RemoteRefused), status: Code::Ok });
        }
        if !self.keys.holds(own, u64::from(bytes)) {
            return Phase::Ended(Outcome { refused: None, status: Code::RegionLost });
        }
        let (from, to) = if access == ACCESS_WRITE { (own.place, keyed) } else { (keyed, own.place) };
        let post = PostId(u32::from(index(at).0) << 16 | u32::from(place));
        match self.copier.copy(&Copy { from, to, bytes, post }) {
            Ok(()) => Phase::Copying,
            Err(_) => Phase::Waiting,
        }
    }

    /// How a copy ended, for both ends: the copier does not say which of its two memories was lost.
    fn outcome(&self, posted: &Posted, status: Code) -> Outcome {
        let (own, keyed, epoch, bytes, access) = match *posted {
            Posted::Write { own, keyed, epoch, bytes, .. } => (own, keyed, epoch, bytes, ACCESS_WRITE),
            Posted::Read { own, keyed, epoch, bytes, .. } => (own, keyed, epoch, bytes, ACCESS_READ),
            Posted::Record(_) | Posted::Flush { .. } => return Outcome::OK,
        };
        if status != Code::RegionLost {
            return Outcome { refused: None, status };
        }
        let own_lost = !self.keys.holds(own, u64::from(bytes)) || self.keys.is_poisoned(own.place.region);
        let refused = if !self.keys.permits(keyed, u64::from(bytes), epoch, access) {
            Some(Code::RemoteRefused)
        } else {
            self.keys.is_poisoned(keyed.region).then_some(Code::RemoteRegionLost)
        };
        let status = if own_lost || refused.is_none() { Code::RegionLost } else { Code::Ok };
        Outcome { refused, status }
    }

    /// Takes the ends of copies.
    fn take_ends(&mut self, now: Nanos) {
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; ENDS];
        let count = self.copier.poll(now, &mut done);
        for end in &done[..count] {
            let (at, place) = ((end.post.0 >> 16) as usize, (end.post.0 & 0xffff) as u16);
            let Some(entry) = self.connections[at].copying_at(place) else {
                debug_assert!(false, "the end of a copy that is not under way");
                continue;
            };
            let outcome = self.outcome(&entry.posted, end.status);
            self.connections[at].ended(place, outcome);
        }
    }

    /// Hands out what has ended, in order; on a closing connection what has not begun ends here.
    fn deliver(&mut self, at: usize, events: &mut Events<'_>) {
        let (here, there) = (index(at), index(at ^ 1));
        while !events.is_full() {
            let end = &mut self.connections[at];
            let closing = end.state == State::Closing;
            let Some(entry) = end.first() else { break };
            let mut outcome = match entry.phase {
                Phase::Ended(outcome) => outcome,
                Phase::Waiting if closing => Outcome { refused: None, status: Code::ConnectionReset },
                Phase::Waiting | Phase::Copying => return,
            };
            match entry.posted {
                Posted::Record(_) if closing => {}
                Posted::Record(record) => events.push(FabricEvent::Record { connection: there, record }),
                Posted::Flush { post } => {
                    events.push(FabricEvent::Done { connection: here, post, status: outcome.status });
                }
                Posted::Read { post, .. } => {
                    let status = outcome.refused.unwrap_or(outcome.status);
                    events.push(FabricEvent::Done { connection: here, post, status });
                }
                Posted::Write { post, slot, .. } => {
                    if let Some(status) = outcome.refused.take()
                        && !closing
                    {
                        events.push(FabricEvent::Refused { connection: there, slot, status });
                        end.told(outcome);
                        continue;
                    }
                    events.push(FabricEvent::Done { connection: here, post, status: outcome.status });
                }
            }
            end.pop();
        }
        // Neither end is down before the copies of both are over.
        let quiet = self.connections[at ^ 1].copying == 0;
        let end = &mut self.connections[at];
        if end.state == State::Closing && end.is_empty() && quiet && !events.is_full() {
            end.state = State::Down;
            events.push(FabricEvent::Down { connection: here, cause: Code::ConnectionReset });
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most u16::MAX connections")]
const fn index(at: usize) -> ConnectionIndex {
    ConnectionIndex(at as u16)
}

impl<C: CopyEngine> Fabric for CopyFabric<C> {
    fn capabilities(&self, _connection: ConnectionIndex) -> Capabilities {
        Capabilities {
            write_bytes_max: self.config.write_bytes_max,
            posts_max: self.config.posts_max,
            records_max: self.config.records_max,
            flush_needed: false,
            reads: true,
            acknowledged: false,
            windows: false,
        }
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        self.post(connection, Posted::Record(*record))
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        let RemotePlace { key, offset } = write.to;
        let own = self.keys.stamp(write.from);
        let keyed = Place { region: RegionIndex(key.index), offset };
        let (bytes, slot, post) = (write.bytes, write.slot, write.post);
        self.post(connection, Posted::Write { own, keyed, epoch: key.epoch, bytes, slot, post })
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        let RemotePlace { key, offset } = read.from;
        let own = self.keys.stamp(read.into);
        let keyed = Place { region: RegionIndex(key.index), offset };
        let (bytes, post) = (read.bytes, read.post);
        self.post(connection, Posted::Read { own, keyed, epoch: key.epoch, bytes, post })
    }

    /// Not needed here; done when its turn comes.
    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        self.post(connection, Posted::Flush { post })
    }

    /// Not possible here: writes are not acknowledged.
    fn confirm(&mut self, _: ConnectionIndex, _: RemotePlace, _: PostId) -> Result<(), PostError> {
        debug_assert!(false, "writes are not acknowledged here");
        Err(PostError::Down)
    }

    fn open_window(&mut self, _: ConnectionIndex, _: u16, _: Place, _: u64) {
        debug_assert!(false, "there are no windows here");
    }

    fn close_window(&mut self, _: ConnectionIndex, _: u16) {}

    /// Ends both ends of the pair: what is posted on either and has not begun ends with [`Code::ConnectionReset`], what is
    /// being copied when that is over; records that have not arrived are dropped.
    fn close(&mut self, connection: ConnectionIndex) {
        for end in [usize::from(connection.0), usize::from(connection.0 ^ 1)] {
            if let Some(end) = self.connections.get_mut(end).filter(|end| end.state == State::Open) {
                end.state = State::Closing;
            }
        }
    }

    fn kick(&mut self, now: Nanos) {
        for at in 0..self.connections.len() {
            if self.connections[at].state == State::Open {
                self.begin(at);
            }
        }
        self.copier.kick(now);
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        self.take_ends(now);
        let mut events = Events { slice: events, count: 0 };
        let connections = self.connections.len();
        for step in 0..connections {
            let at = (self.turn + step) % connections;
            if self.connections[at].state == State::Open {
                self.begin(at);
            }
            if self.connections[at].state != State::Down {
                self.deliver(at, &mut events);
            }
        }
        // The next poll begins with another connection, so that one with much to do never keeps the others waiting.
        if connections > 0 {
            self.turn = (self.turn + 1) % connections;
        }
        self.copier.kick(now);
        events.count
    }
}
