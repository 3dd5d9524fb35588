//! A queue of fixed capacity in memory of its own.

/// First in, first out; never grows.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    slots: Box<[T]>,
    head: usize,
    count: usize,
}

impl<T> Default for Ring<T> {
    /// A queue without room, and without memory.
    fn default() -> Self {
        Self { slots: Box::default(), head: 0, count: 0 }
    }
}

impl<T: Copy> Ring<T> {
    /// A queue of at least `capacity` places; `filler` stands in the unused ones.
    pub(crate) fn new(capacity: usize, filler: T) -> Self {
        Self { slots: vec![filler; capacity.max(1).next_power_of_two()].into(), head: 0, count: 0 }
    }

    const fn at(&self, index: usize) -> usize {
        (self.head + index) & (self.slots.len() - 1)
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.count == self.slots.len()
    }

    /// The entry `index` places behind the first.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        (index < self.count).then(|| &self.slots[self.at(index)])
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.get(0)
    }

    /// Adds an entry; callers have looked that there is room.
    pub(crate) fn push(&mut self, entry: T) {
        debug_assert!(!self.is_full(), "callers count");
        let at = self.at(self.count);
        self.slots[at] = entry;
        self.count += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = *self.first()?;
        self.head = self.at(1);
        self.count -= 1;
        Some(first)
    }

    pub(crate) const fn clear(&mut self) {
        self.head = 0;
        self.count = 0;
    }
}
