//! A simulated network: fabrics of several lanes joined by connections that do everything the port allows and a real
//! device might do.
//!
//! Each post gets its own random times for when pieces of its source are read, when they are placed, and when it is
//! done. Placing has no order but that records wait for the writes before them. Connections drift apart in time. A cut
//! loses a random tail of what is under way, each end hears of it at its own time, and until the target has heard,
//! writes may still land. In lazy memory an inbound write is not seen before a flush, or sometimes is. Where writes are
//! acknowledged, a write that is refused breaks its connection, and no record that was sent behind it arrives.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use railhead_abi::Code;
use railhead_abi::record::{RawRecord, Record};
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Nanos, Place, PostError, PostId, Read, RegionIndex,
    RemotePlace, Write,
};

use crate::memory::{INBOUND, SimMemory, SimRegions, Use};
use crate::{Latency, Rng};

mod cut;
mod link;
mod moment;

use link::{Link, Op, Opened, Piece, ReadOp, State, WriteOp};

/// How a [`Network`] behaves.
#[derive(Debug, Clone, Copy)]
pub struct NetworkConfig {
    /// From kick to each of a post's moments.
    pub latency: Latency,
    /// From a cut to the moment at which an end hears of it.
    pub down_latency: Latency,
    /// Pieces that a write is placed in, at most.
    pub pieces_max: usize,
    /// What every fabric of the network says of itself; bounds are exact.
    pub capabilities: Capabilities,
    /// Posts of one connection end in any order; else in the order of posting.
    pub reorder_done: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            latency: Latency { min: 500, max: 20_000 },
            down_latency: Latency { min: 1_000, max: 3_000_000 },
            pieces_max: 3,
            capabilities: Capabilities {
                write_bytes_max: 1 << 20,
                posts_max: 64,
                records_max: 64,
                flush_needed: false,
                reads: false,
                acknowledged: false,
                windows: true,
            },
            reorder_done: false,
        }
    }
}

/// What happens at some moment.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// A piece of a source is read.
    Read { link: usize, side: usize, op: u64, piece: usize },
    /// A piece is placed.
    Place { link: usize, side: usize, op: u64, piece: usize },
    /// A post ends at its own side.
    Done { link: usize, side: usize, op: u64 },
    /// The first undelivered post of the side arrives in full.
    Deliver { link: usize, side: usize },
    /// The side hears that the link is dead.
    Down { link: usize, side: usize },
}

/// What has come in and cannot be seen yet.
#[derive(Debug)]
struct Unseen {
    link: usize,
    /// The side that it came in on; both may be of one lane.
    side: usize,
    arrival: u64,
    region: RegionIndex,
    epoch: u32,
    memory: SimMemory,
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Lane {
    regions: SimRegions,
    connections: BTreeMap<ConnectionIndex, (usize, usize)>,
    inbox: VecDeque<(usize, usize, FabricEvent)>,
    unseen: Vec<Unseen>,
    /// Something changed for the lane: an event came, or a queue that was full has room.
    stirred: bool,
}

#[derive(Debug)]
struct Net {
    config: NetworkConfig,
    rng: Rng,
    now: Nanos,
    lanes: Vec<Lane>,
    links: Vec<Link>,
    moments: BTreeMap<(Nanos, u64), Action>,
    sequence: u64,
    arrivals: u64,
    is_traced: bool,
}

/// A network. Clones are the same network.
#[derive(Debug, Clone)]
pub struct Network {
    net: Rc<RefCell<Net>>,
}

/// Names a lane of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneId(pub usize);

impl Network {
    /// A network with no lanes.
    #[must_use]
    pub fn new(config: NetworkConfig, rng: Rng) -> Self {
        let (lanes, links, moments) = (Vec::new(), Vec::new(), BTreeMap::new());
        let net =
            Net { config, rng, now: 0, lanes, links, moments, sequence: 0, arrivals: 0, is_traced: false };
        Self { net: Rc::new(RefCell::new(net)) }
    }

    /// From now on says on stderr what is posted, what is polled and what is cut.
    pub fn trace(&self) {
        self.net.borrow_mut().is_traced = true;
    }

    /// Adds a lane.
    #[must_use]
    pub fn add_lane(&self) -> LaneId {
        let mut net = self.net.borrow_mut();
        let lane = net.lanes.len();
        net.lanes.push(Lane { regions: SimRegions::new(lane), ..Lane::default() });
        LaneId(lane)
    }

    /// The fabric of a lane; make one per lane.
    #[must_use]
    pub fn fabric(&self, lane: LaneId) -> SimFabric {
        SimFabric { net: self.net.clone(), lane: lane.0 }
    }

    /// The memories of a lane, for installing regions and for its copy engine.
    #[must_use]
    pub fn regions(&self, lane: LaneId) -> SimRegions {
        self.net.borrow().lanes[lane.0].regions.clone()
    }

    /// Joins two ends; they may be of one lane.
    ///
    /// # Panics
    /// If one of the two still has a connection that has not polled `Down`.
    pub fn connect(&self, a: (LaneId, ConnectionIndex), b: (LaneId, ConnectionIndex)) {
        let mut net = self.net.borrow_mut();
        for (lane, connection) in [a, b] {
            let free = !net.lanes[lane.0].connections.contains_key(&connection);
            assert!(free, "lane {}: {connection:?} is in use", lane.0);
        }
        let index = net.links.len();
        net.links.push(Link::new([(a.0.0, a.1), (b.0.0, b.1)]));
        net.lanes[a.0.0].connections.insert(a.1, (index, 0));
        net.lanes[b.0.0].connections.insert(b.1, (index, 1));
    }

    /// Breaks the connection that `lane` calls `connection`; nothing if there is none.
    pub fn cut(&self, lane: LaneId, connection: ConnectionIndex) {
        let mut net = self.net.borrow_mut();
        let Some((link, _)) = net.lanes[lane.0].connections.get(&connection).copied() else { return };
        net.cut(link, Code::ConnectionReset);
    }

    /// Whether `lane` has this connection, broken or not, until it has polled its `Down`.
    #[must_use]
    pub fn has_connection(&self, lane: LaneId, connection: ConnectionIndex) -> bool {
        self.net.borrow().lanes[lane.0].connections.contains_key(&connection)
    }

    /// Lets everything happen that is due by `now`; polling does the same.
    pub fn advance(&self, now: Nanos) {
        self.net.borrow_mut().advance(now);
    }

    /// Makes visible what has come in to a memory, as its owner may do by its own means.
    pub fn see_all(&self, memory: &SimMemory) {
        self.net.borrow_mut().see_all(memory);
    }

    /// Whether a sleeping lane would be woken by its device: events wait, or a full queue got room since the last call.
    pub fn take_stir(&self, lane: LaneId) -> bool {
        let lane = &mut self.net.borrow_mut().lanes[lane.0];
        std::mem::take(&mut lane.stirred) || !lane.inbox.is_empty()
    }

    /// The next moment at which anything happens by itself.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.net.borrow().moments.first_key_value().map(|((when, _), _)| *when)
    }

    /// Whether nothing will happen by itself any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let net = self.net.borrow();
        net.moments.is_empty() && net.lanes.iter().all(|lane| lane.inbox.is_empty())
    }
}

/// The fabric of one lane.
#[derive(Debug)]
pub struct SimFabric {
    net: Rc<RefCell<Net>>,
    lane: usize,
}

impl SimFabric {
    /// Finds the side to post on, or says why not.
    fn side(net: &Net, lane: usize, connection: ConnectionIndex) -> Result<(usize, usize), PostError> {
        let (link, side) = net.lanes[lane].connections.get(&connection).copied().ok_or(PostError::Down)?;
        if net.links[link].sides[side].state == State::Up { Ok((link, side)) } else { Err(PostError::Down) }
    }

    fn has_post_room(net: &Net, (link, side): (usize, usize)) -> Result<(), PostError> {
        let open = net.links[link].sides[side].posts_open;
        if open < usize::from(net.config.capabilities.posts_max) { Ok(()) } else { Err(PostError::Full) }
    }
}

impl Fabric for SimFabric {
    fn capabilities(&self, _connection: ConnectionIndex) -> Capabilities {
        self.net.borrow().config.capabilities
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        let (link, side) = Self::side(&net, self.lane, connection)?;
        if net.links[link].sides[side].records_open >= usize::from(net.config.capabilities.records_max) {
            return Err(PostError::Full);
        }
        let mut record = *record;
        let len = record.len();
        record.words[len..].fill(0);
        net.say(self.lane, connection, || format!("sends {:?}", Record::decode(&record)));
        net.links[link].sides[side].records_open += 1;
        net.links[link].push(side, Op::Record(record));
        Ok(())
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        let (link, side) = Self::side(&net, self.lane, connection)?;
        Self::has_post_room(&net, (link, side))?;
        let bytes = write.bytes as usize;
        let max = net.config.capabilities.write_bytes_max;
        assert!(write.bytes > 0 && write.bytes <= max, "a write of {bytes} bytes, not 1 to {max}");
        net.say(self.lane, connection, || format!("posts {write:?}"));
        let source = net.lanes[self.lane].regions.local(write.from, bytes);
        let source_hold = Some(source.hold(self.lane, write.from.offset, bytes, Use::Read));
        let target = net.links[link].sides[1 - side].lane;
        // On a link that is cut nothing gets there any more.
        let resolved =
            if net.links[link].cause.is_none() { net.resolve((link, 1 - side), write).ok() } else { None };
        let target_hold = resolved.map(|memory| {
            let hold = memory.hold(INBOUND + target, write.to.offset, bytes, Use::Write);
            (memory, hold)
        });
        let op = WriteOp {
            write: *write,
            source,
            source_hold,
            target_hold,
            pieces: Vec::new(),
            refused: None,
            lost: false,
        };
        net.links[link].sides[side].posts_open += 1;
        net.links[link].push(side, Op::Write(op));
        Ok(())
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        assert!(net.config.capabilities.flush_needed, "a flush where none is needed");
        let at = Self::side(&net, self.lane, connection)?;
        Self::has_post_room(&net, at)?;
        let arrivals = net.arrivals;
        net.links[at.0].sides[at.1].posts_open += 1;
        net.links[at.0].push(at.1, Op::Flush { post, arrivals });
        Ok(())
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        assert!(net.config.capabilities.reads, "a read where none is possible");
        let (link, side) = Self::side(&net, self.lane, connection)?;
        Self::has_post_room(&net, (link, side))?;
        let bytes = read.bytes as usize;
        let max = net.config.capabilities.write_bytes_max;
        assert!(read.bytes > 0 && read.bytes <= max, "a read of {bytes} bytes, not 1 to {max}");
        net.say(self.lane, connection, || format!("posts {read:?}"));
        let into = net.lanes[self.lane].regions.local(read.into, bytes);
        let into_hold = Some(into.hold(self.lane, read.into.offset, bytes, Use::Write));
        let epoch = net.lanes[self.lane].regions.get(read.into.region).map_or(0, |entry| entry.epoch);
        let target = net.links[link].sides[1 - side].lane;
        let resolved = if net.links[link].cause.is_none() { net.readable(target, read).ok() } else { None };
        let source_hold = resolved.map(|memory| {
            let hold = memory.hold(INBOUND + target, read.from.offset, bytes, Use::Read);
            (memory, hold)
        });
        let into = (into, epoch);
        let op = ReadOp { read: *read, into, into_hold, source_hold, pieces: Vec::new(), refused: None };
        net.links[link].sides[side].posts_open += 1;
        net.links[link].push(side, Op::Read(op));
        Ok(())
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        assert!(net.config.capabilities.acknowledged, "a confirm where writes are not acknowledged");
        let end = Self::side(&net, self.lane, connection)?;
        Self::has_post_room(&net, end)?;
        net.links[end.0].sides[end.1].posts_open += 1;
        net.links[end.0].push(end.1, Op::Confirm { post, at });
        Ok(())
    }

    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64) {
        let mut net = self.net.borrow_mut();
        assert!(net.config.capabilities.windows, "a window where none is possible");
        if let Some((link, side)) = net.lanes[self.lane].connections.get(&connection).copied() {
            let epoch = net.lanes[self.lane].regions.get(to.region).map_or(0, |entry| entry.epoch);
            net.links[link].sides[side].windows.insert(slot, Opened { to, epoch, bytes });
        }
    }

    fn close_window(&mut self, connection: ConnectionIndex, slot: u16) {
        let mut net = self.net.borrow_mut();
        if let Some((link, side)) = net.lanes[self.lane].connections.get(&connection).copied() {
            net.links[link].sides[side].windows.remove(&slot);
        }
    }

    fn close(&mut self, connection: ConnectionIndex) {
        let mut net = self.net.borrow_mut();
        if let Ok((link, side)) = Self::side(&net, self.lane, connection) {
            net.cut(link, Code::ConnectionReset);
            let side = &mut net.links[link].sides[side];
            if side.state == State::Up {
                side.state = State::Closing;
            }
        }
    }

    fn kick(&mut self, now: Nanos) {
        let mut net = self.net.borrow_mut();
        net.advance(now);
        let ends: Vec<(usize, usize)> = net.lanes[self.lane].connections.values().copied().collect();
        for (link, side) in ends {
            net.kick(link, side);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        let mut net = self.net.borrow_mut();
        net.advance(now);
        let ready = net.lanes[self.lane].inbox.len().min(events.len());
        // Devices often give less than there is.
        let count = if net.rng.chance(200_000) { net.rng.index(ready + 1) } else { ready };
        for event in &mut events[..count] {
            let Some((link, side, next)) = net.lanes[self.lane].inbox.pop_front() else { break };
            let end = &mut net.links[link].sides[side];
            match next {
                FabricEvent::Done { connection, .. } => {
                    end.posts_open -= 1;
                    net.say(self.lane, connection, || format!("polls {next:?}"));
                }
                FabricEvent::Record { connection, record } => {
                    end.unpolled_records -= 1;
                    net.say(self.lane, connection, || format!("polls {:?}", Record::decode(&record)));
                }
                FabricEvent::Refused { .. } => {}
                FabricEvent::Down { connection, .. } => {
                    net.say(self.lane, connection, || format!("polls {next:?}"));
                    net.lanes[self.lane].connections.remove(&connection);
                }
            }
            *event = next;
        }
        count
    }
}

#[cfg(test)]
mod tests;
