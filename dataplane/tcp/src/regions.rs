//! The table of this lane's memories: what may be sent from, and which peer may write where under which key.

use core::ops::Range;

use railhead_abi::frame::ACCESS_WRITE;
use railhead_core::port::{Place, RegionIndex, RemotePlace};
use railhead_shm::{OwnedSpan, Span};

use crate::windows::Window;

/// Memory to install under a key.
#[derive(Debug)]
pub struct RegionEntry {
    /// The bytes. Whoever installs keeps a clone until the lane has removed its own: dropping the last one unmaps.
    pub span: OwnedSpan,
    /// Epoch of the key; the slot is its index.
    pub epoch: u32,
    /// [`ACCESS_WRITE`] if peers may write; sources, and what is only written through windows, need nothing.
    pub access: u32,
    /// Bit n: peer n may write.
    pub peers: u64,
}

#[derive(Debug, Default)]
struct Slot {
    entry: Option<RegionEntry>,
    /// Counts installations, so that work posted for an earlier memory never reads a later one in the same slot.
    stamp: u32,
    /// A system call said that the memory is gone, and no guard remembers it.
    lost: bool,
}

/// Memory as it was when a write was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) place: Place,
    stamp: u32,
}

impl Source {
    /// The same memory, `bytes` further on. Ranges are checked when the bytes are looked up.
    pub(crate) fn skip(self, bytes: u64) -> Self {
        let place = Place { offset: self.place.offset.saturating_add(bytes), ..self.place };
        Self { place, ..self }
    }
}

/// Who writes to a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    pub(crate) peer: u8,
    /// The window of the write's slot.
    pub(crate) window: Option<Window>,
}

/// Memories by slot. Fixed size; looking up is an index and a few compares.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: Box<[Slot]>,
}

impl Regions {
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).map(|_| Slot::default()).collect() }
    }

    pub(crate) fn install(&mut self, region: RegionIndex, entry: RegionEntry) -> Option<OwnedSpan> {
        let slots = self.slots.len();
        let slot = self.slots.get_mut(region.0 as usize);
        let slot = slot.unwrap_or_else(|| panic!("region slot {} of {slots}", region.0));
        slot.stamp = slot.stamp.wrapping_add(1);
        slot.lost = false;
        slot.entry.replace(entry).map(|old| old.span)
    }

    pub(crate) fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.slots.get_mut(region.0 as usize)?.entry.take().map(|old| old.span)
    }

    pub(crate) fn set_peers(&mut self, region: RegionIndex, epoch: u32, peers: u64) -> bool {
        let entry = self.slots.get_mut(region.0 as usize).and_then(|slot| slot.entry.as_mut());
        let Some(entry) = entry.filter(|entry| entry.epoch == epoch) else { return false };
        entry.peers = peers;
        true
    }

    /// Remembers which memory a place means now.
    pub(crate) fn source(&self, place: Place) -> Source {
        Source { place, stamp: self.slots.get(place.region.0 as usize).map_or(0, |slot| slot.stamp) }
    }

    fn source_slot(&self, source: Source) -> Option<&Slot> {
        self.slots.get(source.place.region.0 as usize).filter(|slot| slot.stamp == source.stamp)
    }

    /// The bytes of a source, or `None` if the memory was removed, replaced, lost or is too short.
    pub(crate) fn source_span(&self, source: Source, bytes: u32) -> Option<Span> {
        let slot = self.source_slot(source).filter(|slot| !slot.lost)?;
        // SAFETY: the owner stands in the table, and the span is used only before the caller's call returns: nothing
        // can take the owner out meanwhile, because that needs `&mut` of the fabric.
        let span = unsafe { slot.entry.as_ref()?.span.span() };
        span.sub(source.place.offset, u64::from(bytes)).ok()
    }

    /// Whether these last bytes of a source are gone or have lost their content. Asked after they were read.
    pub(crate) fn is_source_lost(&self, source: Source, bytes: u32) -> bool {
        let poisoned = |slot: &Slot| slot.entry.as_ref().is_none_or(|entry| entry.span.poisoned());
        self.source_span(source, bytes).is_none() || self.source_slot(source).is_none_or(poisoned)
    }

    /// The bytes of a write of `bytes` to `to` that are `piece`, or `None` if the key, the range or the right of the whole
    /// write does not hold.
    pub(crate) fn target_span(
        &self,
        to: RemotePlace,
        bytes: u32,
        piece: Range<u32>,
        writer: Writer,
    ) -> Option<Span> {
        let slot = self.slots.get(to.key.index as usize)?;
        let entry = slot.entry.as_ref().filter(|entry| entry.epoch == to.key.epoch)?;
        let granted = entry.access & ACCESS_WRITE != 0 && entry.peers >> writer.peer & 1 == 1;
        let in_window = || {
            let holds = |window: Window| window.at.stamp == slot.stamp && window.holds(to, u64::from(bytes));
            writer.window.is_some_and(holds)
        };
        if !granted && !in_window() {
            return None;
        }
        // SAFETY: as in `source_span`.
        let span = unsafe { entry.span.span() };
        let whole = span.sub(to.offset, u64::from(bytes)).ok()?;
        whole.sub(u64::from(piece.start), u64::from(piece.end - piece.start)).ok()
    }

    /// Whether the memory of a target has lost its content. Asked after the last byte was placed.
    pub(crate) fn is_target_lost(&self, to: RemotePlace) -> bool {
        self.slots
            .get(to.key.index as usize)
            .is_some_and(|slot| slot.lost || slot.entry.as_ref().is_some_and(|entry| entry.span.poisoned()))
    }

    /// After a system call answered `EFAULT` for this memory: nothing touches it as it was any more.
    pub(crate) fn condemn(&mut self, region: RegionIndex) {
        let Some(slot) = self.slots.get_mut(region.0 as usize) else { return };
        slot.lost = true;
        if let Some(guard) = slot.entry.as_ref().and_then(|entry| entry.span.guard()) {
            // Where the memory cannot be replaced, `lost` alone keeps us away from it.
            let _ = guard.condemn();
        }
    }
}
