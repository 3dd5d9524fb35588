//! The handshake by which a consumer sleeps without missing an item and a producer rings only when someone sleeps.
//!
//! One word: not zero while the consumer sleeps or is about to. Sleeper: [`Bell::prepare`], look at every input once
//! more, block only if all are empty, [`Bell::end`]. Waker: publish, then [`Bell::take`]; if true, make the system call
//! that wakes (an eventfd write). The two sequentially consistent fences make it impossible that the sleeper misses
//! the item *and* the waker misses the sleeper. A ring may come late or in vain; the sleeper just looks again.
//!
//! The fence costs tens of nanoseconds: ring once per batch, not once per item.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use crate::error::LayoutError;
use crate::sync::{Site, Word, fence_at};

/// Words that a bell takes.
pub const BELL_WORDS: usize = 1;

const AWAKE: u64 = 0;
const SLEEPING: u64 = 1;

/// One end of a bell: one sleeper, any number of wakers. A peer that writes nonsense only causes or loses its own
/// wake-ups, so both sides also bound their sleep.
#[derive(Debug)]
pub struct Bell<M> {
    memory: M,
}

impl<M: Deref<Target = [Word]>> Bell<M> {
    /// A bell over the first of these words.
    ///
    /// # Errors
    /// [`LayoutError::TooShort`] if there is none.
    pub fn new(memory: M) -> Result<Self, LayoutError> {
        if memory.len() < BELL_WORDS {
            return Err(LayoutError::TooShort { needed_words: BELL_WORDS, given_words: memory.len() });
        }
        Ok(Self { memory })
    }

    /// Sleeper: announces sleep. Look at all inputs once more after this, and do not block if there is any.
    #[inline]
    pub fn prepare(&self) {
        // A swap and not a store, as every change of this word: the changes are then one chain, which loom can follow
        // (it leaves a plain store unordered against a waker's swap). Beside the system call it costs nothing.
        self.memory[0].swap_relaxed(SLEEPING);
        // Partner: the fence in `take`. Either our second look sees what was published before that fence, or the
        // waker sees our announcement after it.
        fence_at(Site::BellSleepFence, Ordering::SeqCst);
    }

    /// Sleeper: awake again, whether it has blocked or not.
    #[inline]
    pub fn end(&self) {
        // Relaxed: a waker that still sees the announcement rings in vain, which the next sleep absorbs.
        self.memory[0].swap_relaxed(AWAKE);
    }

    /// Waker, after publishing: whether it has to wake the sleeper. Of several wakers only one is told so.
    #[inline]
    #[must_use = "a taken bell has to be rung, or the sleeper sleeps on"]
    pub fn take(&self) -> bool {
        // Partner: the fence in `prepare`.
        fence_at(Site::BellWakeFence, Ordering::SeqCst);
        // The load keeps the line shared while nobody sleeps; the swap picks one of several wakers.
        self.is_sleeping() && self.memory[0].swap_relaxed(AWAKE) != AWAKE
    }

    /// Whether a sleeper is announced and not yet taken; a hint, with no order.
    #[inline]
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.memory[0].load_relaxed() != AWAKE
    }

    /// The word that sleepers announce themselves in, for the system call that wakes them.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
