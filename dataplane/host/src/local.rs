//! The local fabric: both ends of every connection are this lane, and the wire is `memcpy`.
//!
//! Connections come in pairs: what is posted on `i` arrives on `i ^ 1`. The engine drives them like any other, so a
//! transfer whose peer is this node takes the same steps, has the same records and the same outcomes as one that leaves.

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Nanos, PostError, PostId, RegionIndex,
};
use railhead_core::port::{Place, Read, RemotePlace, Write};
use railhead_shm::OwnedSpan;

use crate::regions::{Regions, Stamped};

#[cfg(test)]
mod tests;

/// Sizes of a [`LocalFabric`], fixed for its life except for `slice_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalConfig {
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
    /// The most bytes that one poll moves, at least 1.
    pub slice_bytes: u32,
}

/// What was posted, in order.
#[derive(Debug, Clone, Copy)]
enum Posted {
    Write { from: Stamped, to: Place, epoch: u32, bytes: u32, slot: u16, post: PostId },
    Read { from: Place, epoch: u32, into: Stamped, bytes: u32, post: PostId },
    Flush { post: PostId },
    Record(RawRecord),
}

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// No more posts; what was posted ends with events, then `Down` is said.
    Closing,
    Down,
}

/// One direction of a pair: what was posted here and has not ended.
#[derive(Debug)]
struct Connection {
    state: State,
    queue: Box<[Option<Posted>]>,
    head: usize,
    count: usize,
    posts: u16,
    records: u16,
    /// Bytes of the write or read at `head` that are placed.
    progress: u32,
    /// What is at `head` was moved or given up, and the other end has been told of a refusal where there was one.
    outcome: Option<Outcome>,
}

/// How a write or read went at either end, while its events wait for room.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    refused: Option<Code>,
    status: Code,
}

impl Connection {
    fn new(posts: usize) -> Self {
        Self {
            state: State::Open,
            queue: vec![None; posts].into(),
            head: 0,
            count: 0,
            posts: 0,
            records: 0,
            progress: 0,
            outcome: None,
        }
    }

    fn push(&mut self, posted: Posted) {
        let at = (self.head + self.count) % self.queue.len();
        self.queue[at] = Some(posted);
        self.count += 1;
    }

    fn first(&self) -> Option<Posted> {
        self.queue[self.head]
    }

    fn pop(&mut self) {
        match self.queue[self.head].take() {
            Some(Posted::Record(_)) => self.records -= 1,
            Some(_) => self.posts -= 1,
            None => return,
        }
        self.head = (self.head + 1) % self.queue.len();
        self.count -= 1;
        self.progress = 0;
        self.outcome = None;
    }
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

/// The fabric of transfers from this lane to this lane.
///
/// Pairs are open from the start; after both ends said `Down`, [`LocalFabric::open`] makes a pair usable again.
#[derive(Debug)]
pub struct LocalFabric {
    regions: Regions,
    connections: Box<[Connection]>,
    config: LocalConfig,
    /// Connection that the next poll begins with.
    turn: usize,
}

impl LocalFabric {
    /// A fabric with all pairs open and no memory. Allocates all that it ever needs.
    ///
    /// # Panics
    /// If `connections` is odd, or a size that must be at least 1 is 0.
    #[must_use]
    pub fn new(config: LocalConfig) -> Self {
        assert!(config.connections.is_multiple_of(2), "local connections come in pairs");
        assert!(
            config.posts_max > 0 && config.records_max > 0 && config.slice_bytes > 0,
            "a local fabric moves something"
        );
        let posts = usize::from(config.posts_max) + usize::from(config.records_max);
        Self {
            regions: Regions::new(config.regions),
            connections: (0..config.connections).map(|_| Connection::new(posts)).collect(),
            config,
            turn: 0,
        }
    }

    /// Puts memory into a slot: for own use, and under the key (`region`, `epoch`) as a destination of writes if `access`
    /// has [`ACCESS_WRITE`] and a source of reads if it has [`ACCESS_READ`]. Gives back what stood there; whoever installs keeps a clone, so that dropping it here never unmaps.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(
        &mut self,
        region: RegionIndex,
        epoch: u32,
        span: OwnedSpan,
        access: u32,
    ) -> Option<OwnedSpan> {
        self.regions.install(region, span, epoch, access)
    }

    /// Takes memory out of a slot, at any time: own work on it ends with [`Code::RegionLost`], what comes under its
    /// key is refused.
    pub fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.regions.remove(region)
    }

    /// Sets the most bytes that one poll moves; 0 counts as 1.
    pub fn set_slice(&mut self, slice_bytes: u32) {
        self.config.slice_bytes = slice_bytes.max(1);
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
        self.connections.iter().any(|connection| connection.count > 0 || connection.state == State::Closing)
    }

    fn open_end(&mut self, connection: ConnectionIndex) -> Result<&mut Connection, PostError> {
        let end = self.connections.get_mut(usize::from(connection.0)).ok_or(PostError::Down)?;
        if end.state == State::Open { Ok(end) } else { Err(PostError::Down) }
    }

    /// Moves at most `budget` bytes of a write or read; `None` while it has not ended.
    fn advance(&self, posted: &Posted, progress: &mut u32, budget: &mut u32) -> Option<Outcome> {
        let (own, keyed, epoch, bytes, access) = match *posted {
            Posted::Write { from, to, epoch, bytes, .. } => (from, to, epoch, bytes, ACCESS_WRITE),
            Posted::Read { into, from, epoch, bytes, .. } => (into, from, epoch, bytes, ACCESS_READ),
            Posted::Flush { .. } | Posted::Record(_) => {
                return Some(Outcome { refused: None, status: Code::Ok });
            }
        };
        let ends = |refused, status| Some(Outcome { refused, status });
        // Each slice is permitted anew: the key may be withdrawn between two.
        if !self.regions.permits(keyed, u64::from(bytes), epoch, access) {
            return ends(Some(Code::RemoteRefused), Code::Ok);
        }
        let keyed = self.regions.stamp(keyed);
        let slice = (bytes - *progress).min(*budget);
        let here = self.regions.span(own, u64::from(*progress), u64::from(slice));
        let Some(here) = here else { return ends(None, Code::RegionLost) };
        let there = self.regions.span(keyed, u64::from(*progress), u64::from(slice));
        let Some(there) = there else { return ends(Some(Code::RemoteRefused), Code::Ok) };
        if access == ACCESS_WRITE {
            here.copy_to(there);
        } else {
            there.copy_to(here);
        }
        *progress += slice;
        *budget -= slice;
        if *progress < bytes {
            return None;
        }
        // After the last byte: a page lost meanwhile was replaced by zeroes, and this is the only sign of it.
        let status = if self.regions.is_lost(own) { Code::RegionLost } else { Code::Ok };
        ends(self.regions.is_lost(keyed).then_some(Code::RemoteRegionLost), status)
    }

    /// Goes on with what was posted on `at` until budget or events are used up.
    fn serve(&mut self, at: usize, budget: &mut u32, events: &mut Events<'_>) {
        let (here, there) = (index(at), index(at ^ 1));
        while !events.is_full() {
            let Some(posted) = self.connections[at].first() else { break };
            match posted {
                Posted::Record(record) => events.push(FabricEvent::Record { connection: there, record }),
                Posted::Flush { post } => {
                    events.push(FabricEvent::Done { connection: here, post, status: Code::Ok });
                }
                Posted::Write { post, .. } | Posted::Read { post, .. } => {
                    let mut progress = self.connections[at].progress;
                    let outcome = self.connections[at].outcome;
                    let outcome = match outcome {
                        None if *budget == 0 => return,
                        None => self.advance(&posted, &mut progress, budget),
                        told => told,
                    };
                    let end = &mut self.connections[at];
                    end.progress = progress;
                    let Some(mut outcome) = outcome else { return };
                    if let Posted::Read { .. } = posted {
                        outcome.status = outcome.refused.take().unwrap_or(outcome.status);
                    }
                    if let (Some(status), Posted::Write { slot, .. }) = (outcome.refused.take(), posted) {
                        events.push(FabricEvent::Refused { connection: there, slot, status });
                    }
                    end.outcome = Some(outcome);
                    if events.is_full() {
                        return;
                    }
                    events.push(FabricEvent::Done { connection: here, post, status: outcome.status });
                }
            }
            self.connections[at].pop();
        }
    }

    /// Ends what was posted on a closing connection, then says `Down`.
    fn drain(&mut self, at: usize, events: &mut Events<'_>) {
        let connection = index(at);
        let end = &mut self.connections[at];
        while !events.is_full() {
            match end.first() {
                Some(Posted::Write { post, .. } | Posted::Read { post, .. } | Posted::Flush { post }) => {
                    // What ended before keeps its outcome: only its event had no room.
                    let status = end.outcome.map_or(Code::ConnectionReset, |outcome| outcome.status);
                    events.push(FabricEvent::Done { connection, post, status });
                }
                Some(Posted::Record(_)) => {}
                None => {
                    end.state = State::Down;
                    events.push(FabricEvent::Down { connection, cause: Code::ConnectionReset });
                    return;
                }
            }
            end.pop();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most u16::MAX connections")]
const fn index(at: usize) -> ConnectionIndex {
    ConnectionIndex(at as u16)
}

impl Fabric for LocalFabric {
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
        let records_max = self.config.records_max;
        let end = self.open_end(connection)?;
        if end.records == records_max {
            return Err(PostError::Full);
        }
        end.records += 1;
        end.push(Posted::Record(*record));
        Ok(())
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        let RemotePlace { key, offset } = write.to;
        let from = self.regions.stamp(write.from);
        let to = Place { region: RegionIndex(key.index), offset };
        let posts_max = self.config.posts_max;
        let end = self.open_end(connection)?;
        if end.posts == posts_max {
            return Err(PostError::Full);
        }
        end.posts += 1;
        let (bytes, slot, post) = (write.bytes, write.slot, write.post);
        end.push(Posted::Write { from, to, epoch: key.epoch, bytes, slot, post });
        Ok(())
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        let RemotePlace { key, offset } = read.from;
        let into = self.regions.stamp(read.into);
        let from = Place { region: RegionIndex(key.index), offset };
        let posts_max = self.config.posts_max;
        let end = self.open_end(connection)?;
        if end.posts == posts_max {
            return Err(PostError::Full);
        }
        end.posts += 1;
        end.push(Posted::Read { from, epoch: key.epoch, into, bytes: read.bytes, post: read.post });
        Ok(())
    }

    /// Not needed here; done when its turn comes.
    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        let posts_max = self.config.posts_max;
        let end = self.open_end(connection)?;
        if end.posts == posts_max {
            return Err(PostError::Full);
        }
        end.posts += 1;
        end.push(Posted::Flush { post });
        Ok(())
    }

    /// Not possible here: the end of a write does not wait for its place to be looked at.
    fn confirm(&mut self, _: ConnectionIndex, _: RemotePlace, _: PostId) -> Result<(), PostError> {
        debug_assert!(false, "writes are not acknowledged here");
        Err(PostError::Down)
    }

    fn open_window(&mut self, _: ConnectionIndex, _: u16, _: Place, _: u64) {
        debug_assert!(false, "there are no windows here");
    }

    fn close_window(&mut self, _: ConnectionIndex, _: u16) {}

    /// Ends both ends of the pair: what is posted on either and not done ends with [`Code::ConnectionReset`], records
    /// that have not arrived are dropped.
    fn close(&mut self, connection: ConnectionIndex) {
        for end in [usize::from(connection.0), usize::from(connection.0 ^ 1)] {
            if let Some(end) = self.connections.get_mut(end).filter(|end| end.state == State::Open) {
                end.state = State::Closing;
            }
        }
    }

    fn kick(&mut self, _now: Nanos) {}

    fn poll(&mut self, _now: Nanos, events: &mut [FabricEvent]) -> usize {
        let mut events = Events { slice: events, count: 0 };
        let mut budget = self.config.slice_bytes;
        let connections = self.connections.len();
        for step in 0..connections {
            if events.is_full() {
                break;
            }
            let at = (self.turn + step) % connections;
            match self.connections[at].state {
                State::Open => self.serve(at, &mut budget, &mut events),
                State::Closing => self.drain(at, &mut events),
                State::Down => {}
            }
        }
        // The next poll begins with another connection, so that one with much to do never keeps the others waiting.
        if connections > 0 {
            self.turn = (self.turn + 1) % connections;
        }
        events.count
    }
}
