use railhead_core::port::Place;
use railhead_shm::{Access, Mapping, guard};

use super::*;

const BYTES: u64 = 64 << 10;

fn memory(fill: u8) -> OwnedSpan {
    let span = Mapping::anonymous(64 << 10).expect("memory").span();
    span.fill(0, BYTES, fill).expect("inside");
    span
}

fn engine(slice_bytes: u32) -> (HostCopier, OwnedSpan, OwnedSpan) {
    let mut copier = HostCopier::new(CopierConfig { regions: 4, copies: 4, slice_bytes });
    let (from, to) = (memory(1), memory(0));
    assert!(copier.install(RegionIndex(1), from.clone()).is_none());
    assert!(copier.install(RegionIndex(2), to.clone()).is_none());
    (copier, from, to)
}

fn copy(bytes: u32, post: u32) -> Copy {
    let place = |region| Place { region: RegionIndex(region), offset: 0 };
    Copy { from: place(1), to: place(2), bytes, post: PostId(post) }
}

fn poll(copier: &mut HostCopier) -> Vec<(u32, Code)> {
    let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 8];
    let count = copier.poll(0, &mut done);
    done[..count].iter().map(|done| (done.post.0, done.status)).collect()
}

fn placed(span: &OwnedSpan) -> usize {
    let mut bytes = vec![0; span.len()];
    span.read(0, &mut bytes).expect("inside");
    bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())
}

#[test]
fn one_poll_moves_one_slice() {
    let (mut copier, _, to) = engine(1000);
    copier.copy(&copy(2500, 1)).expect("room");
    copier.copy(&copy(10, 2)).expect("room");
    for expected in [1000, 2000] {
        assert_eq!(poll(&mut copier), []);
        assert_eq!(placed(&to), expected);
        assert!(copier.is_busy());
    }
    // The rest of the slice goes to the next in line.
    assert_eq!(poll(&mut copier), [(1, Code::Ok), (2, Code::Ok)]);
    assert!(!copier.is_busy());
    copier.set_slice(0);
    copier.copy(&copy(2, 3)).expect("room");
    assert_eq!(poll(&mut copier), []);
    assert_eq!(poll(&mut copier), [(3, Code::Ok)]);
}

#[test]
fn removed_memory_is_left_alone() {
    for removed in [1, 2] {
        let (mut copier, _, to) = engine(1000);
        copier.copy(&copy(5000, 1)).expect("room");
        assert_eq!(poll(&mut copier), []);
        assert!(copier.remove(RegionIndex(removed)).is_some());
        assert_eq!(poll(&mut copier), [(1, Code::RegionLost)]);
        assert_eq!(placed(&to), 1000);
    }
}

/// Work posted for one memory never goes on with another that came into the same slot.
#[test]
fn replaced_memory_is_not_mixed_up() {
    let (mut copier, _, to) = engine(1000);
    copier.copy(&copy(5000, 1)).expect("room");
    assert_eq!(poll(&mut copier), []);
    assert!(copier.install(RegionIndex(1), memory(7)).is_some(), "what stood there is given back");
    assert_eq!(poll(&mut copier), [(1, Code::RegionLost)]);
    let mut bytes = vec![0; 5000];
    to.read(0, &mut bytes).expect("inside");
    assert!(!bytes.contains(&7));
    copier.copy(&copy(5000, 2)).expect("room");
    while copier.is_busy() {
        poll(&mut copier);
    }
    to.read(0, &mut bytes).expect("inside");
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn ranges_outside_end_as_lost_and_touch_nothing() {
    let (mut copier, _, to) = engine(1000);
    let mut out = copy(100, 1);
    out.from.offset = BYTES - 99;
    copier.copy(&out).expect("room");
    let mut out = copy(100, 2);
    out.to.offset = u64::MAX - 10;
    copier.copy(&out).expect("room");
    let mut out = copy(100, 3);
    out.from.region = RegionIndex(900);
    copier.copy(&out).expect("room");
    let mut out = copy(100, 4);
    out.to.region = RegionIndex(3);
    copier.copy(&out).expect("room");
    assert_eq!(copier.copy(&copy(1, 5)), Err(CopyFull));
    assert_eq!(poll(&mut copier), [1, 2, 3, 4].map(|post| (post, Code::RegionLost)));
    assert_eq!(placed(&to), 0);
}

/// A copy runs into pages that are gone: the guard's handler puts zeroes there, and the end says so.
#[test]
fn pages_that_vanish_end_the_copy_as_lost() {
    guard::install().expect("a handler");
    // Unsealed on purpose: a truncated file is the one way to SIGBUS that every machine has.
    let file = rustix::fs::memfd_create("shrinking", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
    rustix::fs::ftruncate(&file, BYTES).expect("sized");
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).expect("mapped");
    let span = guard::protect(&mapping).expect("guarded").span();
    let (mut copier, _, to) = engine(1 << 20);
    copier.install(RegionIndex(1), span);
    rustix::fs::ftruncate(&file, 4096).expect("truncated");
    copier.copy(&copy(8192, 1)).expect("room");
    assert_eq!(poll(&mut copier), [(1, Code::RegionLost)]);
    copier.remove(RegionIndex(1));
    copier.install(RegionIndex(1), memory(9));
    copier.copy(&copy(8192, 2)).expect("room");
    assert_eq!(poll(&mut copier), [(2, Code::Ok)]);
    assert_eq!(placed(&to), 8192);
}

#[test]
#[should_panic(expected = "region slot 4 of 4")]
fn slots_outside_the_table_are_a_mistake() {
    engine(1).0.install(RegionIndex(4), memory(0));
}
