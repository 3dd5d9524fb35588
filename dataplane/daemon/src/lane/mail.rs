//! What registrar threads and a lane say to each other.
//!
//! Both ways it is boxes, handed over by rings ([`railhead_shm::handoff`]). A lane never makes or frees one: a command's
//! box carries the answer home, and for what the lane says unasked it has spare boxes, which come back to it. So a
//! sealed lane stays off the heap, whatever the registrar does.

use std::os::fd::OwnedFd;

use railhead_abi::Code;
use railhead_abi::settings::Plans;
use railhead_core::Notice;
use railhead_core::port::{ConnectionIndex, RegionIndex};
use railhead_core::tables::{ConnectionInfo, PortIndex, PortParts, RegionInfo, RemoteInfo, SessionParts};
use railhead_shm::{OwnedSpan, Words};
use railhead_verbs::{AttachInfo, Ready, RemoteMemory};

/// Commands that may wait for a lane. Posting to a full ring waits: see [`super::handle::LaneHandle::post`].
pub(crate) const COMMANDS_MAX: usize = 256;
/// Boxes that may be on their way home from a lane.
pub(crate) const RETURNS_MAX: usize = 1024;
/// Spare boxes of a lane: notices that it may have sent and the registrar not yet read.
pub(crate) const SPARES: usize = 128;

/// What a lane is asked to do. Each is a bounded piece of work.
#[derive(Debug)]
pub(crate) enum Command {
    /// A session's signals and event ring.
    AttachSession {
        /// Session slot.
        session: u32,
        /// Its memory, as this lane uses it.
        parts: SessionParts<Words>,
    },
    /// The session's ports are closed: forget it.
    CloseSession {
        /// Session slot.
        session: u32,
    },
    /// A port of a session.
    AttachPort {
        /// Session slot.
        session: u32,
        /// Its rings.
        parts: PortParts<Words>,
    },
    /// End a port whose client is gone, and its transfers; `PortClosed` follows.
    AbandonPort {
        /// Which.
        port: PortIndex,
    },
    /// A registered region.
    InstallRegion {
        /// Which slot.
        region: RegionIndex,
        /// What the engine has to know.
        info: RegionInfo,
        /// Its memory; the registrar keeps an owner until the region is drained.
        span: OwnedSpan,
        /// Its registration with the NICs; the registrar keeps that until the region is drained.
        rdma: Option<railhead_verbs::RegionEntry>,
    },
    /// Other peers may write and read a region now.
    AllowPeers {
        /// Which.
        region: RegionIndex,
        /// Its generation: a later region in the slot is not meant.
        epoch: u32,
        /// Those that may write, one bit for each peer.
        peers: u64,
        /// Those that may read.
        readers: u64,
    },
    /// End the use of a region; `RegionDrained` follows, when it is out of the adapters too.
    RemoveRegion {
        /// Which.
        region: RegionIndex,
    },
    /// An opened remote region.
    InstallRemote {
        /// Which slot.
        remote: u32,
        /// What the engine has to know.
        info: RemoteInfo,
        /// How NICs name it.
        rdma: Option<RemoteMemory>,
    },
    /// End the use of a remote region; `RemoteDrained` follows.
    RemoveRemote {
        /// Which slot.
        remote: u32,
    },
    /// Stop the transfers of a remote region whose end has begun: its owner wants it back.
    StopRemote {
        /// Which slot.
        remote: u32,
        /// What they end with.
        cause: Code,
    },
    /// Other plans of a peer.
    UpdatePlans {
        /// Which peer.
        peer: u32,
        /// The plans.
        plans: Plans,
    },
    /// A connected socket of a data connection.
    AttachConnection {
        /// Which slot.
        connection: ConnectionIndex,
        /// The socket.
        socket: OwnedFd,
        /// What the other side said.
        info: ConnectionInfo,
    },
    /// A connected queue pair of a data connection.
    AttachQueuePair {
        /// The queue pair.
        ready: Ready,
        /// Which rail, and the arena at the other end.
        attach: AttachInfo,
        /// What the other side said.
        info: ConnectionInfo,
    },
    /// End a connection; `ConnectionDown` follows.
    CloseConnection {
        /// Which.
        connection: ConnectionIndex,
        /// Why.
        cause: Code,
    },
    /// A connection that was wanted cannot be made now: what waits for it ends with `peer_down`.
    RefuseConnection {
        /// Which.
        connection: ConnectionIndex,
    },
    /// A peer was restarted: the handles that it gave mean nothing any more.
    ExpireRemotes {
        /// Which peer.
        peer: u32,
    },
    /// End the lane.
    Stop,
}

/// How a lane answered a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// Done: this is the port.
    Port(PortIndex),
    /// Not done, and why.
    Refused(Code),
}

/// What a box holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// Nothing: a spare box.
    Empty,
    /// To the lane.
    Command(Command),
    /// From the lane, to the sender of the command.
    Answer(Answer),
    /// From the lane, unasked.
    Notice(Notice<Words>),
    /// From the lane, unasked: to be dropped.
    Retired(Ready),
}

/// A box on its way.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// What it holds.
    pub(crate) content: Content,
    /// Who waits for the answer.
    pub(crate) reply: Option<Reply>,
}

/// Where an answer goes, and from which lane it came.
pub(crate) type Reply = flume::Sender<(usize, Answer)>;

impl Parcel {
    /// A spare box.
    pub(crate) fn empty() -> Box<Self> {
        Box::new(Self { content: Content::Empty, reply: None })
    }

    /// A command whose answer somebody waits for.
    pub(crate) fn command(command: Command, reply: Reply) -> Box<Self> {
        Box::new(Self { content: Content::Command(command), reply: Some(reply) })
    }

    /// Takes the content out; the box is a spare one then.
    pub(crate) fn take(&mut self) -> Content {
        core::mem::replace(&mut self.content, Content::Empty)
    }
}
