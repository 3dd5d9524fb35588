//! The copy engine of the CPU: a queue of copies, done in order, a slice at a time; larger ones by a second thread.

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, CopyFull, Nanos, PostId, RegionIndex};
use railhead_shm::OwnedSpan;

use crate::regions::{Regions, Stamped};

mod helper;
#[cfg(test)]
mod tests;

pub use helper::{CopyThread, Helper, copy_thread};

/// Sizes of a [`HostCopier`], fixed for its life except for `slice_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopierConfig {
    /// Slots of the table of memories; slot 0 is the lane's staging arena.
    pub regions: u32,
    /// Copies that can be posted at once.
    pub copies: u16,
    /// The most bytes that one poll moves, at least 1.
    pub slice_bytes: u32,
}

/// A posted copy.
#[derive(Debug, Clone, Copy)]
struct Posted {
    from: Stamped,
    to: Stamped,
    bytes: u32,
    post: PostId,
}

/// Copies between memories of this lane with `memcpy`, first come first served, and with a [`Helper`] larger ones on a
/// thread of their own meanwhile.
///
/// Bounds are those of the installed memory: a copy that leaves it ends with [`Code::RegionLost`] and touches nothing
/// outside, as does one whose memory was removed or replaced after it was posted.
#[derive(Debug)]
pub struct HostCopier {
    // Dropped before the memories that its copies are out for.
    helper: Option<Helper>,
    regions: Regions,
    /// Ring of posted copies.
    queue: Box<[Option<Posted>]>,
    head: usize,
    count: usize,
    /// Bytes of the copy at `head` that are done.
    progress: u32,
    slice_bytes: u32,
}

impl HostCopier {
    /// An engine without any memory. Allocates all that it ever needs.
    ///
    /// # Panics
    /// If `copies` or `slice_bytes` is 0.
    #[must_use]
    pub fn new(config: CopierConfig) -> Self {
        assert!(config.copies > 0 && config.slice_bytes > 0, "a copy engine needs a queue and a slice");
        Self {
            helper: None,
            regions: Regions::new(config.regions),
            queue: vec![None; usize::from(config.copies)].into(),
            head: 0,
            count: 0,
            progress: 0,
            slice_bytes: config.slice_bytes,
        }
    }

    /// As [`Self::new`], with a copy thread: see [`copy_thread`]. Dropping the engine ends that thread.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn with_helper(config: CopierConfig, helper: Helper) -> Self {
        Self { helper: Some(helper), ..Self::new(config) }
    }

    /// Puts memory into a slot; gives back what stood there. Lane-safe, except that dropping the last clone of a
    /// returned span unmaps: whoever installs keeps one elsewhere.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(&mut self, region: RegionIndex, span: OwnedSpan) -> Option<OwnedSpan> {
        self.revoke(region);
        self.regions.install(region, span, 0, 0)
    }

    /// Takes memory out of a slot, at any time: copies that are still posted for it end with [`Code::RegionLost`], and
    /// nothing touches it any more. If the copy thread is at it, this waits until it has moved at most 64 KiB.
    pub fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.revoke(region);
        self.regions.remove(region)
    }

    fn revoke(&self, region: RegionIndex) {
        if let Some(helper) = &self.helper {
            helper.revoke(region);
        }
    }

    /// Sets the most bytes that one poll moves; 0 counts as 1.
    pub fn set_slice(&mut self, slice_bytes: u32) {
        self.slice_bytes = slice_bytes.max(1);
    }

    /// How long the copy thread, if there is one, looks for copies before it sleeps, 200 us at least; `None`: it never
    /// sleeps.
    pub fn set_spin(&self, spin: Option<Nanos>) {
        if let Some(helper) = &self.helper {
            helper.set_spin(spin);
        }
    }

    /// Copies that are posted and have not ended.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.count + self.helper.as_ref().map_or(0, Helper::count)
    }

    /// Bytes of copies that were handed to the copy thread so far.
    #[must_use]
    pub fn handed_bytes(&self) -> u64 {
        self.helper.as_ref().map_or(0, Helper::bytes)
    }

    /// Moves at most `budget` bytes of the copy at the head; `None` while it has not ended.
    fn advance(&mut self, copy: &Posted, budget: &mut u32) -> Option<Code> {
        let bytes = (copy.bytes - self.progress).min(*budget);
        let done = u64::from(self.progress);
        let from = self.regions.span(copy.from, done, u64::from(bytes));
        let to = self.regions.span(copy.to, done, u64::from(bytes));
        let (Some(from), Some(to)) = (from, to) else { return Some(Code::RegionLost) };
        from.copy_to(to);
        *budget -= bytes;
        self.progress += bytes;
        if self.progress < copy.bytes {
            return None;
        }
        // After the last byte: a page lost meanwhile was replaced by zeroes, and this is the only sign of it.
        let lost = self.regions.is_lost(copy.from) || self.regions.is_lost(copy.to);
        Some(if lost { Code::RegionLost } else { Code::Ok })
    }
}

impl CopyEngine for HostCopier {
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull> {
        if self.helper.as_mut().is_some_and(|helper| helper.take(copy, &self.regions)) {
            return Ok(());
        }
        if self.count == self.queue.len() {
            return Err(CopyFull);
        }
        let at = (self.head + self.count) % self.queue.len();
        let (from, to) = (self.regions.stamp(copy.from), self.regions.stamp(copy.to));
        self.queue[at] = Some(Posted { from, to, bytes: copy.bytes, post: copy.post });
        self.count += 1;
        Ok(())
    }

    fn kick(&mut self, _now: Nanos) {}

    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize {
        let mut budget = self.slice_bytes;
        let mut ended = 0;
        if let Some(helper) = &mut self.helper {
            helper.set_now(now);
            while ended < done.len() {
                let Some(end) = helper.next_end(&self.regions) else { break };
                done[ended] = end;
                ended += 1;
            }
        }
        while budget > 0 && ended < done.len() {
            let Some(copy) = self.queue[self.head] else { break };
            let Some(status) = self.advance(&copy, &mut budget) else { break };
            self.queue[self.head] = None;
            self.head = (self.head + 1) % self.queue.len();
            self.count -= 1;
            self.progress = 0;
            done[ended] = CopyDone { post: copy.post, status };
            ended += 1;
        }
        ended
    }

    /// While anything is posted: the CPU that would wait is the one that copies, or the end of a copy is seen in a ring.
    fn is_busy(&self) -> bool {
        self.posted() > 0
    }
}
