//! What each slot holds and what peers may do with it. The bytes are the copier's.

use railhead_core::port::{Place, RegionIndex};
use railhead_shm::OwnedSpan;

#[derive(Debug, Default)]
struct Slot {
    installed: bool,
    /// Counts installations, so that work posted for an earlier memory never touches a later one in the same slot.
    stamp: u32,
    epoch: u32,
    access: u32,
    bytes: u64,
    span: Option<OwnedSpan>,
}

/// A memory as it was when work was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamped {
    pub(super) place: Place,
    stamp: u32,
}

#[derive(Debug)]
pub(super) struct Keys {
    slots: Box<[Slot]>,
}

impl Keys {
    pub(super) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).map(|_| Slot::default()).collect() }
    }

    fn slot(&self, region: RegionIndex) -> Option<&Slot> {
        self.slots.get(region.0 as usize).filter(|slot| slot.installed)
    }

    pub(super) fn install(
        &mut self,
        region: RegionIndex,
        epoch: u32,
        bytes: u64,
        access: u32,
        span: Option<OwnedSpan>,
    ) {
        let slots = self.slots.len();
        let slot = self.slots.get_mut(region.0 as usize);
        let slot = slot.unwrap_or_else(|| panic!("region slot {} of {slots}", region.0));
        let stamp = slot.stamp.wrapping_add(1);
        *slot = Slot { installed: true, stamp, epoch, access, bytes, span };
    }

    pub(super) fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        let slot = self.slots.get_mut(region.0 as usize)?;
        slot.installed = false;
        slot.span.take()
    }

    /// Remembers which memory a place means now.
    pub(super) fn stamp(&self, place: Place) -> Stamped {
        Stamped { place, stamp: self.slot(place.region).map_or(0, |slot| slot.stamp) }
    }

    /// Whether the memory of a place is still there and long enough.
    pub(super) fn holds(&self, at: Stamped, bytes: u64) -> bool {
        self.slot(at.place.region)
            .is_some_and(|slot| slot.stamp == at.stamp && inside(at.place, bytes, slot.bytes))
    }

    /// Whether a key of this epoch permits `access` to these bytes.
    pub(super) fn permits(&self, place: Place, bytes: u64, epoch: u32, access: u32) -> bool {
        self.slot(place.region).is_some_and(|slot| {
            slot.epoch == epoch && slot.access & access == access && inside(place, bytes, slot.bytes)
        })
    }

    /// Whether host memory has lost its content.
    pub(super) fn is_poisoned(&self, region: RegionIndex) -> bool {
        self.slot(region).and_then(|slot| slot.span.as_ref()).is_some_and(OwnedSpan::poisoned)
    }
}

fn inside(place: Place, bytes: u64, limit: u64) -> bool {
    place.offset.checked_add(bytes).is_some_and(|end| end <= limit)
}
