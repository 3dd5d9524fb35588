//! Data connections over RDMA: queue pairs, offered and answered over the channel.
//!
//! The side whose transfers go out makes its end and offers it; the other makes its own, connects it, gives it to its lane
//! and answers with it; then the first connects. So the target's end is there before anything can come. Rails are the same
//! number at both ends: the first NIC of a node talks to the first of the other.

use std::sync::{Arc, PoisonError};
use std::thread;

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_WRITE, Frame, NodeEndpoint};
use railhead_abi::observe::EventCode;
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::submission::CLASSES;
use railhead_core::port::ConnectionIndex;
use railhead_core::tables::{ConnectionInfo, Role};
use railhead_verbs::{AttachInfo, Endpoint, EndpointInfo, RAILS_MAX, RemoteMemory, VerbsError};

use super::data::{Initiator, Wanted, written_there};
use super::peer::{Link, Peer};
use super::{HANDSHAKE_MAX, Peers};
use crate::events::Event;
use crate::lane::mail::Command;

impl Peers {
    /// One attempt at one of our connections over RDMA.
    pub(super) fn connect_queue_pair(&self, peer: &Peer, link: &Link, wanted: Wanted) -> Result<(), Code> {
        let Wanted { lane, connection } = wanted;
        let directory = &self.registrar.peers;
        let class = directory.map.class_of(connection).ok_or(Code::ProtocolViolation)?;
        let number = u32::try_from(lane).map_err(|_| Code::ProtocolViolation)?;
        let target_lane = number % link.hello.lanes.max(1);
        let rail = self.rail_of(lane, link).ok_or(Code::RdmaAbsent)?;
        let refused = |error: &VerbsError| self.refuse_queue_pair(peer, lane, error);
        let endpoint = self.endpoint(lane, rail, connection).map_err(|error| refused(&error))?;
        let offer = NodeEndpoint {
            lane: number,
            target_lane,
            class,
            rail: u8::try_from(rail).unwrap_or(u8::MAX),
            endpoint: endpoint.info().to_words(),
            ..self.arena_of(lane, rail)
        };
        let answer = peer.offer(offer, HANDSHAKE_MAX)?;
        let theirs = EndpointInfo::from_words(answer.endpoint).ok_or(Code::ProtocolViolation)?;
        let ready = endpoint.connect(&theirs).map_err(|error| refused(&error))?;
        let slots = link.hello.slots.min(SLOTS_MAX);
        let info = ConnectionInfo { slots, ..written_there(Role::Initiator, peer, class, &link.hello) };
        let attach = attach_info(peer.slot(), rail, &answer)?;
        // Before the lane has it: its end may be reported at once.
        directory.note_ours(wanted);
        let attached = directory.lanes.call(lane, Command::AttachQueuePair { ready, attach, info });
        attached.map(drop).inspect_err(|_| directory.forget_ours(wanted))
    }

    /// A peer offers its end of a connection. Answered on a thread of its own: making queue pairs takes milliseconds.
    pub(super) fn offered(self: &Arc<Self>, peer: &Arc<Peer>, offer: NodeEndpoint) -> Result<(), Code> {
        let (peers, peer) = (Arc::clone(self), Arc::clone(peer));
        let answer = move || {
            let answer = peers.answer_offer(&peer, &offer).unwrap_or_else(|code| NodeEndpoint {
                cookie: offer.cookie,
                status: code.number(),
                ..NodeEndpoint::default()
            });
            peer.post(Frame::NodeAnswer(answer));
        };
        let thread = thread::Builder::new().name("railhead-offer".to_owned());
        thread.spawn(answer).map(drop).map_err(|_| Code::DeviceError)
    }

    fn answer_offer(&self, peer: &Peer, offer: &NodeEndpoint) -> Result<NodeEndpoint, Code> {
        let directory = &self.registrar.peers;
        let link = peer.link().ok_or(Code::PeerDown)?;
        let (lane, rail) = (offer.target_lane as usize, usize::from(offer.rail));
        let is_possible = lane < directory.lanes.count()
            && usize::from(offer.class) < CLASSES
            && offer.lane < link.hello.lanes
            && rail < self.rails(&link);
        if !is_possible {
            return Err(Code::ProtocolViolation);
        }
        let theirs = EndpointInfo::from_words(offer.endpoint).ok_or(Code::ProtocolViolation)?;
        let initiator = Initiator {
            peer: peer.slot(),
            lane: offer.lane,
            class: offer.class.into(),
            is_reader: false,
            is_rdma: true,
        };
        if !directory.close_where(Code::ConnectionReset, |other| *other == initiator) {
            return Err(Code::DeviceError);
        }
        let taken = directory.targets.lock().unwrap_or_else(PoisonError::into_inner).take(lane, initiator);
        let connection = taken.ok_or(Code::QuotaExceeded)?;
        let give_back =
            || directory.targets.lock().unwrap_or_else(PoisonError::into_inner).put(lane, connection);
        let answer =
            self.attach_target(peer, &link, offer, &theirs, connection).inspect_err(|_| give_back())?;
        // The channel may have ended meanwhile: then nothing else would close this connection.
        if peer.link().is_none_or(|now| !Arc::ptr_eq(&now, &link)) {
            directory.lanes.call(lane, Command::CloseConnection { connection, cause: Code::PeerDown })?;
        }
        Ok(answer)
    }

    fn attach_target(
        &self,
        peer: &Peer,
        link: &Link,
        offer: &NodeEndpoint,
        theirs: &EndpointInfo,
        connection: ConnectionIndex,
    ) -> Result<NodeEndpoint, Code> {
        let (lane, rail) = (offer.target_lane as usize, usize::from(offer.rail));
        let refused = |error: &VerbsError| self.refuse_queue_pair(peer, lane, error);
        let endpoint = self.endpoint(lane, rail, connection).map_err(|error| refused(&error))?;
        let ours = endpoint.info();
        let ready = endpoint.connect(theirs).map_err(|error| refused(&error))?;
        let slots = link.hello.slots.min(SLOTS_MAX);
        let info = ConnectionInfo { slots, ..self.written_here(Role::Target, peer, offer.class) };
        let attach = attach_info(peer.slot(), rail, offer)?;
        let lanes = &self.registrar.peers.lanes;
        lanes.call(lane, Command::AttachQueuePair { ready, attach, info })?;
        let endpoint = ours.to_words();
        Ok(NodeEndpoint { cookie: offer.cookie, endpoint, ..self.arena_of(lane, rail) })
    }

    fn endpoint(
        &self,
        lane: usize,
        rail: usize,
        connection: ConnectionIndex,
    ) -> Result<Endpoint, VerbsError> {
        let rdma = self.registrar.rdma.as_ref().ok_or(VerbsError::Peer("this node has no RDMA"))?;
        rdma.prepare(lane, rail, connection)
    }

    /// Rails that both nodes have.
    fn rails(&self, link: &Link) -> usize {
        let ours = self.registrar.rdma.as_ref().map_or(0, |rdma| rdma.rails());
        ours.min(link.hello.rails.into()).min(RAILS_MAX)
    }

    /// The rail for the connections of a lane: lanes are spread over them.
    fn rail_of(&self, lane: usize, link: &Link) -> Option<usize> {
        lane.checked_rem(self.rails(link))
    }

    /// A frame that says where the arena of a lane is.
    fn arena_of(&self, lane: usize, rail: usize) -> NodeEndpoint {
        let arena = self.registrar.rdma.as_ref().and_then(|rdma| rdma.arena(lane)).unwrap_or_default();
        NodeEndpoint {
            arena_address: arena.address,
            arena_bytes: arena.bytes,
            arena_key: arena.keys[rail],
            arena_epoch: arena.epoch,
            ..NodeEndpoint::default()
        }
    }

    fn refuse_queue_pair(&self, peer: &Peer, lane: usize, error: &VerbsError) -> Code {
        let event = Event::new(EventCode::RdmaRefused).reason(Code::RdmaRefused);
        let text = format!("{}: {error}", peer.name());
        self.registrar.events.emit(event.figures(peer.slot().into(), lane as u64).text(text));
        Code::RdmaRefused
    }
}

/// What a lane attaches a connection with, from what the peer said.
fn attach_info(peer: u32, rail: usize, said: &NodeEndpoint) -> Result<AttachInfo, Code> {
    let number = |number: usize| u8::try_from(number).map_err(|_| Code::ProtocolViolation);
    let mut keys = [0; RAILS_MAX];
    *keys.get_mut(rail).ok_or(Code::ProtocolViolation)? = said.arena_key;
    let arena = RemoteMemory {
        epoch: said.arena_epoch,
        access: ACCESS_WRITE,
        address: said.arena_address,
        bytes: said.arena_bytes,
        keys,
    };
    Ok(AttachInfo { peer: number(peer as usize)?, rail: number(rail)?, arena })
}
