//! A ring from one producer to one consumer, between threads or processes.
//!
//! Layout in words: `[0]` tail (only the producer stores it), `[8]` head (only the consumer stores it), from
//! [`RING_HEADER_WORDS`] on `capacity` slots of `W` words. Both indices count items for ever and wrap as `u64`; the slot
//! is the index modulo the capacity, a power of two, so wrapping is seamless.
//!
//! Each end keeps a private copy of its own index and a cached copy of the peer's, and reads the peer's line only
//! when the cache says full or empty. Items are *staged*, then published together: one release store and at most one
//! bell per batch. The producer believes nothing but its own index; a head that cannot be is a full ring. The consumer
//! answers a tail that cannot be with [`Corrupt`].

use core::ops::Deref;

use crate::error::{Corrupt, Full, LayoutError};
use crate::sync::{Site, Word, copy_in, copy_out};

/// Words before the first slot: the two indices, each on a cache line of its own.
pub const RING_HEADER_WORDS: usize = 16;

const TAIL: usize = 0;
const HEAD: usize = 8;

/// Words that a ring of `capacity` items of `item_words` words takes.
///
/// # Panics
/// If the size overflows: at compile time, when used in a constant.
#[must_use]
pub const fn ring_words(capacity: usize, item_words: usize) -> usize {
    match checked_ring_words(capacity, item_words) {
        Some(words) => words,
        None => panic!("the ring does not fit an address space"),
    }
}

const fn checked_ring_words(capacity: usize, item_words: usize) -> Option<usize> {
    match capacity.checked_mul(item_words) {
        Some(slots) => slots.checked_add(RING_HEADER_WORDS),
        None => None,
    }
}

fn check_layout(memory: &[Word], capacity: usize, item_words: usize) -> Result<(), LayoutError> {
    if !capacity.is_power_of_two() {
        return Err(LayoutError::Capacity { capacity });
    }
    let needed_words = checked_ring_words(capacity, item_words).ok_or(LayoutError::Capacity { capacity })?;
    if memory.len() < needed_words {
        return Err(LayoutError::TooShort { needed_words, given_words: memory.len() });
    }
    Ok(())
}

/// The words of the slot that holds item `index`.
#[inline(always)]
fn slot<const W: usize>(memory: &[Word], index: u64, mask: u64) -> &[Word] {
    // A slot number is below the capacity, which fits a usize; so does the sum, as check_layout has computed it.
    let start = RING_HEADER_WORDS + (index & mask) as usize * W;
    &memory[start..start + W]
}

/// The sending end. At most one per ring; any one thread.
#[derive(Debug)]
pub struct Producer<M, const W: usize> {
    memory: M,
    mask: u64,
    /// Index of the next item to stage.
    next: u64,
    /// What `[TAIL]` holds: items from here to `next` are staged.
    published: u64,
    /// The last valid head seen: slots before it plus the capacity are free.
    head: u64,
}

impl<M: Deref<Target = [Word]>, const W: usize> Producer<M, W> {
    /// Takes the sending end of a ring of `capacity` items, where its last holder left it.
    ///
    /// # Errors
    /// [`LayoutError`] if the capacity is no power of two, the memory too short, or the stored indices impossible.
    pub fn new(memory: M, capacity: usize) -> Result<Self, LayoutError> {
        check_layout(&memory, capacity, W)?;
        let tail = memory[TAIL].load_relaxed();
        let mut producer =
            Self { memory, mask: capacity as u64 - 1, next: tail, published: tail, head: tail };
        producer.refresh().map_err(|Corrupt| LayoutError::Indices)?;
        Ok(producer)
    }

    /// Items that the ring holds.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.mask as usize + 1
    }

    /// Items that may be staged now, freshly read. Zero also if the consumer has stored an impossible head.
    #[inline]
    pub fn free(&mut self) -> usize {
        match self.refresh() {
            Ok(()) => self.free_cached(),
            Err(Corrupt) => 0,
        }
    }

    /// Whether `count` items may be staged now; reads the consumer's index only if the cached one does not suffice.
    #[inline]
    pub fn has_room(&mut self, count: usize) -> bool {
        self.free_cached() >= count || self.free() >= count
    }

    /// Copies an item into the ring without showing it to the consumer: see [`Self::publish`].
    ///
    /// # Errors
    /// [`Full`] if the consumer has not given back a slot.
    #[inline]
    pub fn push(&mut self, item: &[u64; W]) -> Result<(), Full> {
        if self.free_cached() == 0 && self.free() == 0 {
            return Err(Full);
        }
        copy_in(slot::<W>(&self.memory, self.next, self.mask), item);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Shows all staged items to the consumer and returns how many. Then ring the [`crate::Bell`], once.
    #[inline]
    pub fn publish(&mut self) -> usize {
        let count = self.staged();
        if count > 0 {
            // Partner: the consumer's acquire load in `Consumer::refresh`; it sees the slots before the tail.
            self.memory[TAIL].store_at(Site::SpscTailRelease, self.next);
            self.published = self.next;
        }
        count
    }

    /// Stages one item and publishes all that is staged.
    ///
    /// # Errors
    /// [`Full`]; nothing is published then.
    #[inline]
    pub fn push_publish(&mut self, item: &[u64; W]) -> Result<(), Full> {
        self.push(item)?;
        self.publish();
        Ok(())
    }

    /// Items staged and not yet published.
    #[inline]
    #[must_use]
    pub fn staged(&self) -> usize {
        self.next.wrapping_sub(self.published) as usize
    }

    /// Gives the memory back. Items that were staged and not published are forgotten.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// Reads the consumer's index, for a caller that wants to tell a slow consumer from a spoilt ring.
    ///
    /// # Errors
    /// [`Corrupt`] if the consumer has stored a head beyond the tail, or more than a full ring behind it.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        // Partner: the consumer's release store in `Consumer::release`; its copies out of the slots came before.
        let head = self.memory[HEAD].load_at(Site::SpscHeadAcquire);
        // A head beyond what was published counts as huge; one more than a ring behind is as wrong.
        if self.published.wrapping_sub(head) > self.mask + 1 {
            return Err(Corrupt);
        }
        self.head = head;
        Ok(())
    }

    #[inline(always)]
    fn free_cached(&self) -> usize {
        // A hostile head may step back within the ring, so that more seems used than fits: that is full as well.
        (self.mask + 1).saturating_sub(self.next.wrapping_sub(self.head)) as usize
    }
}

/// The receiving end. At most one per ring; any one thread.
#[derive(Debug)]
pub struct Consumer<M, const W: usize> {
    memory: M,
    mask: u64,
    /// Index of the next item to take.
    next: u64,
    /// What `[HEAD]` holds: slots from here to `next` are taken and not yet given back.
    released: u64,
    /// The last valid tail seen: items before it may be taken.
    tail: u64,
}

impl<M: Deref<Target = [Word]>, const W: usize> Consumer<M, W> {
    /// Takes the receiving end of a ring of `capacity` items, where its last holder left it.
    ///
    /// # Errors
    /// [`LayoutError`] if the capacity is no power of two, the memory too short, or the stored indices impossible.
    pub fn new(memory: M, capacity: usize) -> Result<Self, LayoutError> {
        check_layout(&memory, capacity, W)?;
        let head = memory[HEAD].load_relaxed();
        let mut consumer = Self { memory, mask: capacity as u64 - 1, next: head, released: head, tail: head };
        consumer.refresh().map_err(|Corrupt| LayoutError::Indices)?;
        Ok(consumer)
    }

    /// Items that the ring holds.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.mask as usize + 1
    }

    /// Takes the oldest published item, copied once; `None` if there is none. The slot stays in use until
    /// [`Self::release`].
    ///
    /// # Errors
    /// [`Corrupt`] if the producer has stored a tail behind what was taken, or more than a full ring ahead of what was released.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u64; W]>, Corrupt> {
        if self.next == self.tail {
            self.refresh()?;
            if self.next == self.tail {
                return Ok(None);
            }
        }
        let item = copy_out(slot::<W>(&self.memory, self.next, self.mask));
        self.next = self.next.wrapping_add(1);
        Ok(Some(item))
    }

    /// Gives the slots of all taken items back to the producer and returns how many.
    #[inline]
    pub fn release(&mut self) -> usize {
        let count = self.next.wrapping_sub(self.released) as usize;
        if count > 0 {
            // Partner: the producer's acquire load in `Producer::refresh`; it overwrites the slots only after it.
            self.memory[HEAD].store_at(Site::SpscHeadRelease, self.next);
            self.released = self.next;
        }
        count
    }

    /// Items that are published and not yet taken, freshly read. An impossible tail counts as a full ring, so that
    /// the caller goes on to [`Self::pop`] and learns of it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        // Relaxed: nothing is read on the strength of it. Before sleep the order comes from the bell's fences.
        let available = self.memory[TAIL].load_relaxed().wrapping_sub(self.next);
        available.min(self.mask + 1) as usize
    }

    /// Whether nothing is published, freshly read: the second look after [`crate::Bell::prepare`].
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the memory back. Items taken and not released will be seen again by the next holder.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }

    #[inline]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        // Partner: the producer's release store in `Producer::publish`; the slots before the tail are complete.
        let tail = self.memory[TAIL].load_at(Site::SpscTailAcquire);
        // The producer owns only what was given back: from `released` a full ring ahead, and never behind `next`.
        let held = self.next.wrapping_sub(self.released);
        if tail.wrapping_sub(self.next) > self.mask + 1 - held {
            return Err(Corrupt);
        }
        self.tail = tail;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
