//! After construction and attaching, the fabric allocates nothing, whatever happens on its connections.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use railhead_core::port::{Fabric, FabricEvent, RegionIndex};

thread_local! {
    static ALLOCATIONS: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Counting;

// SAFETY: all memory is the system allocator's, with the layouts that it was asked for; counting touches only a
// thread-local cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get().map(|count| count + 1)));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted(run: impl FnOnce()) -> u64 {
    ALLOCATIONS.with(|count| count.set(Some(0)));
    run();
    ALLOCATIONS.with(|count| count.take()).expect("set above")
}

#[test]
fn the_counter_counts() {
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn nothing_is_allocated_after_construction() {
    let mut two = Two::new(small(), small());
    let (source, target) = (memory(1 << 20), memory(1 << 20));
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target));
    let mut events = [NOTHING; 16];
    let mut records = 0;
    let mut downs = 0;
    let allocations = counted(|| {
        for round in 0..400u32 {
            let bytes = 1 + (round * 7919) % 300_000;
            let _ = two.near.write(WIRE, &write(1, bytes, 0, round));
            let _ = two.near.send(WIRE, &record(u64::from(round)));
            let _ = two.far.send(WIRE, &record(u64::from(round)));
            if round == 200 {
                two.far.set_slice(8 << 10, 16 << 10);
            }
            if round == 300 {
                drop(two.far.remove(RegionIndex(1)));
            }
            if round == 390 {
                two.far.close(WIRE);
            }
            for fabric in [&mut two.near, &mut two.far] {
                fabric.kick(0);
                let count = fabric.poll(0, &mut events);
                records += events[..count]
                    .iter()
                    .filter(|event| matches!(event, FabricEvent::Record { .. }))
                    .count();
                downs +=
                    events[..count].iter().filter(|event| matches!(event, FabricEvent::Down { .. })).count();
            }
        }
    });
    assert_eq!(allocations, 0);
    assert!(
        records > 300 && downs == 2,
        "{records} records, {downs} downs: the run was not what it should be"
    );
}
