//! The conformance text of fabrics, on GPUs: transfers inside the node.

use std::time::Instant;

use railhead_core::port::{ConnectionIndex, Fabric, Nanos, RegionIndex};
use railhead_cuda::queues::{Memory, Side};
use railhead_cuda::{
    BothCopiers, CopierConfig, CopyFabric, CopyMemory, CudaCopier, FabricConfig, Gpu, Pieces, Stream,
    StreamQueues,
};
use railhead_host::{CopierConfig as HostConfig, HostCopier};
use railhead_sim::conformance::{End, FabricHarness};

use crate::common;

type Copier = BothCopiers<HostCopier, CudaCopier<StreamQueues>>;

struct Local {
    fabric: CopyFabric<Copier>,
    gpus: Vec<Gpu>,
    stream: Stream,
    memories: Vec<Option<CopyMemory>>,
    start: Instant,
}

impl Local {
    fn new() -> Self {
        let gpus = common::gpus();
        let queues = StreamQueues::new(&gpus, 2).expect("queues");
        let gpu_copier = CudaCopier::new(CopierConfig { regions: 64, ..CopierConfig::default() }, queues);
        let host = HostCopier::new(HostConfig { regions: 64, copies: 64, slice_bytes: 128 << 10 });
        let config = FabricConfig {
            connections: 4,
            regions: 64,
            posts_max: 64,
            records_max: 48,
            write_bytes_max: 2 << 20,
        };
        Self {
            fabric: CopyFabric::new(config, BothCopiers::new(host, Some(gpu_copier), 64)),
            stream: Stream::new(&gpus[0]).expect("a stream"),
            gpus,
            memories: vec![None; 64],
            start: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a short test")
    }

    fn memory(&self, region: RegionIndex) -> &CopyMemory {
        self.memories[region.0 as usize].as_ref().expect("installed")
    }

    fn gpu_copier(&mut self) -> &mut CudaCopier<StreamQueues> {
        self.fabric.copier.gpus.as_mut().expect(common::GIVEN)
    }
}

impl FabricHarness for Local {
    type Fabric = CopyFabric<Copier>;

    fn fabric(&mut self, _end: End) -> &mut Self::Fabric {
        &mut self.fabric
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(u16::try_from(2 * pair + end as usize).expect("few"))
    }

    /// A third of the regions are of the host, the others of the first GPU and the last.
    fn install(&mut self, _end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        self.remove(End::Target, region);
        let bytes = bytes as u64;
        let memory = match region.0 % 3 {
            0 => CopyMemory::Host(common::pinned(&self.gpus[0], bytes, Pieces::Whole)),
            side => {
                let at = if side == 1 { 0 } else { self.gpus.len() - 1 };
                common::device(&self.gpus, at, bytes)
            }
        };
        let copier = &mut self.fabric.copier;
        copier.set_of_gpu(region, memory.side() != Side::Host);
        let mut span = None;
        if let CopyMemory::Host(pinned) = &memory {
            let part = pinned.span().part(0, bytes).expect("inside");
            copier.host.install(region, part.clone());
            span = Some(part);
        }
        copier.gpus.as_mut().expect(common::GIVEN).install(region, memory.clone()).expect("room");
        self.fabric.install(region, epoch, bytes, access, span);
        self.memories[region.0 as usize] = Some(memory);
    }

    /// As a registrar does: out of all tables, then the wait for what is under way.
    fn remove(&mut self, _end: End, region: RegionIndex) {
        self.fabric.remove(region);
        self.fabric.copier.host.remove(region);
        self.gpu_copier().remove(region);
        while self.gpu_copier().has_removed() {
            let now = self.now();
            assert_eq!(self.fabric.poll(now, &mut []), 0);
            let _ = self.gpu_copier().take_removed();
        }
    }

    fn write_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        common::put(&self.stream, self.memory(region).address() + offset as u64, bytes);
    }

    fn read_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        common::get(&self.stream, self.memory(region).address() + offset as u64, bytes);
    }

    fn cut(&mut self, pair: usize) {
        let connection = self.connection(End::Target, pair);
        self.fabric.close(connection);
    }

    fn connect(&mut self, pair: usize) {
        assert!(self.fabric.open(self.connection(End::Initiator, pair)), "both ends were down");
    }

    fn pass(&mut self) -> Nanos {
        self.now()
    }
}

railhead_sim::fabric_conformance!(
    #[ignore = "needs a GPU: ops/gpu"]
    Local::new()
);
