//! Copy threads: who copies, what comes out of it, and what is told of it.

use std::fs;

use railhead_client::{Class, Write};
use railhead_system::{Cluster, Node, NodeConfig, until};
use serde_json::{Value as Json, json};

use crate::support::*;

/// Around the size from which copies are handed over, a chunk, and many chunks.
const SIZES: [u64; 8] = [16_385, 65_535, 65_536, 65_537, 262_144, 262_145, 1_048_583, 5_000_011];
const REGION_BYTES: u64 = 6 << 20;
/// Copy threads stay awake from one transfer to the next, as they do in a stream of transfers.
const AWAKE: &str = "idle.spin_us = 100000\n";

fn config(name: &str, copy_threads: &str, more: &str) -> NodeConfig {
    NodeConfig {
        dataplane: format!("copy_threads = \"{copy_threads}\"\n{more}"),
        settings: AWAKE.to_owned(),
        ..NodeConfig::new(name)
    }
}

fn every_route(target: &str) {
    let cluster = Cluster::start(vec![config("a", "on", ""), config("b", "on", "")]);
    let sender = attach(cluster.a(), "sender", 1);
    let receiver = attach(if target == "b" { cluster.b() } else { cluster.a() }, "receiver", 1);
    let (source, destination) =
        (region(&sender, "", REGION_BYTES), region(&receiver, "destination", REGION_BYTES));
    let remote = open(&sender, target, "destination");
    let mut port = sender.take_port().unwrap();
    let mut cookie = 0;
    for (send_leg, receive_leg) in ROUTES {
        for bytes in SIZES {
            for (local_offset, remote_offset) in [(0, 65_536), (4095, 70_001)] {
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
            }
        }
    }
    for node in [cluster.a(), cluster.b()] {
        assert_blocks_home(node, 1);
        // With itself as the peer, node a copied on both legs and b on none.
        let expected = target == "b" || node.config.name == "a";
        assert_eq!(handed(node) > 0, expected, "{}", node.config.name);
        assert_eq!(node.rest().counter("allocations_after_seal_total"), 0, "{}", node.config.name);
    }
    drop(port);
    cluster.stop();
}

fn handed(node: &Node) -> u64 {
    // The lane writes its figures every 10 ms.
    std::thread::sleep(std::time::Duration::from_millis(50));
    node.rest().counter("copy_thread_bytes_total")
}

/// The cores that a thread may run on, as the kernel lists them.
fn cores_of(node: &Node, tid: &Json) -> String {
    let path = format!("/proc/{}/task/{tid}/status", node.dataplane_pid());
    let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    line.trim().to_owned()
}

fn event(node: &Node, name: &str) -> Option<Json> {
    let answer = node.rest().get("/v1/events?limit=1000").expect(200);
    let events = answer.json["events"].as_array().cloned().unwrap_or_default();
    events.into_iter().find(|event| event["event"] == name)
}

#[test]
fn every_route_to_a_peer() {
    every_route("b");
}

#[test]
fn every_route_to_the_node_itself() {
    every_route("self");
}

/// Many clients' bytes at once, so that lanes and copy threads share the work, and nothing is mixed up.
#[test]
fn a_stream_of_staged_transfers_is_whole() {
    const SLOT: u64 = 300_000;
    const SLOTS: u64 = 16;
    let cluster = Cluster::start(vec![config("a", "on", ""), config("b", "on", "")]);
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", SLOT * SLOTS);
    let destination = region(&receiver, "destination", SLOT * SLOTS);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    for round in 0..8 {
        for slot in 0..SLOTS {
            let data = pattern(round * SLOTS + slot, usize::try_from(SLOT).unwrap());
            source.copy_in(slot * SLOT, &data).unwrap();
            let (send_leg, receive_leg) = ROUTES[0];
            let places = Write { local_offset: slot * SLOT, remote_offset: slot * SLOT, ..Write::default() };
            let write = Write {
                send_leg,
                receive_leg,
                local_offset: places.local_offset,
                remote_offset: places.remote_offset,
                ..write(slot, &source, &remote, SLOT)
            };
            port.submit(&write).unwrap();
        }
        let completions = drain(&mut port, LIMIT);
        assert!(completions.iter().all(|completion| railhead_client::outcome(completion).is_ok()));
        for slot in 0..SLOTS {
            let data = pattern(round * SLOTS + slot, usize::try_from(SLOT).unwrap());
            assert_bytes(&read(&destination, slot * SLOT, SLOT), &data, &format!("slot {slot}"));
        }
    }
    assert!(handed(cluster.a()) > 0 && handed(cluster.b()) > 0);
    drop(port);
    cluster.stop();
}

/// The reason is in the API: on, off by the configuration, or off for want of cores with an event.
#[test]
fn who_copies_is_told() {
    let cluster =
        Cluster::start(vec![config("a", "on", ""), config("b", "off", ""), config("c", "auto", "")]);
    let [a, b, c] =
        [0, 1, 2].map(|at| cluster.nodes[at].rest().get("/v1/lanes").expect(200).json["lanes"][0].clone());
    assert_eq!((&a["copies"], &b["copies"]), (&json!("thread"), &json!("lane")));
    let name =
        fs::read_to_string(format!("/proc/{}/task/{}/comm", cluster.a().dataplane_pid(), a["copy_tid"]));
    assert_eq!(name.unwrap().trim(), "railhead-copy-0");
    assert_eq!((&b["copy_tid"], &b["copy_core"]), (&Json::Null, &Json::Null));
    let cores = std::thread::available_parallelism().unwrap().get();
    let expected = if cores >= 3 { "thread" } else { "lane_cores_short" };
    assert_eq!(c["copies"], expected, "{cores} cores");
    let told = event(&cluster.nodes[2], "copy_threads_off");
    assert_eq!(told.is_some(), cores < 3, "{told:?}");
    assert!(event(cluster.b(), "copy_threads_off").is_none(), "what was asked for is no event");
    cluster.stop();
}

/// A copy thread keeps off the cores that lanes are pinned to, live; a pin that fails is an event, and the node works.
#[test]
fn copy_threads_keep_off_the_lanes_cores() {
    let cluster = Cluster::start(vec![config("a", "on", ""), config("b", "on", "copy_cores = [1000]\n")]);
    let a = cluster.a();
    let tid = lanes(a)[0]["copy_tid"].clone();
    let free = cores_of(a, &tid);
    let first: u64 = free.split(['-', ',']).next().unwrap().parse().unwrap();
    a.rest().set(&json!({"lanes.0.core": first}));
    let pinned = until("the copy thread's cores", LIMIT, || Some(cores_of(a, &tid)));
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(pinned.split(['-', ',']).next().unwrap(), first.to_string(), "{free} -> {pinned}");
    }
    a.rest().set(&json!({"lanes.0.core": null}));
    assert_eq!(cores_of(a, &tid), free);
    let failed = event(cluster.b(), "copy_pin_failed").expect("an event");
    assert_eq!(failed["lane"], 0, "{failed}");
    assert_eq!(lanes(cluster.b())[0]["copy_core"], Json::Null);
    cluster.stop();
}
