//! Random lives of a copier: refusals, marks that fail or never come, memory that goes and comes, kernels that pause, GPUs
//! that are lost. Whatever happens, each copy ends once, an `Ok` is in place, and nothing touches memory that was given back.

use std::collections::HashMap;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, Nanos, Place, PostId, RegionIndex};
use railhead_shm::OwnedSpan;
use railhead_sim::Rng;

use super::super::{CopierConfig, CudaCopier, KernelLimits};
use crate::queues::{Memory, Side};
use crate::stand_in::{StandIn, StandInMemory, memory};

/// Bytes of a region, in places of their own for each copy under way.
const REGION_BYTES: usize = 1 << 20;
const PLACES: u64 = 16;
const PLACE_BYTES: u64 = REGION_BYTES as u64 / PLACES;
const REGIONS: u64 = 5;
const CHECK_NS: Nanos = 100_000;

/// A copy under way.
struct Open {
    from: OwnedSpan,
    to: OwnedSpan,
    from_offset: u64,
    to_offset: u64,
    bytes: u32,
}

struct World {
    copier: CudaCopier<StandIn>,
    stand_in: StandIn,
    rng: Rng,
    now: Nanos,
    /// What stands in each slot.
    spans: Vec<Option<OwnedSpan>>,
    /// Everything ever installed: the addresses of two must not be the same while one may still be touched.
    kept: Vec<OwnedSpan>,
    open: HashMap<u32, Open>,
    /// Copies that write to (region, place), so that no two do at once.
    places: HashMap<(u64, u64), u32>,
    next: u32,
    ended: [u32; 3],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let stand_in = StandIn::new(rng.chance(500_000));
        let config = CopierConfig {
            regions: 8,
            copies: 1 + rng.below(40) as u16,
            calls_max: 1 + rng.below(8) as u16,
            check_ns: CHECK_NS,
        };
        let mut copier = CudaCopier::new(config, stand_in.clone());
        let most = 1 + rng.below(1 << 16) as u32;
        copier.set_kernel_limits(KernelLimits {
            out_bytes_max: most,
            in_bytes_max: most,
            peer_bytes_max: most,
        });
        let mut world = Self {
            copier,
            stand_in,
            rng,
            now: 0,
            spans: vec![None; REGIONS as usize],
            kept: Vec::new(),
            open: HashMap::new(),
            places: HashMap::new(),
            next: 0,
            ended: [0; 3],
        };
        for region in 0..REGIONS {
            world.install(region);
        }
        world
    }

    fn install(&mut self, region: u64) {
        let span = memory(REGION_BYTES);
        let mut bytes = vec![0; REGION_BYTES];
        self.rng.fill(&mut bytes);
        span.write(0, &bytes).expect("inside");
        let side = *self.rng.pick(&[Side::Host, Side::Gpu(0), Side::Gpu(1)]);
        let piece_bytes = *self.rng.pick(&[u64::MAX, 4096, 100_000]);
        let memory = StandInMemory { span: span.clone(), side, piece_bytes };
        let range = (memory.address(), memory.address() + REGION_BYTES as u64);
        if self.copier.install(RegionIndex(region as u32), memory).is_ok() {
            self.stand_in.device.borrow_mut().live.push(range);
            self.spans[region as usize] = Some(span.clone());
            self.kept.push(span);
        }
    }

    /// Posts a copy between places that nothing else writes to.
    fn post(&mut self) {
        let (from, to) = (self.rng.below(REGIONS), self.rng.below(REGIONS));
        let (from_place, to_place) = (self.rng.below(PLACES), self.rng.below(PLACES));
        let used = |place: (u64, u64)| self.places.contains_key(&place);
        if (from, from_place) == (to, to_place) || used((from, from_place)) || used((to, to_place)) {
            return;
        }
        // Nor may its source be written by a later one: reserve both.
        let bytes = 1 + self.rng.below(PLACE_BYTES / 2) as u32;
        let shift = |rng: &mut Rng| rng.below(PLACE_BYTES / 2);
        let from_offset = from_place * PLACE_BYTES + shift(&mut self.rng);
        let to_offset = to_place * PLACE_BYTES + shift(&mut self.rng);
        let place = |region: u64, offset| Place { region: RegionIndex(region as u32), offset };
        let post = PostId(self.next);
        let copy = Copy { from: place(from, from_offset), to: place(to, to_offset), bytes, post };
        if self.copier.copy(&copy).is_err() {
            return;
        }
        self.places.insert((from, from_place), self.next);
        self.places.insert((to, to_place), self.next);
        let spans = (self.spans[from as usize].clone(), self.spans[to as usize].clone());
        if let (Some(from), Some(to)) = spans {
            self.open.insert(self.next, Open { from, to, from_offset, to_offset, bytes });
        } else {
            // One is not there: it has to end, and not well.
            let nowhere = self.kept[0].clone();
            let open = Open { from: nowhere.clone(), to: nowhere, from_offset: 0, to_offset: 0, bytes: 0 };
            self.open.insert(self.next, open);
        }
        self.next += 1;
    }

    fn step(&mut self) {
        self.now += 1_000 + if self.rng.chance(20_000) { CHECK_NS } else { 0 };
        let room = self.rng.below(9) as usize;
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 8];
        if self.rng.chance(500_000) {
            self.copier.kick(self.now);
        }
        let count = self.copier.poll(self.now, &mut done[..room]);
        for end in &done[..count] {
            self.end(end);
        }
        self.stand_in.device.borrow_mut().work(&self.stand_in.infos, &mut self.rng);
        while let Some(memory) = self.copier.take_removed() {
            let start = memory.address();
            let live = &mut self.stand_in.device.borrow_mut().live;
            let at = live.iter().position(|(first, _)| *first == start).expect("given back once");
            live.swap_remove(at);
        }
    }

    fn end(&mut self, end: &CopyDone) {
        let open = self.open.remove(&end.post.0).unwrap_or_else(|| panic!("{end:?} twice or never posted"));
        self.places.retain(|_, post| *post != end.post.0);
        match end.status {
            Code::Ok => {
                assert!(open.bytes > 0, "a copy of nothing went well");
                let (mut from, mut to) = (vec![0; open.bytes as usize], vec![0; open.bytes as usize]);
                open.from.read(open.from_offset, &mut from).expect("inside");
                open.to.read(open.to_offset, &mut to).expect("inside");
                assert!(from == to, "{end:?} is not in place");
                self.ended[0] += 1;
            }
            Code::RegionLost => self.ended[1] += 1,
            Code::DeviceError => self.ended[2] += 1,
            other => panic!("{other:?}"),
        }
    }

    fn fault(&mut self) {
        let region = self.rng.below(REGIONS);
        match self.rng.below(8) {
            0 => {
                self.copier.remove(RegionIndex(region as u32));
                self.spans[region as usize] = None;
            }
            1 => self.install(region),
            2 => {
                let taken = self.rng.below(4) as usize;
                self.stand_in.device.borrow_mut().refuse_copy = Some((taken, 1));
            }
            3 => self.stand_in.device.borrow_mut().refuse_mark = Some(1),
            4 => {
                let blind = self.rng.chance(300_000);
                self.stand_in.device.borrow_mut().blind = blind;
            }
            5 => self.copier.pause_kernels(),
            6 => self.copier.resume_kernels(),
            _ if self.rng.chance(5_000) => self.stand_in.device.borrow_mut().lost = Some(719),
            _ => {}
        }
    }

    fn live(mut self) -> [u32; 3] {
        for _ in 0..600 {
            for _ in 0..self.rng.below(4) {
                self.post();
            }
            if self.rng.chance(50_000) {
                self.fault();
            }
            self.step();
        }
        for _ in 0..100_000 {
            if !self.copier.is_busy() {
                break;
            }
            self.step();
        }
        assert!(!self.copier.is_busy() && self.open.is_empty(), "{} copies never ended", self.open.len());
        assert_eq!(self.copier.posted(), 0);
        self.step();
        assert!(!self.copier.has_removed(), "memory that was never given back");
        self.ended
    }
}

#[test]
fn whatever_happens_each_copy_ends_once() {
    let mut sum = [0; 3];
    for seed in 0..150 {
        let ended = World::new(seed).live();
        sum = [sum[0] + ended[0], sum[1] + ended[1], sum[2] + ended[2]];
    }
    println!("ended well {}, without memory {}, by a device's error {}", sum[0], sum[1], sum[2]);
    assert!(sum.iter().all(|count| *count > 1000), "{sum:?}: something was not tried");
}
