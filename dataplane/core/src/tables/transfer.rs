//! Transfers that this lane initiated, and their chunks.

use super::PortIndex;
use crate::port::{ConnectionIndex, Key, Nanos, RegionIndex};
use railhead_abi::submission::Submission;
use railhead_abi::{Code, Reason};

/// Blocks granted to one transfer that it may hold at once.
pub const GRANTS_MAX: usize = 16;

/// Where a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The entry is free.
    #[default]
    Free,
    /// Chunks are posted; at the end FIN.
    Running,
    /// FIN was sent, or the peer was asked to serve a read.
    AwaitAck,
    /// All is posted, and the peer is told of nothing: the ends of the posts are the end.
    AwaitDone,
    /// Nothing more is posted; posted work ends.
    Stopping,
    /// CANCEL was sent, or READ_CANCEL.
    AwaitCancelled,
    /// The connection is gone; only local work still has to end.
    Dead,
}

/// What moves the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// We write into the peer's memory. Also a read of this node's own memory: it is the write the other way round.
    #[default]
    Write,
    /// We read the peer's memory, without its engine.
    Fetch,
    /// The peer writes into our memory because we asked it to.
    Ask,
    /// We write into the memory of a peer that asked for it. No client of ours waits for it.
    Serve,
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

/// Where the last post of a transfer stands whose end the peer does not confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seal {
    /// Not posted, or not needed.
    #[default]
    None,
    /// Posted.
    Posted,
    /// It has ended well.
    Done,
}

/// A transfer that this lane initiated.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Where it stands.
    pub phase: Phase,
    /// What moves its bytes.
    pub kind: Kind,
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
    /// The remote region's key.
    pub key: Key,
    /// Of a read of this node's own memory: the region that is read into. `submission` then says it the other way round.
    pub into: Option<RegionIndex>,
    /// The receive leg can be direct.
    pub direct_there: bool,
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
    /// Something was posted: its end must be confirmed.
    pub touched: bool,
    /// A record of this transfer was sent: the peer's engine knows of it.
    pub told: bool,
    /// A post ended in a way that leaves open what it did.
    pub is_unsure: bool,
    /// Everything was posted before it was stopped.
    pub is_whole: bool,
    /// The post that makes visible what the posts before it did.
    pub seal: Seal,
    /// DEMAND was sent.
    pub demanded: bool,
    /// The target has to be told that what DEMAND asked for is not wanted any more.
    pub withdraws: bool,
    /// ACK came; local work still has to end.
    pub acked: bool,
    /// The deadline passed after ACK, with posts of ours still open.
    pub is_overdue: bool,
    /// Times that REPLAN was answered.
    pub replans: u8,
    /// Bytes of a chunk, fixed at the first post.
    pub chunk_bytes: u64,
    /// Large blocks of the peer, as pages, first in first out.
    pub grants: [u32; GRANTS_MAX],
    /// How many.
    pub grant_count: u8,
    /// Dead, and the other end of its connection, on this same lane, is not yet.
    pub is_held: bool,
    /// The outcome so far: the first error counts.
    pub status: Code,
    /// Side of the outcome.
    pub side: u8,
    /// The next moment that needs attention: deadline, or the end of quiescing.
    pub timer: Nanos,
    /// Since when it waits for a block or credit; 0 if it does not.
    pub waiting_since: Nanos,
    /// When it has to be looked at again while it waits.
    pub wait_until: Nanos,
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
    /// Time from posting copies of the send leg to their ends, added up.
    pub copy_ns: u64,
}

impl Transfer {
    /// A free entry.
    pub const FREE: Transfer = Transfer {
        phase: Phase::Free,
        kind: Kind::Write,
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
            level: 0,
            gate_index: 0,
            gate_value: 0,
            notify_index: 0,
            list_index: 0,
            notify_value: 0,
            inline_data: [0; 4],
        },
        remote: 0,
        key: Key { index: 0, epoch: 0 },
        into: None,
        direct_there: false,
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
        told: false,
        is_unsure: false,
        is_whole: false,
        seal: Seal::None,
        demanded: false,
        withdraws: false,
        acked: false,
        is_overdue: false,
        replans: 0,
        chunk_bytes: 0,
        grants: [0; GRANTS_MAX],
        grant_count: 0,
        is_held: false,
        status: Code::Ok,
        side: 0,
        timer: Nanos::MAX,
        waiting_since: 0,
        wait_until: Nanos::MAX,
        settings_generation: 0,
        plan_generation: 0,
        intake_at: 0,
        first_post_at: 0,
        last_post_at: 0,
        receive_ns: 0,
        copy_ns: 0,
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
    /// Read into a block; its copy home waits for room in the copy engine.
    Landed,
    /// Its copy home is under way.
    Homing,
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
    /// When its copy was posted.
    pub copied_from: Nanos,
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
