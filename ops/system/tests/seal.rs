//! A sealed lane allocates nothing, faults on nothing and, in `spin`, never gives up its core. Counted by the kernel, not
//! only by the dataplane.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use railhead_client::{Class, Notify, SessionEvent, Write, outcome};
use railhead_system::{Cluster, Node, NodeConfig, procfs};
use serde_json::json;
use support::*;

const REGION_BYTES: u64 = 4 << 20;
/// Long enough for an idle lane to show what it does.
const IDLE: Duration = Duration::from_millis(500);

/// Facts of each lane's thread, and its copy thread if it has one, of both nodes.
fn threads(nodes: [&Node; 2]) -> Vec<(u32, u64, procfs::ThreadFacts)> {
    nodes
        .iter()
        .flat_map(|node| {
            let pid = node.dataplane_pid();
            let copies = lanes(node).into_iter().filter_map(|lane| lane["copy_tid"].as_u64());
            let tids = lane_tids(node).into_iter().chain(copies);
            tids.map(move |tid| (pid, tid, procfs::thread(pid, tid)))
        })
        .collect()
}

/// One client after the other attaches, moves data by all routes, is refused things, and leaves.
fn load(nodes: [&Node; 2]) {
    for target in ["b", "self", "b"] {
        let sender = attach(nodes[0], "sender", 1);
        let receiver = attach(nodes[usize::from(target == "b")], "receiver", 1);
        let source = region(&sender, "", REGION_BYTES);
        let _destination = region(&receiver, "destination", REGION_BYTES);
        let remote = open(&sender, target, "destination");
        let mut port = sender.take_port().unwrap();
        let mut events = receiver.take_events().unwrap();
        for round in 0..6 {
            for (send_leg, receive_leg) in ROUTES {
                for bytes in [0, 1, 4096, 16_384, 16_385, 262_145, REGION_BYTES] {
                    let class = if round % 2 == 0 { Class::BULK } else { Class::LATENCY };
                    let notify = if round % 3 == 0 { Notify::signal(1, 1) } else { Notify::event(round) };
                    let write = Write {
                        class,
                        send_leg,
                        receive_leg,
                        notify,
                        ..write(round, &source, &remote, bytes)
                    };
                    port.submit(&write).unwrap();
                    port.submit(&Write { bytes: REGION_BYTES + 1, ..write }).unwrap();
                }
            }
            let completions = drain(&mut port, LIMIT);
            let good = completions.iter().filter(|completion| outcome(completion).is_ok()).count();
            assert_eq!((good, completions.len()), (28, 56));
            let mut some = [SessionEvent::default(); 64];
            events.poll(&mut some);
        }
        sender.close(remote.handle()).unwrap();
        source.release().unwrap();
    }
}

/// Settings changes are applied by lanes as well.
fn change_settings(nodes: [&Node; 2]) {
    for node in nodes {
        for number in 0..20 {
            node.rest().set(
                &json!({"send.direct_from_bytes": 1000 + number, "chunk_bytes": 65_536 << (number % 3)}),
            );
        }
    }
}

fn sealed(settings: &str, quiet: fn(&procfs::ThreadFacts) -> u64, what: &str) {
    sealed_with("copy_threads = \"off\"\n", settings, quiet, what);
}

fn sealed_with(dataplane: &str, settings: &str, quiet: fn(&procfs::ThreadFacts) -> u64, what: &str) {
    let config = |name| NodeConfig {
        dataplane: dataplane.to_owned(),
        settings: settings.to_owned(),
        ..NodeConfig::new(name)
    };
    let cluster = Cluster::start(vec![config("a"), config("b")]);
    let nodes = [cluster.a(), cluster.b()];
    let before = threads(nodes);
    load(nodes);
    change_settings(nodes);
    load(nodes);
    std::thread::sleep(IDLE);
    let after = threads(nodes);
    for ((pid, tid, before), (_, _, after)) in before.iter().zip(&after) {
        assert_eq!(
            quiet(after) - quiet(before),
            0,
            "{what} of lane thread {tid} of process {pid}: {before:?} {after:?}"
        );
        assert!(after.cpu_ticks > before.cpu_ticks, "the thread did nothing: {before:?} {after:?}");
    }
    for node in nodes {
        let rest = node.rest();
        assert_eq!(rest.counter("allocations_after_seal_total"), 0, "{}", node.config.name);
        assert_eq!(rest.counter("minor_faults_total"), 0, "{}", node.config.name);
        assert!(rest.counter("inbound_transfers_total") > 100, "{}", node.config.name);
        assert!(lanes(node).iter().all(|lane| lane["state"] == "running"));
    }
    cluster.stop();
}

#[test]
fn a_sealed_lane_neither_allocates_nor_faults() {
    sealed("idle.policy = \"adaptive\"\n", |facts| facts.minor_faults, "minor faults");
}

#[test]
fn a_sealed_lane_in_spin_neither_allocates_nor_faults() {
    sealed("idle.policy = \"spin\"\n", |facts| facts.minor_faults, "minor faults");
}

#[test]
fn a_sealed_lane_in_spin_never_gives_up_its_core() {
    sealed("idle.policy = \"spin\"\n", |facts| facts.voluntary_switches, "voluntary switches");
}

#[test]
fn a_copy_thread_is_sealed_like_its_lane() {
    let (on, spin) = ("copy_threads = \"on\"\n", "idle.policy = \"spin\"\n");
    sealed_with(on, spin, |facts| facts.minor_faults + facts.voluntary_switches, "faults and switches");
}

/// The other policy is what it says: an idle lane sleeps, and costs next to nothing.
#[test]
fn an_idle_adaptive_lane_sleeps_under_the_seal() {
    let cluster = Cluster::pair();
    load([cluster.a(), cluster.b()]);
    std::thread::sleep(IDLE);
    let before = threads([cluster.a(), cluster.b()]);
    std::thread::sleep(Duration::from_secs(2));
    for ((_, tid, before), (_, _, after)) in before.iter().zip(threads([cluster.a(), cluster.b()])) {
        // Ticks of 10 ms: 2 in 2 s are 1 %.
        assert!(
            after.cpu_ticks - before.cpu_ticks <= 2,
            "lane thread {tid} is not idle: {before:?} {after:?}"
        );
    }
    cluster.stop();
}
