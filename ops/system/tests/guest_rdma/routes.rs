//! Every route and level over RDMA, byte for byte, and that it is RDMA which carries them.

use railhead_client::{Class, Leg, Write};
use railhead_system::guest;

use crate::support::*;

/// Page, small block and chunk of the defaults, each with its neighbours, and some of many chunks.
const SIZES: [u64; 12] =
    [0, 1, 7, 4095, 4097, 16_384, 16_385, 131_073, 262_144, 262_145, 1_048_583, 5_000_011];
/// In the source and in the destination.
const OFFSETS: [(u64, u64); 3] = [(0, 65_536), (1, 65_537), (4095, 70_001)];
const REGION_BYTES: u64 = 6 << 20;

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn every_route_and_size() {
    let cluster = crate::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", REGION_BYTES);
    let destination = region(&receiver, "destination", REGION_BYTES);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let (wire, mut moved, mut cookie) = (guest::sent_bytes("va"), 0, 0);
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
                moved += bytes;
            }
        }
    }
    assert_eq!(port.strays(), 0);
    let wire = guest::sent_bytes("va") - wire;
    assert!(wire >= moved, "{wire} bytes crossed the RDMA device's wire for {moved} bytes of payload");
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    drop(port);
    cluster.stop();
}

/// Direct on both legs, no copy of ours is made of any byte.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn direct_copies_nothing() {
    let cluster = crate::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", 1 << 20);
    let destination = region(&receiver, "destination", 1 << 20);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let copied = |node: &railhead_system::Node| node.rest().counter("copy_bytes_total");
    let before = (copied(cluster.a()), copied(cluster.b()));
    for cookie in 1..=8 {
        let data = pattern(cookie, 1 << 20);
        source.copy_in(0, &data).unwrap();
        let write = Write {
            send_leg: Leg::DIRECT,
            receive_leg: Leg::DIRECT,
            ..write(cookie, &source, &remote, 1 << 20)
        };
        transfer_ok(&mut port, &write);
        assert_bytes(&read(&destination, 0, 1 << 20), &data, "the destination");
    }
    assert_eq!((copied(cluster.a()), copied(cluster.b())), before, "bytes copied by lanes");
    drop(port);
    cluster.stop();
}
