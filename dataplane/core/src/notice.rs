//! What the engine tells the thread that runs it: things that need a system call or the registrar.

use crate::port::{ConnectionIndex, RegionIndex};
use crate::tables::{PortIndex, PortParts};
use railhead_abi::Code;

/// Something for the registrar. Each is given once.
#[derive(Debug)]
pub enum Notice<M> {
    /// Transfers wait for this connection: connect it, or call
    /// [`crate::Engine::connection_refused`].
    ConnectionWanted {
        /// Which.
        connection: ConnectionIndex,
        /// Slot of the peer table.
        peer: u32,
    },
    /// The connection is down and nothing of it is under way: its slot may be used again.
    ConnectionDown {
        /// Which.
        connection: ConnectionIndex,
        /// Why.
        cause: Code,
    },
    /// The port's last completion was written: its memory may go.
    PortClosed {
        /// Whose it was: its slot may have been given to another session since.
        session: u32,
        /// Which.
        port: PortIndex,
        /// Its rings.
        parts: PortParts<M>,
    },
    /// Nothing of this lane uses the region any more: take it out of the adapters, then unmap it.
    RegionDrained {
        /// Which.
        region: RegionIndex,
    },
    /// Nothing of this lane uses the remote handle any more.
    RemoteDrained {
        /// Slot.
        remote: u32,
    },
}

/// A bounded queue of notices over borrowed memory.
#[derive(Debug)]
pub(crate) struct Notices<'s, M> {
    entries: &'s mut [Option<Notice<M>>],
    head: usize,
    count: usize,
}

impl<'s, M> Notices<'s, M> {
    pub(crate) fn new(entries: &'s mut [Option<Notice<M>>]) -> Self {
        Self { entries, head: 0, count: 0 }
    }

    /// [`crate::storage::Bounds::notices`] counts one entry for each notice that can be outstanding.
    pub(crate) fn push(&mut self, notice: Notice<M>) {
        let length = self.entries.len();
        debug_assert!(self.count < length, "more notices than things to report");
        if self.count < length {
            self.entries[(self.head + self.count) % length] = Some(notice);
            self.count += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Notice<M>> {
        if self.count == 0 {
            return None;
        }
        let notice = self.entries[self.head].take();
        self.head = (self.head + 1) % self.entries.len();
        self.count -= 1;
        notice
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}
