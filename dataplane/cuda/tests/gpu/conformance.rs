//! The conformance text of copy engines, on GPUs.

use std::time::Instant;

use railhead_core::port::{Nanos, RegionIndex};
use railhead_cuda::queues::{Memory, Side};
use railhead_cuda::{
    BothCopiers, CopierConfig, CopyMemory, CudaCopier, Gpu, KernelLimits, Permission, Pieces, Resident,
    ResidentConfig, Stream, StreamQueues,
};
use railhead_host::{CopierConfig as HostConfig, HostCopier};
use railhead_shm::OwnedSpan;
use railhead_sim::conformance::CopierHarness;

use crate::common;

/// How the copies are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Engines,
    OneByOne,
    Pieces,
    Kernels,
}

type Copier = BothCopiers<HostCopier, CudaCopier<StreamQueues>>;

struct Harness {
    copier: Copier,
    gpus: Vec<Gpu>,
    streams: Vec<Stream>,
    sides: [Side; 3],
    memories: [Option<CopyMemory>; 3],
    way: Way,
    start: Instant,
}

impl Harness {
    fn new(sides: [Side; 3], way: Way) -> Self {
        let gpus = common::gpus();
        let mut queues = StreamQueues::new(&gpus, 3).expect("queues");
        queues.set_batch(way != Way::OneByOne);
        if way == Way::Kernels {
            for (at, gpu) in gpus.iter().enumerate() {
                let config = ResidentConfig::default();
                let resident = Resident::start(gpu, Permission::OwnContext, config).expect("a kernel");
                queues.add_resident(u8::try_from(at).expect("few"), resident);
            }
        }
        let mut copier = CudaCopier::new(CopierConfig { regions: 8, ..CopierConfig::default() }, queues);
        if way == Way::Kernels {
            // All that can be, between GPUs too.
            let most = 64 << 10;
            copier.set_kernel_limits(KernelLimits {
                out_bytes_max: most,
                in_bytes_max: most,
                peer_bytes_max: most,
            });
        }
        let host = HostCopier::new(HostConfig { regions: 8, copies: 32, slice_bytes: 128 << 10 });
        let streams = gpus.iter().map(|gpu| Stream::new(gpu).expect("a stream")).collect();
        Self {
            copier: BothCopiers::new(host, Some(copier), 8),
            gpus,
            streams,
            sides,
            memories: [const { None }; 3],
            way,
            start: Instant::now(),
        }
    }

    /// The host, the first GPU and the last.
    fn three(way: Way) -> Self {
        let last = u8::try_from(common::gpus().len() - 1).expect("few");
        Self::new([Side::Host, Side::Gpu(0), Side::Gpu(last)], way)
    }

    fn memory(&self, region: RegionIndex) -> &CopyMemory {
        self.memories[region.0 as usize].as_ref().expect("installed")
    }

    fn span(&self, region: RegionIndex) -> Option<&OwnedSpan> {
        match self.memory(region) {
            CopyMemory::Host(pinned) => Some(pinned.span()),
            CopyMemory::Device { .. } => None,
        }
    }
}

impl CopierHarness for Harness {
    type Copier = Copier;

    fn copier(&mut self) -> &mut Copier {
        &mut self.copier
    }

    fn install(&mut self, region: RegionIndex, bytes: usize) {
        let bytes = bytes as u64;
        let memory = match self.sides[region.0 as usize] {
            Side::Host => {
                let pieces = if self.way == Way::Pieces { Pieces::Of(64 << 10) } else { Pieces::Whole };
                let pinned = common::pinned(&self.gpus[0], bytes, pieces);
                self.copier.host.install(region, pinned.span().clone());
                CopyMemory::Host(pinned)
            }
            Side::Gpu(gpu) => {
                let memory = common::device(&self.gpus, usize::from(gpu), bytes + 4096);
                // Not at the start of the allocation.
                let CopyMemory::Device { memory, gpu, .. } = memory else { unreachable!() };
                CopyMemory::Device { memory, gpu, offset: 48, bytes }
            }
        };
        self.copier.set_of_gpu(region, memory.side() != Side::Host);
        self.copier.gpus.as_mut().expect(common::GIVEN).install(region, memory.clone()).expect("room");
        self.memories[region.0 as usize] = Some(memory);
    }

    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]) {
        match self.span(region) {
            Some(span) => span.write(offset as u64, bytes).expect("inside"),
            None => common::put(&self.streams[0], self.memory(region).address() + offset as u64, bytes),
        }
    }

    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        match self.span(region) {
            Some(span) => span.read(offset as u64, bytes).expect("inside"),
            None => common::get(&self.streams[0], self.memory(region).address() + offset as u64, bytes),
        }
    }

    fn pass(&mut self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a short test")
    }
}

macro_rules! conformance {
    ($module:ident, $make:expr) => {
        conformance!(@tests $module, $make, edges_are_copied_whole source_is_free_after_done full_is_honoured
            small_polls_lose_nothing copies_within_one_region busy_ends random_copies);
    };
    (@tests $module:ident, $make:expr, $($test:ident)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                #[ignore = "needs a GPU: ops/gpu"]
                fn $test() {
                    railhead_sim::conformance::copier::$test(&mut || $make);
                }
            )*
        }
    };
}

conformance!(copy_engines, Harness::three(Way::Engines));
conformance!(copy_engines_one_by_one, Harness::three(Way::OneByOne));
conformance!(copy_engines_over_pieces, Harness::three(Way::Pieces));
conformance!(resident_kernels, Harness::three(Way::Kernels));
