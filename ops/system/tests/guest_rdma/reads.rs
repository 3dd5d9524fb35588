//! Reads over RDMA: by the reader's own device where the owner's leg is direct, served over sockets where it is staged;
//! and writes that end without a word to the target's engine.

use railhead_client::{ACCESS_READ, ACCESS_WRITE, Class, Code, Leg, Level, Read, Write};
use railhead_system::guest;

use crate::support::*;

const SIZES: [u64; 11] = [0, 1, 7, 4095, 4097, 16_385, 131_073, 262_144, 262_145, 1_048_583, 5_000_011];
/// In the destination and in the source.
const OFFSETS: [(u64, u64); 2] = [(65_536, 0), (70_001, 8191)];
const REGION_BYTES: u64 = 6 << 20;

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn every_route_and_size_is_read() {
    let cluster = crate::pair();
    let (reader, owner) = (attach(cluster.a(), "reader", 1), attach(cluster.b(), "owner", 1));
    let source = region_for(&owner, "source", REGION_BYTES, ACCESS_READ);
    let destination = region_for(&reader, "", REGION_BYTES, ACCESS_WRITE);
    let remote = open_to_read(&reader, "b", "source");
    let mut port = reader.take_port().unwrap();
    let served = || cluster.b().rest().counter("reads_served_total");
    let mut cookie = 0;
    for (send_leg, receive_leg) in ROUTES {
        let (wire, served_before, mut moved) = (guest::sent_bytes("vb"), served(), 0);
        for bytes in SIZES {
            for (local_offset, remote_offset) in OFFSETS {
                cookie += 1;
                let class = if cookie % 2 == 0 { Class::BULK } else { Class::LATENCY };
                let plain = read_of(cookie, destination.handle(), &remote, bytes);
                let asked = Read { class, send_leg, receive_leg, local_offset, remote_offset, ..plain };
                let data = pattern(cookie, usize::try_from(bytes).unwrap());
                source.copy_in(remote_offset, &data).unwrap();
                poison(&destination, local_offset, bytes);
                port.submit_read(&asked).unwrap();
                let completion = one(&mut port);
                assert_eq!(Code::from_number(completion.status), Some(Code::Ok), "{asked:?}: {completion:?}");
                if bytes > 0 {
                    let legs = (Leg(completion.send_leg), Leg(completion.receive_leg));
                    assert_eq!(legs, (send_leg, receive_leg), "{asked:?}: {completion:?}");
                }
                assert_landed(&destination, local_offset, &data, &format!("{asked:?}"));
                moved += bytes;
            }
        }
        if send_leg == Leg::DIRECT {
            let wire = guest::sent_bytes("vb") - wire;
            assert!(wire >= moved, "{wire} bytes crossed the wire of RDMA for {moved} bytes that were read");
            assert_eq!(served(), served_before, "the owner's engine has no part in it");
        } else {
            assert!(served() > served_before, "what the owner stages it serves");
        }
    }
    assert_eq!(port.strays(), 0);
    assert_blocks_home(cluster.a(), 2);
    assert_blocks_home(cluster.b(), 2);
    drop(port);
    cluster.stop();
}

/// A direct write that notifies nobody costs the target's engine nothing, at either level.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn writes_without_notification_end_without_the_targets_engine() {
    let cluster = crate::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", 1 << 20);
    let destination = region(&receiver, "destination", 1 << 20);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let delivered = || cluster.b().rest().counter("inbound_transfers_total");
    transfer_ok(&mut port, &write(1, &source, &remote, 0));
    let before = delivered();
    assert!(before > 0, "an empty one is acknowledged by the engine");
    for level in [Level::VISIBLE, Level::PLACED] {
        for (cookie, bytes) in [(2, 1), (3, 4096), (4, 1 << 20)] {
            let data = pattern(cookie, usize::try_from(bytes).unwrap());
            source.copy_in(0, &data).unwrap();
            destination.fill(0, 1 << 20, POISON).unwrap();
            let plain = write(cookie, &source, &remote, bytes);
            transfer_ok(&mut port, &Write { receive_leg: Leg::DIRECT, level, ..plain });
            // A soft device has placed before it says so.
            assert_bytes(&read(&destination, 0, bytes), &data, "the destination");
        }
    }
    assert_eq!(delivered(), before, "the target's engine was told");
    drop(port);
    cluster.stop();
}
