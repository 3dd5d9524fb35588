//! Handing boxes from one thread to another inside the process, without a lock and without an allocation.
//!
//! A registrar builds something large, gives it to a lane, and the lane later gives it back through a second channel, so
//! that it is freed where freeing may take time. A box given is a pointer in a ring; giving and taking cost a few
//! nanoseconds and never block.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use std::sync::Arc;

use railhead_ring::spsc::{Consumer, Producer, ring_words};
use railhead_ring::sync::Word;

#[cfg(test)]
mod tests;

/// Makes a channel for up to `capacity` boxes.
///
/// # Panics
/// When `capacity` is not a power of two.
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Giver<T>, Taker<T>) {
    assert!(capacity.is_power_of_two(), "capacity {capacity} is not a power of two");
    let words = (0..ring_words(capacity, 1)).map(|_| Word::new(0)).collect();
    let memory = Memory(Arc::new(Slots { words, capacity, boxes: PhantomData }));
    let giver = Producer::new(memory.clone(), capacity).expect("the words were sized for this capacity");
    let taker = Consumer::new(memory, capacity).expect("the words were sized for this capacity");
    (Giver { ring: giver }, Taker { ring: taker })
}

/// The giving end.
pub struct Giver<T: Send> {
    ring: Producer<Memory<T>, 1>,
}

impl<T: Send> Giver<T> {
    /// Gives a box to the other thread. A fresh lane that sleeps is woken by the caller, not by this.
    ///
    /// # Errors
    /// The box itself, when as many as the capacity are on their way: try again later.
    pub fn give(&mut self, item: Box<T>) -> Result<(), Box<T>> {
        let pointer = Box::into_raw(item);
        match self.ring.push_publish(&[pointer.expose_provenance() as u64]) {
            Ok(()) => Ok(()),
            // SAFETY: the pointer was made by Box::into_raw above and the ring did not take it.
            Err(_full) => Err(unsafe { Box::from_raw(pointer) }),
        }
    }

    /// How many boxes can be given now without being handed back; at least that many until the next give.
    pub fn free(&mut self) -> usize {
        self.ring.free()
    }
}

/// The taking end.
pub struct Taker<T: Send> {
    ring: Consumer<Memory<T>, 1>,
}

impl<T: Send> Taker<T> {
    /// Takes the box that was given first, if there is one.
    pub fn take(&mut self) -> Option<Box<T>> {
        // Only `give` writes this ring, so it is never corrupt; if it were, taking nothing is the safe answer.
        let item = self.ring.pop().ok().flatten()?;
        // Published before the box is used: a slot must never be read twice.
        self.ring.release();
        Some(into_box(item))
    }

    /// Whether nothing is on its way: a fresh look, for the last check before a lane sleeps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

/// The ring's words; whichever end is dropped last frees the boxes that were never taken.
struct Slots<T: Send> {
    words: Box<[Word]>,
    capacity: usize,
    boxes: PhantomData<Box<T>>,
}

impl<T: Send> Drop for Slots<T> {
    fn drop(&mut self) {
        let Ok(mut rest) = Consumer::<_, 1>::new(&*self.words, self.capacity) else { return };
        while let Ok(Some(item)) = rest.pop() {
            drop(into_box::<T>(item));
        }
    }
}

fn into_box<T: Send>([pointer]: [u64; 1]) -> Box<T> {
    let pointer = core::ptr::with_exposed_provenance_mut::<T>(pointer as usize);
    // SAFETY: `give`, the only writer, made this pointer with Box::into_raw of a Box<T> and gave up the box; the ring
    // hands each item out once (one consumer at a time, and it releases before using the box) and orders the giver's
    // writes before this. T: Send allows it to arrive on another thread.
    unsafe { Box::from_raw(pointer) }
}

/// A share of the slots, as the ring's memory.
struct Memory<T: Send>(Arc<Slots<T>>);

impl<T: Send> Clone for Memory<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send> Deref for Memory<T> {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        &self.0.words
    }
}

// SAFETY: a shared reference to Slots reaches only words; the boxes are reached by `drop`, which is exclusive.
unsafe impl<T: Send> Sync for Slots<T> {}

impl<T: Send> fmt::Debug for Giver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Giver").finish_non_exhaustive()
    }
}

impl<T: Send> fmt::Debug for Taker<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Taker").finish_non_exhaustive()
    }
}
