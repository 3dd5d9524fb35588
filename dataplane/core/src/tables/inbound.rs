//! Transfers that come in, and the blocks that peers write them into.

use crate::port::{ConnectionIndex, Nanos, RegionIndex};
use railhead_abi::Code;
use railhead_abi::record::{Fin, ReadRequest};

/// A read of ours that a transfer comes in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Its entry.
    pub transfer: u32,
    /// The entry's generation: the read may have ended.
    pub generation: u32,
}

/// What the target knows of a transfer that comes in. On a connection on which reads are served, the initiator keeps
/// requests in it that wait for a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Inbound {
    /// In use.
    pub is_active: bool,
    /// The read that asked for it: what comes may go where the read says, and only there.
    pub reader: Option<Reader>,
    /// At the initiator: what is asked for and waits.
    pub request: Option<ReadRequest>,
    /// FIN, once it came.
    pub fin: Option<Fin>,
    /// CANCEL came; of a request that waits, READ_CANCEL.
    pub is_cancelled: bool,
    /// What CANCEL said.
    pub cancel_status: u16,
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
        reader: None,
        request: None,
        fin: None,
        is_cancelled: false,
        cancel_status: 0,
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
