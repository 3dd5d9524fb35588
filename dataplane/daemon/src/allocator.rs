//! The allocator of the dataplane's binary: the system's, with a witness that a sealed lane never calls it.
//!
//! A thread seals itself once it is set up. From then on every allocation, reallocation and free of that thread is
//! counted; the lane copies the count into its counter table, where a gate holds it at zero. Other threads pay one
//! thread-local load.

use core::cell::Cell;
use std::alloc::{GlobalAlloc, Layout, System};

thread_local! {
    // Const-initialised and without a destructor, so that looking at them never allocates.
    static SEALED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator that counts the calls of sealed threads.
#[derive(Debug)]
pub struct CountingAllocator;

/// From now on this thread must not use the heap; calls that it makes all the same are counted.
pub fn seal_thread() {
    SEALED.set(true);
}

/// This thread is no longer a lane: it may free what it owns.
pub fn unseal_thread() {
    SEALED.set(false);
}

/// Calls of the allocator by this thread since it was sealed.
#[must_use]
pub fn sealed_calls() -> u64 {
    COUNT.get()
}

fn note() {
    // A thread that is being torn down has no thread-locals any more; it is no lane.
    let _ = SEALED.try_with(|sealed| {
        if sealed.get() {
            let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        }
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator; the counting touches only thread-locals that need
// no heap.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those of System::alloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those of System::alloc_zeroed.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note();
        // SAFETY: the pointer came from System with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        // SAFETY: the pointer came from System with this layout, as the caller promises.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
