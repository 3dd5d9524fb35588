//! What the fabric does when the other side, or memory, fails in the middle of something.

mod common;

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use common::*;
use railhead_abi::Code;
use railhead_core::port::{Fabric, FabricEvent, PostError, PostId, RegionIndex};
use railhead_shm::{Access, Mapping, OwnedSpan, guard, memfd};
use railhead_tcp::{AttachInfo, TcpConfig};

/// Client memory as the daemon maps it.
fn guarded(bytes: u64) -> OwnedSpan {
    guard::install().expect("a handler");
    let file = memfd::create("client", bytes, memfd::Huge::No).expect("a memory file");
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).expect("mapped");
    guard::protect(&mapping).expect("guarded").span()
}

/// Memory whose pages can be taken away, so that system calls on it fail with EFAULT.
struct Vanishing {
    mapping: Arc<Mapping>,
    span: OwnedSpan,
    file: Option<OwnedFd>,
}

impl Vanishing {
    /// As a client's: in a file, guarded. What is touched after that is SIGBUS, and the guard repairs it.
    fn guarded(bytes: u64) -> Self {
        guard::install().expect("a handler");
        let file =
            rustix::fs::memfd_create("vanishing", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
        rustix::fs::ftruncate(&file, bytes).expect("sized");
        let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).expect("mapped");
        let span = guard::protect(&mapping).expect("guarded").span();
        Self { mapping, span, file: Some(file) }
    }

    /// As nobody's should be: without a guard.
    fn unguarded(bytes: usize) -> Self {
        let mapping = Mapping::anonymous(bytes).expect("memory");
        Self { span: mapping.span(), mapping, file: None }
    }

    fn vanish(&self) {
        if let Some(file) = &self.file {
            rustix::fs::ftruncate(file, 0).expect("truncated");
            return;
        }
        let address = core::ptr::with_exposed_provenance_mut(self.mapping.address());
        // SAFETY: the range is this mapping; until it is unmapped only system calls touch it, and they fail softly.
        let result = unsafe { libc::mprotect(address, self.mapping.len(), libc::PROT_NONE) };
        assert_eq!(result, 0);
    }
}

fn refused(said: &[FabricEvent]) -> Vec<(u16, Code)> {
    said.iter()
        .filter_map(|event| match event {
            FabricEvent::Refused { slot, status, .. } => Some((*slot, *status)),
            _ => None,
        })
        .collect()
}

#[test]
fn other_side_ends_in_the_middle_of_a_frame() {
    let source = memory(64 << 10);
    let bytes = wire_bytes(|fabric| {
        fabric.install(RegionIndex(1), entry(&source));
        fabric.write(WIRE, &write(1, 40_000, 0, 1)).expect("room");
        fabric.send(WIRE, &record(1)).expect("room");
    });
    for cut in [1, 15, 16, 127, 128, 129, 5_000, bytes.len() - 1] {
        let (mut fabric, mut wire) = raw(small());
        let target = memory(64 << 10);
        fabric.install(RegionIndex(1), entry(&target));
        fabric.write(WIRE, &write(1, 10, 0, 7)).expect("room");
        fabric.flush(WIRE, PostId(8)).expect("room");
        feed(&mut wire, &bytes[..cut]);
        wire.shutdown(Shutdown::Both).expect("ended");
        let mut said = Vec::new();
        until(&mut fabric, &mut said, is_down);
        let expected = FabricEvent::Down { connection: WIRE, cause: Code::ConnectionReset };
        assert_eq!(said.last(), Some(&expected), "cut at {cut}");
        assert!(status_of(&said, 7).is_some() && status_of(&said, 8).is_some(), "cut at {cut}: {said:?}");
        assert_eq!(said.len(), 3, "cut at {cut}: nothing else was said: {said:?}");
        assert_eq!(fabric.send(WIRE, &record(2)), Err(PostError::Down));
        assert!(fabric.may_sleep());
    }
}

#[test]
fn what_came_before_the_end_is_told() {
    let bytes = wire_bytes(|fabric| {
        for tag in 0..20 {
            fabric.send(WIRE, &record(tag)).expect("room");
        }
    });
    let (mut fabric, mut wire) = raw(small());
    // Posts fill the queues, so that sending fails too.
    for post in 0..8 {
        fabric.flush(WIRE, PostId(post)).expect("room");
        fabric.send(WIRE, &record(100)).expect("room");
    }
    feed(&mut wire, &bytes);
    drop(wire);
    let mut said = Vec::new();
    until(&mut fabric, &mut said, is_down);
    assert!((0..20).all(|tag| has_record(&said, tag)), "{said:?}");
    assert!(matches!(said.last(), Some(FabricEvent::Down { cause: Code::ConnectionReset, .. })));
}

#[test]
fn malformed_frames_end_the_connection_and_nothing_else() {
    let good = wire_bytes(|fabric| fabric.send(WIRE, &record(1)).expect("room"));
    let mut frames = vec![vec![0; 128], vec![0xff; 128]];
    for (at, bit) in [(0, 1), (2, 2), (4, 1), (8, 1), (12, 1), (17, 4), (17, 0x40), (16, 0x90)] {
        let mut frame = good.clone();
        frame[at] ^= bit;
        frames.push(frame);
    }
    for frame in frames {
        let (mut fabric, mut wire) = raw(small());
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("a wire");
        let other = railhead_core::port::ConnectionIndex(1);
        fabric.attach(other, near.into(), AttachInfo { peer: 1, takes_writes: true }).expect("attached");
        feed(&mut wire, &good);
        feed(&mut wire, &frame);
        let mut said = Vec::new();
        until(&mut fabric, &mut said, is_down);
        assert!(has_record(&said, 1), "what came before is told");
        assert!(
            said.contains(&FabricEvent::Down { connection: WIRE, cause: Code::ProtocolViolation }),
            "{said:?}"
        );
        assert_eq!(fabric.send(other, &record(5)), Ok(()));
        drop(far);
    }
}

/// Frames damaged at random, in pieces of random length: no panic, no byte outside the region, and an end in time.
#[test]
fn damaged_streams_do_no_harm() {
    let source = memory(8 << 10);
    let good = wire_bytes(|fabric| {
        fabric.install(RegionIndex(1), entry(&source));
        for at in 0..10 {
            fabric.write(WIRE, &write(1, 100 + at * 90, 3, at)).expect("room");
            fabric.send(WIRE, &record(u64::from(at))).expect("room");
        }
    });
    let noise = pattern(4096, 12);
    for seed in 0..400 {
        let random = pattern(64, seed);
        let mut stream = [good.as_slice(), &good].concat();
        for pair in random[..6].chunks_exact(2) {
            let at = (usize::from(pair[0]) * 256 + usize::from(pair[1])) % good.len().min(700);
            stream[at] ^= 1 << (pair[1] % 8);
        }
        let (mut fabric, mut wire) = raw(small());
        let whole = memory(64 << 10);
        let target = whole.part(4096, 8 << 10).expect("inside");
        fabric.install(RegionIndex(1), entry(&target));
        let mut said = Vec::new();
        let mut rest = stream.as_slice();
        for step in &random[6..] {
            let (now, later) = rest.split_at(rest.len().min(usize::from(*step) * 3 + 1));
            feed(&mut wire, now);
            rest = later;
            poll(&mut fabric, &mut said);
            if is_down(&said) {
                break;
            }
        }
        if !is_down(&said) {
            // A frame may wait for payload that never comes; noise ends it one way or the other.
            feed(&mut wire, &noise);
            drop(wire);
            until(&mut fabric, &mut said, is_down);
        }
        let bytes = contents(&whole);
        assert!(
            bytes[..4096].iter().chain(&bytes[12 << 10..]).all(|byte| *byte == 0),
            "seed {seed}: bytes outside"
        );
    }
}

#[test]
fn lost_source_is_finished_from_zeroes() {
    let mut two = Two::new(small(), small());
    let (source, target) = (guarded(256 << 10), memory(256 << 10));
    source.fill(0, 256 << 10, 7).expect("inside");
    target.fill(0, 256 << 10, 9).expect("inside");
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target));
    source.guard().expect("guarded").condemn().expect("replaced");
    two.near.write(WIRE, &write(1, 200_000, 0, 1)).expect("room");
    two.near.send(WIRE, &record(1)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 1));
    assert_eq!(status_of(&two.said_near, 1), Some(Code::RegionLost));
    assert!(contents(&target)[..200_000].iter().all(|byte| *byte == 0));
    assert!(contents(&target)[200_000..].iter().all(|byte| *byte == 9));
    assert!(refused(&two.said_far).is_empty());
}

#[test]
fn removed_source_is_never_read_again() {
    let mut two = Two::new(small(), small());
    let (first, second, target) = (memory(4 << 20), memory(4 << 20), memory(4 << 20));
    first.fill(0, 4 << 20, 1).expect("inside");
    second.fill(0, 4 << 20, 2).expect("inside");
    two.near.install(RegionIndex(1), entry(&first));
    two.far.install(RegionIndex(1), entry(&target));
    two.near.write(WIRE, &write(1, 4 << 20, 0, 1)).expect("room");
    two.step();
    assert_eq!(status_of(&two.said_near, 1), None, "most of it is still to be sent");
    two.near.remove(RegionIndex(1)).expect("it was there");
    two.near.install(RegionIndex(1), entry(&second));
    two.near.send(WIRE, &record(1)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 1));
    assert_eq!(status_of(&two.said_near, 1), Some(Code::RegionLost));
    let bytes = contents(&target);
    assert!(
        bytes[0] == 1 && bytes.last() == Some(&0) && !bytes.contains(&2),
        "the new memory of the slot was sent"
    );
}

fn three(vanishing: fn() -> Vanishing) -> [Vanishing; 3] {
    [Vanishing::unguarded(64 << 10), vanishing(), Vanishing::unguarded(64 << 10)]
}

#[test]
fn faulting_source_is_found_among_others() {
    for vanishing in [|| Vanishing::guarded(64 << 10), || Vanishing::unguarded(64 << 10)] {
        let mut two = Two::new(small(), small());
        let (sources, target) = (three(vanishing), memory(64 << 10));
        for (at, source) in (1..).zip(&sources) {
            source.span.fill(0, 16 << 10, 5).expect("inside");
            two.near.install(RegionIndex(at), entry(&source.span));
        }
        two.far.install(RegionIndex(1), entry(&target));
        sources[1].vanish();
        for region in 1..=3 {
            let mut post = write(region, 16 << 10, 0, region);
            (post.to.key.index, post.to.offset) = (1, u64::from(region - 1) * (16 << 10));
            two.near.write(WIRE, &post).expect("room");
        }
        two.near.send(WIRE, &record(1)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 1));
        let statuses = [1, 2, 3].map(|post| status_of(&two.said_near, post));
        assert_eq!(statuses, [Some(Code::Ok), Some(Code::RegionLost), Some(Code::Ok)]);
        let bytes = contents(&target);
        assert!(bytes[..16 << 10].iter().all(|byte| *byte == 5), "the write before it");
        assert!(bytes[16 << 10..32 << 10].iter().all(|byte| *byte == 0));
        assert!(bytes[32 << 10..48 << 10].iter().all(|byte| *byte == 5), "the write behind it");
        assert!(two.near.counters().faults >= 1);
    }
}

#[test]
fn faulting_target_is_found_among_others() {
    for vanishing in [|| Vanishing::guarded(64 << 10), || Vanishing::unguarded(64 << 10)] {
        let mut two = Two::new(small(), small());
        let (targets, source) = (three(vanishing), memory(64 << 10));
        source.fill(0, 64 << 10, 5).expect("inside");
        two.near.install(RegionIndex(1), entry(&source));
        for (at, target) in (1..).zip(&targets) {
            two.far.install(RegionIndex(at), entry(&target.span));
        }
        // After a large frame the next one is received straight into memory, by the kernel.
        two.near.write(WIRE, &write(1, 40_000, 1, 9)).expect("room");
        two.near.send(WIRE, &record(9)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 9));
        targets[1].vanish();
        for region in 1..=3 {
            let mut post = write(1, 30_000, 40 + u16::try_from(region).expect("small"), region);
            post.to.key.index = region;
            two.near.write(WIRE, &post).expect("room");
        }
        two.near.send(WIRE, &record(1)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 1));
        assert_eq!(refused(&two.said_far), [(42, Code::RemoteRegionLost)]);
        for good in [0, 2] {
            assert!(contents(&targets[good].span)[..30_000].iter().all(|byte| *byte == 5));
        }
        assert_eq!(two.far.counters().refused, 1);
        assert!(two.far.counters().faults >= 1);
    }
}

/// Where no writes are expected payload is copied by this process: there it is SIGBUS and not EFAULT.
#[test]
fn target_that_vanishes_under_a_copy_is_reported() {
    let mut two = Two::expecting(small(), small(), false);
    let (source, target) = (memory(4096), Vanishing::guarded(64 << 10));
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target.span));
    target.vanish();
    two.near.write(WIRE, &write(1, 100, 6, 1)).expect("room");
    two.near.send(WIRE, &record(1)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 1));
    assert_eq!(refused(&two.said_far), [(6, Code::RemoteRegionLost)]);
}

#[test]
fn poisoned_target_is_reported() {
    // Both ways in: straight, and through the scratch block.
    for takes_writes in [true, false] {
        let mut two = Two::expecting(small(), small(), takes_writes);
        let (source, target) = (memory(64 << 10), guarded(64 << 10));
        two.near.install(RegionIndex(1), entry(&source));
        two.far.install(RegionIndex(1), entry(&target));
        target.guard().expect("guarded").condemn().expect("replaced");
        for (slot, bytes) in [(1, 100), (2, 40_000), (3, 10)] {
            two.near.write(WIRE, &write(1, bytes, slot, u32::from(slot))).expect("room");
            two.near.send(WIRE, &record(u64::from(slot))).expect("room");
            two.until("the record came", |two| has_record(&two.said_far, u64::from(slot)));
        }
        let expected = [1, 2, 3].map(|slot| (slot, Code::RemoteRegionLost));
        assert_eq!(refused(&two.said_far), expected);
    }
}

#[test]
fn only_permitted_peers_write() {
    let mut two = Two::new(small(), small());
    let (source, target) = (memory(4096), memory(4096));
    source.fill(0, 4096, 5).expect("inside");
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), railhead_tcp::RegionEntry { peers: !1, ..entry(&target) });
    two.near.write(WIRE, &write(1, 100, 1, 1)).expect("room");
    two.near.send(WIRE, &record(1)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 1));
    assert_eq!(refused(&two.said_far), [(1, Code::RemoteRefused)]);
    assert!(contents(&target).iter().all(|byte| *byte == 0));
    assert!(!two.far.set_peers(RegionIndex(1), EPOCH + 1, 1), "another epoch's right");
    assert!(two.far.set_peers(RegionIndex(1), EPOCH, 1));
    two.near.write(WIRE, &write(1, 100, 2, 2)).expect("room");
    two.near.send(WIRE, &record(2)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 2));
    assert_eq!(refused(&two.said_far).len(), 1);
    assert!(contents(&target)[..100].iter().all(|byte| *byte == 5));
}

/// A write that is cut into frames and refused in one of them is told of once.
#[test]
fn large_write_is_refused_once() {
    let small_slices = TcpConfig { slice_bytes: 4096, coalesce_bytes: 4096, ..small() };
    for removed_after in [0, 1, 3, 20] {
        let mut two = Two::new(small_slices, small());
        let (source, target) = (memory(1 << 20), memory(1 << 20));
        two.near.install(RegionIndex(1), entry(&source));
        two.far.install(RegionIndex(1), entry(&target));
        two.near.write(WIRE, &write(1, 1 << 20, 6, 1)).expect("room");
        for _ in 0..removed_after {
            two.step();
        }
        two.far.remove(RegionIndex(1));
        two.near.send(WIRE, &record(1)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 1));
        assert_eq!(refused(&two.said_far), [(6, Code::RemoteRefused)], "removed after {removed_after} steps");
        // The fault ends with its write.
        two.far.install(RegionIndex(1), entry(&target));
        two.near.write(WIRE, &write(1, 10_000, 7, 2)).expect("room");
        two.near.send(WIRE, &record(2)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 2));
        assert_eq!(refused(&two.said_far).len(), 1);
    }
}

/// Once a piece of a write was refused the rest is dropped too, even if its key has become good again.
#[test]
fn refused_write_stays_refused() {
    let small_slices = TcpConfig { slice_bytes: 4096, coalesce_bytes: 4096, ..small() };
    let mut two = Two::new(small_slices, small());
    let (source, target) = (memory(1 << 20), memory(1 << 20));
    source.fill(0, 1 << 20, 5).expect("inside");
    two.near.install(RegionIndex(1), entry(&source));
    two.near.write(WIRE, &write(1, 1 << 20, 6, 1)).expect("room");
    for _ in 0..10 {
        two.step();
    }
    two.far.install(RegionIndex(1), entry(&target));
    two.near.send(WIRE, &record(1)).expect("room");
    two.until("the record came", |two| has_record(&two.said_far, 1));
    assert_eq!(refused(&two.said_far), [(6, Code::RemoteRefused)]);
    assert!(contents(&target).iter().all(|byte| *byte == 0), "a part of a refused write was placed");
}

/// A range that leaves its region is refused from its first byte on, however it is received.
#[test]
fn straddling_writes_place_nothing() {
    for (slice_bytes, takes_writes, bytes) in [
        (128 << 10, true, 100_000),
        (4096, true, 100_000),
        (4096, false, 100_000),
        (128 << 10, false, 20_000),
    ] {
        let mut two = Two::expecting(small(), TcpConfig { slice_bytes, ..small() }, takes_writes);
        let (source, target) = (memory(128 << 10), memory(128 << 10));
        source.fill(0, 128 << 10, 5).expect("inside");
        two.near.install(RegionIndex(1), entry(&source));
        two.far.install(RegionIndex(1), entry(&target.part(0, 80_000).expect("inside")));
        let mut post = write(1, bytes, 6, 2);
        post.to.offset = 80_000 - 10_000;
        two.near.write(WIRE, &post).expect("room");
        two.near.send(WIRE, &record(2)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, 2));
        assert_eq!(refused(&two.said_far), [(6, Code::RemoteRefused)]);
        assert!(contents(&target).iter().all(|byte| *byte == 0), "slices of {slice_bytes}");
    }
}

/// Also when its first bytes, which alone would be inside, come before the others.
#[test]
fn straddling_write_in_parts_places_nothing() {
    let source = memory(64 << 10);
    source.fill(0, 64 << 10, 5).expect("inside");
    let bytes = wire_bytes(|fabric| {
        fabric.install(RegionIndex(1), entry(&source));
        fabric.write(WIRE, &write(1, 50_000, 6, 1)).expect("room");
    });
    for takes_writes in [true, false] {
        let (near, mut wire) = std::os::unix::net::UnixStream::pair().expect("a wire");
        let mut fabric = fabric(small());
        fabric.attach(WIRE, near.into(), AttachInfo { peer: 0, takes_writes }).expect("attached");
        let target = memory(64 << 10);
        fabric.install(RegionIndex(1), entry(&target.part(0, 40_000).expect("inside")));
        let mut said = Vec::new();
        for part in [&bytes[..5_000], &bytes[5_000..]] {
            feed(&mut wire, part);
            poll(&mut fabric, &mut said);
        }
        until(&mut fabric, &mut said, |said| !said.is_empty());
        assert_eq!(refused(&said), [(6, Code::RemoteRefused)]);
        assert!(contents(&target).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn attach_gives_back_what_it_refuses() {
    let mut fabric = fabric(small());
    let (near, _far) = std::os::unix::net::UnixStream::pair().expect("a wire");
    let socket = std::os::fd::OwnedFd::from(near);
    let beyond = railhead_core::port::ConnectionIndex(4);
    let error = fabric
        .attach(beyond, socket, AttachInfo { peer: 0, takes_writes: true })
        .expect_err("no such connection");
    let error = fabric
        .attach(WIRE, error.socket, AttachInfo { peer: 64, takes_writes: true })
        .expect_err("no such peer");
    fabric.attach(WIRE, error.socket, AttachInfo { peer: 63, takes_writes: true }).expect("attached");
    let (second, _far) = std::os::unix::net::UnixStream::pair().expect("a wire");
    fabric.attach(WIRE, second.into(), AttachInfo { peer: 0, takes_writes: true }).expect_err("taken");
}
