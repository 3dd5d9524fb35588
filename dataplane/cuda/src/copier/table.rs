//! The table from [`RegionIndex`] to memory, and the memories that copies still touch.

use std::collections::VecDeque;

use railhead_abi::Code;
use railhead_core::port::{Copy, Place, PostId, RegionIndex};

use crate::queues::Memory;

/// A memory as it was when a copy was posted: an index of [`Table::memories`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryId(u32);

/// A copy that was posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    pub(super) post: PostId,
    pub(super) from: MemoryId,
    pub(super) from_offset: u64,
    pub(super) to: MemoryId,
    pub(super) to_offset: u64,
    pub(super) bytes: u32,
    /// How it will end, as far as is known.
    pub(super) status: Code,
}

#[derive(Debug)]
struct Entry<M> {
    memory: Option<M>,
    /// Copies that are posted for it.
    uses: u32,
    /// Taken out of its slot.
    leaving: bool,
}

/// Memories of one copier by slot. Each slot's memory has an entry of its own, so that a copy that was posted for an
/// earlier one never touches a later one.
#[derive(Debug)]
pub(super) struct Table<M> {
    slots: Box<[Option<MemoryId>]>,
    memories: Vec<Entry<M>>,
    free: Vec<u32>,
    /// Removed and touched by nobody.
    removed: VecDeque<u32>,
    leaving: usize,
}

impl<M: Memory> Table<M> {
    /// Room for as many memories that are leaving as there are slots, and then some: an installation never waits.
    pub(super) fn new(slots: u32) -> Self {
        let entries = 2 * slots;
        Self {
            slots: vec![None; slots as usize].into(),
            memories: (0..entries).map(|_| Entry { memory: None, uses: 0, leaving: false }).collect(),
            free: (0..entries).rev().collect(),
            removed: VecDeque::with_capacity(entries as usize),
            leaving: 0,
        }
    }

    pub(super) fn install(&mut self, region: RegionIndex, memory: M) -> Result<(), M> {
        let slots = self.slots.len();
        assert!((region.0 as usize) < slots, "region slot {} of {slots}", region.0);
        let Some(index) = self.free.pop() else { return Err(memory) };
        self.remove(region);
        self.memories[index as usize] = Entry { memory: Some(memory), uses: 0, leaving: false };
        self.slots[region.0 as usize] = Some(MemoryId(index));
        Ok(())
    }

    pub(super) fn remove(&mut self, region: RegionIndex) {
        let slot = self.slots.get_mut(region.0 as usize).and_then(Option::take);
        let Some(MemoryId(index)) = slot else { return };
        let entry = &mut self.memories[index as usize];
        entry.leaving = true;
        self.leaving += 1;
        if entry.uses == 0 {
            self.removed.push_back(index);
        }
    }

    pub(super) fn take_removed(&mut self) -> Option<M> {
        let index = self.removed.pop_front()?;
        self.free.push(index);
        self.leaving -= 1;
        self.memories[index as usize].memory.take()
    }

    /// Memories that were removed and not taken yet.
    pub(super) const fn leaving(&self) -> usize {
        self.leaving
    }

    pub(super) fn get(&self, id: MemoryId) -> Option<&M> {
        self.memories[id.0 as usize].memory.as_ref()
    }

    /// Whether the memory was taken out of its slot or has lost its content.
    pub(super) fn is_lost(&self, id: MemoryId) -> bool {
        let entry = &self.memories[id.0 as usize];
        entry.leaving || entry.memory.as_ref().is_none_or(M::is_lost)
    }

    /// Looks both memories up and keeps them until [`Table::release`]; `None` if one is not there or too short.
    pub(super) fn hold(&mut self, copy: &Copy) -> Option<Posted> {
        let bytes = u64::from(copy.bytes);
        let (from, to) = (self.find(copy.from, bytes)?, self.find(copy.to, bytes)?);
        self.memories[from.0 as usize].uses += 1;
        self.memories[to.0 as usize].uses += 1;
        Some(Posted {
            post: copy.post,
            from,
            from_offset: copy.from.offset,
            to,
            to_offset: copy.to.offset,
            bytes: copy.bytes,
            status: Code::Ok,
        })
    }

    fn find(&self, place: Place, bytes: u64) -> Option<MemoryId> {
        let id = (*self.slots.get(place.region.0 as usize)?)?;
        let end = place.offset.checked_add(bytes)?;
        (end <= self.get(id)?.bytes()).then_some(id)
    }

    pub(super) fn release(&mut self, posted: &Posted) {
        for id in [posted.from, posted.to] {
            let entry = &mut self.memories[id.0 as usize];
            debug_assert!(entry.uses > 0);
            entry.uses -= 1;
            if entry.uses == 0 && entry.leaving {
                self.removed.push_back(id.0);
            }
        }
    }
}
