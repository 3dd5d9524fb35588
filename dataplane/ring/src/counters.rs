//! Counters that one thread keeps and others read: no locked instruction, each count whole, no order between two.

use core::ops::Deref;

use crate::sync::Word;

/// A table of counters over borrowed words. One thread adds and sets; any thread of any process gets. A second
/// writer would lose counts.
#[derive(Debug, Clone)]
pub struct Counters<M> {
    memory: M,
}

impl<M: Deref<Target = [Word]>> Counters<M> {
    /// One counter per word.
    pub const fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Counters in the table.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the table has no counter.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Adds, wrapping. Only the writing thread.
    ///
    /// # Panics
    /// If the table has no such counter.
    #[inline]
    pub fn add(&self, index: usize, count: u64) {
        let word = &self.memory[index];
        word.store_relaxed(word.load_relaxed().wrapping_add(count));
    }

    /// Sets. Only the writing thread.
    ///
    /// # Panics
    /// If the table has no such counter.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.memory[index].store_relaxed(value);
    }

    /// The present value; any thread.
    ///
    /// # Panics
    /// If the table has no such counter.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.memory[index].load_relaxed()
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
