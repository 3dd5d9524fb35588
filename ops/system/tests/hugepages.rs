//! Real hugepages: pools lie on them, and a region whose pages are taken away costs nobody but its owner. Needs a few free
//! hugepages of 2 MiB.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::fd::OwnedFd;

use railhead_client::{Code, Pages, Region, RegionOptions, Session, Write, outcome};
use railhead_system::{Cluster, NodeConfig, until};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use support::*;

const PAGE_BYTES: u64 = 2 << 20;
const REGION_BYTES: u64 = 2 * PAGE_BYTES;

fn huge(session: &Session, name: &str) -> Region {
    let grant = if name.is_empty() { "" } else { "*" };
    let options = RegionOptions {
        bytes: REGION_BYTES,
        name,
        grant,
        pages: Pages::REQUIRE_HUGE,
        ..RegionOptions::default()
    };
    session.create_region(&options).unwrap_or_else(|error| panic!("hugepages for a region: {error}"))
}

/// Takes every free hugepage, until it is dropped.
fn take_all() -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    loop {
        let file =
            memfd_create("taken", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).unwrap();
        let sized = ftruncate(&file, PAGE_BYTES)
            .and_then(|()| fallocate(&file, FallocateFlags::empty(), 0, PAGE_BYTES));
        if sized.is_err() {
            return taken;
        }
        taken.push(file);
    }
}

fn take_away(region: &Region) -> Vec<OwnedFd> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.file(), hole, 0, REGION_BYTES).unwrap();
    take_all()
}

#[test]
fn pools_and_regions_lie_on_hugepages_when_they_must() {
    let pool =
        "hugepages = \"require\"\nsmall_send = 8\nsmall_receive = 8\nlarge_send = 2\nlarge_receive = 2\n";
    let config = NodeConfig { pool: pool.to_owned(), ..NodeConfig::new("a") };
    let cluster = Cluster::start(vec![config]);
    let pools = cluster.a().rest().get("/v1/pools").expect(200);
    assert_eq!(pools.json["pools"][0]["page_bytes"], PAGE_BYTES, "{}", pools.text);
    assert!(!cluster.a().has_event("hugepages_stepped_down"));
    let session = attach(cluster.a(), "session", 1);
    let (source, destination) = (huge(&session, ""), huge(&session, "destination"));
    let mut port = session.take_port().unwrap();
    let remote = open(&session, "self", "destination");
    let data = pattern(1, usize::try_from(REGION_BYTES).unwrap());
    source.copy_in(0, &data).unwrap();
    for (send_leg, receive_leg) in ROUTES {
        destination.fill(0, REGION_BYTES, POISON).unwrap();
        transfer_ok(&mut port, &Write { send_leg, receive_leg, ..write(1, &source, &remote, REGION_BYTES) });
        assert_bytes(&read(&destination, 0, REGION_BYTES), &data, "over hugepages");
    }
    assert!(!cluster.a().has_event("region_stepped_down"));
    drop((port, source, destination, session));
    cluster.stop();
}

/// `lost` says which end: the source at `a`, or the destination at `target`.
fn taken_away(target: &str, source_is_lost: bool) {
    for (send_leg, receive_leg) in ROUTES {
        let cluster = Cluster::pair();
        let node = if target == "b" { cluster.b() } else { cluster.a() };
        let (bystander, sender) = (attach(cluster.a(), "bystander", 1), attach(cluster.a(), "sender", 1));
        let receiver = attach(node, "receiver", 1);
        let (own, kept) = (region(&bystander, "", 1 << 20), region(&receiver, "kept", 1 << 20));
        let to_kept = open(&bystander, target, "kept");
        let mut other = bystander.take_port().unwrap();
        let (source, destination) = (huge(&sender, ""), huge(&receiver, "destination"));
        let remote = open(&sender, target, "destination");
        let mut port = sender.take_port().unwrap();
        let write = Write { send_leg, receive_leg, ..write(1, &source, &remote, REGION_BYTES) };
        transfer_ok(&mut port, &write);
        let taken = take_away(if source_is_lost { &source } else { &destination });
        let code = outcome(&transfer(&mut port, &write)).expect_err("its memory is gone").code;
        drop(taken);
        let expected = if source_is_lost { Code::RegionLost } else { Code::RemoteRegionLost };
        assert_eq!(code, Some(expected), "{target}: {write:?}");
        // Who has nothing to do with it, on the same lane and connection, goes on.
        transfer_ok(&mut other, &self::support::write(2, &own, &to_kept, 1 << 20));
        // It stays lost: new pages under it would hold something else than was asked for.
        let again = outcome(&transfer(&mut port, &write)).expect_err("it is lost").code;
        assert!(
            matches!(
                again,
                Some(
                    Code::RegionLost
                        | Code::RemoteRegionLost
                        | Code::RemoteHandleStale
                        | Code::LocalHandleStale
                )
            ),
            "{again:?}"
        );
        // While its owner lives: nobody waits for the session's end to hear of it.
        let told = if source_is_lost { cluster.a() } else { node };
        let what = format!("the event of the lost region, {target}: {write:?}");
        until(&what, LIMIT, || told.has_event("region_lost").then_some(()));
        drop((port, other, own, kept, source, destination, bystander, sender, receiver));
        assert_blocks_home(cluster.a(), 1);
        assert_blocks_home(cluster.b(), 1);
        cluster.stop();
    }
}

#[test]
fn a_source_taken_away_under_a_lane() {
    taken_away("b", true);
}

#[test]
fn a_destination_taken_away_under_a_lane() {
    taken_away("b", false);
}

#[test]
fn memory_taken_away_on_the_node_itself() {
    taken_away("self", true);
    taken_away("self", false);
}
