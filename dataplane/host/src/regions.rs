//! The table from [`RegionIndex`] to memory.

use railhead_core::port::{Place, RegionIndex};
use railhead_shm::{OwnedSpan, Span};

/// What stands in a slot.
#[derive(Debug, Default)]
struct Slot {
    span: Option<OwnedSpan>,
    /// Counts installations, so that work posted for an earlier memory never touches a later one in the same slot.
    stamp: u32,
    epoch: u32,
    access: u32,
}

/// A memory as it was when work was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub(crate) place: Place,
    stamp: u32,
}

/// Memories of one adapter by slot. Fixed size; looking up is an index and a compare.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: Box<[Slot]>,
}

impl Regions {
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).map(|_| Slot::default()).collect() }
    }

    fn slot(&self, region: RegionIndex) -> Option<&Slot> {
        self.slots.get(region.0 as usize)
    }

    /// Puts memory into a slot and gives back what stood there.
    pub(crate) fn install(
        &mut self,
        region: RegionIndex,
        span: OwnedSpan,
        epoch: u32,
        access: u32,
    ) -> Option<OwnedSpan> {
        let slots = self.slots.len();
        let slot = self.slots.get_mut(region.0 as usize);
        let slot = slot.unwrap_or_else(|| panic!("region slot {} of {slots}", region.0));
        slot.stamp = slot.stamp.wrapping_add(1);
        slot.epoch = epoch;
        slot.access = access;
        slot.span.replace(span)
    }

    /// Takes memory out of a slot. Work that is still posted for it ends as lost.
    pub(crate) fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.slots.get_mut(region.0 as usize)?.span.take()
    }

    /// Remembers which memory a place means now.
    pub(crate) fn stamp(&self, place: Place) -> Stamped {
        Stamped { place, stamp: self.slot(place.region).map_or(0, |slot| slot.stamp) }
    }

    /// The bytes of a place, or `None` if the memory was removed, replaced or is too short.
    pub(crate) fn span(&self, at: Stamped, offset: u64, bytes: u64) -> Option<Span> {
        let slot = self.slot(at.place.region).filter(|slot| slot.stamp == at.stamp)?;
        // SAFETY: the owner stands in the table, and the span is used only before the caller's call returns, when nothing
        // can take the owner out, because that needs `&mut self` of the adapter; or by the copy thread, whose claims the
        // copier revokes before it installs, removes or drops (copier/helper.rs).
        let span = unsafe { slot.span.as_ref()?.span() };
        span.sub(at.place.offset.checked_add(offset)?, bytes).ok()
    }

    /// Whether the memory of a place is gone or has lost its content. Asked after the last byte was moved.
    pub(crate) fn is_lost(&self, at: Stamped) -> bool {
        self.slot(at.place.region)
            .filter(|slot| slot.stamp == at.stamp)
            .and_then(|slot| slot.span.as_ref())
            .is_none_or(OwnedSpan::poisoned)
    }

    /// Whether a key of this epoch permits `access` to these bytes.
    pub(crate) fn permits(&self, place: Place, bytes: u64, epoch: u32, access: u32) -> bool {
        self.slot(place.region).is_some_and(|slot| {
            let inside = |span: &OwnedSpan| {
                place.offset.checked_add(bytes).is_some_and(|end| end <= span.len() as u64)
            };
            slot.epoch == epoch && slot.access & access == access && slot.span.as_ref().is_some_and(inside)
        })
    }
}
