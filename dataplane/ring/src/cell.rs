//! A published snapshot: one writer replaces it whole, any number of readers copy it whole.
//!
//! Layout in words: `[0]` the sequence, then the payload. Generation `g` is in the cell when the sequence is `2 g`; it
//! is `2 g - 1` while the writer writes it. The payload words are atomic and relaxed, bracketed by the sequence (a
//! sequence lock), so a copy that crossed a publication is noticed and taken again; readers never hold up the writer.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use crate::error::{Busy, LayoutError, PublishError};
use crate::sync::{Site, Word, fence_at, spin};

const SEQUENCE: usize = 0;
const PAYLOAD: usize = 1;

/// Words that a cell of `payload_words` words takes.
#[must_use]
pub const fn cell_words(payload_words: usize) -> usize {
    PAYLOAD + payload_words
}

fn check_layout(memory: &[Word]) -> Result<(), LayoutError> {
    if memory.len() < PAYLOAD {
        return Err(LayoutError::TooShort { needed_words: PAYLOAD, given_words: memory.len() });
    }
    Ok(())
}

/// The generation that a sequence stands for: the complete one, or the one before an incomplete one.
const fn generation_of(sequence: u64) -> u64 {
    sequence / 2
}

const fn is_writing(sequence: u64) -> bool {
    sequence % 2 == 1
}

/// The writing end. At most one per cell; any one thread.
#[derive(Debug)]
pub struct CellWriter<M> {
    memory: M,
    /// The last complete generation: private, so that nobody else's store can mislead the writer.
    generation: u64,
}

impl<M: Deref<Target = [Word]>> CellWriter<M> {
    /// The writing end of a cell that fills the memory. If its last writer died while it wrote, readers stay busy
    /// until the next [`Self::publish`].
    ///
    /// # Errors
    /// [`LayoutError::TooShort`] if the memory cannot hold the sequence.
    pub fn new(memory: M) -> Result<Self, LayoutError> {
        check_layout(&memory)?;
        let generation = generation_of(memory[SEQUENCE].load_relaxed());
        Ok(Self { memory, generation })
    }

    /// The last complete generation; 0 if there was none.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Replaces the payload by that of a greater generation.
    ///
    /// A generation that a dead writer began and did not complete may be published again.
    ///
    /// # Errors
    /// [`PublishError`] if the generation is not greater or the payload has another length; the cell is unchanged.
    pub fn publish(&mut self, generation: u64, payload: &[u64]) -> Result<(), PublishError> {
        let words = &self.memory[PAYLOAD..];
        if payload.len() != words.len() {
            return Err(PublishError::Length { needed_words: words.len(), given_words: payload.len() });
        }
        let current = self.generation;
        let even = generation.checked_mul(2).ok_or(PublishError::Generation { current })?;
        if generation <= current {
            return Err(PublishError::Generation { current });
        }
        self.memory[SEQUENCE].store_relaxed(even - 1);
        // Partner: the reader's acquire fence. Who copied one of the words below sees the odd sequence at its check.
        fence_at(Site::CellOddFence, Ordering::Release);
        for (word, value) in words.iter().zip(payload) {
            word.store_relaxed(*value);
        }
        // Partner: the reader's acquire load of the sequence.
        self.memory[SEQUENCE].store_at(Site::CellEvenRelease, even);
        self.generation = generation;
        Ok(())
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

/// A reading end. Any number per cell; any thread.
#[derive(Debug, Clone)]
pub struct CellReader<M> {
    memory: M,
}

impl<M: Deref<Target = [Word]>> CellReader<M> {
    /// A reading end of the cell that fills the memory.
    ///
    /// # Errors
    /// [`LayoutError::TooShort`] if the memory cannot hold the sequence.
    pub fn new(memory: M) -> Result<Self, LayoutError> {
        check_layout(&memory)?;
        Ok(Self { memory })
    }

    /// The last complete generation, by one load; 0 if there was none. Cheap enough for every turn of a lane.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        generation_of(self.memory[SEQUENCE].load_relaxed())
    }

    /// Copies the payload's first `payload.len()` words, all of one generation, and returns that generation. If
    /// nothing was published yet it returns 0 and leaves `payload` as it is.
    ///
    /// # Errors
    /// [`Busy`] if each of the `tries` met the writer; `payload` then holds no usable content.
    ///
    /// # Panics
    /// If `payload` is longer than the cell's.
    pub fn read(&self, payload: &mut [u64], tries: u32) -> Result<u64, Busy> {
        let words = &self.memory[PAYLOAD..][..payload.len()];
        for _ in 0..tries {
            // Partner: the writer's release store of the even sequence.
            let sequence = self.memory[SEQUENCE].load_at(Site::CellSequenceAcquire);
            if sequence == 0 {
                return Ok(0);
            }
            if !is_writing(sequence) {
                for (value, word) in payload.iter_mut().zip(words) {
                    *value = word.load_relaxed();
                }
                // Partner: the writer's release fence after the odd sequence.
                fence_at(Site::CellCheckFence, Ordering::Acquire);
                if self.memory[SEQUENCE].load_relaxed() == sequence {
                    return Ok(generation_of(sequence));
                }
            }
            spin();
        }
        Err(Busy)
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
