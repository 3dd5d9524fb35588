//! The witness of the seal, in a process that uses it as its allocator.

use railhead_daemon::allocator::{CountingAllocator, seal_thread, sealed_calls, unseal_thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn only_calls_of_sealed_threads_are_counted() {
    let lane = std::thread::spawn(|| {
        let kept = vec![1u8; 64];
        assert_eq!(sealed_calls(), 0, "not sealed yet");
        seal_thread();
        assert_eq!(sealed_calls(), 0, "sealing itself needs no heap");
        let boxed = std::hint::black_box(Box::new(7u64));
        assert_eq!(sealed_calls(), 1);
        drop(boxed);
        drop(kept);
        assert_eq!(sealed_calls(), 3, "frees count as well");
        unseal_thread();
        drop(std::hint::black_box(Box::new(8u64)));
        sealed_calls()
    });
    let counted = lane.join().expect("the lane thread");
    assert_eq!(counted, 3);
    drop(std::hint::black_box(Box::new(9u64)));
    assert_eq!(sealed_calls(), 0, "other threads are not counted");
}
