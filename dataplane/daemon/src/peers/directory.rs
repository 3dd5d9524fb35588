//! What is known of each peer, and how other threads reach the ones that serve it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{Frame, NodeClose, NodeHello, NodeOpen, NodeOpened, NodePlan, name_words};
use railhead_abi::segment::{PEER_DOWN, PEER_UP, PeerStatus};
use railhead_abi::settings::Plan;
use railhead_core::port::{ConnectionIndex, Key};
use railhead_ring::Word;
use railhead_shm::Words;
use railhead_tcp::channel::{ChannelError, DataSigner, DataVerifier};

use super::data::{Targets, Wanted};
use super::link::Fresh;
use crate::lane::connections::Map;
use crate::lane::handle::Lanes;
use crate::lane::mail::Command;
use crate::registrar::Registrar;
use crate::segment::write_peer;

/// How long a peer may take to answer an open.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Frames that may wait to be sent to one peer.
pub(crate) const OUTBOX: usize = 1024;
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
    withdrawals: Vec<(Key, flume::Sender<()>)>,
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
    /// Its receive plan, since it last came up.
    plan: Option<Plan>,
    /// Newest generation of our receive plan that it was told since it last came up.
    told: u64,
    /// When its last channel ended.
    down_since: Option<Instant>,
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
    fresh: (flume::Sender<Fresh>, flume::Receiver<Fresh>),
    /// Data connections that lanes want.
    pub(crate) wanted: (flume::Sender<Wanted>, flume::Receiver<Wanted>),
}

impl Peer {
    fn new(slot: u32, name: &str, address: &str, words: Words) -> Self {
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
            plan: None,
            told: 0,
            down_since: None,
            status,
        };
        let (name, address) = (name.to_owned(), address.to_owned());
        let (fresh, wanted) = (flume::bounded(1), flume::bounded(WANTED));
        Self { slot, name, address, words, state: Mutex::new(state), fresh, wanted }
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
    pub(super) fn wait_for_channel(&self, limit: Duration) -> Result<Option<Fresh>, ChannelError> {
        Ok(self.fresh.1.recv_timeout(limit).ok())
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

    /// The channel is live: from here on sessions may ask over it.
    pub(super) fn came_up(&self, link: Arc<Link>) {
        let mut state = self.state();
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
        state.plan = None;
        state.told = 0;
        state.status.state = PEER_UP;
        state.status.cause = Code::Ok.number();
        state.status.incarnation = hello.incarnation;
        state.status.lanes = hello.lanes;
        state.status.ups += 1;
        state.status.planned_generation = 0;
        write_peer(&self.words, &state.status);
    }

    /// The channel has ended. Whoever waits for an answer learns that there is none.
    pub(super) fn went_down(&self, cause: Code) {
        let mut state = self.state();
        if state.link.take().is_some() {
            state.status.downs += 1;
            state.down_since = Some(Instant::now());
        }
        state.pending.opens.clear();
        state.pending.withdrawals.clear();
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

    /// Its receive plan changed. False if that is older news than what is known: two of its threads may overtake each other.
    pub(super) fn set_plan(&self, plan: Plan) -> bool {
        let mut state = self.state();
        if state.plan.is_some_and(|held| held.generation > plan.generation) {
            return false;
        }
        state.plan = Some(plan);
        state.status.plan_generation = plan.generation;
        state.status.receive_mode = plan.mode as u32;
        state.status.receive_direct_from_bytes = plan.direct_from_bytes;
        write_peer(&self.words, &state.status);
        true
    }

    /// Tells it our receive plan; false if it is down.
    pub(super) fn tell_plan(&self, plan: &Plan) -> bool {
        let mut state = self.state();
        let is_told = state.link.as_ref().is_some_and(|link| link.post(plan_frame(plan)));
        if is_told {
            state.told = state.told.max(plan.generation);
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
    fn open(&self, open: NodeOpen) -> Result<(NodeOpened, u64), Code> {
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
    fn close(&self, key: Key, incarnation: u64) {
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

    fn withdraw(&self, key: Key) -> Option<flume::Receiver<()>> {
        let (confirm, confirmed) = flume::bounded(1);
        let mut state = self.state();
        let link = state.link.clone()?;
        state.pending.withdrawals.push((key, confirm));
        link.post(close_frame(key)).then_some(confirmed)
    }

    /// The peer confirmed that it uses a key of ours no more.
    pub(super) fn withdrawn(&self, key: Key) {
        let is_meant = |(waited, _): &mut (Key, _)| *waited == key;
        for (_, waiter) in self.state().pending.withdrawals.extract_if(.., is_meant) {
            // There is room, and whoever gave up waiting is not there any more.
            let _ = waiter.try_send(());
        }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        // Changes under this lock are assignments: a panic elsewhere leaves them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer as the configuration names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerName<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Where it listens.
    pub(crate) address: &'a str,
}

/// All peers. Slot 0 is this node, which has no entry here.
#[derive(Debug)]
pub(crate) struct Directory {
    peers: Vec<Peer>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) map: Map,
    pub(super) targets: Mutex<Targets>,
    /// Rung when a target connection has ended.
    pub(super) ended: Condvar,
    reported_at: Mutex<Option<Instant>>,
}

impl Directory {
    /// The peers in the order of their slots, from 1 on, each with its words in the control segment.
    pub(crate) fn new<'a>(
        peers: impl IntoIterator<Item = (PeerName<'a>, Words)>,
        lanes: Arc<Lanes>,
        map: Map,
    ) -> Self {
        let peers =
            (1..).zip(peers).map(|(slot, (peer, words))| Peer::new(slot, peer.name, peer.address, words));
        let targets = Mutex::new(Targets::new(lanes.count(), map));
        let peers = peers.collect();
        Self { peers, lanes, map, targets, ended: Condvar::new(), reported_at: Mutex::new(None) }
    }

    /// The slots of all peers.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        let count = u32::try_from(self.peers.len()).unwrap_or(0);
        1..=count
    }

    /// The peer in a slot.
    ///
    /// # Panics
    /// If there is none: slots come from [`Self::slots`] and [`Self::find`].
    pub(crate) fn get(&self, slot: u32) -> &Peer {
        &self.peers[slot as usize - 1]
    }

    /// The slot of a peer by its name.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.peers.iter().find(|peer| peer.name == name).map(|peer| peer.slot)
    }

    /// Opens a region at a peer for a session of this node.
    ///
    /// # Errors
    /// The peer's refusal, or [`Code::PeerNotConnected`].
    pub(crate) fn open(&self, slot: u32, open: NodeOpen) -> Result<(NodeOpened, u64), Code> {
        self.get(slot).open(open)
    }

    /// Gives one handle back to the start of the peer that gave it.
    pub(crate) fn close(&self, slot: u32, key: Key, incarnation: u64) {
        self.get(slot).close(key, incarnation);
    }

    /// Tells a peer that a key of ours is not valid any more; what comes back says that it has stopped using it.
    pub(crate) fn withdraw(&self, slot: u32, key: Key) -> Option<flume::Receiver<()>> {
        self.get(slot).withdraw(key)
    }

    /// Makes sure that nothing of a peer can write here any more: its data connections end. It may make new ones.
    pub(crate) fn fence(&self, registrar: &Registrar, slot: u32) {
        if !self.close_targets(slot, Code::RemoteRefused) {
            tracing::error!(
                peer = self.get(slot).name,
                node = registrar.node,
                "connections of a peer did not end in time"
            );
        }
    }

    /// The peer's receive plan, if it said one since it last came up.
    pub(crate) fn plan(&self, slot: u32) -> Option<Plan> {
        self.get(slot).state().plan
    }

    /// Tells all peers that are up of a new receive plan. Returns how many.
    pub(crate) fn publish(&self, plan: Plan) -> usize {
        let told = self.peers.iter().filter(|peer| peer.tell_plan(&plan));
        told.count()
    }

    /// Whether any peer is configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Ends all channels.
    pub(crate) fn end_all(&self) {
        self.peers.iter().for_each(Peer::end);
    }

    /// A lane has transfers for a connection that is not there.
    pub(crate) fn connection_wanted(&self, lane: usize, connection: ConnectionIndex, peer: u32) {
        let known = self.peers.get((peer as usize).wrapping_sub(1));
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
}

/// The frame that tells a peer of a receive plan.
fn plan_frame(plan: &Plan) -> Frame {
    Frame::NodePlan(NodePlan {
        mode: plan.mode as u8,
        direct_from_bytes: plan.direct_from_bytes,
        generation: plan.generation,
    })
}

/// The frame that gives a handle back, or withdraws a key.
fn close_frame(key: Key) -> Frame {
    Frame::NodeClose(NodeClose { index: key.index, epoch: key.epoch })
}
