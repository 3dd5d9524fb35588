//! Every route, every size at an edge, aligned and not: byte for byte, and not a byte beside.

use railhead_client::{Class, Code, Leg, Level, Write};
use railhead_system::Cluster;

use crate::support::*;

/// Page, small block, slice and chunk of the defaults, each with its neighbours, and some of many chunks.
const SIZES: [u64; 19] = [
    0, 1, 7, 4095, 4096, 4097, 16_383, 16_384, 16_385, 131_071, 131_072, 131_073, 262_143, 262_144, 262_145,
    524_287, 1_048_583, 2_097_152, 5_000_011,
];
/// In the source and in the destination.
const OFFSETS: [(u64, u64); 4] = [(0, 65_536), (1, 65_537), (4095, 70_001), (8191, 65_536 + 4095)];
const REGION_BYTES: u64 = 6 << 20;

fn every_route_and_size(target: &str, to_itself: bool) {
    let cluster = Cluster::pair();
    let sender = attach(cluster.a(), "sender", 1);
    let receiver = attach(if to_itself { cluster.a() } else { cluster.b() }, "receiver", 1);
    let source = region(&sender, "", REGION_BYTES);
    let destination = region(&receiver, "destination", REGION_BYTES);
    let remote = open(&sender, target, "destination");
    assert_eq!(remote.bytes(), REGION_BYTES);
    let mut port = sender.take_port().unwrap();
    let mut cookie = 0;
    for (send_leg, receive_leg) in ROUTES {
        for bytes in SIZES {
            for (local_offset, remote_offset) in OFFSETS {
                cookie += 1;
                let class = if cookie % 2 == 0 { Class::BULK } else { Class::LATENCY };
                let write = Write {
                    class,
                    send_leg,
                    receive_leg,
                    local_offset,
                    remote_offset,
                    ..write(cookie, &source, &remote, bytes)
                };
                let data = pattern(cookie, usize::try_from(bytes).unwrap());
                source.copy_in(local_offset, &data).unwrap();
                poison(&destination, remote_offset, bytes);
                transfer_ok(&mut port, &write);
                assert_landed(&destination, remote_offset, &data, &format!("{write:?}"));
                assert_bytes(&read(&source, local_offset, bytes), &data, "the source");
            }
        }
    }
    assert_eq!(port.strays(), 0);
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

#[test]
fn every_route_and_size_to_a_peer() {
    every_route_and_size("b", false);
}

#[test]
fn every_route_and_size_to_the_node_itself() {
    every_route_and_size("self", true);
}

#[test]
fn a_node_is_its_own_peer_by_name_too() {
    let cluster = Cluster::pair();
    let session = attach(cluster.a(), "both", 1);
    let (source, destination) = (region(&session, "", 8192), region(&session, "mine", 8192));
    let mut port = session.take_port().unwrap();
    for name in ["a", "self"] {
        let remote = open(&session, name, "mine");
        let data = pattern(3, 8192);
        source.copy_in(0, &data).unwrap();
        destination.fill(0, 8192, POISON).unwrap();
        transfer_ok(&mut port, &write(1, &source, &remote, 8192));
        assert_bytes(&read(&destination, 0, 8192), &data, name);
    }
    drop(port);
    cluster.stop();
}

/// The rules decide when nothing is forced, by the defaults: staged below 16 KiB, direct from there on, on both legs.
#[test]
fn without_an_override_the_threshold_decides() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", 1 << 20);
    let _destination = region(&receiver, "destination", 1 << 20);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    for (bytes, leg, reason) in [
        (16_383, Leg::STAGED, railhead_abi::Reason::BelowThreshold),
        (16_384, Leg::DIRECT, railhead_abi::Reason::FromThreshold),
        (1 << 20, Leg::DIRECT, railhead_abi::Reason::FromThreshold),
    ] {
        let completion = transfer_ok(&mut port, &write(bytes, &source, &remote, bytes));
        assert_eq!((Leg(completion.send_leg), Leg(completion.receive_leg)), (leg, leg), "{bytes}");
        assert_eq!(
            (completion.send_reason, completion.receive_reason),
            (reason as u8, reason as u8),
            "{bytes}"
        );
    }
    drop(port);
    cluster.stop();
}

/// On sockets a write is acknowledged by the target's engine, so both levels mean the same: the data is there.
#[test]
fn placed_is_visible_on_sockets() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", 1 << 20);
    let destination = region(&receiver, "destination", 1 << 20);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    for (send_leg, receive_leg) in ROUTES {
        for bytes in [0, 1, 4097, 300_000] {
            let data = pattern(bytes, usize::try_from(bytes).unwrap());
            source.copy_in(0, &data).unwrap();
            destination.fill(0, 1 << 20, POISON).unwrap();
            let level = Level::PLACED;
            let asked = Write { send_leg, receive_leg, level, ..write(1, &source, &remote, bytes) };
            transfer_ok(&mut port, &asked);
            assert_bytes(&read(&destination, 0, bytes), &data, "what was placed");
        }
    }
    let unknown = Write { level: Level(2), ..write(1, &source, &remote, 1) };
    assert_eq!(Code::from_number(transfer(&mut port, &unknown).status), Some(Code::LevelUnknown));
    drop(port);
    cluster.stop();
}
