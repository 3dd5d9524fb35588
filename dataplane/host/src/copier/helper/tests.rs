use core::cell::Cell;
use core::time::Duration;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use railhead_core::port::{CopyEngine, Place, PostId};
use railhead_shm::{Mapping, OwnedSpan};

use super::*;
use crate::{CopierConfig, HostCopier};

const BYTES: u64 = 8 << 20;
const LIMIT: Duration = Duration::from_secs(20);

fn memory(fill: u8) -> OwnedSpan {
    let span = Mapping::anonymous(8 << 20).expect("memory").span();
    span.fill(0, BYTES, fill).expect("inside");
    span
}

fn content(span: &OwnedSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read(0, &mut bytes).expect("inside");
    bytes
}

fn copy(bytes: u64, post: u32) -> Copy {
    let place = |region| Place { region: RegionIndex(region), offset: 0 };
    let bytes = u32::try_from(bytes).expect("few");
    Copy { from: place(1), to: place(2), bytes, post: PostId(post) }
}

/// A clock that is a second further at each look: a thread that may sleep does so at once.
fn hasty() -> impl Fn() -> Nanos {
    let now = Cell::new(0);
    move || now.replace(now.get() + 1_000_000_000)
}

/// An engine that moves next to nothing itself, with its thread, which never sleeps, and both memories.
struct Rig {
    copier: HostCopier,
    thread: JoinHandle<u64>,
    from: OwnedSpan,
    to: OwnedSpan,
}

impl Rig {
    fn new() -> Self {
        let (helper, copies) = copy_thread(1);
        let thread = thread::spawn(move || {
            let mut done = 0;
            copies.run(hasty(), || done += 1);
            done
        });
        let config = CopierConfig { regions: 4, copies: 4, slice_bytes: 1 };
        let (mut copier, from, to) = (HostCopier::with_helper(config, helper), memory(1), memory(0));
        copier.set_spin(None);
        copier.install(RegionIndex(1), from.clone());
        copier.install(RegionIndex(2), to.clone());
        Self { copier, thread, from, to }
    }

    fn wait(&mut self) -> (PostId, Code) {
        let start = Instant::now();
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }];
        while self.copier.poll(0, &mut done) == 0 {
            assert!(start.elapsed() < LIMIT, "a copy that never ends");
            assert!(self.copier.is_busy(), "the lane would sleep while a copy is out");
            thread::yield_now();
        }
        (done[0].post, done[0].status)
    }
}

#[test]
fn thread_ends_with_its_copier() {
    let mut rig = Rig::new();
    for post in 1..=3 {
        rig.copier.copy(&copy(1000, post)).expect("room");
        assert_eq!(rig.wait(), (PostId(post), Code::Ok));
    }
    assert!(!rig.copier.is_busy());
    assert!(content(&rig.to)[..1000].iter().all(|byte| *byte == 1));
    drop(rig.copier);
    assert_eq!(rig.thread.join().expect("no panic"), 3, "each copy was reported once");
}

#[test]
fn small_copies_stay_on_the_lane() {
    let (helper, copies) = copy_thread(1000);
    let config = CopierConfig { regions: 4, copies: 4, slice_bytes: 4096 };
    let mut copier = HostCopier::with_helper(config, helper);
    for region in [1, 2] {
        copier.install(RegionIndex(region), memory(1));
    }
    copier.copy(&copy(999, 1)).expect("room");
    copier.copy(&copy(1000, 2)).expect("room");
    let mut done = [CopyDone { post: PostId(0), status: Code::DeviceError }; 4];
    // The thread does not run yet.
    assert_eq!(copier.poll(0, &mut done), 1);
    assert_eq!(done[0], CopyDone { post: PostId(1), status: Code::Ok });
    assert_eq!((copier.posted(), copier.handed_bytes()), (1, 1000));
    let thread = thread::spawn(move || copies.run(|| 0, || ()));
    let start = Instant::now();
    while copier.poll(0, &mut done) == 0 {
        assert!(start.elapsed() < LIMIT, "a copy that never ends");
        thread::yield_now();
    }
    assert_eq!(done[0], CopyDone { post: PostId(2), status: Code::Ok });
    drop(copier);
    thread.join().expect("no panic");
}

/// From the moment that memory was given back, nothing reads or writes it, however far the thread was.
#[test]
fn removed_memory_is_left_alone() {
    for round in 0..40 {
        let mut rig = Rig::new();
        rig.copier.copy(&copy(BYTES, 1)).expect("room");
        rig.copier.copy(&copy(BYTES, 2)).expect("room");
        for _ in 0..round * 200 {
            core::hint::spin_loop();
        }
        let removed = if round % 2 == 0 { RegionIndex(1) } else { RegionIndex(2) };
        assert!(rig.copier.remove(removed).is_some());
        let (from, to) = (content(&rig.from), content(&rig.to));
        // Were the thread still at it, it would now read or write the other value.
        rig.from.fill(0, BYTES, 7).expect("inside");
        let ends = [rig.wait(), rig.wait()];
        assert!(ends.iter().all(|(_, status)| *status == Code::RegionLost), "{ends:?}");
        assert!(from.iter().all(|byte| *byte == 1));
        assert!(content(&rig.to) == to, "bytes landed after the memory was given back");
        drop(rig.copier);
        rig.thread.join().expect("no panic");
    }
}

/// A copy for one memory never goes on with another that came into the same slot.
#[test]
fn replaced_memory_is_not_mixed_up() {
    let mut rig = Rig::new();
    rig.copier.copy(&copy(BYTES, 1)).expect("room");
    let other = memory(9);
    assert!(rig.copier.install(RegionIndex(2), other.clone()).is_some());
    assert_eq!(rig.wait(), (PostId(1), Code::RegionLost));
    assert!(content(&other).iter().all(|byte| *byte == 9));
    // The slot of the revoked copy is as good as new.
    for post in 2..200 {
        rig.copier.copy(&copy(10, post)).expect("room");
        assert_eq!(rig.wait(), (PostId(post), Code::Ok));
    }
    assert!(content(&other)[..10].iter().all(|byte| *byte == 1));
}

/// Dropping the engine frees its memories: the thread must be outside by then.
#[test]
fn dropped_with_copies_out() {
    for round in 0..40 {
        let Rig { mut copier, thread, from, to } = Rig::new();
        drop((from, to));
        for post in 0..3 {
            copier.copy(&copy(BYTES, post)).expect("room");
        }
        for _ in 0..round * 200 {
            core::hint::spin_loop();
        }
        drop(copier);
        thread.join().expect("no panic");
    }
}

/// More than the thread takes stays with the lane, and what neither takes is full.
#[test]
fn backlog_is_shared_and_bounded() {
    let (helper, copies) = copy_thread(1);
    let config = CopierConfig { regions: 4, copies: 4, slice_bytes: 100 };
    let mut copier = HostCopier::with_helper(config, helper);
    for region in [1, 2] {
        copier.install(RegionIndex(region), memory(1));
    }
    let room = (0..1000).take_while(|post| copier.copy(&copy(10, *post)).is_ok()).count();
    assert_eq!(room, ORDERS + 4);
    let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 8];
    assert_eq!(copier.poll(0, &mut done), 4, "the lane does its share without the thread");
    let thread = thread::spawn(move || copies.run(|| 0, || ()));
    let (start, mut ends) = (Instant::now(), 4);
    while copier.is_busy() {
        assert!(start.elapsed() < LIMIT, "copies that never end");
        ends += copier.poll(0, &mut done);
        thread::yield_now();
    }
    assert_eq!(ends, room);
    drop(copier);
    thread.join().expect("no panic");
}

/// A thread that sleeps is left alone for a single copy, and woken for the next when a second comes soon.
#[test]
fn sleeping_thread_is_woken_for_a_stream() {
    let (helper, copies) = copy_thread(1);
    let thread = thread::spawn(move || copies.run(hasty(), || ()));
    let shared = Arc::clone(&helper.shared);
    let config = CopierConfig { regions: 4, copies: 4, slice_bytes: 4096 };
    let mut copier = HostCopier::with_helper(config, helper);
    for region in [1, 2] {
        copier.install(RegionIndex(region), memory(1));
    }
    let until = |is_asleep: bool| {
        let start = Instant::now();
        while bell(&shared).is_sleeping() != is_asleep {
            assert!(start.elapsed() < LIMIT, "the thread should be asleep: {is_asleep}");
            thread::yield_now();
        }
    };
    let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 4];
    copier.set_spin(Some(0));
    for now in [0, STREAM, 2 * STREAM] {
        until(true);
        assert_eq!(copier.poll(now, &mut done), 0);
        copier.copy(&copy(10, 1)).expect("room");
        assert_eq!(copier.poll(now, &mut done), 1, "the lane has done it");
        until(true);
    }
    assert_eq!(copier.handed_bytes(), 0);
    // From now on it stays awake, if it is woken.
    shared[SPIN].store_relaxed(FOR_EVER);
    copier.poll(3 * STREAM - 1, &mut done);
    copier.copy(&copy(10, 2)).expect("room");
    until(false);
    copier.copy(&copy(10, 3)).expect("room");
    assert_eq!(copier.handed_bytes(), 10);
    let start = Instant::now();
    while copier.is_busy() {
        assert!(start.elapsed() < LIMIT, "copies that never end");
        copier.poll(3 * STREAM, &mut done);
    }
    drop(copier);
    thread.join().expect("no panic");
}

/// A new policy reaches a thread that sleeps, and copies end under each.
#[test]
fn spin_is_taken_up_while_asleep() {
    let mut rig = Rig::new();
    for (round, spin) in [(1, Some(0)), (2, None), (3, Some(0)), (4, Some(1)), (5, None)] {
        rig.copier.set_spin(spin);
        rig.copier.copy(&copy(10, round)).expect("room");
        assert_eq!(rig.wait(), (PostId(round), Code::Ok));
    }
}
