//! Direct is direct and staged is staged: shown by the addresses that the kernel was given for the data, on both nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use railhead_client::{Leg, Region, Write};
use railhead_system::trace::{Call, Tracer};
use railhead_system::{Cluster, Node, procfs};
use support::*;

/// Bytes of calls in one direction that lay in the mapping of the region, and elsewhere.
fn split(calls: &[Call], out: bool, node: &Node, region: &Region) -> (u64, u64) {
    let inode = rustix::fs::fstat(region.file()).unwrap().st_ino;
    let mappings: Vec<_> =
        procfs::mappings(node.dataplane_pid()).into_iter().filter(|mapping| mapping.inode == inode).collect();
    assert!(!mappings.is_empty(), "{} does not map the region", node.config.name);
    let (mut inside, mut outside) = (0, 0);
    for (address, bytes) in calls.iter().filter(|call| call.out == out).flat_map(|call| &call.pieces) {
        if mappings.iter().any(|mapping| mapping.holds(*address, *bytes)) {
            inside += bytes;
        } else {
            outside += bytes;
        }
    }
    (inside, outside)
}

/// Bytes of pieces that lie in one stretch of memory, the one that has most: the arena, where blocks are used.
fn in_one_stretch(calls: &[Call], out: bool, node: &Node) -> u64 {
    let pieces: Vec<&(u64, u64)> =
        calls.iter().filter(|call| call.out == out).flat_map(|call| &call.pieces).collect();
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for mapping in procfs::mappings(node.dataplane_pid()) {
        // The kernel may list one arena as several.
        match stretches.last_mut() {
            Some((_, end)) if *end == mapping.start => *end = mapping.end,
            _ => stretches.push((mapping.start, mapping.end)),
        }
    }
    let bytes_in = |(start, end): &(u64, u64)| {
        let inside = pieces.iter().filter(|(address, bytes)| address >= start && address + bytes <= *end);
        inside.map(|(_, bytes)| bytes).sum()
    };
    stretches.iter().map(bytes_in).max().unwrap_or(0)
}

fn traced(send_leg: Leg, receive_leg: Leg, bytes: u64, count: u64) {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let all = bytes * count;
    let (source, destination) = (region(&sender, "", all), region(&receiver, "destination", all));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let write = |number| Write {
        send_leg,
        receive_leg,
        local_offset: number * bytes,
        remote_offset: number * bytes,
        ..write(number, &source, &remote, bytes)
    };
    // The connections are made outside of what is looked at.
    transfer_ok(&mut port, &write(0));
    let data = pattern(5, usize::try_from(all).unwrap());
    source.copy_in(0, &data).unwrap();
    destination.fill(0, all, POISON).unwrap();
    let tracers = [cluster.a(), cluster.b()].map(|node| Tracer::attach(node.dataplane_pid()));
    for number in 0..count {
        port.submit(&write(number)).unwrap();
    }
    let completions = drain(&mut port, LIMIT);
    let [calls_a, calls_b] = tracers.map(Tracer::finish);
    completions.iter().for_each(|completion| assert_ok(completion, &write(completion.cookie)));
    assert_bytes(&read(&destination, 0, all), &data, "what was traced");
    for (leg, node, calls, region, out) in [
        (send_leg, cluster.a(), &calls_a, &source, true),
        (receive_leg, cluster.b(), &calls_b, &destination, false),
    ] {
        let (inside, outside) = split(calls, out, node, region);
        let name = &node.config.name;
        assert!(inside + outside >= all, "{name}: only {inside} + {outside} bytes were seen");
        if leg == Leg::DIRECT {
            assert_eq!(
                inside, all,
                "{name}: all data straight from or to the region, {outside} bytes elsewhere"
            );
            // Heads and records; not a second copy of the data.
            assert!(outside < all / 5, "{name}: {outside} bytes beside the region");
        } else {
            assert_eq!(inside, 0, "{name}: staged data must not go straight from or to the region");
            let staged = in_one_stretch(calls, out, node);
            assert!(staged >= all, "{name}: {staged} bytes of {all} in the arena");
        }
    }
    drop((port, source, destination));
    cluster.stop();
}

fn large(send_leg: Leg, receive_leg: Leg) {
    traced(send_leg, receive_leg, 24 << 20, 1);
}

/// Small ones share calls and frames, and are direct or staged all the same.
fn small(send_leg: Leg, receive_leg: Leg) {
    traced(send_leg, receive_leg, 4096, 200);
}

#[test]
fn direct_to_direct() {
    large(Leg::DIRECT, Leg::DIRECT);
    small(Leg::DIRECT, Leg::DIRECT);
}

#[test]
fn direct_to_staged() {
    large(Leg::DIRECT, Leg::STAGED);
    small(Leg::DIRECT, Leg::STAGED);
}

#[test]
fn staged_to_direct() {
    large(Leg::STAGED, Leg::DIRECT);
    small(Leg::STAGED, Leg::DIRECT);
}

#[test]
fn staged_to_staged() {
    large(Leg::STAGED, Leg::STAGED);
    small(Leg::STAGED, Leg::STAGED);
}
