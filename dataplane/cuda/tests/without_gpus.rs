//! The types of a node with GPUs on a node without: the CPU copies, and the same statements hold.

use railhead_core::port::{ConnectionIndex, Fabric, Nanos, RegionIndex};
use railhead_cuda::{BothCopiers, CopyFabric, CudaCopier, FabricConfig, StreamQueues};
use railhead_host::{CopierConfig, HostCopier};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_sim::conformance::{CopierHarness, End, FabricHarness};

type Copier = BothCopiers<HostCopier, CudaCopier<StreamQueues>>;

/// Memory of `bytes` zeroes with spare bytes behind it, so that bytes past the end are there to be spoiled.
fn memory(bytes: usize) -> OwnedSpan {
    let memory = Mapping::anonymous(bytes + 4096).expect("memory").span();
    memory.part(0, bytes as u64).expect("inside")
}

struct Harness<T> {
    tested: T,
    spans: Vec<Option<OwnedSpan>>,
    now: Nanos,
}

impl<T> Harness<T> {
    fn span(&self, region: RegionIndex) -> &OwnedSpan {
        self.spans[region.0 as usize].as_ref().expect("installed")
    }
}

fn copier() -> Copier {
    BothCopiers::new(
        HostCopier::new(CopierConfig { regions: 64, copies: 32, slice_bytes: 100_000 }),
        None,
        64,
    )
}

fn harness<T>(tested: T) -> Harness<T> {
    Harness { tested, spans: vec![None; 64], now: 0 }
}

fn fabric() -> Harness<CopyFabric<Copier>> {
    let config = FabricConfig {
        connections: 4,
        regions: 64,
        posts_max: 64,
        records_max: 48,
        write_bytes_max: 2 << 20,
    };
    harness(CopyFabric::new(config, copier()))
}

impl CopierHarness for Harness<Copier> {
    type Copier = Copier;

    fn copier(&mut self) -> &mut Copier {
        &mut self.tested
    }

    fn install(&mut self, region: RegionIndex, bytes: usize) {
        let span = memory(bytes);
        self.tested.host.install(region, span.clone());
        self.tested.set_of_gpu(region, false);
        self.spans[region.0 as usize] = Some(span);
    }

    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.span(region).write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.span(region).read(offset as u64, bytes).expect("inside");
    }

    fn pass(&mut self) -> Nanos {
        self.now += 1_000;
        self.now
    }
}

impl FabricHarness for Harness<CopyFabric<Copier>> {
    type Fabric = CopyFabric<Copier>;

    fn fabric(&mut self, _end: End) -> &mut Self::Fabric {
        &mut self.tested
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(u16::try_from(2 * pair + end as usize).expect("few"))
    }

    fn install(&mut self, _end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        let span = memory(bytes);
        self.tested.copier.host.install(region, span.clone());
        self.tested.install(region, epoch, bytes as u64, access, Some(span.clone()));
        self.spans[region.0 as usize] = Some(span);
    }

    fn remove(&mut self, _end: End, region: RegionIndex) {
        self.tested.remove(region);
        self.tested.copier.host.remove(region);
    }

    fn write_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.span(region).write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.span(region).read(offset as u64, bytes).expect("inside");
    }

    fn cut(&mut self, pair: usize) {
        let connection = self.connection(End::Target, pair);
        self.tested.close(connection);
    }

    fn connect(&mut self, pair: usize) {
        assert!(self.tested.open(self.connection(End::Initiator, pair)), "both ends were down");
    }

    fn pass(&mut self) -> Nanos {
        self.now += 1_000;
        self.now
    }
}

mod conformance_of_copiers {
    railhead_sim::copier_conformance!(super::harness(super::copier()));
}

mod conformance_of_the_local_fabric {
    railhead_sim::fabric_conformance!(super::fabric());
}
