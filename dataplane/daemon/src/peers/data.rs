//! Data connections: the sockets of lanes, connected and checked here, then handed over.
//!
//! The side whose transfers go out dials, once lanes want the connection. The other side gives each a slot in its lane. A
//! second connection for the same lanes and class replaces the first, and only after that one has ended there: whatever
//! of an earlier one was still under way has landed or never will, before anything of the new one can.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{DataHello, NodeHello, Refused};
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::submission::CLASSES;
use railhead_core::port::ConnectionIndex;
use railhead_core::tables::{ConnectionInfo, Role};
use railhead_tcp::channel::{DataKnock, dial_data};

use super::directory::Directory;
use super::peer::{Link, Peer};
use super::{HANDSHAKE_MAX, HEARTBEAT, Peers};
use crate::lane::connections::Map;
use crate::lane::mail::Command;

/// How long the end of a connection may take on its lane.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How long after the end of a channel transfers wait for the next one before they end with `peer_down`.
const GRACE: Duration = Duration::from_secs(1);
/// Channels in a row that a data connection is tried with.
const ATTEMPTS: usize = 3;
/// How long a data connection may be ahead of the channel that vouches for it.
const LIVE_WITHIN: Duration = Duration::from_millis(500);

/// A connection that a lane wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// The lane.
    pub(crate) lane: usize,
    /// Its slot for the connection.
    pub(crate) connection: ConnectionIndex,
}

/// Who dialled a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Initiator {
    /// Slot of the peer.
    pub(crate) peer: u32,
    /// Its lane.
    pub(crate) lane: u32,
    /// Class.
    pub(crate) class: u32,
    /// It reads: we serve on this connection, and are the initiator of what goes out on it.
    pub(crate) is_reader: bool,
    /// Over RDMA.
    pub(crate) is_rdma: bool,
}

/// The target connections of all lanes.
#[derive(Debug)]
pub(crate) struct Targets {
    map: Map,
    lanes: Vec<Vec<Option<Initiator>>>,
}

impl Targets {
    /// No connections.
    pub(crate) fn new(lanes: usize, map: Map) -> Self {
        let both = map.targets() + (map.count() - map.rdma_target_first());
        Self { map, lanes: vec![vec![None; both]; lanes] }
    }

    /// Places of sockets first, then those of RDMA.
    fn index(&self, at: usize) -> ConnectionIndex {
        let index = match at.checked_sub(self.map.targets()) {
            None => self.map.target_first() + at,
            Some(over_rdma) => self.map.rdma_target_first() + over_rdma,
        };
        ConnectionIndex(u16::try_from(index).unwrap_or(u16::MAX))
    }

    fn place(&self, connection: ConnectionIndex) -> Option<usize> {
        let index = usize::from(connection.0);
        match index.checked_sub(self.map.rdma_target_first()) {
            Some(over_rdma) if self.map.is_rdma(connection) => Some(self.map.targets() + over_rdma),
            _ => index.checked_sub(self.map.target_first()).filter(|at| *at < self.map.targets()),
        }
    }

    /// Gives out a slot of a lane: one for each initiator, and none of those that other peers, even such as are not there
    /// yet, are sure of.
    pub(super) fn take(&mut self, lane: usize, initiator: Initiator) -> Option<ConnectionIndex> {
        let (most, sure, peers) = (self.map.targets_most(), self.map.targets_sure(), self.map.peers());
        let sockets = self.map.targets();
        let (places, first) = if initiator.is_rdma { (sockets.., sockets) } else { (0.., 0) };
        let slots = self.lanes.get_mut(lane)?.get_mut(places)?;
        let slots = if initiator.is_rdma { slots } else { slots.get_mut(..sockets)? };
        let mut held = vec![0; peers + 1];
        for other in slots.iter().flatten() {
            *held.get_mut(other.peer as usize)? += 1;
        }
        let own = *held.get(initiator.peer as usize)?;
        if own >= most || slots.contains(&Some(initiator)) {
            return None;
        }
        let others = held.iter().enumerate().skip(1).filter(|(peer, _)| *peer != initiator.peer as usize);
        let kept: usize = others.map(|(_, held)| sure.saturating_sub(*held)).sum();
        let free = slots.len() - held.iter().sum::<usize>();
        if own >= sure && free <= kept {
            return None;
        }
        let at = slots.iter().position(Option::is_none)?;
        slots[at] = Some(initiator);
        Some(self.index(first + at))
    }

    /// Takes a slot back.
    pub(super) fn put(&mut self, lane: usize, connection: ConnectionIndex) {
        let at = self.place(connection);
        if let Some(slot) = at.and_then(|at| self.lanes.get_mut(lane)?.get_mut(at)) {
            *slot = None;
        }
    }

    /// The connections that are `meant`, with their lanes.
    fn find(&self, is_meant: impl Fn(&Initiator) -> bool) -> Vec<(usize, ConnectionIndex)> {
        let mut found = Vec::new();
        for (lane, slots) in self.lanes.iter().enumerate() {
            for (at, slot) in slots.iter().enumerate() {
                if slot.as_ref().is_some_and(&is_meant) {
                    found.push((lane, self.index(at)));
                }
            }
        }
        found
    }
}

impl Directory {
    /// A connection of a lane has ended there; its slot is free.
    pub(crate) fn connection_down(&self, lane: usize, connection: ConnectionIndex, cause: Code) {
        tracing::debug!(lane, connection = connection.0, cause = cause.name(), "a data connection ended");
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).put(lane, connection);
        let wanted = Wanted { lane, connection };
        self.forget_ours(wanted);
        if self.map.class_of(connection).is_some() && !self.map.serves(connection) {
            self.dead.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted);
        }
        self.ended.notify_all();
    }

    /// Our connections to a peer that have ended here, and perhaps not there.
    pub(super) fn dead_of(&self, slot: u32) -> Vec<Wanted> {
        let dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant =
            |wanted: &&Wanted| self.map.all_of_peer(slot).any(|connection| connection == wanted.connection);
        dead.iter().filter(is_meant).copied().collect()
    }

    /// These have ended at the peer, too.
    pub(super) fn forget_dead(&self, ended: &[Wanted]) {
        let mut dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        for wanted in ended {
            dead.remove(wanted);
        }
    }

    /// Notes that a lane is about to have a connection. Its peer has ended the one before it.
    pub(super) fn note_ours(&self, wanted: Wanted) {
        self.forget_dead(&[wanted]);
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted);
    }

    pub(super) fn forget_ours(&self, wanted: Wanted) {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted);
    }

    /// Waits until lanes have none of our connections to a peer any more; false when the time is over first.
    pub(super) fn wait_for_ours(&self, slot: u32, limit: Duration) -> bool {
        let map = self.map;
        let is_meant = |ours: &Wanted| map.all_of_peer(slot).any(|connection| connection == ours.connection);
        let until = Instant::now() + limit;
        while self.ours.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_meant) {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Ends all of a peer's connections to us; true when they have ended in time.
    pub(crate) fn close_targets(&self, slot: u32, cause: Code) -> bool {
        self.close_where(cause, |initiator| initiator.peer == slot)
    }

    pub(super) fn close_where(&self, cause: Code, is_meant: impl Fn(&Initiator) -> bool) -> bool {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = targets.find(&is_meant);
        drop(targets);
        for (lane, connection) in &meant {
            // A lane that does not answer is reported by the wait below.
            let _ = self.lanes.call(*lane, Command::CloseConnection { connection: *connection, cause });
        }
        let until = Instant::now() + CLOSE_MAX;
        targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = targets.find(&is_meant);
            if !meant.iter().any(|closed| now.contains(closed)) {
                return true;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            targets = self.ended.wait_timeout(targets, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all our connections to a peer, and the transfers on them. Those that wait want new ones: see [`GRACE`].
    pub(super) fn close_ours(&self, slot: u32, cause: Code) {
        for lane in 0..self.lanes.count() {
            for connection in self.map.all_of_peer(slot) {
                self.close_one(Wanted { lane, connection }, cause);
            }
        }
    }

    /// Ends one of our connections, if it is up.
    fn close_one(&self, wanted: Wanted, cause: Code) {
        let Wanted { lane, connection } = wanted;
        // Nothing is up there if this is refused.
        let _ = self.lanes.call(lane, Command::CloseConnection { connection, cause });
    }
}

/// Dead connections as a frame names them: by class, sockets first, one bit a lane.
pub(super) fn dead_bits(map: &Map, dead: &[Wanted]) -> [u64; 2 * CLASSES] {
    let mut bits = [0; 2 * CLASSES];
    for wanted in dead {
        let class = map.class_of(wanted.connection).map_or(0, usize::from);
        let over_rdma = if map.is_rdma(wanted.connection) { CLASSES } else { 0 };
        bits[over_rdma + class] |= 1 << (wanted.lane % 64);
    }
    bits
}

impl Directory {
    /// Ends our ends of a peer's connections that it names as [`dead_bits`] says; true when they have ended in time.
    pub(super) fn close_dead(&self, slot: u32, dead: &[u64; 2 * CLASSES]) -> bool {
        self.close_where(Code::ConnectionReset, |other| {
            let over_rdma = if other.is_rdma { CLASSES } else { 0 };
            let bits = dead.get(over_rdma + other.class as usize).copied().unwrap_or(0);
            other.peer == slot && !other.is_reader && bits >> (other.lane % 64) & 1 == 1
        })
    }
}

impl Peers {
    /// Connects what lanes want of one peer, until the dataplane stops or the peer is removed.
    pub(super) fn dial_data(&self, peer: &Peer) {
        while !self.is_over(peer) {
            let Ok(wanted) = peer.wanted.1.recv_timeout(HEARTBEAT) else { continue };
            if let Err(code) = self.connect(peer, wanted) {
                tracing::info!(
                    peer = peer.name(),
                    lane = wanted.lane,
                    code = code.name(),
                    "no data connection"
                );
                self.registrar.peers.refuse_connection(wanted.lane, wanted.connection);
            }
        }
    }

    /// Connects, anew when the channel that vouched for an attempt ended meanwhile: the attempt may have failed for that.
    fn connect(&self, peer: &Peer, wanted: Wanted) -> Result<(), Code> {
        let mut outcome = Err(Code::PeerDown);
        for _ in 0..ATTEMPTS {
            let link = self.link_within(peer, GRACE).ok_or(Code::PeerDown)?;
            outcome = self.connect_by(peer, &link, wanted);
            // A connection of an ended channel may have come too late for being closed with it: once more, and then anew.
            let is_current = peer.link().is_some_and(|now| Arc::ptr_eq(&now, &link));
            match outcome {
                Ok(()) if !is_current => self.registrar.peers.close_one(wanted, Code::PeerDown),
                Err(_) if !is_current => continue,
                _ => {}
            }
            break;
        }
        outcome
    }

    /// One attempt.
    fn connect_by(&self, peer: &Peer, link: &Link, wanted: Wanted) -> Result<(), Code> {
        let Wanted { lane, connection } = wanted;
        let directory = &self.registrar.peers;
        if directory.map.is_rdma(connection) {
            return self.connect_queue_pair(peer, link, wanted);
        }
        let class = directory.map.class_of(connection).ok_or(Code::ProtocolViolation)?;
        let serves = directory.map.serves(connection);
        let number = u32::try_from(lane).map_err(|_| Code::ProtocolViolation)?;
        let target_lane = number % link.hello.lanes.max(1);
        let hello = {
            let mut signer = link.signer.lock().unwrap_or_else(PoisonError::into_inner);
            signer.sign(number, target_lane, u32::from(class), serves)
        };
        let stream = dial_data(peer.address(), &hello, HANDSHAKE_MAX).map_err(|error| error.code())?;
        let slots = link.hello.slots.min(SLOTS_MAX);
        let info = if serves {
            let info = self.written_here(Role::Target, peer, class);
            ConnectionInfo { serves, slots, ..info }
        } else {
            ConnectionInfo { slots, ..written_there(Role::Initiator, peer, class, &link.hello) }
        };
        let socket = OwnedFd::from(stream);
        // Before the lane has it: its end may be reported at once.
        directory.note_ours(wanted);
        let attached = directory.lanes.call(lane, Command::AttachConnection { connection, socket, info });
        attached.map(drop).inspect_err(|_| directory.forget_ours(wanted))
    }

    /// What a lane has to know of a connection on which this node's memory is written.
    pub(super) fn written_here(&self, role: Role, peer: &Peer, class: u8) -> ConnectionInfo {
        ConnectionInfo {
            role,
            peer: peer.slot(),
            class,
            serves: false,
            slots: 0,
            small_bytes: self.identity.small_bytes,
            large_bytes: self.identity.large_bytes,
            pool_epoch: pool_epoch(self.registrar.incarnation),
        }
    }

    /// The live channel of a peer, waited for if it ended less than `grace` ago.
    fn link_within(&self, peer: &Peer, grace: Duration) -> Option<Arc<Link>> {
        loop {
            let link = peer.link();
            let is_recent = peer.down_since().is_some_and(|since| since.elapsed() < grace);
            if link.is_some() || !is_recent || self.is_over(peer) {
                return link;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A data connection that a peer dialled.
    pub(super) fn answer_data(&self, knock: DataKnock) -> Result<(), Code> {
        let hello = *knock.hello();
        let (peer, theirs) = self.verify(&hello)?;
        let slot = peer.slot();
        let directory = &self.registrar.peers;
        let lane = hello.target_lane as usize;
        if lane >= directory.lanes.count() || hello.class as usize >= CLASSES || hello.lane >= theirs.lanes {
            knock.refuse(&Refused::because(Code::ProtocolViolation, "lane or class"), HANDSHAKE_MAX);
            return Err(Code::ProtocolViolation);
        }
        let is_reader = hello.serves == 1;
        let initiator =
            Initiator { peer: slot, lane: hello.lane, class: hello.class, is_reader, is_rdma: false };
        if !directory.close_where(Code::ConnectionReset, |other| *other == initiator) {
            knock.refuse(
                &Refused::because(Code::DeviceError, "the earlier connection has not ended"),
                HANDSHAKE_MAX,
            );
            return Err(Code::DeviceError);
        }
        let taken = directory.targets.lock().unwrap_or_else(PoisonError::into_inner).take(lane, initiator);
        let Some(connection) = taken else {
            knock.refuse(&Refused::because(Code::QuotaExceeded, "connections of the lane"), HANDSHAKE_MAX);
            return Err(Code::QuotaExceeded);
        };
        // Below CLASSES, as was just checked.
        let class = u8::from(hello.class == 1);
        let slots = theirs.slots.min(SLOTS_MAX);
        let info = if is_reader {
            let info = written_there(Role::Initiator, &peer, class, &theirs);
            ConnectionInfo { serves: true, slots, ..info }
        } else {
            ConnectionInfo { slots, ..self.written_here(Role::Target, &peer, class) }
        };
        let attached = knock.ready(HANDSHAKE_MAX).map_err(|error| error.code()).and_then(|stream| {
            let socket = OwnedFd::from(stream);
            directory.lanes.call(lane, Command::AttachConnection { connection, socket, info })
        });
        if let Err(code) = attached {
            directory.targets.lock().unwrap_or_else(PoisonError::into_inner).put(lane, connection);
            return Err(code);
        }
        // The channel may have ended after the hello was verified: then nothing else would close this connection.
        if peer.link().is_none_or(|link| link.hello != theirs) {
            directory.lanes.call(lane, Command::CloseConnection { connection, cause: Code::PeerDown })?;
        }
        Ok(())
    }

    /// The peer whose live channel vouches for this hello. The peer may be a moment ahead: its end of a new channel is live
    /// once our hello arrived, ours once the channel's thread runs.
    fn verify(&self, hello: &DataHello) -> Result<(Arc<Peer>, NodeHello), Code> {
        let until = Instant::now() + LIVE_WITHIN;
        loop {
            if let Some(verified) = self.verify_now(hello) {
                return verified;
            }
            if Instant::now() >= until || self.is_stopping() {
                return Err(Code::KeyMismatch);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn verify_now(&self, hello: &DataHello) -> Option<Result<(Arc<Peer>, NodeHello), Code>> {
        for peer in self.registrar.peers.all() {
            let Some(link) = peer.link() else { continue };
            let mut verifier = link.verifier.lock().unwrap_or_else(PoisonError::into_inner);
            if verifier.token() == hello.token {
                return Some(verifier.verify(hello).map(|()| (peer, link.hello)));
            }
        }
        None
    }
}

/// What a lane has to know of a connection on which the peer's memory is written.
pub(super) fn written_there(role: Role, peer: &Peer, class: u8, hello: &NodeHello) -> ConnectionInfo {
    ConnectionInfo {
        role,
        peer: peer.slot(),
        class,
        serves: false,
        slots: 0,
        small_bytes: u64::from(hello.small_bytes),
        large_bytes: u64::from(hello.large_bytes),
        pool_epoch: pool_epoch(hello.incarnation),
    }
}

/// The epoch of the staging pools of a dataplane, from its incarnation: both ends compute it.
pub(crate) const fn pool_epoch(incarnation: u64) -> u32 {
    (incarnation >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_one_slot_for_each_of_its_lanes_and_none_that_others_are_sure_of() {
        let of =
            |peer, at: u32| Initiator { peer, lane: at / 2, class: at % 2, is_reader: false, is_rdma: false };
        let mut targets = Targets::new(1, Map::new(3, 1));
        let first = targets.take(0, of(1, 0)).unwrap();
        assert_eq!(targets.take(0, of(1, 0)), None, "it has one");
        for at in 1..128 {
            targets.take(0, of(1, at)).expect("a peer can have all its lanes connected");
        }
        assert_eq!(targets.take(0, of(1, 128)), None, "no peer has more lanes");
        let of_second = (0..128).filter(|at| targets.take(0, of(2, *at)).is_some()).count();
        assert_eq!(of_second, 124, "what the third is sure of stays free");
        for at in 0..4 {
            targets.take(0, of(3, at)).expect("it is sure of these");
        }
        assert_eq!(targets.take(0, of(3, 4)), None, "all are taken");
        targets.put(0, first);
        assert_eq!(targets.take(0, of(3, 4)), Some(first));
        assert_eq!(targets.take(1, of(1, 0)), None, "there is no such lane");
        assert_eq!(targets.take(0, of(4, 0)), None, "there is no such peer");
    }
}
