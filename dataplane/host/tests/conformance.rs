//! What every fabric and every copy engine must do, by the CPU.

use railhead_core::port::{ConnectionIndex, CopyEngine, Fabric, Nanos, RegionIndex};
use std::cell::Cell;
use std::thread;

use railhead_host::{CopierConfig, HostCopier, LocalConfig, LocalFabric, copy_thread};
use railhead_shm::{Mapping, OwnedSpan, guard, memfd};
use railhead_sim::conformance::{CopierHarness, End, FabricHarness};

/// Memory of `bytes` zeroes with spare bytes behind it, so that bytes past the end are there to be spoiled.
fn memory(bytes: usize) -> OwnedSpan {
    let memory = Mapping::anonymous(bytes + 4096).expect("memory").span();
    memory.part(0, bytes as u64).expect("inside")
}

struct Local {
    fabric: LocalFabric,
    spans: Vec<Option<OwnedSpan>>,
    now: Nanos,
}

impl Local {
    fn new(slice_bytes: u32) -> Self {
        let fabric = LocalFabric::new(LocalConfig {
            connections: 4,
            regions: 64,
            posts_max: 64,
            records_max: 48,
            write_bytes_max: 2 << 20,
            slice_bytes,
        });
        Self { fabric, spans: vec![None; 64], now: 0 }
    }
}

impl FabricHarness for Local {
    type Fabric = LocalFabric;

    fn fabric(&mut self, _end: End) -> &mut LocalFabric {
        &mut self.fabric
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(u16::try_from(2 * pair + end as usize).expect("few"))
    }

    fn install(&mut self, _end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        let span = memory(bytes);
        self.fabric.install(region, epoch, span.clone(), access);
        self.spans[region.0 as usize] = Some(span);
    }

    fn remove(&mut self, _end: End, region: RegionIndex) {
        self.fabric.remove(region);
    }

    fn write_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.spans[region.0 as usize]
            .as_ref()
            .expect("installed")
            .write(offset as u64, bytes)
            .expect("inside");
    }

    fn read_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.spans[region.0 as usize]
            .as_ref()
            .expect("installed")
            .read(offset as u64, bytes)
            .expect("inside");
    }

    /// Nobody can pull this cable: the nearest thing is that one end gives up.
    fn cut(&mut self, pair: usize) {
        let connection = self.connection(End::Target, pair);
        self.fabric.close(connection);
    }

    fn connect(&mut self, pair: usize) {
        assert!(self.fabric.open(self.connection(End::Initiator, pair)), "both ends were down");
    }

    fn pass(&mut self) -> Nanos {
        self.now += 1_000;
        self.now
    }
}

mod conformance_of_local_fabric {
    use super::Local;

    railhead_sim::fabric_conformance!(Local::new(128 << 10));
}

mod conformance_of_local_fabric_in_small_slices {
    use super::Local;

    railhead_sim::fabric_conformance!(Local::new(700));
}

struct Copier {
    copier: HostCopier,
    spans: Vec<Option<OwnedSpan>>,
    now: Nanos,
}

impl Copier {
    fn new(slice_bytes: u32) -> Self {
        guard::install().expect("a handler");
        let copier = HostCopier::new(CopierConfig { regions: 8, copies: 32, slice_bytes });
        Self { copier, spans: vec![None; 8], now: 0 }
    }

    /// With a copy thread that takes copies of at least `from_bytes`: dropping the copier ends it.
    fn with_thread(from_bytes: u32, spin: Option<Nanos>) -> Self {
        guard::install().expect("a handler");
        let (helper, copies) = copy_thread(from_bytes);
        // A clock that is a second further at each look: if the thread may sleep, it does so at once.
        let now = Cell::new(0);
        thread::spawn(move || copies.run(|| now.replace(now.get() + 1_000_000_000), || ()));
        let config = CopierConfig { regions: 8, copies: 32, slice_bytes: 1000 };
        let copier = HostCopier::with_helper(config, helper);
        copier.set_spin(spin);
        Self { copier, spans: vec![None; 8], now: 0 }
    }
}

impl CopierHarness for Copier {
    type Copier = HostCopier;

    fn copier(&mut self) -> &mut HostCopier {
        &mut self.copier
    }

    fn install(&mut self, region: RegionIndex, bytes: usize) {
        let file = memfd::create("copied", bytes as u64, memfd::Huge::No).expect("a memory file");
        let mapping = Mapping::of_unsealed(&file, railhead_shm::Access::ReadWrite).expect("mapped");
        let span = guard::protect(&mapping).expect("guarded").span();
        self.copier.install(region, span.clone());
        self.spans[region.0 as usize] = Some(span);
    }

    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.spans[region.0 as usize]
            .as_ref()
            .expect("installed")
            .write(offset as u64, bytes)
            .expect("inside");
    }

    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.spans[region.0 as usize]
            .as_ref()
            .expect("installed")
            .read(offset as u64, bytes)
            .expect("inside");
    }

    /// What the SIGBUS handler does, without the signal.
    fn lose(&mut self, region: RegionIndex) -> bool {
        let span = self.spans[region.0 as usize].as_ref().expect("installed");
        span.guard().expect("guarded").condemn().is_ok()
    }

    fn pass(&mut self) -> Nanos {
        if self.copier.is_busy() {
            // Let the copy thread run where there are fewer cores than threads.
            thread::yield_now();
        }
        self.now += 1_000;
        self.now
    }
}

mod conformance_of_copier {
    use super::Copier;

    railhead_sim::copier_conformance!(Copier::new(128 << 10));
}

mod conformance_of_copier_in_small_slices {
    use super::Copier;

    railhead_sim::copier_conformance!(Copier::new(1000));
}

mod conformance_of_copier_with_a_copy_thread {
    use super::Copier;

    railhead_sim::copier_conformance!(Copier::with_thread(1, None));
}

mod conformance_of_copier_whose_thread_takes_the_larger_copies_and_sleeps {
    use super::Copier;

    railhead_sim::copier_conformance!(Copier::with_thread(10_000, Some(0)));
}
