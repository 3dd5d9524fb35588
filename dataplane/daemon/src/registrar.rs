//! The registrar: everything between the world and the lanes that is slow.
//!
//! It owns the tables of sessions, regions and remote handles ([`crate::tables`]) and the order in which things come and
//! go. Coming: memory is checked and mapped, then every lane has it, then others can find it. Going: nobody finds it,
//! holders stop, every lane has drained it, then it is unmapped. Session threads, peer threads and the notices thread
//! call it; the lock of the
//! tables is never held while a lane or a peer is asked.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::observe::EventCode;
use railhead_core::Notice;
use railhead_core::port::{Key, RegionIndex};
use railhead_shm::{Words, futex};

use crate::events::{Event, EventLog};
use crate::lane::SLEEPERS_MAX;
use crate::lane::handle::Lanes;
use crate::lane::mail::Command;
use crate::peers::directory::Directory;
use crate::rdma::Rdma;
use crate::segment::LanesPage;
use crate::settings::Current;
use crate::tables::{RegionEntry, SELF, Tables};

mod regions;
mod remotes;
mod sessions;

pub(crate) use regions::Registration;
pub(crate) use remotes::mode_of;

/// How long a client's release may take before it is told to come back later.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(5);
/// How long a name that is taken is waited for: its holder may have closed its socket a moment ago.
const NAME_WAIT: Duration = Duration::from_millis(500);
/// How long the end of a dead client's transfers is waited for between two complaints in the log.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// The registrar, shared by all ordinary threads.
#[derive(Debug)]
pub(crate) struct Registrar {
    /// This node's name.
    pub(crate) node: String,
    /// Random number of this start.
    pub(crate) incarnation: u64,
    /// The lanes.
    pub(crate) lanes: Arc<Lanes>,
    /// Which lanes sleep, for clients.
    pub(crate) lanes_page: LanesPage,
    /// Where events go.
    pub(crate) events: Arc<EventLog>,
    /// The newest prepared settings.
    pub(crate) current: Arc<Current>,
    /// Other nodes.
    pub(crate) peers: Directory,
    /// The NICs, where they are used.
    pub(crate) rdma: Option<Arc<Rdma>>,
    /// [`Counter::RegionsLost`](railhead_abi::observe::Counter::RegionsLost) of lane 0, which the registrar counts: no
    /// lane knows of other lanes' faults.
    regions_lost: Words,
    tables: Mutex<Tables>,
    /// Held while lanes are told who may write a region.
    allowing: Mutex<()>,
    /// Rung when a lane has given something back.
    ended: Condvar,
}

impl Registrar {
    /// A registrar without sessions.
    #[expect(clippy::too_many_arguments, reason = "the parts of the one value that main puts together")]
    pub(crate) fn new(
        node: &str,
        incarnation: u64,
        sessions_max: usize,
        lanes: Arc<Lanes>,
        lanes_page: LanesPage,
        events: Arc<EventLog>,
        current: Arc<Current>,
        peers: Directory,
        rdma: Option<Arc<Rdma>>,
        regions_lost: Words,
    ) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "half of a random number is as random")]
        let tables = Mutex::new(Tables::new(sessions_max, lanes.count(), incarnation as u32));
        let node = node.to_owned();
        let (allowing, ended) = (Mutex::new(()), Condvar::new());
        Self {
            node,
            incarnation,
            lanes,
            lanes_page,
            events,
            current,
            peers,
            rdma,
            regions_lost,
            tables,
            allowing,
            ended,
        }
    }

    /// The tables, for a look or a change.
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic ends the process; under a test's unwinding each change is whole or a panic of its own.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until lanes have given back what `is_done` looks for. False when the time is over first.
    pub(crate) fn wait_until(&self, limit: Duration, is_done: impl Fn(&Tables) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut tables = self.tables();
        while !is_done(&tables) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            let waited = self.ended.wait_timeout(tables, left);
            tables = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(tables, _)| tables);
        }
        true
    }

    /// Tries what needs a free name, again for a moment while it is taken.
    pub(crate) fn with_name<T>(
        &self,
        mut attempt: impl FnMut(&mut Tables) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let until = Instant::now() + NAME_WAIT;
        let mut tables = self.tables();
        loop {
            let outcome = attempt(&mut tables);
            let left = until
                .checked_duration_since(Instant::now())
                .filter(|_| matches!(outcome, Err(Code::NameTaken)));
            let Some(left) = left else { return outcome };
            let waited = self.ended.wait_timeout(tables, left);
            tables = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(tables, _)| tables);
        }
    }

    /// As [`Self::wait_until`], as long as it takes: for what must not be freed before. A lane that owes an end for long
    /// is a bug or a peer that keeps its transfers from ending; it is said so and waited for all the same.
    fn wait_for_ever(&self, what: &str, is_done: impl Fn(&Tables) -> bool) {
        while !self.wait_until(DRAIN_MAX, &is_done) {
            tracing::warn!(what, "lanes still use memory of a session that has ended");
        }
    }

    /// A lane said something unasked.
    pub(crate) fn notice(&self, lane: usize, notice: Notice<Words>) {
        match notice {
            Notice::PortClosed { session, port, parts } => {
                // The lane has forgotten the port, perhaps before it woke who sleeps on it: its last completions are there.
                let _ = parts.bell.take();
                futex::wake(&parts.bell.memory()[0], SLEEPERS_MAX);
                self.tables().remove_port(session, lane, port.0);
            }
            Notice::RegionDrained { region } => {
                self.tables().region_lanes(region.0, |lanes| *lanes &= !(1 << lane))
            }
            Notice::RemoteDrained { remote } => {
                self.tables().remote_lanes(remote, |lanes| *lanes &= !(1 << lane))
            }
            Notice::ConnectionWanted { connection, peer } => {
                self.peers.connection_wanted(lane, connection, peer)
            }
            Notice::ConnectionDown { connection, cause } => {
                self.peers.connection_down(lane, connection, cause)
            }
        }
        self.ended.notify_all();
    }

    /// Has every lane let those peers write and read a region that hold it for that now, and no others. Returns when all
    /// lanes do.
    pub(crate) fn allow_peers(&self, key: Key) -> Result<(), Code> {
        // Looked up and handed on by one thread at a time, or an older answer could come to the lanes after a newer one.
        let _turn = self.allowing.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = {
            let tables = self.tables();
            let of = |region: &RegionEntry| (region.peers(ACCESS_WRITE), region.peers(ACCESS_READ));
            tables.region(key.index).filter(|_| tables.key(key.index) == key).map(of)
        };
        let Some((peers, readers)) = allowed else { return Err(Code::RegionUnknown) };
        self.lanes.call_all(|_| Command::AllowPeers {
            region: RegionIndex(key.index),
            epoch: key.epoch,
            peers,
            readers,
        })
    }

    /// A peer gave a handle back.
    pub(crate) fn peer_closed(&self, peer: u32, key: Key) {
        let was_last = self.tables().unhold(key, peer);
        if was_last && peer != SELF {
            self.withdraw_right(key);
        }
    }

    fn withdraw_right(&self, key: Key) {
        match self.allow_peers(key) {
            // A region that has gone meanwhile is written by nobody.
            Ok(()) | Err(Code::RegionUnknown) => {}
            Err(code) => {
                tracing::warn!(code = code.name(), "a lane did not take back a peer's right to a region")
            }
        }
    }

    /// A peer is gone for good: what it held is not held any more.
    pub(crate) fn peer_gone(&self, peer: u32) {
        let held = self.tables().unhold_all(peer);
        held.into_iter().for_each(|key| self.withdraw_right(key));
    }

    /// A peer has another incarnation than before: what it held is not held any more, what it gave means nothing.
    pub(crate) fn peer_restarted(&self, peer: u32) {
        self.peer_gone(peer);
        if let Err(code) = self.lanes.call_all(|_| Command::ExpireRemotes { peer }) {
            tracing::error!(
                code = code.name(),
                peer,
                "a lane did not expire the handles of a restarted peer"
            );
        }
    }

    /// Whether `name` means this node.
    pub(crate) fn is_self(&self, name: &str) -> bool {
        name == "self" || name == self.node
    }

    /// Every lane, one bit each.
    fn all_lanes(&self) -> u64 {
        u64::MAX >> (64 - self.lanes.count().clamp(1, 64))
    }

    fn emit(&self, event: Event) {
        self.events.emit(event);
    }
}

/// An event about one name.
fn named(code: EventCode, name: &str) -> Event {
    Event::new(code).text(if name.is_empty() { "(unnamed)" } else { name })
}
