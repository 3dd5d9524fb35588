//! What all connections of a fabric use in turn.

use crate::regions::Regions;
use crate::socket::Pieces;

/// Bytes of the block that zeroes are sent from.
const ZEROES_BYTES: usize = 64 << 10;
/// Bytes of the block that refused payload is read into.
const DISCARD_BYTES: usize = 64 << 10;

/// What the fabric has done since it was made. All of it grows only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Calls of `sendmsg`.
    pub sends: u64,
    /// Of these, calls that moved nothing because the socket was full.
    pub sends_again: u64,
    /// Calls of `recvmsg`.
    pub receives: u64,
    /// Of these, calls that moved nothing because nothing was there.
    pub receives_again: u64,
    /// Calls of `epoll_wait`.
    pub looks: u64,
    /// Bytes handed to the kernel, heads included.
    pub bytes_sent: u64,
    /// Bytes taken from the kernel, heads included.
    pub bytes_received: u64,
    /// Of these, bytes that were read into a scratch block and then copied: the price of fewer calls for small frames.
    pub bytes_copied: u64,
    /// Frames made.
    pub frames_sent: u64,
    /// Frames understood.
    pub frames_received: u64,
    /// Inbound writes refused or lost.
    pub refused: u64,
    /// Calls that met memory that had been taken away.
    pub faults: u64,
}

/// Tables, blocks and limits of the whole fabric.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) regions: Regions,
    pub(crate) pieces: Pieces,
    pub(crate) zeroes: Box<[u8]>,
    pub(crate) discard: Box<[u8]>,
    pub(crate) counters: TcpCounters,
    /// The most payload of a frame, and the most that one receive call takes.
    pub(crate) slice_bytes: u32,
    /// The most payload that one send call takes.
    pub(crate) coalesce_bytes: u32,
}

impl Shared {
    pub(crate) fn new(regions: u32, slice_bytes: u32, coalesce_bytes: u32) -> Self {
        Self {
            regions: Regions::new(regions),
            pieces: Pieces::new(),
            zeroes: vec![0; ZEROES_BYTES].into(),
            discard: vec![0; DISCARD_BYTES].into(),
            counters: TcpCounters::default(),
            slice_bytes,
            coalesce_bytes,
        }
    }
}
