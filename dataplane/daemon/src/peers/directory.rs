//! All peers: who sits in which slot, and how other threads reach the ones that serve them.
//!
//! A slot is given to another peer only after everything that used it has ended: the control segment, lanes and handles know
//! peers by their slots.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{NodeOpen, NodeOpened};
use railhead_abi::settings::Plans;
use railhead_core::port::{ConnectionIndex, Key};
use railhead_shm::Words;

use super::data::{Targets, Wanted, dead_bits};
use super::peer::Peer;
use crate::lane::connections::Map;
use crate::lane::handle::Lanes;
use crate::lane::mail::Command;

/// A peer as the configuration names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerName<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Where it listens.
    pub(crate) address: &'a str,
}

/// A slot for a peer.
#[derive(Debug)]
struct Seat {
    words: Words,
    peer: Option<Arc<Peer>>,
}

/// Seats in the order of their slots, from 1 on.
#[derive(Debug)]
struct Seats {
    seats: Vec<Seat>,
    /// Where to look for a free one first: the one that was free the longest.
    next: usize,
}

/// All peers. Slot 0 is this node, which has no entry here.
#[derive(Debug)]
pub(crate) struct Directory {
    seats: Mutex<Seats>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) map: Map,
    pub(super) targets: Mutex<Targets>,
    /// Our connections that lanes have been given, until they are down.
    pub(super) ours: Mutex<HashSet<Wanted>>,
    /// Those that have ended here, until their peer has said that its ends have, too.
    pub(super) dead: Mutex<HashSet<Wanted>>,
    /// Rung when a connection has ended.
    pub(super) ended: Condvar,
    reported_at: Mutex<Option<Instant>>,
}

impl Directory {
    /// No peers, and room for as many as the map says; `words` are those of the control segment by slot, from 1 on.
    pub(crate) fn new(words: impl IntoIterator<Item = Words>, lanes: Arc<Lanes>, map: Map) -> Self {
        let seats = words.into_iter().take(map.peers()).map(|words| Seat { words, peer: None });
        let seats = Mutex::new(Seats { seats: seats.collect(), next: 0 });
        let targets = Mutex::new(Targets::new(lanes.count(), map));
        let (ours, dead, reported_at) = (Mutex::default(), Mutex::default(), Mutex::new(None));
        Self { seats, lanes, map, targets, ours, dead, ended: Condvar::new(), reported_at }
    }

    /// Gives a peer a slot.
    ///
    /// # Errors
    /// [`Code::NameTaken`], also while an earlier peer of that name is being removed; [`Code::PeersFull`].
    pub(crate) fn add(&self, peer: PeerName<'_>) -> Result<Arc<Peer>, Code> {
        let mut seats = self.seats();
        if seats.taken().any(|other| other.name() == peer.name) {
            return Err(Code::NameTaken);
        }
        let count = seats.seats.len();
        let free = (seats.next..count).chain(0..seats.next).find(|at| seats.seats[*at].peer.is_none());
        let free = free.ok_or(Code::PeersFull)?;
        seats.next = (free + 1) % count;
        let seat = &mut seats.seats[free];
        let slot = u32::try_from(free + 1).map_err(|_| Code::PeersFull)?;
        let peer = Arc::new(Peer::new(slot, peer.name, peer.address, seat.words.clone()));
        seat.peer = Some(Arc::clone(&peer));
        Ok(peer)
    }

    /// Frees the slot of a peer of whom nothing is left.
    pub(super) fn vacate(&self, peer: &Peer) {
        peer.write_absent();
        let seat = peer.slot() as usize - 1;
        self.seats().seats[seat].peer = None;
    }

    /// Which connection of a lane is which.
    pub(crate) const fn map(&self) -> Map {
        self.map
    }

    /// All peers, those that are being removed included.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.seats().taken().cloned().collect()
    }

    /// The peer in a slot.
    pub(crate) fn get(&self, slot: u32) -> Option<Arc<Peer>> {
        let seat = (slot as usize).checked_sub(1)?;
        self.seats().seats.get(seat)?.peer.clone()
    }

    /// A peer by its name; none once its removal has begun.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Peer>> {
        self.seats().taken().find(|peer| peer.name() == name && !peer.is_leaving()).cloned()
    }

    /// Opens a region at a peer for a session of this node.
    ///
    /// # Errors
    /// The peer's refusal, or [`Code::PeerNotConnected`].
    pub(crate) fn open(&self, slot: u32, open: NodeOpen) -> Result<(NodeOpened, u64), Code> {
        let peer = self.get(slot).ok_or(Code::PeerUnknown)?;
        // How a transfer ended whose connection went down is unknown, and bytes of it may land until the peer's end is down,
        // too: an answer says that it is.
        let dead = self.dead_of(slot);
        let opened = peer.open(NodeOpen { dead: dead_bits(&self.map, &dead), ..open })?;
        self.forget_dead(&dead);
        Ok(opened)
    }

    /// Gives one handle back to the start of the peer that gave it.
    pub(crate) fn close(&self, slot: u32, key: Key, incarnation: u64) {
        if let Some(peer) = self.get(slot) {
            peer.close(key, incarnation);
        }
    }

    /// Has a peer give a key of ours up within `limit`; what comes back says that it has. None if it is down.
    pub(crate) fn revoke(&self, slot: u32, key: Key, limit: Duration) -> Option<flume::Receiver<()>> {
        self.get(slot)?.revoke(key, limit)
    }

    /// The peer's plans, if it said some since it last came up.
    pub(crate) fn plans(&self, slot: u32) -> Option<Plans> {
        self.get(slot)?.plans()
    }

    /// Tells all peers that are up of new plans. Returns how many.
    pub(crate) fn publish(&self, plans: Plans) -> usize {
        self.all().iter().filter(|peer| peer.tell_plans(&plans)).count()
    }

    /// Ends all channels.
    pub(crate) fn end_all(&self) {
        self.all().iter().for_each(|peer| peer.end());
    }

    /// A lane has transfers for a connection that is not there.
    pub(crate) fn connection_wanted(&self, lane: usize, connection: ConnectionIndex, peer: u32) {
        let known = self.get(peer).filter(|peer| !peer.is_leaving());
        let is_posted =
            known.is_some_and(|known| known.wanted.0.try_send(Wanted { lane, connection }).is_ok());
        if !is_posted {
            self.refuse_connection(lane, connection);
        }
    }

    /// What waits for a connection ends with `peer_down`.
    pub(super) fn refuse_connection(&self, lane: usize, connection: ConnectionIndex) {
        // Not waited for: this may be the thread that would read the answer.
        let (reply, _) = flume::bounded(1);
        let parcel = crate::lane::mail::Parcel::command(Command::RefuseConnection { connection }, reply);
        if let Err(code) = self.lanes.get(lane).post(parcel) {
            tracing::error!(code = code.name(), lane, "a lane takes no commands");
        }
    }

    /// Whether a refusal may become an event now; at most one in each `every`.
    pub(super) fn may_report(&self, every: Duration) -> bool {
        let mut reported_at = self.reported_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = reported_at.is_none_or(|at| at.elapsed() >= every);
        if is_due {
            *reported_at = Some(Instant::now());
        }
        is_due
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        // Changes under this lock are assignments: a panic elsewhere leaves them whole.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    fn taken(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.seats.iter().filter_map(|seat| seat.peer.as_ref())
    }
}
