//! Once it is made, the copier allocates nothing: posting, polling, removing and losing included.
#![allow(
    clippy::disallowed_types,
    reason = "an allocator has no memory for the wrapper's words before it runs"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use railhead_abi::Code;
use railhead_core::port::{
    ConnectionIndex, Copy, CopyDone, CopyEngine, Fabric, FabricEvent, Key, Place, PostId, RegionIndex,
    RemotePlace, Write,
};
use railhead_cuda::queues::{Direction, Mechanism, Memory, QueueInfo, Queues, RUNS_MAX, Run, Side};
use railhead_cuda::{CopierConfig, CopyFabric, CudaCopier, CudaError, FabricConfig};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's own; counting beside it touches only a thread-local integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above, for `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that is only a name.
#[derive(Debug)]
struct Nowhere(Side);

impl Memory for Nowhere {
    fn side(&self) -> Side {
        self.0
    }

    fn address(&self) -> u64 {
        1 << 30
    }

    fn kernel_address(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> u64 {
        1 << 24
    }

    fn piece_bytes(&self) -> u64 {
        1 << 16
    }

    fn is_lost(&self) -> bool {
        false
    }
}

/// Queues that end everything at once, or fail.
#[derive(Debug)]
struct AtOnce {
    marked: [u64; INFOS.len()],
    error: Option<CudaError>,
}

const fn info(direction: Direction) -> QueueInfo {
    QueueInfo { gpu: 0, direction: Some(direction), mechanism: Mechanism::Engine }
}

static INFOS: [QueueInfo; 3] = [info(Direction::Out), info(Direction::In), info(Direction::Peer)];

impl Queues for AtOnce {
    type Memory = Nowhere;

    fn queues(&self) -> &[QueueInfo] {
        &INFOS
    }

    fn room(&self, _queue: usize) -> usize {
        RUNS_MAX
    }

    fn copy(&mut self, _queue: usize, runs: &[Run]) -> (usize, Result<(), CudaError>) {
        self.error.map_or((runs.len(), Ok(())), |error| (0, Err(error)))
    }

    fn mark(&mut self, queue: usize, value: u64) -> Result<(), CudaError> {
        self.marked[queue] = value;
        Ok(())
    }

    fn marked(&self, queue: usize) -> u64 {
        self.marked[queue]
    }

    fn check(&mut self, _queue: usize) -> Result<bool, CudaError> {
        Ok(true)
    }
}

const GPU: RegionIndex = RegionIndex(1);
const OTHER: RegionIndex = RegionIndex(2);

fn copier() -> CudaCopier<AtOnce> {
    let config = CopierConfig { regions: 16, copies: 64, ..CopierConfig::default() };
    let mut copier = CudaCopier::new(config, AtOnce { marked: [0; INFOS.len()], error: None });
    copier.install(RegionIndex::ARENA, Nowhere(Side::Host)).expect("room");
    copier.install(GPU, Nowhere(Side::Gpu(0))).expect("room");
    copier.install(OTHER, Nowhere(Side::Gpu(0))).expect("room");
    copier
}

fn until_idle(copier: &mut CudaCopier<AtOnce>, now: u64) {
    let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 16];
    while copier.is_busy() {
        copier.kick(now);
        copier.poll(now, &mut done);
    }
}

#[test]
fn the_counter_counts() {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(COUNT.get() - before, 2);
}

#[test]
fn a_copier_allocates_nothing() {
    let mut copier = copier();
    let place = |region, offset| Place { region, offset };
    let before = COUNT.get();
    for round in 0..500u64 {
        let mut post = 0;
        loop {
            // Across pieces, outside of the memory, all ways, until it is full.
            let (from, to) =
                [(GPU, RegionIndex::ARENA), (RegionIndex::ARENA, GPU), (GPU, OTHER)][post as usize % 3];
            let offset = u64::from(post) << 18;
            let bytes = [100, 300_000, 1 << 20][post as usize % 3];
            let copy = Copy { from: place(from, offset), to: place(to, offset), bytes, post: PostId(post) };
            if copier.copy(&copy).is_err() {
                break;
            }
            post += 1;
        }
        if round % 7 == 0 {
            copier.remove(OTHER);
        }
        until_idle(&mut copier, round * 1000);
        while copier.take_removed().is_some() {}
        if round % 7 == 0 {
            copier.install(OTHER, Nowhere(Side::Gpu(0))).expect("room");
        }
    }
    let number = 700;
    copier.queues().error = Some(CudaError { call: "cuMemcpyAsync", number, name: "lost" });
    let (from, to) = (place(GPU, 0), place(RegionIndex::ARENA, 0));
    copier.copy(&Copy { from, to, bytes: 64, post: PostId(1) }).expect("room");
    until_idle(&mut copier, 1 << 40);
    assert!(copier.take_loss().is_some());
    assert_eq!(COUNT.get() - before, 0, "allocations");
}

#[test]
fn a_fabric_allocates_nothing() {
    let config = FabricConfig {
        connections: 4,
        regions: 16,
        posts_max: 32,
        records_max: 16,
        write_bytes_max: 1 << 20,
    };
    let mut fabric = CopyFabric::new(config, copier());
    for region in [RegionIndex::ARENA, GPU, OTHER] {
        fabric.install(region, 3, 1 << 24, railhead_abi::frame::ACCESS_WRITE, None);
    }
    let here = ConnectionIndex(0);
    let mut events = [FabricEvent::Down { connection: here, cause: Code::Ok }; 16];
    let before = COUNT.get();
    let mut ended = 0;
    for round in 0..500u32 {
        for post in 0..32 {
            let to = RemotePlace { key: Key { index: OTHER.0, epoch: 3 }, offset: u64::from(post) << 20 };
            let from = Place { region: GPU, offset: 0 };
            let write = Write { from, bytes: 1000, to, slot: 1, post: PostId(post) };
            fabric.write(here, &write).expect("room");
        }
        for now in 0..20 {
            fabric.kick(u64::from(round) + now);
            ended += fabric.poll(u64::from(round) + now, &mut events);
        }
    }
    assert!(ended >= 500 * 32, "{ended} events");
    fabric.close(here);
    assert_eq!(fabric.poll(0, &mut events), 2);
    assert_eq!(COUNT.get() - before, 0, "allocations");
}
