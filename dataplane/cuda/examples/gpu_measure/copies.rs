//! A lane's copier over all GPUs, and the copies that the measurements make with it.

use std::time::Instant;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, Nanos, Place, PostId, RegionIndex};
use railhead_cuda::{
    CopierConfig, CopyMemory, CudaCopier, DeviceMemory, KernelLimits, Permission, Pieces, PinnedMemory,
    Resident, ResidentConfig, StreamQueues,
};
use railhead_memory::{Arena, ArenaConfig, Policy};

use crate::rig::Rig;

pub(crate) const HOST: RegionIndex = RegionIndex(0);
pub(crate) const SOURCE: RegionIndex = RegionIndex(1);
pub(crate) const TARGET: RegionIndex = RegionIndex(2);

/// Copier and memories: host memory, memory of the first GPU, memory of the last.
pub(crate) struct Lane {
    pub(crate) copier: CudaCopier<StreamQueues>,
    pub(crate) host: PinnedMemory,
    pub(crate) source: DeviceMemory,
    pub(crate) target: DeviceMemory,
    start: Instant,
}

/// What a lane is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) host_bytes: u64,
    pub(crate) gpu_bytes: u64,
    pub(crate) streams: usize,
    /// Threads of the resident kernels; none without.
    pub(crate) kernel_threads: Option<u32>,
}

pub(crate) fn pinned(rig: &Rig, bytes: u64) -> PinnedMemory {
    let arena =
        Arena::reserve(ArenaConfig { bytes, huge: Policy::Prefer, numa_node: None }).expect("host memory");
    PinnedMemory::register(&rig.gpus[0], arena.span(), Pieces::Whole, || {}).expect("registered")
}

impl Lane {
    pub(crate) fn new(rig: &Rig, shape: Shape) -> Self {
        let (first, last) = rig.two();
        let mut queues = StreamQueues::new(&rig.gpus, shape.streams).expect("queues");
        if let Some(threads) = shape.kernel_threads {
            for (at, gpu) in rig.gpus.iter().enumerate() {
                let config = ResidentConfig { threads, ..ResidentConfig::default() };
                // One process has these GPUs to itself here.
                let resident = Resident::start(gpu, Permission::OwnContext, config).expect("a kernel");
                queues.add_resident(u8::try_from(at).expect("few"), resident);
            }
        }
        let mut copier = CudaCopier::new(CopierConfig { regions: 8, ..CopierConfig::default() }, queues);
        let host = pinned(rig, shape.host_bytes);
        let allocate = |at: usize| {
            let peers: Vec<_> = rig.gpus.iter().filter(|gpu| **gpu != rig.gpus[at]).cloned().collect();
            DeviceMemory::allocate(&rig.gpus[at], shape.gpu_bytes, &peers).expect("GPU memory")
        };
        let (source, target) = (allocate(first), allocate(last));
        let device = |memory: &DeviceMemory, at: usize| CopyMemory::Device {
            memory: memory.clone(),
            gpu: u8::try_from(at).expect("few"),
            offset: 0,
            bytes: shape.gpu_bytes,
        };
        copier.install(HOST, CopyMemory::Host(host.clone())).expect("room");
        copier.install(SOURCE, device(&source, first)).expect("room");
        copier.install(TARGET, device(&target, last)).expect("room");
        Self { copier, host, source, target, start: Instant::now() }
    }

    pub(crate) fn kernel_limits(&mut self, bytes: u32) {
        self.copier.set_kernel_limits(KernelLimits {
            out_bytes_max: bytes,
            in_bytes_max: bytes,
            peer_bytes_max: bytes,
        });
    }

    pub(crate) fn post(&mut self, from: (RegionIndex, u64), to: (RegionIndex, u64), bytes: u32, post: u32) {
        let place = |(region, offset)| Place { region, offset };
        let copy = Copy { from: place(from), to: place(to), bytes, post: PostId(post) };
        self.copier.copy(&copy).expect("room");
    }

    /// The clock that the copier is given.
    pub(crate) fn now(&self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn poll(&mut self, done: &mut [CopyDone]) -> usize {
        let now = self.now();
        self.copier.kick(now);
        let count = self.copier.poll(now, done);
        assert!(done[..count].iter().all(|done| done.status == Code::Ok), "a copy failed");
        count
    }

    /// One copy, from post to end.
    pub(crate) fn one(&mut self, from: RegionIndex, to: RegionIndex, bytes: u32) {
        self.post((from, 0), (to, 0), bytes, 0);
        let mut done = [NONE; 1];
        while self.poll(&mut done) == 0 {}
    }
}

pub(crate) const NONE: CopyDone = CopyDone { post: PostId(0), status: Code::Ok };

pub(crate) fn gigabits(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / seconds / 1e9
}
