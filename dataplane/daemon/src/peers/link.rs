//! A live channel: what its two threads do until it ends.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{Empty, Frame, NodeHello, NodeOpen, NodeOpened, NodePlan, NodeRevoke};
use railhead_abi::observe::EventCode;
use railhead_abi::settings::{Plan, Plans};
use railhead_core::port::Key;
use railhead_ring::Word;
use railhead_tcp::channel::{Channel, ChannelError, DataSigner, DataVerifier, Sender};
use railhead_verbs::RAILS_MAX;

use super::peer::{Link, OUTBOX, Outgoing, Peer};
use super::{DEAD_AFTER, HANDSHAKE_MAX, HEARTBEAT, Peers};
use crate::events::Event;
use crate::lane::mail::Command;
use crate::registrar::mode_of;

/// How long a channel that seems dead is looked at once more.
const SECOND_LOOK: Duration = Duration::from_millis(20);

/// A channel whose hellos are exchanged and whose threads do not run yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    channel: Channel,
    hello: NodeHello,
    signer: DataSigner,
    verifier: DataVerifier,
}

impl Fresh {
    /// Of a channel and what both sides said.
    pub(super) fn new(channel: Channel, ours: &NodeHello, theirs: NodeHello) -> Self {
        let (signer, verifier) = (channel.data_signer(theirs.token), channel.data_verifier(ours.token));
        Self { channel, hello: theirs, signer, verifier }
    }
}

impl Peers {
    /// Serves a channel until it ends. Returns why it did.
    pub(super) fn run(self: &Arc<Self>, peer: &Arc<Peer>, fresh: Fresh) -> Code {
        let slot = peer.slot();
        let (sender, mut receiver) = fresh.channel.split();
        let (outbox, outgoing) = flume::bounded(OUTBOX);
        let sending = thread::Builder::new().name(format!("railhead-send-{slot}"));
        let broken = Arc::new(Word::new(0));
        let is_broken = Arc::clone(&broken);
        let sending = sending.spawn(move || send(sender, &outgoing, &is_broken));
        let Ok(sending) = sending else { return Code::DeviceError };
        let link = Arc::new(Link {
            hello: fresh.hello,
            signer: Mutex::new(fresh.signer),
            verifier: Mutex::new(fresh.verifier),
            outbox: outbox.clone(),
            broken,
        });
        // Before anybody can open a region of the new start, whose handle would expire with the old ones.
        if peer.is_restarted(fresh.hello.incarnation) {
            self.registrar.peer_restarted(slot);
        }
        if !peer.came_up(link) {
            return Code::PeerRemoved;
        }
        let event = Event::new(EventCode::PeerUp).text(peer.name());
        self.registrar.events.emit(event.figures(fresh.hello.incarnation, 0));
        // It may have missed changes while it was away.
        peer.tell_plans(&self.registrar.current.plans());
        let cause = loop {
            // A second look: a process that was stopped itself finds its time over and the heartbeats waiting.
            let received = match receiver.recv(DEAD_AFTER) {
                Err(ChannelError::Timeout) => receiver.recv(SECOND_LOOK),
                received => received,
            };
            match received {
                Ok(frame) => {
                    if let Err(code) = self.received(peer, frame) {
                        break code;
                    }
                }
                Err(ChannelError::Timeout) => break Code::HeartbeatLost,
                Err(error) => break error.code(),
            }
        };
        // The sender thread ends at once, and with it the stream. A full outbox is no obstacle: it disconnects.
        let _ = outbox.try_send(None);
        drop(outbox);
        peer.went_down(cause);
        let _ = sending.join();
        cause
    }

    /// After the end of a channel: nothing of this peer goes on.
    pub(super) fn went_down(&self, peer: &Peer, cause: Code) {
        self.registrar.events.emit(Event::new(EventCode::PeerDown).reason(cause).text(peer.name()));
        self.registrar.peers.close_ours(peer.slot(), cause);
        self.registrar.peers.close_targets(peer.slot(), cause);
    }

    /// A dialled peer cannot be reached: said once for each cause.
    pub(super) fn cannot_connect(&self, peer: &Peer, error: &ChannelError) {
        if peer.set_cause(error.code()) {
            let text = format!("{} at {}: {error}", peer.name(), peer.address());
            self.registrar.events.emit(Event::new(EventCode::PeerDown).reason(error.code()).text(text));
        }
    }

    /// Deals with one frame of a peer. What takes long is left to others, or the peer's heartbeats would not be read.
    fn received(self: &Arc<Self>, peer: &Arc<Peer>, frame: Frame) -> Result<(), Code> {
        match frame {
            Frame::Heartbeat(_) => {}
            Frame::NodeOpen(open) if open.dead != [0; 4] => self.open_fenced(peer, open)?,
            Frame::NodeOpen(open) => {
                let answer = self.open(peer, &open);
                peer.post(Frame::NodeOpened(answer));
            }
            Frame::NodeOpened(opened) => peer.opened(opened),
            Frame::NodeOffer(offer) => self.offered(peer, offer)?,
            Frame::NodeAnswer(answer) => peer.answered(answer),
            Frame::NodePlan(plan) => self.plan(peer, &plan)?,
            Frame::NodePlanned(planned) => peer.set_planned(planned.figure),
            Frame::NodeClose(close) => {
                self.registrar.peer_closed(peer.slot(), Key { index: close.index, epoch: close.epoch });
            }
            Frame::NodeRevoke(revoke) => self.give_up(peer, revoke)?,
            Frame::NodeRevoked(revoked) => peer.gave_up(Key { index: revoked.index, epoch: revoked.epoch }),
            _ => return Err(Code::ProtocolViolation),
        }
        Ok(())
    }

    /// Answers an open once our ends of the connections that have ended at the peer have ended here, too.
    fn open_fenced(self: &Arc<Self>, peer: &Arc<Peer>, open: NodeOpen) -> Result<(), Code> {
        let (peers, peer) = (Arc::clone(self), Arc::clone(peer));
        let answer = move || {
            let answer = if peers.registrar.peers.close_dead(peer.slot(), &open.dead) {
                peers.open(&peer, &open)
            } else {
                let status = Code::DeviceError.number();
                NodeOpened { cookie: open.cookie, status, ..NodeOpened::default() }
            };
            peer.post(Frame::NodeOpened(answer));
        };
        let thread = thread::Builder::new().name("railhead-open".to_owned());
        thread.spawn(answer).map(drop).map_err(|_| Code::DeviceError)
    }

    fn open(&self, peer: &Peer, open: &NodeOpen) -> NodeOpened {
        let refused =
            |code: Code| NodeOpened { cookie: open.cookie, status: code.number(), ..NodeOpened::default() };
        let opened = match self.registrar.open_for_peer(peer.slot(), peer.name(), open) {
            Ok(opened) => opened,
            Err(code) => return refused(code),
        };
        let Plans { receive: plan, send } = self.registrar.current.plans();
        NodeOpened {
            cookie: open.cookie,
            status: Code::Ok.number(),
            index: opened.key.index,
            epoch: opened.key.epoch,
            bytes: opened.bytes,
            session: opened.session,
            direct_possible: u8::from(plan.direct_possible && opened.direct_possible),
            mode: plan.mode as u8,
            send_mode: send.mode as u8,
            direct_from_bytes: plan.direct_from_bytes,
            send_direct_from_bytes: send.direct_from_bytes,
            plan_generation: plan.generation,
            address: opened.rdma.address,
            keys: key_words(opened.rdma.keys),
            access: opened.rdma.access,
        }
    }

    /// The peer wants its memory used by another plan: once every lane uses it, the peer is told so.
    fn plan(&self, peer: &Peer, said: &NodePlan) -> Result<(), Code> {
        if said.mode > 2 || said.send_mode > 2 {
            return Err(Code::ProtocolViolation);
        }
        let generation = said.generation;
        let plan = |mode: u8, direct_from_bytes| Plan {
            mode: mode_of(u64::from(mode)),
            direct_from_bytes,
            generation,
            direct_possible: true,
        };
        let plans = Plans {
            receive: plan(said.mode, said.direct_from_bytes),
            send: plan(said.send_mode, said.send_direct_from_bytes),
        };
        // Noted first: a handle that is being installed looks here afterwards.
        if !peer.set_plans(plans) {
            return Ok(());
        }
        self.registrar.lanes.call_all(|_| Command::UpdatePlans { peer: peer.slot(), plans })?;
        peer.post(Frame::NodePlanned(Empty { figure: generation }));
        Ok(())
    }

    /// The peer withdraws a key of its own: it is told as soon as no lane uses it any more.
    fn give_up(&self, peer: &Arc<Peer>, revoke: NodeRevoke) -> Result<(), Code> {
        let key = Key { index: revoke.index, epoch: revoke.epoch };
        peer.note_revoked(key);
        if self.registrar.tables().remotes_of_peer(peer.slot(), Some(key)).is_empty() {
            peer.post(Frame::NodeRevoked(revoke));
            return Ok(());
        }
        if !peer.begin_giving_up() {
            return Err(Code::ProtocolViolation);
        }
        let (registrar, giving) = (Arc::clone(&self.registrar), Arc::clone(peer));
        let give_up = move || {
            let limit = Duration::from_millis(u64::from(revoke.limit_ms));
            // Not in time: no answer, and the owner fences us.
            if registrar.give_up_remotes(giving.slot(), key, limit) {
                giving.post(Frame::NodeRevoked(revoke));
            }
            giving.end_giving_up();
        };
        let thread = thread::Builder::new().name(format!("railhead-end-{}", peer.slot()));
        thread.spawn(give_up).map(drop).map_err(|_| {
            peer.end_giving_up();
            Code::DeviceError
        })
    }
}

/// Memory keys as a frame has them, two a word.
fn key_words(keys: [u32; RAILS_MAX]) -> [u64; 2] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [pair(keys[0], keys[1]), pair(keys[2], keys[3])]
}

/// The sender thread of a channel. Its end ends the channel in both directions.
fn send(mut sender: Sender, outgoing: &flume::Receiver<Outgoing>, broken: &Word) {
    while broken.load_acquire() == 0 {
        let frame = match outgoing.recv_timeout(HEARTBEAT) {
            Ok(Some(frame)) => frame,
            Err(flume::RecvTimeoutError::Timeout) => Frame::Heartbeat(Empty::default()),
            Ok(None) | Err(flume::RecvTimeoutError::Disconnected) => return,
        };
        // A peer that takes nothing for so long is as good as dead.
        if let Err(error) = sender.send(&frame, HANDSHAKE_MAX) {
            tracing::debug!(%error, "a channel could not be sent on");
            return;
        }
    }
}
