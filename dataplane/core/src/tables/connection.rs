//! Ends of connections.

use crate::list::List;
use crate::port::{Capabilities, Nanos};
use railhead_abi::Code;
use railhead_abi::record::SLOTS_MAX;

/// Small blocks of a peer that one connection may hold as standing credits.
pub const SMALL_CREDITS_MAX: usize = 64;

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
    /// Reads are served on it: the target asks the initiator for its writes, and gives out the slots.
    pub serves: bool,
    /// Slots that may be used, at most [`SLOTS_MAX`].
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
    /// What its fabric can do on it.
    pub capabilities: Capabilities,
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
    /// Initiator: large send blocks that its transfers hold.
    pub large_send: u16,
    /// Initiator: when the target last gave credits: standing small ones, large ones.
    pub credit_given_at: [Nanos; 2],
    /// Target: small blocks that the initiator holds.
    pub small_granted: u16,
    /// Target: large blocks that the initiator holds, or that are being copied home.
    pub large_granted: u16,
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
            serves: false,
            slots: 0,
            small_bytes: 0,
            large_bytes: 0,
            pool_epoch: 0,
        },
        capabilities: Capabilities {
            write_bytes_max: 0,
            posts_max: 0,
            records_max: 0,
            flush_needed: false,
            reads: false,
            acknowledged: false,
            windows: false,
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
        large_send: 0,
        credit_given_at: [0; 2],
        small_granted: 0,
        large_granted: 0,
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
