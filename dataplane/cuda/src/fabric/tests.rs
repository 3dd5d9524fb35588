//! The conformance text of fabrics over the stand-in for GPUs, and what is special here.

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Nanos, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_shm::OwnedSpan;
use railhead_sim::Rng;
use railhead_sim::conformance::{End, FabricHarness};

use super::{CopyFabric, FabricConfig};
use crate::copier::{CopierConfig, CudaCopier};
use crate::queues::Side;
use crate::stand_in::{StandIn, StandInMemory, memory};

struct Harness {
    fabric: CopyFabric<CudaCopier<StandIn>>,
    stand_in: StandIn,
    spans: Vec<Option<OwnedSpan>>,
    rng: Rng,
    now: Nanos,
    piece_bytes: u64,
}

impl Harness {
    fn new(copies: u16, piece_bytes: u64) -> Self {
        let stand_in = StandIn::new(false);
        let copier = CopierConfig { regions: 64, copies, ..CopierConfig::default() };
        let config = FabricConfig {
            connections: 4,
            regions: 64,
            posts_max: 64,
            records_max: 48,
            write_bytes_max: 2 << 20,
        };
        let fabric = CopyFabric::new(config, CudaCopier::new(copier, stand_in.clone()));
        Self { fabric, stand_in, spans: vec![None; 64], rng: Rng::new(5), now: 0, piece_bytes }
    }

    fn span(&self, region: RegionIndex) -> &OwnedSpan {
        self.spans[region.0 as usize].as_ref().expect("installed")
    }

    fn work(&mut self) {
        self.now += 1_000;
        self.stand_in.device.borrow_mut().work(&self.stand_in.infos, &mut self.rng);
    }
}

impl FabricHarness for Harness {
    type Fabric = CopyFabric<CudaCopier<StandIn>>;

    fn fabric(&mut self, _end: End) -> &mut Self::Fabric {
        &mut self.fabric
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(u16::try_from(2 * pair + end as usize).expect("few"))
    }

    fn install(&mut self, _end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        // What stood there is out of use before its slot is used again.
        self.remove(End::Target, region);
        let whole = memory(bytes + 4096);
        let span = whole.part(0, bytes as u64).expect("inside");
        let side = match region.0 % 3 {
            0 => Side::Host,
            gpu => Side::Gpu(u8::try_from(gpu - 1).expect("two")),
        };
        self.fabric.install(region, epoch, bytes as u64, access, Some(span.clone()));
        let of_copier = StandInMemory { span: span.clone(), side, piece_bytes: self.piece_bytes };
        self.fabric.copier.install(region, of_copier).expect("room");
        self.spans[region.0 as usize] = Some(span);
    }

    /// As a registrar does: out of both tables, then the wait for what is under way.
    fn remove(&mut self, _end: End, region: RegionIndex) {
        self.fabric.remove(region);
        self.fabric.copier.remove(region);
        while self.fabric.copier.has_removed() {
            self.work();
            assert_eq!(self.fabric.poll(self.now, &mut []), 0);
            let _ = self.fabric.copier.take_removed();
        }
    }

    fn write_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.span(region).write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, _end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.span(region).read(offset as u64, bytes).expect("inside");
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
        self.work();
        self.now
    }
}

mod conformance {
    use super::Harness;

    railhead_sim::fabric_conformance!(Harness::new(256, u64::MAX));
}

mod conformance_with_a_small_copier_over_pieces {
    use super::Harness;

    railhead_sim::fabric_conformance!(Harness::new(3, 4096));
}

const HERE: ConnectionIndex = ConnectionIndex(0);
const THERE: ConnectionIndex = ConnectionIndex(1);
const SOURCE: RegionIndex = RegionIndex(1);
const TARGET: RegionIndex = RegionIndex(2);

fn write(post: u32) -> Write {
    let key = Key { index: TARGET.0, epoch: 7 };
    let to = RemotePlace { key, offset: u64::from(post) * 4096 };
    Write { from: Place { region: SOURCE, offset: 0 }, bytes: 4096, to, slot: 3, post: PostId(post) }
}

fn ready() -> Harness {
    let mut harness = Harness::new(256, u64::MAX);
    harness.install(End::Initiator, SOURCE, 0, 1 << 20, 0);
    harness.install(End::Target, TARGET, 7, 1 << 20, ACCESS_READ | ACCESS_WRITE);
    harness
}

fn events(harness: &mut Harness) -> Vec<FabricEvent> {
    let none = FabricEvent::Down { connection: HERE, cause: Code::Ok };
    let mut slice = [none; 16];
    let mut all = Vec::new();
    for _ in 0..1000 {
        harness.work();
        harness.fabric.kick(harness.now);
        let count = harness.fabric.poll(harness.now, &mut slice);
        all.extend_from_slice(&slice[..count]);
    }
    all
}

#[test]
fn writes_of_one_connection_are_under_way_together() {
    let mut harness = ready();
    for post in 0..8 {
        harness.fabric.write(HERE, &write(post)).expect("room");
    }
    harness.fabric.kick(0);
    let runs = harness.stand_in.device.borrow().runs;
    assert_eq!(runs, 8, "each waited for the one before");
    assert_eq!(events(&mut harness).len(), 8);
}

#[test]
fn nothing_is_down_while_a_copy_of_either_end_is_under_way() {
    let mut harness = ready();
    harness.fabric.write(HERE, &write(0)).expect("room");
    harness.fabric.kick(0);
    harness.fabric.close(THERE);
    let none = FabricEvent::Down { connection: HERE, cause: Code::Ok };
    let mut slice = [none; 16];
    for now in 1..50 {
        assert_eq!(harness.fabric.poll(now, &mut slice), 0, "{slice:?}");
    }
    let seen = events(&mut harness);
    let place = |wanted: FabricEvent| seen.iter().position(|event| *event == wanted);
    let down = |connection| place(FabricEvent::Down { connection, cause: Code::ConnectionReset });
    let done = place(FabricEvent::Done { connection: HERE, post: PostId(0), status: Code::Ok });
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(done.is_some() && done < down(HERE) && down(THERE).is_some(), "{seen:?}");
}

#[test]
fn the_end_that_lost_its_memory_is_told() {
    for (lost, expected) in
        [(SOURCE, (None, Code::RegionLost)), (TARGET, (Some(Code::RemoteRegionLost), Code::Ok))]
    {
        let mut harness = ready();
        harness.span(lost).guard().expect("guarded").condemn().expect("condemned");
        harness.fabric.write(HERE, &write(0)).expect("room");
        let (refused, status) = expected;
        let told = refused.map(|status| FabricEvent::Refused { connection: THERE, slot: 3, status });
        let done = FabricEvent::Done { connection: HERE, post: PostId(0), status };
        let expected: Vec<FabricEvent> = told.into_iter().chain([done]).collect();
        assert_eq!(events(&mut harness), expected);
    }
}

#[test]
fn a_lost_gpu_fails_its_writes() {
    let mut harness = ready();
    harness.stand_in.device.borrow_mut().lost = Some(700);
    harness.fabric.write(HERE, &write(0)).expect("room");
    let done = FabricEvent::Done { connection: HERE, post: PostId(0), status: Code::DeviceError };
    assert_eq!(events(&mut harness), [done]);
}
