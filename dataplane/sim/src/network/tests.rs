//! The network's own promises that no conformance test can see: placing order, late landing, windows and holds.

use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Key, Place, PostId, RegionIndex, RemotePlace, Write,
};

use super::{Network, NetworkConfig};
use crate::{LaneId, Rng, SimFabric, SimMemory, Use};

const CONNECTION: ConnectionIndex = ConnectionIndex(0);
const NOTHING: FabricEvent = FabricEvent::Down { connection: CONNECTION, cause: Code::Ok };

struct Two {
    network: Network,
    fabrics: [SimFabric; 2],
    source: SimMemory,
    destination: SimMemory,
}

fn two(seed: u64, flush_needed: bool) -> Two {
    let mut config = NetworkConfig::default();
    config.capabilities = Capabilities { flush_needed, ..config.capabilities };
    let network = Network::new(config, Rng::new(seed));
    let lanes = [network.add_lane(), network.add_lane()];
    network.connect((lanes[0], CONNECTION), (lanes[1], CONNECTION));
    let source = SimMemory::new("source", 4096);
    let destination =
        if flush_needed { SimMemory::lazy("destination", 4096) } else { SimMemory::new("destination", 4096) };
    network.regions(lanes[0]).install(RegionIndex(1), 1, &source, 0);
    network.regions(lanes[1]).install(RegionIndex(1), 1, &destination, ACCESS_WRITE);
    source.write(0, &[7; 4096]);
    Two { fabrics: [network.fabric(lanes[0]), network.fabric(lanes[1])], network, source, destination }
}

fn write(post: u32, offset: u64, bytes: u32) -> Write {
    let to = RemotePlace { key: Key { index: 1, epoch: 1 }, offset };
    Write { from: Place { region: RegionIndex(1), offset }, bytes, to, slot: 0, post: PostId(post) }
}

#[test]
fn a_write_can_be_placed_before_and_after_it_is_done() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..64 {
        let mut two = two(seed, false);
        two.fabrics[0].write(CONNECTION, &write(1, 0, 4096)).unwrap();
        two.fabrics[0].kick(0);
        let mut events = [NOTHING; 4];
        let mut now = 0;
        while two.fabrics[0].poll(now, &mut events) == 0 {
            now += 50;
        }
        if two.destination.holds_bytes(0, &[7; 4096]) { before += 1 } else { after += 1 }
    }
    assert!(before > 5 && after > 5, "placed before done {before} times, after {after} times");
}

#[test]
fn pieces_land_in_any_order() {
    let tail_first = (0..64).any(|seed| {
        let mut two = two(seed, false);
        two.fabrics[0].write(CONNECTION, &write(1, 0, 4096)).unwrap();
        two.fabrics[0].kick(0);
        (0..2000).any(|step| {
            two.fabrics[1].poll(step * 50, &mut []);
            two.destination.holds_bytes(4095, &[7]) && two.destination.holds_bytes(0, &[0])
        })
    });
    assert!(tail_first);
}

#[test]
fn lazy_memory_is_old_until_the_flush() {
    let mut old_seen = 0;
    for seed in 0..32 {
        let mut two = two(seed, true);
        two.fabrics[0].write(CONNECTION, &write(1, 0, 4096)).unwrap();
        two.fabrics[0].send(CONNECTION, &railhead_abi::record::RawRecord { words: [0x100; 16] }).unwrap();
        two.fabrics[0].kick(0);
        let mut events = [NOTHING; 1];
        let mut now = 0;
        while two.fabrics[1].poll(now, &mut events) == 0 {
            now += 50;
        }
        assert!(matches!(events[0], FabricEvent::Record { .. }));
        if !two.destination.holds_bytes(0, &[7; 4096]) {
            old_seen += 1;
        }
        two.fabrics[1].flush(CONNECTION, PostId(9)).unwrap();
        two.fabrics[1].kick(now);
        while two.fabrics[1].poll(now, &mut events) == 0 {
            now += 50;
        }
        assert_eq!(
            events[0],
            FabricEvent::Done { connection: CONNECTION, post: PostId(9), status: Code::Ok }
        );
        assert!(two.destination.holds_bytes(0, &[7; 4096]));
    }
    assert!(old_seen > 16);
}

#[test]
fn writes_can_land_after_the_initiator_has_seen_down() {
    let mut late = 0;
    for seed in 0..200 {
        let mut two = two(seed, false);
        two.fabrics[0].write(CONNECTION, &write(1, 0, 4096)).unwrap();
        two.fabrics[0].kick(0);
        two.network.cut(LaneId(0), CONNECTION);
        let (mut now, mut events, mut down) = (0, [NOTHING; 4], false);
        while !down {
            now += 100;
            let count = two.fabrics[0].poll(now, &mut events);
            down = events[..count].iter().any(|event| matches!(event, FabricEvent::Down { .. }));
        }
        let mut seen = [vec![0; 4096], vec![0; 4096]];
        two.destination.read(0, &mut seen[0]);
        two.fabrics[1].poll(1 << 40, &mut []);
        two.destination.read(0, &mut seen[1]);
        late += usize::from(seen[0] != seen[1]);
    }
    assert!(late > 0, "never seen in 200 seeds");
}

#[test]
fn a_use_outside_a_window_is_a_violation() {
    let mut two = two(3, false);
    two.destination.watch();
    let window = two.destination.open(0, 100, Use::Write);
    two.fabrics[0].write(CONNECTION, &write(1, 0, 100)).unwrap();
    two.fabrics[0].kick(0);
    two.fabrics[1].poll(1 << 40, &mut []);
    assert_eq!(two.destination.take_violations(), Vec::<String>::new());
    two.fabrics[0].write(CONNECTION, &write(2, 50, 51)).unwrap();
    two.fabrics[0].kick(1 << 41);
    two.fabrics[1].poll(1 << 42, &mut []);
    assert!(!two.destination.take_violations().is_empty());
    two.destination.close(window);
    two.fabrics[0].write(CONNECTION, &write(3, 0, 1)).unwrap();
    two.fabrics[0].kick(1 << 43);
    two.fabrics[1].poll(1 << 44, &mut []);
    assert!(!two.destination.take_violations().is_empty());
    assert!(two.source.take_violations().is_empty());
}

#[test]
fn two_writes_to_the_same_bytes_at_once_are_a_violation() {
    let mut two = two(3, false);
    two.fabrics[0].write(CONNECTION, &write(1, 0, 100)).unwrap();
    two.fabrics[0].write(CONNECTION, &write(2, 100, 100)).unwrap();
    assert!(two.destination.take_violations().is_empty());
    two.fabrics[0].write(CONNECTION, &write(3, 99, 2)).unwrap();
    assert_eq!(two.destination.take_violations().len(), 1);
    assert!(two.source.take_violations().is_empty(), "two reads do not clash");
}
