//! A sealed lane allocates nothing.
#![allow(clippy::disallowed_types, reason = "a test that counts allocations of all threads")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Harness, Setup};
use railhead_core::port::{Fabric, FabricEvent, PostId};
use railhead_sim::conformance::{End, FabricHarness};

thread_local! {
    static IS_SEALED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    if IS_SEALED.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches two constant-initialised thread locals.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's conditions are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's conditions are the callee's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn sealed<T>(work: impl FnOnce() -> T) -> T {
    IS_SEALED.set(true);
    let result = work();
    IS_SEALED.set(false);
    result
}

#[test]
fn posting_polling_and_ending_allocate_nothing() {
    // What is counted is Rust's: the stand-in allocates in C, as no NIC does.
    let mut harness = Harness::with_memory(&Setup { flush_needed: true, ..Setup::stand_in() }, 1 << 20);
    let (near, far) = (harness.near(), harness.connection(End::Target, 0));
    let mut events = [FabricEvent::Down { connection: near, cause: railhead_abi::Code::Ok }; 64];
    let mut downs = 0;
    for round in 0..400u32 {
        let now = harness.pass();
        sealed(|| {
            let _ = harness.write(round, u64::from(round) * 100, 100 + round);
            let _ = harness.read(1000 + round, 0, 64);
            let _ = harness.send(End::Initiator, round.into());
            let _ = harness.fabric(End::Target).flush(far, PostId(round));
            let _ = harness.fabric(End::Initiator).confirm(near, Harness::place(0), PostId(2000 + round));
            if round == 300 {
                harness.fabric(End::Initiator).close(near);
            }
            for node in &mut harness.nodes {
                node.fabric.kick(now);
                let count = node.fabric.poll(now, &mut events);
                downs +=
                    events[..count].iter().filter(|event| matches!(event, FabricEvent::Down { .. })).count();
                node.fabric.prepare_sleep();
            }
        });
    }
    while downs < 2 {
        let now = harness.pass();
        sealed(|| {
            for node in &mut harness.nodes {
                node.fabric.kick(now);
                let count = node.fabric.poll(now, &mut events);
                downs +=
                    events[..count].iter().filter(|event| matches!(event, FabricEvent::Down { .. })).count();
            }
        });
    }
    assert_eq!(ALLOCATIONS.get(), 0);
    sealed(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(ALLOCATIONS.get(), 2, "the count counts");
}
