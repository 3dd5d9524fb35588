//! A connection's own memory: what its messages arrive in and leave from, and a byte that confirms are read into.

use std::sync::Arc;

use railhead_shm::{Mapping, OwnedSpan};

use crate::domain::Domain;
use crate::error::VerbsError;
use crate::memory::{MemoryAccess, MemoryRegion};
use crate::message::MESSAGE_BYTES_MAX;

/// Room of one message: whole cache lines.
const SLOT_BYTES: u64 = (MESSAGE_BYTES_MAX as u64).next_multiple_of(64);

/// Receive slots, then send slots, then scratch.
#[derive(Debug)]
pub(crate) struct Mailbox {
    memory: OwnedSpan,
    registration: Arc<MemoryRegion>,
    receives: u32,
    sends: u32,
}

impl Mailbox {
    /// Allocates and registers. Slow.
    pub(crate) fn new(domain: &Arc<Domain>, receives: u32, sends: u32) -> Result<Self, VerbsError> {
        let bytes = (u64::from(receives) + u64::from(sends) + 1) * SLOT_BYTES;
        let failed = |error: String| VerbsError::Call {
            call: "mmap",
            name: domain.device().name().into(),
            error: std::io::Error::other(error),
        };
        let memory = Mapping::anonymous(usize::try_from(bytes).unwrap_or(usize::MAX))
            .map_err(|error| failed(error.to_string()))?
            .span();
        // Arrival is told by completions; but order is kept all the same: this memory is small.
        let access = MemoryAccess { local_write: true, ..MemoryAccess::default() };
        let registration = MemoryRegion::register(domain, &memory, access)?;
        Ok(Self { memory, registration, receives, sends })
    }

    pub(crate) const fn receives(&self) -> u32 {
        self.receives
    }

    pub(crate) const fn sends(&self) -> u32 {
        self.sends
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    fn receive_offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.receives, "slots are the adapter's own");
        u64::from(slot) * SLOT_BYTES
    }

    fn send_offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.sends, "slots are the adapter's own");
        (u64::from(self.receives) + u64::from(slot)) * SLOT_BYTES
    }

    /// Address of a receive slot.
    pub(crate) fn receive_address(&self, slot: u32) -> u64 {
        self.registration.address() + self.receive_offset(slot)
    }

    /// Address of a send slot.
    pub(crate) fn send_address(&self, slot: u32) -> u64 {
        self.registration.address() + self.send_offset(slot)
    }

    /// Address of the byte that nobody looks at.
    pub(crate) fn scratch_address(&self) -> u64 {
        self.registration.address() + (u64::from(self.receives) + u64::from(self.sends)) * SLOT_BYTES
    }

    /// Copies an arrived message out.
    pub(crate) fn read(&self, slot: u32, message: &mut [u8]) {
        let read = self.memory.read(self.receive_offset(slot), message);
        debug_assert!(read.is_ok(), "a slot lies in the mailbox");
    }

    /// Copies a message into a send slot.
    pub(crate) fn write(&self, slot: u32, message: &[u8]) {
        let written = self.memory.write(self.send_offset(slot), message);
        debug_assert!(written.is_ok(), "a slot lies in the mailbox");
    }
}

/// Bytes of a receive.
pub(crate) const RECEIVE_BYTES: u32 = MESSAGE_BYTES_MAX as u32;
