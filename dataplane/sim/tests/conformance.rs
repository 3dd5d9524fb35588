//! The simulated devices are held to the same conformance tests as real ones, bare and behind the fault decorator.

use railhead_core::port::{Capabilities, ConnectionIndex, CopyEngine, Fabric, Nanos, RegionIndex};
use railhead_sim::conformance::{CopierHarness, End, FabricHarness, PAIRS};
use railhead_sim::{
    CopierConfig, FaultPlan, FaultSwitch, Faulty, LaneId, Latency, Network, NetworkConfig, Rng, SimClock,
    SimCopier, SimFabric, SimMemory,
};

/// Two lanes of a simulated network, or one that is joined to itself.
struct Harness<F> {
    network: Network,
    lanes: [LaneId; 2],
    fabrics: Vec<F>,
    memories: [Vec<(RegionIndex, SimMemory)>; 2],
    clock: SimClock,
    lazy: bool,
}

impl<F> Harness<F> {
    fn new(config: NetworkConfig, looped: bool, wrap: impl Fn(SimFabric) -> F) -> Self {
        let network = Network::new(config, Rng::new(42));
        let first = network.add_lane();
        let lanes = [first, if looped { first } else { network.add_lane() }];
        let mut fabrics = vec![wrap(network.fabric(lanes[0]))];
        if !looped {
            fabrics.push(wrap(network.fabric(lanes[1])));
        }
        let lazy = config.capabilities.flush_needed;
        let (memories, clock) = (Default::default(), SimClock::new());
        let harness = Self { network, lanes, fabrics, memories, clock, lazy };
        (0..PAIRS).for_each(|pair| harness.join(pair));
        harness
    }

    fn index(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(u16::try_from(pair * 2 + end as usize).expect("few connections"))
    }

    fn join(&self, pair: usize) {
        let [a, b] = End::BOTH.map(|end| (self.lanes[end as usize], self.index(end, pair)));
        self.network.connect(a, b);
    }

    fn memory(&self, end: End, region: RegionIndex) -> SimMemory {
        let found = self.memories[end as usize].iter().rev().find(|(of, _)| *of == region);
        found.expect("an installed region").1.clone()
    }
}

impl<F> Drop for Harness<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (region, memory) in self.memories.iter().flatten() {
            let seen = memory.take_violations();
            // The tests of capabilities and bounds write one byte many times on purpose.
            assert!(seen.iter().all(|text| text.contains("while lane")), "{region:?}: {seen:?}");
        }
    }
}

impl<F: Fabric> FabricHarness for Harness<F> {
    type Fabric = F;

    fn fabric(&mut self, end: End) -> &mut F {
        let at = (end as usize).min(self.fabrics.len() - 1);
        &mut self.fabrics[at]
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        self.index(end, pair)
    }

    fn install(&mut self, end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        let name = format!("{end:?} {}", region.0);
        let memory = if self.lazy { SimMemory::lazy(&name, bytes) } else { SimMemory::new(&name, bytes) };
        self.network.regions(self.lanes[end as usize]).install(region, epoch, &memory, access);
        self.memories[end as usize].push((region, memory));
    }

    fn remove(&mut self, end: End, region: RegionIndex) {
        self.network.regions(self.lanes[end as usize]).remove(region);
    }

    fn write_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.memory(end, region).write(offset, bytes);
    }

    fn read_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.memory(end, region).read(offset, bytes);
    }

    fn cut(&mut self, pair: usize) {
        self.network.cut(self.lanes[0], self.index(End::Initiator, pair));
    }

    fn connect(&mut self, pair: usize) {
        self.join(pair);
    }

    fn pass(&mut self) -> Nanos {
        self.clock.pass(700)
    }
}

fn config(flush_needed: bool) -> NetworkConfig {
    let capabilities = Capabilities {
        write_bytes_max: 192 << 10,
        posts_max: 24,
        records_max: 16,
        flush_needed,
        windows: true,
        ..Capabilities::default()
    };
    NetworkConfig {
        capabilities,
        down_latency: Latency { min: 500, max: 200_000 },
        ..NetworkConfig::default()
    }
}

/// Faults that the conformance tests must not notice.
fn mild(rng: u64) -> (FaultPlan, FaultSwitch, Rng) {
    let silence = Some(Latency { min: 1_000, max: 30_000 });
    let plan = FaultPlan { silent: 20_000, silence, ..FaultPlan::default() };
    (plan, FaultSwitch::new(true), Rng::new(rng))
}

mod bare {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(config(false), false, |fabric| fabric));
}

mod looped {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(config(false), true, |fabric| fabric));
}

mod lazy {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(config(true), false, |fabric| fabric));
}

fn one_sided(config: NetworkConfig) -> NetworkConfig {
    let capabilities =
        Capabilities { reads: true, acknowledged: true, windows: false, ..config.capabilities };
    NetworkConfig { capabilities, ..config }
}

mod one_sided {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(one_sided(config(false)), false, |fabric| fabric));
}

mod one_sided_looped {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(one_sided(config(false)), true, |fabric| fabric));
}

mod one_sided_lazy {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(
        NetworkConfig { reorder_done: true, ..one_sided(config(true)) },
        false,
        |fabric| fabric
    ));
}

mod one_sided_faulty {
    use super::*;
    fn wrap(fabric: SimFabric) -> Faulty<SimFabric> {
        let (plan, switch, rng) = mild(11);
        Faulty::new(fabric, plan, switch, rng)
    }
    railhead_sim::fabric_conformance!(Harness::new(one_sided(config(false)), false, wrap));
}

mod reordered {
    use super::*;
    railhead_sim::fabric_conformance!(Harness::new(
        NetworkConfig { reorder_done: true, pieces_max: 7, ..config(false) },
        false,
        |fabric| fabric
    ));
}

mod faulty {
    use super::*;
    fn wrap(fabric: SimFabric) -> Faulty<SimFabric> {
        let (plan, switch, rng) = mild(9);
        Faulty::new(fabric, plan, switch, rng)
    }
    railhead_sim::fabric_conformance!(Harness::new(config(false), false, wrap));
}

struct Copies<C> {
    copier: C,
    regions: railhead_sim::SimRegions,
    clock: SimClock,
}

impl<C> Copies<C> {
    fn new(wrap: impl Fn(SimCopier) -> C) -> Self {
        let regions = railhead_sim::SimRegions::new(0);
        let copier = wrap(SimCopier::new(regions.clone(), CopierConfig::default(), Rng::new(5)));
        Self { copier, regions, clock: SimClock::new() }
    }
}

impl<C: CopyEngine> CopierHarness for Copies<C> {
    type Copier = C;

    fn copier(&mut self) -> &mut C {
        &mut self.copier
    }

    fn install(&mut self, region: RegionIndex, bytes: usize) {
        self.regions.install(region, 1, &SimMemory::new("region", bytes), 0);
    }

    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.regions.get(region).expect("an installed region").memory.write(offset, bytes);
    }

    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.regions.get(region).expect("an installed region").memory.read(offset, bytes);
    }

    fn lose(&mut self, region: RegionIndex) -> bool {
        self.regions.get(region).expect("an installed region").memory.lose();
        true
    }

    fn pass(&mut self) -> Nanos {
        self.clock.pass(250)
    }
}

mod copies {
    use super::*;
    railhead_sim::copier_conformance!(Copies::new(|copier| copier));
}

mod faulty_copies {
    use super::*;
    fn wrap(copier: SimCopier) -> Faulty<SimCopier> {
        let (plan, switch, rng) = mild(3);
        Faulty::new(copier, plan, switch, rng)
    }
    railhead_sim::copier_conformance!(Copies::new(wrap));
}
