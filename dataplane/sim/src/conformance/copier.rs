//! The statements of [`railhead_core::port::CopyEngine`], one test each. See [`crate::copier_conformance!`].

use std::collections::HashMap;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, CopyFull, Nanos, Place, PostId, RegionIndex};

use super::CopierHarness;
use crate::Rng;

/// Makes a fresh harness.
type Make<'a, H> = &'a mut dyn FnMut() -> H;

const FIRST: RegionIndex = RegionIndex(1);
const SECOND: RegionIndex = RegionIndex(2);
const PASSES_MAX: usize = 400_000;
/// More copies than any bounded queue takes.
const COPIES_ABSURD: usize = 1 << 20;

/// A harness with its books: what each region must hold, and which copies are under way.
struct Driver<H: CopierHarness> {
    harness: H,
    model: HashMap<u32, Vec<u8>>,
    under_way: HashMap<u32, bool>,
    statuses: HashMap<u32, Code>,
    next_post: u32,
    now: Nanos,
    slice: usize,
    expect_success: bool,
}

impl<H: CopierHarness> Driver<H> {
    fn new(mut harness: H, bytes: usize) -> Self {
        let mut rng = Rng::new(bytes as u64);
        let mut model = HashMap::new();
        for region in [RegionIndex::ARENA, FIRST, SECOND] {
            let mut fresh = vec![0; bytes];
            rng.fill(&mut fresh);
            harness.install(region, bytes);
            harness.write_bytes(region, 0, &fresh);
            model.insert(region.0, fresh);
        }
        let (under_way, statuses) = (HashMap::new(), HashMap::new());
        Self { harness, model, under_way, statuses, next_post: 1, now: 0, slice: 16, expect_success: true }
    }

    fn copy(
        &mut self,
        from: (RegionIndex, usize),
        to: (RegionIndex, usize),
        bytes: usize,
    ) -> Result<PostId, CopyFull> {
        let post = PostId(self.next_post);
        let copy = Copy {
            from: Place { region: from.0, offset: from.1 as u64 },
            to: Place { region: to.0, offset: to.1 as u64 },
            bytes: u32::try_from(bytes).expect("a copy is below 4 GiB"),
            post,
        };
        self.harness.copier().copy(&copy)?;
        self.next_post += 1;
        self.under_way.insert(post.0, true);
        let data = self.model[&from.0.0][from.1..from.1 + bytes].to_vec();
        self.model.get_mut(&to.0.0).expect("an installed region")[to.1..to.1 + bytes].copy_from_slice(&data);
        Ok(post)
    }

    fn copy_waiting(&mut self, from: (RegionIndex, usize), to: (RegionIndex, usize), bytes: usize) -> PostId {
        for _ in 0..PASSES_MAX {
            match self.copy(from, to, bytes) {
                Ok(post) => return post,
                Err(CopyFull) => self.step(),
            }
        }
        panic!("a copy found no room");
    }

    fn step(&mut self) {
        self.now = self.harness.pass();
        let mut done = vec![CopyDone { post: PostId(0), status: Code::Ok }; self.slice];
        let copier = self.harness.copier();
        copier.kick(self.now);
        let count = copier.poll(self.now, &mut done);
        assert!(count <= done.len(), "poll said {count} ends for a slice of {}", done.len());
        for end in &done[..count] {
            let open =
                self.under_way.get_mut(&end.post.0).unwrap_or_else(|| panic!("{end:?} was never posted"));
            assert!(*open, "{end:?} came twice");
            *open = false;
            assert!(!self.expect_success || end.status == Code::Ok, "{end:?}");
            self.statuses.insert(end.post.0, end.status);
        }
    }

    fn open(&self) -> usize {
        self.under_way.values().filter(|open| **open).count()
    }

    fn until_done(&mut self, post: PostId) {
        for _ in 0..PASSES_MAX {
            if !self.under_way[&post.0] {
                return;
            }
            self.step();
        }
        panic!("{post:?} never ended");
    }

    fn settle(&mut self) {
        for _ in 0..PASSES_MAX {
            if self.open() == 0 {
                break;
            }
            self.step();
        }
        assert_eq!(self.open(), 0, "copies that never ended");
        for _ in 0..20 {
            self.step();
        }
    }

    /// Compares all regions with the books, guard bytes included.
    fn finish(&mut self) {
        self.settle();
        assert!(!self.harness.copier().is_busy(), "busy with nothing");
        for (region, model) in &self.model {
            let mut seen = vec![0; model.len()];
            self.harness.read_bytes(RegionIndex(*region), 0, &mut seen);
            if let Some(at) = (0..seen.len()).find(|at| seen[*at] != model[*at]) {
                panic!("byte {at} of region {region} is not what it should be");
            }
        }
    }

    fn refill(&mut self, region: RegionIndex, from: usize, bytes: usize, seed: u64) {
        let mut fresh = vec![0; bytes];
        Rng::new(seed).fill(&mut fresh);
        self.harness.write_bytes(region, from, &fresh);
        self.model.get_mut(&region.0).expect("an installed region")[from..from + bytes]
            .copy_from_slice(&fresh);
    }
}

/// Every size and alignment is copied byte for byte, and nothing around it changes.
pub fn edges_are_copied_whole<H: CopierHarness>(make: Make<'_, H>) {
    let mut sizes = vec![1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65];
    for at in [4 << 10, 16 << 10, 128 << 10, 256 << 10, 1 << 20] {
        sizes.extend([at - 1, at, at + 1]);
    }
    for bytes in sizes {
        let mut driver = Driver::new(make(), bytes + 64);
        for (from, to) in [(0, 0), (1, 3), (5, 0), (0, 7), (17, 33)] {
            let post = driver.copy_waiting((FIRST, from), (RegionIndex::ARENA, to), bytes);
            driver.until_done(post);
            let post = driver.copy_waiting((RegionIndex::ARENA, to), (SECOND, from), bytes);
            driver.until_done(post);
        }
        driver.finish();
    }
}

/// After its end a copy's source may be overwritten and its destination read.
pub fn source_is_free_after_done<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 512 << 10);
    for round in 0..16 {
        let bytes = 20_000;
        let post = driver.copy_waiting((FIRST, 4096), (SECOND, round * bytes), bytes);
        driver.until_done(post);
        let mut seen = vec![0; bytes];
        driver.harness.read_bytes(SECOND, round * bytes, &mut seen);
        assert!(
            seen == driver.model[&SECOND.0][round * bytes..(round + 1) * bytes],
            "an ended copy is not in place"
        );
        driver.refill(FIRST, 4096, bytes, round as u64);
    }
    driver.finish();
}

/// The queue says `CopyFull` at some point, takes copies again later, and loses and doubles nothing.
pub fn full_is_honoured<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    let mut copies = 0;
    // All of one byte to one byte: whichever comes last, it is the same.
    while copies < COPIES_ABSURD && driver.copy((FIRST, 0), (SECOND, 0), 1).is_ok() {
        copies += 1;
    }
    assert!(copies > 0, "an idle engine takes a copy");
    assert!(copies < COPIES_ABSURD, "the queue has no bound");
    for at in 0..200 {
        driver.copy_waiting((FIRST, at), (SECOND, 1 + at * 300), 300);
    }
    driver.finish();
}

/// A poll into a slice of none gives none; into a slice of one, all comes in the end.
pub fn small_polls_lose_nothing<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    driver.slice = 1;
    for at in 0..64 {
        driver.copy_waiting((FIRST, at), (SECOND, at * 1000), 1000);
        let now = driver.harness.pass();
        assert_eq!(driver.harness.copier().poll(now, &mut []), 0);
    }
    driver.finish();
}

/// Source and destination may lie in one region, side by side.
pub fn copies_within_one_region<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    for (from, to, bytes) in [(0, 1000, 1000), (5000, 4000, 1000), (10_001, 30_003, 20_000), (7, 8, 1)] {
        let post = driver.copy_waiting((FIRST, from), (FIRST, to), bytes);
        driver.until_done(post);
    }
    driver.finish();
}

/// `is_busy` ends with the last copy, so that a lane can sleep.
pub fn busy_ends<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 1 << 20);
    assert!(!driver.harness.copier().is_busy());
    for _ in 0..4 {
        driver.copy_waiting((FIRST, 0), (SECOND, 0), 1 << 20);
        driver.settle();
        assert!(!driver.harness.copier().is_busy());
    }
    driver.finish();
}

/// A copy from or to memory that was taken away ends with `RegionLost`; others end well.
pub fn lost_memory_is_reported<H: CopierHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    if !driver.harness.lose(SECOND) {
        println!("not run: this harness cannot take memory away");
        return;
    }
    driver.expect_success = false;
    let from = driver.copy_waiting((SECOND, 0), (RegionIndex::ARENA, 0), 10_000);
    driver.until_done(from);
    let to = driver.copy_waiting((FIRST, 0), (SECOND, 0), 10_000);
    let good = driver.copy_waiting((FIRST, 0), (RegionIndex::ARENA, 20_000), 10_000);
    driver.settle();
    assert_eq!(driver.statuses[&from.0], Code::RegionLost);
    assert_eq!(driver.statuses[&to.0], Code::RegionLost);
    assert_eq!(driver.statuses[&good.0], Code::Ok);
    let mut seen = vec![0; 10_000];
    driver.harness.read_bytes(RegionIndex::ARENA, 20_000, &mut seen);
    assert!(seen == driver.model[&FIRST.0][..10_000]);
}

/// Random copies, disjoint while they are under way, in a long run.
pub fn random_copies<H: CopierHarness>(make: Make<'_, H>) {
    let regions = [RegionIndex::ARENA, FIRST, SECOND];
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut driver = Driver::new(make(), 256 << 10);
        driver.slice = rng.index(16) + 1;
        for _ in 0..60 {
            // The first half of every region is source, the second half destination; a lap ends before they turn.
            let mut to = [128 << 10; 3];
            for _ in 0..rng.below(12) {
                let (from_region, to_at) = (*rng.pick(&regions), rng.index(3));
                let bytes = rng.index(40_000) + 1;
                if to[to_at] + bytes > 256 << 10 {
                    continue;
                }
                let from = rng.index((128 << 10) - bytes);
                driver.copy_waiting((from_region, from), (regions[to_at], to[to_at]), bytes);
                to[to_at] += bytes;
            }
            driver.settle();
            let region = *rng.pick(&regions);
            driver.refill(region, rng.index(100_000), 5_000, seed);
        }
        driver.finish();
    }
}
