//! A log that keeps the last entries: one writer never waits, any number of readers take what they still find.
//!
//! Layout in words: `[0]` the next position, from [`LOG_HEADER_WORDS`] on `entries` times a sequence word and `W` words.
//! Positions count from 0. The entry at position `p` is complete when its sequence is `2 p + 2`, and being written when
//! it is `2 p + 1`: a sequence lock per entry whose value also says which lap it belongs to.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use crate::error::LayoutError;
use crate::sync::{Site, Word, fence_at};

/// Words before the first entry: a cache line.
pub const LOG_HEADER_WORDS: usize = 8;

const NEXT: usize = 0;

/// Words that a log of `entries` entries of `entry_words` words takes.
///
/// # Panics
/// If the size overflows: at compile time, when used in a constant.
#[must_use]
pub const fn log_words(entries: usize, entry_words: usize) -> usize {
    match checked_log_words(entries, entry_words) {
        Some(words) => words,
        None => panic!("the log does not fit an address space"),
    }
}

const fn checked_log_words(entries: usize, entry_words: usize) -> Option<usize> {
    let Some(stride) = entry_words.checked_add(1) else { return None };
    match entries.checked_mul(stride) {
        Some(words) => words.checked_add(LOG_HEADER_WORDS),
        None => None,
    }
}

fn check_layout(memory: &[Word], entries: usize, entry_words: usize) -> Result<(), LayoutError> {
    if !entries.is_power_of_two() {
        return Err(LayoutError::Capacity { capacity: entries });
    }
    let needed_words =
        checked_log_words(entries, entry_words).ok_or(LayoutError::Capacity { capacity: entries })?;
    if memory.len() < needed_words {
        return Err(LayoutError::TooShort { needed_words, given_words: memory.len() });
    }
    Ok(())
}

/// The sequence and the words of the entry that holds `position`.
#[inline(always)]
fn entry<const W: usize>(memory: &[Word], position: u64, mask: u64) -> (&Word, &[Word]) {
    // Below the number of entries, which fits a usize; so does the sum, as check_layout has computed it.
    let start = LOG_HEADER_WORDS + (position & mask) as usize * (W + 1);
    (&memory[start], &memory[start + 1..start + 1 + W])
}

/// Positions that no writer reaches in a lifetime, so that sequences never wrap.
const POSITION_LIMIT: u64 = 1 << 62;

/// The sequence of the complete entry at a position. For positions that cannot be it is odd: never complete.
const fn complete(position: u64) -> u64 {
    position.saturating_mul(2).saturating_add(2)
}

/// The writing end. At most one per log; any one thread.
#[derive(Debug)]
pub struct LogWriter<M, const W: usize> {
    memory: M,
    mask: u64,
    next: u64,
}

impl<M: Deref<Target = [Word]>, const W: usize> LogWriter<M, W> {
    /// The writing end of a log of `entries` entries, where its last writer left it.
    ///
    /// # Errors
    /// [`LayoutError`] if `entries` is no power of two, the memory too short, or the stored positions impossible.
    pub fn new(memory: M, entries: usize) -> Result<Self, LayoutError> {
        check_layout(&memory, entries, W)?;
        let mask = entries as u64 - 1;
        let mut next = memory[NEXT].load_relaxed();
        if next >= POSITION_LIMIT {
            return Err(LayoutError::Indices);
        }
        let (sequence, _) = entry::<W>(&memory, next, mask);
        let ahead = sequence.load_relaxed();
        // The last writer may have died between completing an entry and counting it. A reader may be copying that
        // entry now, so it must not be written a second time under the same sequence: count it.
        if ahead == complete(next) {
            next += 1;
            memory[NEXT].store_at(Site::LogNextRelease, next);
        } else if ahead > complete(next) {
            return Err(LayoutError::Indices);
        }
        Ok(Self { memory, mask, next })
    }

    /// Writes an entry over the oldest and returns its position.
    #[inline]
    pub fn append(&mut self, words: &[u64; W]) -> u64 {
        let position = self.next;
        let (sequence, slots) = entry::<W>(&self.memory, position, self.mask);
        sequence.store_relaxed(complete(position) - 1);
        // Partner: the reader's acquire fence. Who copied one of the words below sees this sequence at its check.
        fence_at(Site::LogOddFence, Ordering::Release);
        for (slot, value) in slots.iter().zip(words) {
            slot.store_relaxed(*value);
        }
        // Partner: the reader's acquire load of the entry's sequence.
        sequence.store_at(Site::LogEvenRelease, complete(position));
        self.next = position + 1;
        // Partner: the acquire load in `next_position`; positions below it are complete for whoever asks there.
        self.memory[NEXT].store_at(Site::LogNextRelease, self.next);
        position
    }

    /// The position that the next entry will have.
    #[inline]
    #[must_use]
    pub fn next_position(&self) -> u64 {
        self.next
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

/// What a reader finds at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<const W: usize> {
    /// The entry, whole.
    Found([u64; W]),
    /// Nothing was written there yet.
    NotYet,
    /// The writer is, or was, there again: the entry is lost.
    Overwritten,
}

/// A reading end. Any number per log; any thread.
#[derive(Debug, Clone)]
pub struct LogReader<M, const W: usize> {
    memory: M,
    mask: u64,
}

impl<M: Deref<Target = [Word]>, const W: usize> LogReader<M, W> {
    /// A reading end of a log of `entries` entries.
    ///
    /// # Errors
    /// [`LayoutError`] if `entries` is no power of two or the memory too short.
    pub fn new(memory: M, entries: usize) -> Result<Self, LayoutError> {
        check_layout(&memory, entries, W)?;
        Ok(Self { memory, mask: entries as u64 - 1 })
    }

    /// Copies the entry at a position, in bounded time.
    #[must_use]
    pub fn read(&self, position: u64) -> Entry<W> {
        let (sequence, slots) = entry::<W>(&self.memory, position, self.mask);
        // Partner: the writer's release store of the even sequence.
        let before = sequence.load_at(Site::LogSequenceAcquire);
        if before < complete(position) {
            return Entry::NotYet;
        }
        if before > complete(position) {
            return Entry::Overwritten;
        }
        let mut words = [0; W];
        for (value, slot) in words.iter_mut().zip(slots) {
            *value = slot.load_relaxed();
        }
        // Partner: the writer's release fence after the odd sequence.
        fence_at(Site::LogCheckFence, Ordering::Acquire);
        if sequence.load_relaxed() == before { Entry::Found(words) } else { Entry::Overwritten }
    }

    /// The position that the next entry will have: all below it are complete, as far as they are still there.
    #[inline]
    #[must_use]
    pub fn next_position(&self) -> u64 {
        // Partner: the writer's release store of the next position.
        self.memory[NEXT].load_at(Site::LogNextAcquire)
    }

    /// The oldest position that may still be there: where to start reading.
    #[inline]
    #[must_use]
    pub fn oldest_position(&self) -> u64 {
        self.next_position().saturating_sub(self.mask + 1)
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
