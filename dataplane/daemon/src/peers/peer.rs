//! One peer: what is known of it, its live channel, who waits for its answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{
    Frame, NodeClose, NodeEndpoint, NodeHello, NodeOpen, NodeOpened, NodePlan, NodeRevoke, name_words,
};
use railhead_abi::segment::{PEER_ABSENT, PEER_DOWN, PEER_UP, PeerStatus};
use railhead_abi::settings::Plans;
use railhead_core::port::Key;
use railhead_ring::Word;
use railhead_shm::Words;
use railhead_tcp::channel::{ChannelError, DataSigner, DataVerifier};

use super::HEARTBEAT;
use super::data::Wanted;
use super::link::Fresh;
use crate::segment::write_peer;

/// How long a peer may take to answer an open.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Frames that may wait to be sent to one peer.
pub(crate) const OUTBOX: usize = 1024;
/// Withdrawn keys that are remembered: each is looked for by an opening that was under way when it came.
const REVOKED_MAX: usize = 1024;
/// Withdrawn keys that a peer may wait for at once: each has a thread. That is all that its sessions can have.
const GIVING_UP_MAX: usize = 256;
/// Data connections that may wait to be connected.
const WANTED: usize = 1024;

/// What a sender thread is given: a frame to send, or nothing to end the channel.
pub(crate) type Outgoing = Option<Frame>;

/// A live channel.
#[derive(Debug)]
pub(crate) struct Link {
    /// What the peer said of itself.
    pub(crate) hello: NodeHello,
    /// For our data connections to it.
    pub(crate) signer: Mutex<DataSigner>,
    /// For its data connections to us.
    pub(crate) verifier: Mutex<DataVerifier>,
    /// To the sender thread.
    pub(crate) outbox: flume::Sender<Outgoing>,
    /// 1 once a frame was lost for want of room: the channel is of no more use.
    pub(crate) broken: Arc<Word>,
}

impl Link {
    /// Posts a frame. A peer that has not taken a thousand frames will not be told the truth by the next: the channel ends.
    fn post(&self, frame: Frame) -> bool {
        let is_posted = self.outbox.try_send(Some(frame)).is_ok();
        if !is_posted {
            self.broken.store_release(1);
        }
        is_posted
    }
}

/// Who waits for an answer of a peer.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    cookie: u64,
    opens: HashMap<u64, flume::Sender<NodeOpened>>,
    offers: HashMap<u64, flume::Sender<NodeEndpoint>>,
    revocations: Vec<(Key, flume::Sender<()>)>,
}

/// What changes of a peer.
#[derive(Debug)]
struct PeerState {
    link: Option<Arc<Link>>,
    pending: Pending,
    /// Its incarnation when it was last up; 0 if it never was.
    incarnation: u64,
    /// Keys of that incarnation that were given back while it could not be told.
    closes: Vec<Key>,
    /// Keys that it withdrew lately, newest last.
    revoked: VecDeque<Key>,
    /// Keys that it withdrew and that lanes still use.
    giving_up: usize,
    /// Its receive plan, since it last came up.
    plans: Option<Plans>,
    /// Newest generation of our receive plan that it was told since it last came up.
    told: u64,
    /// When its last channel ended.
    down_since: Option<Instant>,
    /// Its removal has begun: nothing new of it begins, and its threads end.
    is_leaving: bool,
    status: PeerStatus,
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    slot: u32,
    name: String,
    address: String,
    words: Words,
    state: Mutex<PeerState>,
    /// Rung when its removal begins.
    left: Condvar,
    fresh: (flume::Sender<Fresh>, flume::Receiver<Fresh>),
    /// Data connections that lanes want.
    pub(crate) wanted: (flume::Sender<Wanted>, flume::Receiver<Wanted>),
}

impl Peer {
    /// A peer that is not connected, in a slot that nothing uses, with that slot's words in the control segment.
    pub(super) fn new(slot: u32, name: &str, address: &str, words: Words) -> Self {
        let status = PeerStatus {
            name: name_words(name),
            address: name_words(address),
            state: PEER_DOWN,
            cause: Code::PeerNotConnected.number(),
            ..PeerStatus::default()
        };
        write_peer(&words, &status);
        let state = PeerState {
            link: None,
            pending: Pending::default(),
            incarnation: 0,
            closes: Vec::new(),
            revoked: VecDeque::new(),
            giving_up: 0,
            plans: None,
            told: 0,
            down_since: None,
            is_leaving: false,
            status,
        };
        let (name, address) = (name.to_owned(), address.to_owned());
        let (fresh, wanted) = (flume::bounded(1), flume::bounded(WANTED));
        let (state, left) = (Mutex::new(state), Condvar::new());
        Self { slot, name, address, words, state, left, fresh, wanted }
    }

    /// Its slot in the table of peers.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The live channel.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.state().link.clone()
    }

    /// Hands over a channel that the peer dialled. It replaces one that it no longer believes in.
    pub(super) fn give_channel(&self, fresh: Fresh) {
        self.end();
        // A channel that nobody has picked up yet is older than this one.
        drop(self.fresh.1.try_recv());
        if self.fresh.0.try_send(fresh).is_err() {
            tracing::debug!(peer = self.name, "two channels came at once; the later one is dropped");
        }
    }

    /// Waits for a channel that the peer dials.
    pub(super) fn wait_for_channel(&self) -> Result<Option<Fresh>, ChannelError> {
        Ok(self.fresh.1.recv_timeout(HEARTBEAT).ok())
    }

    /// Begins its removal. False if it had begun before.
    pub(super) fn leave(&self) -> bool {
        let began = !core::mem::replace(&mut self.state().is_leaving, true);
        self.left.notify_all();
        began
    }

    /// Whether its removal has begun.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state().is_leaving
    }

    /// Waits, but not longer than until its removal begins.
    pub(super) fn pause(&self, limit: Duration) {
        let waited = self.left.wait_timeout_while(self.state(), limit, |state| !state.is_leaving);
        // A poisoned lock guards whole values: see `state`.
        drop(waited);
    }

    /// Says that there is no peer in this slot any more. Its name stays for those who look at what happened before.
    pub(super) fn write_absent(&self) {
        let mut state = self.state();
        state.status.state = PEER_ABSENT;
        write_peer(&self.words, &state.status);
    }

    /// Ends the live channel, if there is one.
    pub(crate) fn end(&self) {
        if let Some(link) = self.link() {
            // A full outbox means that the peer takes nothing, and the sender's time limit ends the channel.
            let _ = link.outbox.try_send(None);
        }
    }

    /// Posts a frame; false if the peer is down.
    pub(crate) fn post(&self, frame: Frame) -> bool {
        self.link().is_some_and(|link| link.post(frame))
    }

    /// Whether a peer of this incarnation was restarted since it was last up.
    pub(super) fn is_restarted(&self, incarnation: u64) -> bool {
        let known = self.state().incarnation;
        known != incarnation && known != 0
    }

    /// The channel is live: from here on sessions may ask over it. False if the peer's removal has begun: nobody would end
    /// it then.
    pub(super) fn came_up(&self, link: Arc<Link>) -> bool {
        let mut state = self.state();
        if state.is_leaving {
            return false;
        }
        let hello = link.hello;
        let is_other = state.incarnation != hello.incarnation;
        state.incarnation = hello.incarnation;
        let closes = core::mem::take(&mut state.closes);
        if !is_other {
            for key in closes {
                link.post(close_frame(key));
            }
        }
        state.link = Some(link);
        // A key that was given up for good is not given out again; one of a peer that had been removed may be.
        state.revoked.clear();
        state.plans = None;
        state.told = 0;
        state.status.state = PEER_UP;
        state.status.cause = Code::Ok.number();
        state.status.incarnation = hello.incarnation;
        state.status.lanes = hello.lanes;
        state.status.ups += 1;
        state.status.planned_generation = 0;
        write_peer(&self.words, &state.status);
        true
    }

    /// The channel has ended. Whoever waits for an answer learns that there is none.
    pub(super) fn went_down(&self, cause: Code) {
        let mut state = self.state();
        if state.link.take().is_some() {
            state.status.downs += 1;
            state.down_since = Some(Instant::now());
        }
        state.pending.opens.clear();
        state.pending.offers.clear();
        state.pending.revocations.clear();
        state.status.state = PEER_DOWN;
        state.status.cause = cause.number();
        write_peer(&self.words, &state.status);
    }

    /// When its last channel ended, if it had one.
    pub(super) fn down_since(&self) -> Option<Instant> {
        self.state().down_since
    }

    /// Notes why it cannot be reached; true if that is news.
    pub(super) fn set_cause(&self, cause: Code) -> bool {
        let mut state = self.state();
        let is_news = state.status.cause != cause.number();
        state.status.cause = cause.number();
        write_peer(&self.words, &state.status);
        is_news
    }

    /// Its plans changed. False if that is older news than what is known: two of its threads may overtake each other.
    pub(super) fn set_plans(&self, plans: Plans) -> bool {
        let mut state = self.state();
        if state.plans.is_some_and(|held| held.generation() > plans.generation()) {
            return false;
        }
        state.plans = Some(plans);
        let plan = plans.receive;
        state.status.plan_generation = plan.generation;
        state.status.receive_mode = plan.mode as u32;
        state.status.receive_direct_from_bytes = plan.direct_from_bytes;
        write_peer(&self.words, &state.status);
        true
    }

    /// Tells it our plans; false if it is down.
    pub(super) fn tell_plans(&self, plans: &Plans) -> bool {
        let mut state = self.state();
        let is_told = state.link.as_ref().is_some_and(|link| link.post(plan_frame(plans)));
        if is_told {
            state.told = state.told.max(plans.generation());
        }
        is_told
    }

    /// It says that it uses our receive plan of this generation: at most the newest that it was told.
    pub(super) fn set_planned(&self, generation: u64) {
        let mut state = self.state();
        let generation = generation.min(state.told);
        state.status.planned_generation = state.status.planned_generation.max(generation);
        write_peer(&self.words, &state.status);
    }

    /// Asks for a region; the incarnation says who answered.
    pub(super) fn open(&self, open: NodeOpen) -> Result<(NodeOpened, u64), Code> {
        let (reply, answer) = flume::bounded(1);
        let (cookie, incarnation) = {
            let mut state = self.state();
            let link = state.link.clone().ok_or(Code::PeerNotConnected)?;
            state.pending.cookie += 1;
            let cookie = state.pending.cookie;
            state.pending.opens.insert(cookie, reply);
            let frame = Frame::NodeOpen(NodeOpen { cookie, ..open });
            if !link.post(frame) {
                state.pending.opens.remove(&cookie);
                return Err(Code::PeerNotConnected);
            }
            (cookie, link.hello.incarnation)
        };
        let answered = answer.recv_timeout(OPEN_MAX);
        self.state().pending.opens.remove(&cookie);
        let opened = answered.map_err(|_| Code::PeerNotConnected)?;
        match Code::from_number(opened.status) {
            Some(Code::Ok) => Ok((opened, incarnation)),
            Some(code) => Err(code),
            None => Err(Code::ProtocolViolation),
        }
    }

    /// Offers our end of an RDMA connection; the answer has the peer's.
    pub(super) fn offer(&self, offer: NodeEndpoint, limit: Duration) -> Result<NodeEndpoint, Code> {
        let (reply, answer) = flume::bounded(1);
        let cookie = {
            let mut state = self.state();
            let link = state.link.clone().ok_or(Code::PeerNotConnected)?;
            state.pending.cookie += 1;
            let cookie = state.pending.cookie;
            state.pending.offers.insert(cookie, reply);
            if !link.post(Frame::NodeOffer(NodeEndpoint { cookie, ..offer })) {
                state.pending.offers.remove(&cookie);
                return Err(Code::PeerNotConnected);
            }
            cookie
        };
        let answered = answer.recv_timeout(limit);
        self.state().pending.offers.remove(&cookie);
        let answer = answered.map_err(|_| Code::PeerNotConnected)?;
        match Code::from_number(answer.status) {
            Some(Code::Ok) => Ok(answer),
            Some(code) => Err(code),
            None => Err(Code::ProtocolViolation),
        }
    }

    /// The peer answered an offer. One that comes too late is of a connection that the peer's lane gives up by itself.
    pub(super) fn answered(&self, answer: NodeEndpoint) {
        let waiter = self.state().pending.offers.remove(&answer.cookie);
        if let Some(waiter) = waiter {
            // Whoever gave up waiting is not there any more.
            let _ = waiter.send(answer);
        }
    }

    /// The peer answered an open.
    pub(super) fn opened(&self, opened: NodeOpened) {
        let waiter = self.state().pending.opens.remove(&opened.cookie);
        let is_taken = waiter.is_some_and(|waiter| waiter.send(opened).is_ok());
        // Nobody waits any more: give it back, or the peer would count a handle that nobody has.
        if !is_taken && opened.status == Code::Ok.number() {
            self.post(close_frame(Key { index: opened.index, epoch: opened.epoch }));
        }
    }

    /// Gives one handle back to the start of the peer that gave it: now, or when it is back.
    pub(super) fn close(&self, key: Key, incarnation: u64) {
        let mut state = self.state();
        if state.incarnation != incarnation {
            return;
        }
        match state.link.clone() {
            Some(link) => {
                link.post(close_frame(key));
            }
            None => state.closes.push(key),
        }
    }

    /// Has it give a key of ours up within `limit`; what comes back says that it has. None if it is down.
    pub(super) fn revoke(&self, key: Key, limit: Duration) -> Option<flume::Receiver<()>> {
        let (confirm, confirmed) = flume::bounded(1);
        let mut state = self.state();
        let link = state.link.clone()?;
        state.pending.revocations.push((key, confirm));
        link.post(Frame::NodeRevoke(revoke_body(key, limit))).then_some(confirmed)
    }

    /// It gave a key of ours up.
    pub(super) fn gave_up(&self, key: Key) {
        let is_meant = |(waited, _): &mut (Key, _)| *waited == key;
        for (_, waiter) in self.state().pending.revocations.extract_if(.., is_meant) {
            // There is room, and whoever gave up waiting is not there any more.
            let _ = waiter.try_send(());
        }
    }

    /// It withdrew a key of its own. To be noted before the handles of that key are looked for.
    pub(super) fn note_revoked(&self, key: Key) {
        let mut state = self.state();
        if state.revoked.len() == REVOKED_MAX {
            state.revoked.pop_front();
        }
        state.revoked.push_back(key);
    }

    /// Whether it withdrew this key. To be asked after a handle of that key can be found.
    pub(crate) fn was_revoked(&self, key: Key) -> bool {
        self.state().revoked.contains(&key)
    }

    /// A thread begins to give a key up. False if too many do.
    pub(super) fn begin_giving_up(&self) -> bool {
        let mut state = self.state();
        let may = state.giving_up < GIVING_UP_MAX;
        state.giving_up += usize::from(may);
        may
    }

    /// It has ended.
    pub(super) fn end_giving_up(&self) {
        self.state().giving_up -= 1;
    }

    /// Its plans, if it said some since it last came up.
    pub(super) fn plans(&self) -> Option<Plans> {
        self.state().plans
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        // Changes under this lock are assignments: a panic elsewhere leaves them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The frame that tells a peer of our plans.
fn plan_frame(plans: &Plans) -> Frame {
    Frame::NodePlan(NodePlan {
        mode: plans.receive.mode as u8,
        send_mode: plans.send.mode as u8,
        direct_from_bytes: plans.receive.direct_from_bytes,
        send_direct_from_bytes: plans.send.direct_from_bytes,
        generation: plans.generation(),
    })
}

/// The frame that gives a handle back.
fn close_frame(key: Key) -> Frame {
    Frame::NodeClose(NodeClose { index: key.index, epoch: key.epoch })
}

/// What withdraws a key, and what answers that.
pub(super) fn revoke_body(key: Key, limit: Duration) -> NodeRevoke {
    let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    NodeRevoke { index: key.index, epoch: key.epoch, limit_ms }
}
