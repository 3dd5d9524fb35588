//! The entries of the engine's tables. All state of a lane is in these; everything is found by index.

use crate::list::List;
use crate::port::{ConnectionIndex, Key, Nanos, RegionIndex};
use railhead_abi::record::{Fin, SLOTS_MAX};
use railhead_abi::settings::Plan;
use railhead_abi::submission::{CLASSES, Completion, SessionEvent, Submission};
use railhead_abi::{Code, Reason};
use railhead_ring::{Bell, Consumer, Producer};

/// Blocks granted to one transfer that it may hold at once.
pub const GRANTS_MAX: usize = 16;
/// Small blocks of a peer that one connection may hold as standing credits.
pub const SMALL_CREDITS_MAX: usize = 64;
/// A slot of the lane's table of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortIndex(pub u8);

/// Where a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The entry is free.
    #[default]
    Free,
    /// Chunks are posted; at the end FIN.
    Running,
    /// FIN was sent.
    AwaitAck,
    /// Nothing more is posted; posted work ends.
    Stopping,
    /// CANCEL was sent.
    AwaitCancelled,
    /// The connection is gone; only local work still has to end.
    Dead,
}

/// A leg and why it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Through a block.
    pub staged: bool,
    /// Why.
    pub reason: Reason,
    /// The rules may still change their mind before the first post.
    pub is_free: bool,
    /// The threshold that was looked up.
    pub threshold: u64,
}

impl Leg {
    /// No leg yet.
    pub const NONE: Leg = Leg { staged: false, reason: Reason::None, is_free: false, threshold: 0 };
}

/// A transfer that this lane initiated.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Where it stands.
    pub phase: Phase,
    /// Raised at each use of the entry, so that a ticket is never valid twice.
    pub generation: u32,
    /// Port that it came from.
    pub port: PortIndex,
    /// Session of the port.
    pub session: u32,
    /// What was asked for.
    pub submission: Submission,
    /// Slot of the remote table.
    pub remote: u32,
    /// Connection of the remote and class.
    pub connection: ConnectionIndex,
    /// Slot on the connection; [`railhead_abi::record::SLOT_NONE`] until the first post.
    pub slot: u16,
    /// Sequence on the connection.
    pub sequence: u64,
    /// Send leg.
    pub send: Leg,
    /// Receive leg.
    pub receive: Leg,
    /// First byte that no chunk was made for.
    pub next_offset: u64,
    /// Chunk entries in use.
    pub chunks_open: u16,
    /// Of these, not yet posted.
    pub chunks_unposted: u16,
    /// Chunks made.
    pub chunks_total: u64,
    /// The peer may know of this transfer: its end must be confirmed.
    pub touched: bool,
    /// DEMAND was sent.
    pub demanded: bool,
    /// ACK came; local work still has to end.
    pub acked: bool,
    /// Times that REPLAN was answered.
    pub replans: u8,
    /// Bytes of a chunk, fixed at the first post.
    pub chunk_bytes: u64,
    /// Large blocks of the peer, as pages, first in first out.
    pub grants: [u32; GRANTS_MAX],
    /// How many.
    pub grant_count: u8,
    /// The outcome so far: the first error counts.
    pub status: Code,
    /// Side of the outcome.
    pub side: u8,
    /// The next moment that needs attention: deadline, or the end of quiescing.
    pub timer: Nanos,
    /// Since when it waits for a block or credit; 0 if it does not.
    pub waiting_since: Nanos,
    /// Settings generation that chose the send leg.
    pub settings_generation: u64,
    /// Generation of the receive plan.
    pub plan_generation: u64,
    /// Intake.
    pub intake_at: Nanos,
    /// First post; 0 if none.
    pub first_post_at: Nanos,
    /// Last post.
    pub last_post_at: Nanos,
    /// Time at the target, as it said.
    pub receive_ns: u64,
}

impl Transfer {
    /// A free entry.
    pub const FREE: Transfer = Transfer {
        phase: Phase::Free,
        generation: 0,
        port: PortIndex(0),
        session: 0,
        submission: Submission {
            operation: 0,
            class: 0,
            send_leg: 0,
            receive_leg: 0,
            notify: 0,
            inline_bytes: 0,
            list_count: 0,
            cookie: 0,
            local_index: 0,
            local_generation: 0,
            local_offset: 0,
            remote_index: 0,
            remote_generation: 0,
            remote_offset: 0,
            bytes: 0,
            deadline_us: 0,
            group: 0,
            gate_index: 0,
            gate_value: 0,
            notify_index: 0,
            list_index: 0,
            notify_value: 0,
            inline_data: [0; 4],
        },
        remote: 0,
        connection: ConnectionIndex(0),
        slot: railhead_abi::record::SLOT_NONE,
        sequence: 0,
        send: Leg::NONE,
        receive: Leg::NONE,
        next_offset: 0,
        chunks_open: 0,
        chunks_unposted: 0,
        chunks_total: 0,
        touched: false,
        demanded: false,
        acked: false,
        replans: 0,
        chunk_bytes: 0,
        grants: [0; GRANTS_MAX],
        grant_count: 0,
        status: Code::Ok,
        side: 0,
        timer: Nanos::MAX,
        waiting_since: 0,
        settings_generation: 0,
        plan_generation: 0,
        intake_at: 0,
        first_post_at: 0,
        last_post_at: 0,
        receive_ns: 0,
    };

    /// Takes the oldest granted block.
    pub fn take_grant(&mut self) -> Option<u32> {
        if self.grant_count == 0 {
            return None;
        }
        let page = self.grants[0];
        self.grants.copy_within(1.., 0);
        self.grant_count -= 1;
        Some(page)
    }
}

/// Where a chunk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChunkPhase {
    /// The entry is free.
    #[default]
    Free,
    /// The copy into the send block is under way.
    Copying,
    /// In the connection's queue: to be written.
    Ready,
    /// In the connection's queue: written, its CHUNK record is to be sent.
    Owing,
    /// Posted; the end has not come.
    Posted,
}

/// A piece of a transfer on its way.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkEntry {
    /// Where it stands.
    pub phase: ChunkPhase,
    /// Its transfer.
    pub transfer: u32,
    /// First byte in the transfer.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
    /// Own send block.
    pub block: Option<u32>,
    /// Block of the peer, as a page.
    pub page: Option<u32>,
    /// `page` is a standing small credit of the connection.
    pub page_is_small: bool,
    /// The write has ended while the record was still owed.
    pub is_done: bool,
    /// The transfer stops: not to be posted any more.
    pub is_dropped: bool,
}

/// Which end of a connection this lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Our transfers go out on it.
    #[default]
    Initiator,
    /// The peer's transfers come in on it.
    Target,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionPhase {
    /// Not connected; nobody waits.
    #[default]
    Free,
    /// Not connected; transfers wait and the registrar was asked.
    Wanted,
    /// Connected.
    Up,
    /// The fabric was told to close it.
    Closing,
    /// Down; local work of it still has to end.
    Draining,
}

/// What the other side of a connection said of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Which end this is.
    pub role: Role,
    /// Slot of the peer table; 0 is this node.
    pub peer: u32,
    /// Class.
    pub class: u8,
    /// Slots that the initiator may use, at most [`SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of a small block of the target.
    pub small_bytes: u64,
    /// Bytes of a large block of the target.
    pub large_bytes: u64,
    /// Epoch of the target's pool.
    pub pool_epoch: u32,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// Where it stands.
    pub phase: ConnectionPhase,
    /// What the other side said.
    pub info: ConnectionInfo,
    /// Records that may be sent.
    pub record_credits: u16,
    /// Records received and not yet given back.
    pub record_returns: u16,
    /// Why it went down.
    pub cause: Code,
    /// Initiator: free slots, one bit each.
    pub slots_free: [u64; SLOTS_MAX as usize / 64],
    /// Initiator: chunks to be posted, in order.
    pub ready: List,
    /// Initiator: transfers that use it, waiting ones included.
    pub transfers: u32,
    /// Initiator: transfers of it that are [`Phase::Dead`].
    pub dead: u32,
    /// Initiator: sequence of the next transfer.
    pub sequence: u64,
    /// Initiator: small blocks of the target, as pages.
    pub small_credits: [u32; SMALL_CREDITS_MAX],
    /// How many.
    pub small_credit_count: u8,
    /// Target: small blocks that the initiator holds.
    pub small_granted: u16,
    /// Target: inbound transfers.
    pub inbound: u16,
    /// Target: copies and flushes posted or waiting.
    pub inbound_open: u16,
}

impl Connection {
    /// A free entry.
    pub const FREE: Connection = Connection {
        phase: ConnectionPhase::Free,
        info: ConnectionInfo {
            role: Role::Initiator,
            peer: 0,
            class: 0,
            slots: 0,
            small_bytes: 0,
            large_bytes: 0,
            pool_epoch: 0,
        },
        record_credits: 0,
        record_returns: 0,
        cause: Code::Ok,
        slots_free: [0; SLOTS_MAX as usize / 64],
        ready: List::EMPTY,
        transfers: 0,
        dead: 0,
        sequence: 0,
        small_credits: [0; SMALL_CREDITS_MAX],
        small_credit_count: 0,
        small_granted: 0,
        inbound: 0,
        inbound_open: 0,
    };

    /// Takes a free slot.
    pub fn take_slot(&mut self) -> Option<u16> {
        for (at, word) in self.slots_free.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return u16::try_from(64 * at + bit as usize).ok();
            }
        }
        None
    }

    /// Gives a slot back.
    pub fn put_slot(&mut self, slot: u16) {
        self.slots_free[usize::from(slot) / 64] |= 1 << (slot % 64);
    }
}

/// What the target knows of a transfer that comes in.
#[derive(Debug, Clone, Copy)]
pub struct Inbound {
    /// In use.
    pub is_active: bool,
    /// FIN, once it came.
    pub fin: Option<Fin>,
    /// CANCEL came.
    pub is_cancelled: bool,
    /// The notification was delivered.
    pub is_delivered: bool,
    /// A flush is posted.
    pub is_flushing: bool,
    /// The flush has ended.
    pub is_flushed: bool,
    /// Copies into the region that are posted or waiting.
    pub copies: u16,
    /// Chunks that the initiator asked blocks for.
    pub chunks_wanted: u64,
    /// Blocks granted so far.
    pub chunks_granted: u64,
    /// Most blocks at once.
    pub depth: u16,
    /// Blocks granted whose CHUNK has not come.
    pub grants_open: u16,
    /// First error.
    pub status: Code,
    /// First record seen.
    pub since: Nanos,
}

impl Inbound {
    /// Not in use.
    pub const IDLE: Inbound = Inbound {
        is_active: false,
        fin: None,
        is_cancelled: false,
        is_delivered: false,
        is_flushing: false,
        is_flushed: false,
        copies: 0,
        chunks_wanted: 0,
        chunks_granted: 0,
        depth: 0,
        grants_open: 0,
        status: Code::Ok,
        since: 0,
    };
}

/// What a receive block is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockPhase {
    /// Home, or a send block.
    #[default]
    Home,
    /// The peer may write into it.
    Granted,
    /// Its copy home waits for room in the copy engine.
    Waiting,
    /// Its copy home is under way.
    Copying,
}

/// One block of the pool, as far as peers are concerned.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockEntry {
    /// What it is doing.
    pub phase: BlockPhase,
    /// The connection that it was granted on.
    pub connection: ConnectionIndex,
    /// The transfer's slot, or [`railhead_abi::record::SLOT_NONE`] for a standing credit.
    pub slot: u16,
    /// Where the data goes.
    pub region: RegionIndex,
    /// First byte there.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
}

/// What the registrar says of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInfo {
    /// Generation of the slot: clients' handles and peers' keys carry it.
    pub generation: u32,
    /// Bytes.
    pub bytes: u64,
    /// [`railhead_abi::frame::ACCESS_READ`] | [`railhead_abi::frame::ACCESS_WRITE`].
    pub access: u32,
    /// Session that owns it.
    pub session: u32,
    /// Inbound direct writes need a flush before they may be announced.
    pub flush: bool,
    /// Direct is possible.
    pub direct_possible: bool,
    /// Peers that may write, one bit each; bit 0 is this node.
    pub peers: u64,
}

/// A local region.
#[derive(Debug, Clone, Copy, Default)]
pub struct Region {
    /// None if the slot is free.
    pub info: Option<RegionInfo>,
    /// Transfers and copies that use it.
    pub uses: u32,
    /// No new use; reported when `uses` is 0.
    pub is_closing: bool,
}

/// What the registrar says of a remote region that a session opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteInfo {
    /// Generation of the handle.
    pub generation: u32,
    /// Session that opened it.
    pub session: u32,
    /// Slot of the peer table; 0 is this node.
    pub peer: u32,
    /// Connections by class.
    pub connections: [ConnectionIndex; CLASSES],
    /// The key at the target.
    pub key: Key,
    /// Bytes.
    pub bytes: u64,
    /// Receive plan.
    pub plan: Plan,
}

/// A remote region that a session opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Remote {
    /// None if the slot is free.
    pub info: Option<RemoteInfo>,
    /// Transfers that use it.
    pub uses: u32,
    /// A transfer's end is unknown, or its owner closed it: refused until reopened.
    pub is_stale: bool,
    /// No new use; reported when `uses` is 0.
    pub is_closing: bool,
}

/// A session's memory that lanes write to.
#[derive(Debug)]
pub struct SessionParts<M> {
    /// Signal words.
    pub signals: M,
    /// Event ring of this lane.
    pub events: Producer<M, { SessionEvent::WORDS }>,
    /// Rung after a signal or event.
    pub bell: Bell<M>,
    /// The session's name, for flight records.
    pub name: [u64; 4],
}

/// A session as a lane sees it: its turn in each class.
#[derive(Debug, Clone, Copy)]
pub struct SessionQueue {
    /// Transfers that can be worked on, by class.
    pub runnable: [List; CLASSES],
    /// Bytes that it may still post in this round, by class.
    pub deficit: [i64; CLASSES],
}

impl SessionQueue {
    /// Nothing to do.
    pub const EMPTY: SessionQueue = SessionQueue { runnable: [List::EMPTY; CLASSES], deficit: [0; CLASSES] };
}

/// The two rings of a port and the bell of its client.
#[derive(Debug)]
pub struct PortParts<M> {
    /// From the client.
    pub submissions: Consumer<M, { Submission::WORDS }>,
    /// To the client.
    pub completions: Producer<M, { Completion::WORDS }>,
    /// Rung after completions.
    pub bell: Bell<M>,
}

/// A port.
#[derive(Debug)]
pub struct Port<M> {
    /// Rings and bell.
    pub parts: PortParts<M>,
    /// Session.
    pub session: u32,
    /// Submissions accepted and not completed.
    pub in_flight: u32,
    /// No intake; reported when `in_flight` is 0.
    pub is_closing: bool,
}
