//! Windows of a connection: bytes of this side that the other side may write with writes of one slot, whatever the
//! grants of the region say.

use railhead_abi::record::SLOTS_MAX;
use railhead_core::port::RemotePlace;

use crate::regions::Source;

/// Bytes that may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The first of them, in the memory that stood there when the window was opened.
    pub(crate) at: Source,
    bytes: u64,
}

impl Window {
    /// Whether a write of `bytes` to `to` stays inside.
    pub(crate) fn holds(&self, to: RemotePlace, bytes: u64) -> bool {
        let first = self.at.place.offset;
        let end = |offset: u64, bytes: u64| offset.checked_add(bytes);
        let inside =
            matches!((end(to.offset, bytes), end(first, self.bytes)), (Some(to), Some(own)) if to <= own);
        to.key.index == self.at.place.region.0 && to.offset >= first && inside
    }
}

/// The windows by slot. Allocated once.
#[derive(Debug)]
pub(crate) struct Windows {
    slots: Box<[Option<Window>]>,
    open: u16,
}

impl Windows {
    pub(crate) fn new() -> Self {
        Self { slots: vec![None; usize::from(SLOTS_MAX)].into(), open: 0 }
    }

    pub(crate) fn clear(&mut self) {
        if self.open > 0 {
            self.slots.fill(None);
            self.open = 0;
        }
    }

    pub(crate) fn open(&mut self, slot: u16, at: Source, bytes: u64) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            self.open += u16::from(entry.is_none());
            *entry = Some(Window { at, bytes });
        }
    }

    pub(crate) fn close(&mut self, slot: u16) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            self.open -= u16::from(entry.take().is_some());
        }
    }

    pub(crate) fn get(&self, slot: u16) -> Option<Window> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }
}
