//! A table of slots: each is given to another owner with a new generation, the one that was free the longest first.

/// A slot with its generation: of the present owner, or of the last one.
#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// Slots, and who has them.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Where to look for a free one first: the one that was free the longest.
    next: usize,
    first: usize,
}

impl<T> Slots<T> {
    /// `count` free slots, of which those below `first` are never given out. Generations count on from `seed`.
    pub(super) fn new(count: usize, first: usize, seed: u32) -> Self {
        let slots = (0..count).map(|_| Slot { generation: seed, entry: None }).collect();
        Self { slots, next: first, first }
    }

    /// Gives a slot out; answers with its number and generation.
    pub(super) fn insert(&mut self, entry: T) -> Option<(u32, u32)> {
        let count = self.slots.len();
        let free =
            (self.next..count).chain(self.first..self.next).find(|at| self.slots[*at].entry.is_none())?;
        self.next = if free + 1 == count { self.first } else { free + 1 };
        let slot = &mut self.slots[free];
        // 0 is never a generation, so that a zeroed handle is stale.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        slot.entry = Some(entry);
        Some((u32::try_from(free).ok()?, slot.generation))
    }

    /// Who has a slot.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.entry.as_ref()
    }

    /// Who has a slot, for a change.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.entry.as_mut()
    }

    /// Who has a slot, if it still is whoever had it with this generation.
    pub(super) fn current(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == generation)
    }

    /// The generation of a slot: of the present owner, or of the last one.
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.slots.get(index as usize).map_or(0, |slot| slot.generation)
    }

    /// Takes a slot back.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        self.slots.get_mut(index as usize)?.entry.take()
    }

    /// All that are taken, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let entries = self.slots.iter().enumerate();
        entries.filter_map(|(at, slot)| Some((u32::try_from(at).ok()?, slot.entry.as_ref()?)))
    }
}
