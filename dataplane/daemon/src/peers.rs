//! Other nodes: the channel to each, what is asked over it, and the data connections that it vouches for.
//!
//! Each pair of nodes has one authenticated channel ([`railhead_tcp::channel`]). The node whose name sorts first dials it,
//! again and again with growing pauses; the other one waits. A channel that is silent for two seconds is dead, and its
//! death ends all data connections with that peer, so that transfers learn of it within a stated time.
//!
//! | thread | one for | does |
//! |---|---|---|
//! | `railhead-peer-N` | peer | dials or waits; then receives: heartbeats, opens, plans, ends of keys |
//! | `railhead-send-N` | live channel | sends what others post, and a heartbeat when there is nothing |
//! | `railhead-dial-N` | peer | connects data connections that lanes want |
//! | `railhead-listen` | node | accepts; a short-lived thread each tells channels from data connections |
//!
//! A node that was restarted comes back with another incarnation: what it held is released, what it gave is stale.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{NodeHello, Refused, Text, name_words};
use railhead_abi::observe::EventCode;
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::settings::LANES_MAX;
use railhead_abi::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use railhead_ring::Word;
use railhead_tcp::channel::{self, Channel, ChannelError, ChannelKnock, Incoming, Keys};

use crate::error::StartError;
use crate::events::Event;
use crate::machine;
use crate::registrar::Registrar;

pub(crate) mod backoff;
pub(crate) mod data;
pub(crate) mod directory;
mod link;
pub(crate) mod peer;
mod queue_pairs;
mod removal;

use backoff::Backoff;
use directory::PeerName;
use link::Fresh;
use peer::Peer;

/// How often a node says that it is alive.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(250);
/// How long a silent peer counts as alive.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(2);
/// How long a handshake, or the connecting of a data connection, may take.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Strangers and peers that may be in their handshake at once; more are closed unread.
const KNOCKS_MAX: u64 = 64;
/// How often refusals of strangers become events, so that a scan does not wash the log away.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);

/// What never changes of this node's side of all channels.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The cluster key or keys.
    pub(crate) keys: Keys,
    /// Bytes of our small blocks.
    pub(crate) small_bytes: u64,
    /// Bytes of our large blocks.
    pub(crate) large_bytes: u64,
}

/// The running side of the peers.
#[derive(Debug)]
pub(crate) struct Peers {
    registrar: Arc<Registrar>,
    identity: Identity,
    /// 1 once the dataplane stops.
    stopping: Word,
    /// Handshakes under way.
    knocks: Word,
}

impl Peers {
    /// Starts the threads of all peers and the listener's.
    ///
    /// # Errors
    /// No threads left.
    pub(crate) fn start(
        registrar: &Arc<Registrar>,
        identity: Identity,
        listener: TcpListener,
    ) -> Result<Arc<Self>, StartError> {
        let registrar = Arc::clone(registrar);
        let peers = Arc::new(Self { registrar, identity, stopping: Word::new(0), knocks: Word::new(0) });
        let failed = |error| StartError::new(Code::DeviceError, "peer threads", error);
        for peer in peers.registrar.peers.all() {
            peers.serve(&peer).map_err(failed)?;
        }
        let listening = Arc::clone(&peers);
        let thread = thread::Builder::new().name("railhead-listen".to_owned());
        thread.spawn(move || listening.listen(&listener)).map_err(failed)?;
        Ok(peers)
    }

    /// Adds a peer while the dataplane runs. It is connected as soon as both nodes know each other.
    ///
    /// # Errors
    /// [`Code::NameTaken`], [`Code::PeersFull`]; [`Code::DeviceError`] if there are no threads left.
    pub(crate) fn add(self: &Arc<Self>, name: PeerName<'_>) -> Result<u32, Code> {
        let peer = self.registrar.peers.add(name)?;
        if let Err(error) = self.serve(&peer) {
            tracing::error!(peer = peer.name(), %error, "no threads for a peer");
            peer.leave();
            self.registrar.peers.vacate(&peer);
            return Err(Code::DeviceError);
        }
        let slot = peer.slot();
        let event = Event::new(EventCode::PeerAdded).text(peer.name());
        self.registrar.events.emit(event.figures(u64::from(slot), 0));
        Ok(slot)
    }

    /// All peers as a configuration names them.
    pub(crate) fn known(&self) -> Vec<railhead_config::Peer> {
        let all = self.registrar.peers.all();
        let known = all.iter().map(|peer| railhead_config::Peer {
            name: peer.name().to_owned(),
            address: peer.address().to_owned(),
        });
        known.collect()
    }

    /// Starts the threads of a peer. They end when its removal begins.
    fn serve(self: &Arc<Self>, peer: &Arc<Peer>) -> std::io::Result<()> {
        let slot = peer.slot();
        let (running, dialing) = (Arc::clone(self), Arc::clone(self));
        let (supervised, dialled) = (Arc::clone(peer), Arc::clone(peer));
        let thread = thread::Builder::new().name(format!("railhead-peer-{slot}"));
        thread.spawn(move || running.supervise(&supervised))?;
        let thread = thread::Builder::new().name(format!("railhead-dial-{slot}"));
        thread.spawn(move || dialing.dial_data(&dialled)).map(drop)
    }

    /// Ends all channels; peers see it at once.
    pub(crate) fn stop(&self) {
        self.stopping.store_release(1);
        self.registrar.peers.end_all();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load_acquire() != 0
    }

    /// Whether the threads of a peer shall end.
    fn is_over(&self, peer: &Peer) -> bool {
        self.is_stopping() || peer.is_leaving()
    }

    /// Keeps the channel to one peer.
    fn supervise(self: &Arc<Self>, peer: &Arc<Peer>) {
        let we_dial = self.registrar.node.as_str() < peer.name();
        let mut backoff = Backoff::new(u64::from(peer.slot()) ^ self.registrar.incarnation);
        while !self.is_over(peer) {
            let fresh = if we_dial { self.dial(peer) } else { peer.wait_for_channel() };
            match fresh {
                Ok(Some(fresh)) => {
                    let since = Instant::now();
                    let cause = self.run(peer, fresh);
                    if self.is_stopping() {
                        return;
                    }
                    self.went_down(peer, cause);
                    // A channel that ends at once, again and again, is no success.
                    if since.elapsed() >= DEAD_AFTER {
                        backoff.reset();
                    } else if we_dial {
                        peer.pause(backoff.next());
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.cannot_connect(peer, &error);
                    peer.pause(backoff.next());
                }
            }
        }
    }

    fn dial(&self, peer: &Peer) -> Result<Option<Fresh>, ChannelError> {
        let mut channel = channel::dial(peer.address(), &self.identity.keys, HANDSHAKE_MAX)?;
        let ours = self.hello()?;
        let theirs = channel.greet(&ours, HANDSHAKE_MAX, |hello| {
            let there = Text::of(&hello.node);
            if there.as_str() != peer.name() {
                let detail = format!("this address is of node {}", there.as_str());
                return Some(Refused::because(Code::NodeUnknown, &detail));
            }
            refuse_lanes(hello)
        })?;
        Ok(Some(Fresh::new(channel, &ours, theirs)))
    }

    /// Our hello, with a new token.
    fn hello(&self) -> Result<NodeHello, ChannelError> {
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Ok(NodeHello {
            node: name_words(&self.registrar.node),
            incarnation: self.registrar.incarnation,
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            lanes: u32::try_from(self.registrar.lanes.count()).unwrap_or(u32::MAX),
            features: 0,
            slots: SLOTS_MAX,
            rails: u16::try_from(self.registrar.rdma.as_ref().map_or(0, |rdma| rdma.rails())).unwrap_or(0),
            small_bytes: bytes(self.identity.small_bytes),
            large_bytes: bytes(self.identity.large_bytes),
            token: machine::random_u64()?,
        })
    }

    /// Accepts connections until the dataplane stops.
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.is_stopping() {
                return;
            }
            let Ok((stream, address)) = accepted else {
                // Out of descriptors, or a connection that is gone again: others may come.
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.knocks.load_acquire() >= KNOCKS_MAX {
                self.refused(Code::SessionsFull, &address.to_string());
                continue;
            }
            self.knocks.fetch_add_release(1);
            let peers = Arc::clone(self);
            let knock = move || {
                peers.answer(stream, &address.to_string());
                // A decrement, as the words have no subtraction of their own.
                peers.knocks.fetch_add_release(u64::MAX);
            };
            if thread::Builder::new().name("railhead-knock".to_owned()).spawn(knock).is_err() {
                self.knocks.fetch_add_release(u64::MAX);
            }
        }
    }

    fn refused(&self, code: Code, who: &str) {
        if self.registrar.peers.may_report(REFUSALS_EVERY) {
            self.registrar.events.emit(Event::new(EventCode::PeerRefused).reason(code).text(who));
        }
    }

    /// Deals with one accepted stream.
    fn answer(&self, stream: TcpStream, address: &str) {
        let outcome = match channel::admit(stream, HANDSHAKE_MAX) {
            Ok(Incoming::Channel(knock)) => self.answer_channel(knock),
            Ok(Incoming::Data(knock)) => self.answer_data(knock),
            Err(error) => Err(error.code()),
        };
        if let Err(code) = outcome {
            self.refused(code, address);
        }
    }

    /// A node that wants a channel: only a known peer that dials by the rule gets one.
    fn answer_channel(&self, knock: ChannelKnock) -> Result<(), Code> {
        let mut channel: Channel =
            knock.accept(&self.identity.keys, HANDSHAKE_MAX).map_err(|error| error.code())?;
        let ours = self.hello().map_err(|error| error.code())?;
        let mut peer = None;
        let theirs = channel.greet(&ours, HANDSHAKE_MAX, |hello| {
            let name = Text::of(&hello.node);
            peer = self.registrar.peers.find(name.as_str());
            if peer.is_none() {
                return Some(Refused::because(Code::NodeUnknown, name.as_str()));
            }
            // Otherwise whoever holds the key could end the channel that we dial by dialling another.
            if name.as_str() >= self.registrar.node.as_str() {
                return Some(Refused::because(Code::ProtocolViolation, "the other node dials"));
            }
            refuse_lanes(hello)
        });
        let theirs = theirs.map_err(|error| error.code())?;
        if let Some(peer) = peer {
            peer.give_channel(Fresh::new(channel, &ours, theirs));
        }
        Ok(())
    }
}

/// Refuses a node that says it has lanes beyond what a node can have: each would get connections of ours.
fn refuse_lanes(hello: &NodeHello) -> Option<Refused> {
    let is_possible = (1..=LANES_MAX).contains(&(hello.lanes as usize));
    (!is_possible).then(|| Refused::because(Code::ProtocolViolation, "lanes"))
}

#[cfg(test)]
mod tests;
