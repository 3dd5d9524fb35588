//! The copier over a stand-in for GPUs: the same conformance text as for the real ones, and failures that those do not
//! have at will.

use std::collections::VecDeque;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, Nanos, Place, PostId, RegionIndex};
use railhead_shm::OwnedSpan;
use railhead_sim::Rng;
use railhead_sim::conformance::CopierHarness;

use super::{CopierConfig, CudaCopier, KernelLimits};
use crate::queues::{Mechanism, Side};
use crate::stand_in::{Device, StandIn, StandInMemory, memory};

mod random;

struct Harness {
    copier: CudaCopier<StandIn>,
    stand_in: StandIn,
    spans: Vec<Option<OwnedSpan>>,
    sides: [Side; 3],
    piece_bytes: u64,
    rng: Rng,
    now: Nanos,
}

const CHECK_NS: Nanos = 1_000_000;

impl Harness {
    fn new(sides: [Side; 3], kernel: bool, piece_bytes: u64) -> Self {
        let stand_in = StandIn::new(kernel);
        let config = CopierConfig { regions: 8, copies: 32, calls_max: 3, check_ns: CHECK_NS };
        let mut copier = CudaCopier::new(config, stand_in.clone());
        if kernel {
            copier.set_kernel_limits(KernelLimits {
                out_bytes_max: 32 << 10,
                in_bytes_max: 8 << 10,
                peer_bytes_max: 300,
            });
        }
        let (spans, rng) = (vec![None; 8], Rng::new(11));
        Self { copier, stand_in, spans, sides, piece_bytes, rng, now: 0 }
    }

    fn host_to_gpu() -> Self {
        Self::new([Side::Host, Side::Gpu(0), Side::Gpu(1)], false, u64::MAX)
    }

    /// A copy of `bytes` from region 0 to region 1, at offsets of their own.
    fn post(&mut self, number: u32, bytes: u32) {
        let offset = u64::from(number) * 128 * 1024;
        let copy = Copy {
            from: Place { region: RegionIndex(0), offset },
            to: Place { region: RegionIndex(1), offset },
            bytes,
            post: PostId(number),
        };
        self.copier.copy(&copy).expect("room");
    }

    fn device(&self) -> std::cell::RefMut<'_, Device> {
        self.stand_in.device.borrow_mut()
    }

    /// Calls that posted copies, and calls that posted marks.
    fn calls(&self) -> (usize, usize) {
        let device = self.device();
        (device.copies, device.marks)
    }

    fn poll(&mut self) -> Vec<CopyDone> {
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 32];
        self.copier.kick(self.now);
        let count = self.copier.poll(self.now, &mut done);
        done[..count].to_vec()
    }

    fn until_idle(&mut self) -> Vec<CopyDone> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            all.extend(self.poll());
            if !self.copier.is_busy() {
                return all;
            }
            self.pass();
        }
        panic!("copies that never ended");
    }
}

impl CopierHarness for Harness {
    type Copier = CudaCopier<StandIn>;

    fn copier(&mut self) -> &mut Self::Copier {
        &mut self.copier
    }

    fn install(&mut self, region: RegionIndex, bytes: usize) {
        let span = memory(bytes);
        self.spans[region.0 as usize] = Some(span.clone());
        let side = self.sides[region.0 as usize];
        let memory = StandInMemory { span, side, piece_bytes: self.piece_bytes };
        self.copier.install(region, memory).expect("room");
    }

    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]) {
        let span = self.spans[region.0 as usize].as_ref().expect("installed");
        span.write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        let span = self.spans[region.0 as usize].as_ref().expect("installed");
        span.read(offset as u64, bytes).expect("inside");
    }

    /// What the SIGBUS handler does, without the signal.
    fn lose(&mut self, region: RegionIndex) -> bool {
        let span = self.spans[region.0 as usize].as_ref().expect("installed");
        self.sides[region.0 as usize] == Side::Host && span.guard().expect("guarded").condemn().is_ok()
    }

    fn pass(&mut self) -> Nanos {
        self.stand_in.device.borrow_mut().work(&self.stand_in.infos, &mut self.rng);
        self.now += 1_000;
        self.now
    }
}

mod conformance_by_copy_engines {
    use super::{Harness, Side};

    railhead_sim::copier_conformance!(Harness::new(
        [Side::Host, Side::Gpu(0), Side::Gpu(1)],
        false,
        u64::MAX
    ));
}

mod conformance_by_kernels {
    use super::{Harness, Side};

    railhead_sim::copier_conformance!(Harness::new([Side::Gpu(1), Side::Gpu(0), Side::Host], true, u64::MAX));
}

mod conformance_over_pieces {
    use super::{Harness, Side};

    railhead_sim::copier_conformance!(Harness::new([Side::Host, Side::Gpu(0), Side::Host], false, 4096));
}

#[test]
fn small_copies_share_a_call_and_a_mark_and_large_ones_have_their_own() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 8 << 20);
    harness.install(RegionIndex(1), 8 << 20);
    for number in 0..8 {
        harness.post(number, 256);
    }
    harness.poll();
    // Two queues of the direction for short copies, each with one call and one mark.
    assert_eq!(harness.calls(), (2, 2));
    harness.until_idle();
    for number in 8..12 {
        harness.post(number, 100 << 10);
    }
    harness.until_idle();
    assert_eq!(harness.calls(), (6, 6));
}

#[test]
fn a_poll_makes_no_more_driver_calls_than_it_may() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 8 << 20);
    harness.install(RegionIndex(1), 8 << 20);
    for number in 0..20 {
        harness.post(number, 100 << 10);
    }
    // A copy and its mark go together: three calls are allowed, so four are made at most.
    harness.copier.kick(1);
    let (copies, marks) = harness.calls();
    let made = copies + marks;
    assert!(made <= 4, "{made} calls");
    assert!(made > 0);
    assert_eq!(harness.until_idle().len(), 20);
}

#[test]
fn memory_that_is_removed_stays_until_the_last_copy_has_ended() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.post(1, 4096);
    harness.copier.kick(0);
    harness.copier.remove(RegionIndex(1));
    assert!(harness.copier.take_removed().is_none(), "a copy is under way");
    assert!(harness.copier.has_removed());
    let done = harness.until_idle();
    assert_eq!(done, [CopyDone { post: PostId(1), status: Code::RegionLost }]);
    assert!(harness.copier.take_removed().is_some());
    assert!(!harness.copier.has_removed());
    assert!(harness.copier.take_removed().is_none());
}

#[test]
fn a_copy_that_was_not_begun_never_touches_memory_that_was_removed() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.post(1, 4096);
    harness.copier.remove(RegionIndex(1));
    let done = harness.until_idle();
    assert_eq!(done, [CopyDone { post: PostId(1), status: Code::RegionLost }]);
    assert_eq!(harness.device().runs, 0);
}

#[test]
fn a_copy_never_reaches_the_memory_that_came_after_into_its_slot() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.write_bytes(RegionIndex(0), 0, &[7; 4096]);
    harness.post(0, 4096);
    harness.install(RegionIndex(1), 1 << 20);
    let done = harness.until_idle();
    assert_eq!(done, [CopyDone { post: PostId(0), status: Code::RegionLost }]);
    let mut seen = [1; 4096];
    harness.read_bytes(RegionIndex(1), 0, &mut seen);
    assert_eq!(seen, [0; 4096]);
}

#[test]
fn places_outside_end_at_once_and_touch_nothing() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 4096);
    harness.install(RegionIndex(1), 4096);
    for (number, (region, offset, bytes)) in
        [(1, 4096, 1), (1, 1, 4096), (1, u64::MAX, 2), (5, 0, 1), (700, 0, 1)].into_iter().enumerate()
    {
        let copy = Copy {
            from: Place { region: RegionIndex(0), offset: 0 },
            to: Place { region: RegionIndex(region), offset },
            bytes,
            post: PostId(u32::try_from(number).unwrap()),
        };
        harness.copier.copy(&copy).unwrap();
    }
    let done = harness.until_idle();
    assert_eq!(done.len(), 5);
    assert!(done.iter().all(|done| done.status == Code::RegionLost));
    assert_eq!(harness.device().runs, 0);
}

#[test]
fn a_refused_copy_fails_alone() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 8 << 20);
    harness.install(RegionIndex(1), 8 << 20);
    harness.write_bytes(RegionIndex(0), 0, &vec![9; 8 << 20]);
    for number in 0..8 {
        harness.post(number, 512);
    }
    // Of the first call one run is taken and the second refused: invalid value.
    harness.device().refuse_copy = Some((1, 1));
    let done = harness.until_idle();
    let failed: Vec<_> = done.iter().filter(|done| done.status != Code::Ok).collect();
    assert_eq!(done.len(), 8);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].status, Code::DeviceError);
    assert!(harness.copier.take_loss().is_none());
    for done in done.iter().filter(|done| done.status == Code::Ok) {
        let mut seen = [0; 512];
        harness.read_bytes(RegionIndex(1), done.post.0 as usize * 128 * 1024, &mut seen);
        assert_eq!(seen, [9; 512], "{done:?}");
    }
}

#[test]
fn a_refused_run_in_the_middle_of_a_copy_waits_for_those_before_it() {
    let mut harness = Harness::new([Side::Host, Side::Gpu(0), Side::Gpu(1)], false, 4096);
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.post(0, 40_000);
    harness.device().refuse_copy = Some((3, 1));
    harness.copier.kick(0);
    assert_eq!(harness.device().runs, 3);
    assert!(harness.poll().is_empty(), "three runs of it are under way");
    assert_eq!(harness.until_idle(), [CopyDone { post: PostId(0), status: Code::DeviceError }]);
}

#[test]
fn a_mark_that_cannot_be_posted_is_made_up_for_by_asking() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.device().refuse_mark = Some(1);
    harness.post(0, 512);
    assert_eq!(harness.until_idle(), [CopyDone { post: PostId(0), status: Code::Ok }]);
}

#[test]
fn a_queue_that_stands_still_is_asked_about() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    harness.device().blind = true;
    harness.post(0, 512);
    for _ in 0..20 {
        assert!(harness.poll().is_empty());
        harness.pass();
    }
    harness.now += CHECK_NS;
    assert_eq!(harness.poll(), [CopyDone { post: PostId(0), status: Code::Ok }]);
}

#[test]
fn a_lost_gpu_ends_its_copies_and_no_others() {
    for by_check in [false, true] {
        let mut harness = Harness::host_to_gpu();
        for region in 0..3 {
            harness.install(RegionIndex(region), 1 << 20);
        }
        harness.post(0, 512);
        harness.copier.kick(0);
        // Illegal address: sticky.
        harness.device().lost = Some(700);
        if by_check {
            harness.now += CHECK_NS;
        } else {
            harness.post(1, 512);
        }
        let done = harness.until_idle();
        assert_eq!(done.len(), if by_check { 1 } else { 2 });
        assert!(done.iter().all(|done| done.status == Code::DeviceError), "{done:?}");
        let loss = harness.copier.take_loss().expect("told");
        assert_eq!((loss.gpu, loss.error.number), (0, 700));
        assert!(harness.copier.take_loss().is_none(), "told once");
        // The other one goes on, this one does not.
        harness.device().lost = None;
        for (region, expected) in [(2, Code::Ok), (1, Code::DeviceError)] {
            let to = Place { region: RegionIndex(region), offset: 0 };
            let from = Place { region: RegionIndex(0), offset: 0 };
            harness.copier.copy(&Copy { from, to, bytes: 64, post: PostId(9) }).unwrap();
            assert_eq!(harness.until_idle(), [CopyDone { post: PostId(9), status: expected }]);
        }
    }
}

#[test]
fn as_many_memories_can_be_leaving_as_there_are_slots() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 4096);
    harness.install(RegionIndex(1), 4096);
    for _ in 0..14 {
        harness.install(RegionIndex(1), 4096);
    }
    let span = harness.spans[1].clone().unwrap();
    let memory = StandInMemory { span, side: Side::Host, piece_bytes: u64::MAX };
    assert!(harness.copier.install(RegionIndex(1), memory.clone()).is_err());
    assert!(harness.copier.take_removed().is_some());
    assert!(harness.copier.install(RegionIndex(1), memory).is_ok());
}

#[test]
fn long_copies_follow_one_another_and_short_ones_do_not_wait_for_them() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 8 << 20);
    harness.install(RegionIndex(1), 8 << 20);
    for number in 0..4 {
        harness.post(number, 1 << 20);
    }
    harness.post(9, 100);
    for _ in 0..8 {
        harness.copier.kick(harness.now);
    }
    let lengths: Vec<usize> = harness.device().queues.iter().map(VecDeque::len).collect();
    let busy: Vec<usize> = lengths.into_iter().filter(|length| *length > 0).collect();
    // Four copies and their marks in one queue, one and its mark in another.
    assert_eq!(busy, [8, 2]);
    let order: Vec<u32> =
        harness.until_idle().iter().map(|done| done.post.0).filter(|post| *post < 9).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn kernels_go_when_their_last_copy_has_ended_and_come_back() {
    let sides = [Side::Host, Side::Gpu(0), Side::Gpu(1)];
    let mut harness = Harness::new(sides, true, u64::MAX);
    harness.install(RegionIndex(0), 1 << 20);
    harness.install(RegionIndex(1), 1 << 20);
    let kernels: Vec<usize> = (0..harness.stand_in.infos.len())
        .filter(|at| harness.stand_in.infos[*at].mechanism == Mechanism::Kernel)
        .collect();
    let is_open = |harness: &Harness| {
        let device = harness.device();
        kernels.iter().any(|at| !device.queues[*at].is_empty())
    };
    harness.post(0, 256);
    harness.copier.kick(0);
    assert!(is_open(&harness), "a small aligned copy goes to the kernel");
    harness.copier.pause_kernels();
    assert!(!harness.copier.kernels_are_paused());
    // One that comes meanwhile goes to a copy engine.
    harness.post(1, 256);
    assert_eq!(harness.until_idle().len(), 2);
    assert!(harness.copier.kernels_are_paused());
    assert_eq!(harness.device().paused.len(), 2);
    harness.post(2, 256);
    harness.copier.kick(0);
    assert!(!is_open(&harness));
    harness.copier.resume_kernels();
    harness.post(3, 256);
    harness.copier.kick(0);
    assert!(is_open(&harness));
    assert_eq!(harness.until_idle().len(), 2);
}

#[test]
fn a_lane_may_rest_while_long_copies_are_under_way_and_only_then() {
    let mut harness = Harness::host_to_gpu();
    harness.install(RegionIndex(0), 64 << 20);
    harness.install(RegionIndex(1), 64 << 20);
    let post = |harness: &mut Harness, number: u32, bytes: u32| {
        let place = |region| Place { region: RegionIndex(region), offset: u64::from(number) << 22 };
        let copy = Copy { from: place(0), to: place(1), bytes, post: PostId(number) };
        harness.copier.copy(&copy).expect("room");
    };
    assert_eq!(harness.copier.rest_until(0), None, "nothing is under way");
    // 16 MiB in 320 us: how fast it goes is learned.
    for number in 0..4 {
        post(&mut harness, number, 4 << 20);
    }
    harness.copier.kick(0);
    harness.copier.kick(0);
    assert_eq!(harness.copier.rest_until(0), None, "nothing is known yet");
    let mechanism = Mechanism::Engine;
    for _ in 0..8 {
        let queue = harness.device().queues.iter().position(|queue| !queue.is_empty()).unwrap();
        harness.device().work_one(queue, mechanism);
    }
    harness.now = 320_000;
    assert_eq!(harness.poll().len(), 4);
    // 8 MiB more take 160 us: half of that.
    post(&mut harness, 4, 4 << 20);
    post(&mut harness, 5, 4 << 20);
    harness.copier.kick(harness.now);
    let until = harness.copier.rest_until(harness.now).expect("a rest");
    assert!((395_000..405_000).contains(&until), "{until}");
    assert_eq!(harness.copier.rest_until(harness.now + 50_000), None, "too short to sleep");
    // A short copy beside them is waited for by polling.
    post(&mut harness, 6, 512);
    harness.copier.kick(harness.now);
    assert_eq!(harness.copier.rest_until(harness.now), None);
    harness.until_idle();
}
