//! Dataplanes killed and started again, on both ends of transfers.

use std::time::{Duration, Instant};

use railhead_client::{Code, outcome};
use railhead_system::{Cluster, procfs, until};
use serde_json::json;

use crate::load::{Load, REGION_BYTES};
use crate::support::*;

const ROUNDS: u64 = 4;

/// The initiator's own dataplane dies: its clients are told, once for each transfer; control notices and puts the settings
/// back; the peer notices and keeps nothing.
#[test]
fn the_initiators_dataplane_dies() {
    let mut cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _destination = region(&receiver, "destination", REGION_BYTES);
    let _own = region(&receiver, "own", REGION_BYTES);
    let bystander = Load::start(attach(cluster.b(), "bystander", 1), "self", "own", false);
    let changed = cluster.a().rest().set(&json!({"send": {"mode": "staged"}, "pipeline_depth": 5})).json;
    let mut held = None;
    for round in 0..ROUNDS {
        let load = Load::start(attach(cluster.a(), "sender", 1), "b", "destination", true);
        std::thread::sleep(Duration::from_millis(100));
        let incarnation = cluster.a().rest().get("/v1/node").expect(200).json["incarnation"].clone();
        let killed = Instant::now();
        cluster.nodes[0].kill_dataplane();
        let books = load.wait_for_failure();
        assert!(killed.elapsed() < Duration::from_secs(2), "clients were told after {:?}", killed.elapsed());
        books.assert_only(&[Code::DataplaneLost]);
        assert!(books.done > 0);
        until("control says that it is gone", LIMIT, || {
            let answer = cluster.a().rest().get("/readyz");
            (answer.status == 503 && answer.code() == "dataplane_absent").then_some(())
        });
        until("the peer says that it is down", LIMIT, || {
            let node = cluster.b().rest().get("/v1/node").expect(200).json;
            (node["peers"][0]["state"] == "down").then_some(())
        });
        cluster.nodes[0].start_dataplane();
        until("control is ready again", LIMIT, || {
            (cluster.a().rest().get("/readyz").status == 200).then_some(())
        });
        cluster.await_connected();
        let node = cluster.a().rest().get("/v1/node").expect(200).json;
        assert_ne!(node["incarnation"], incarnation);
        let settings = cluster.a().rest().get("/v1/settings").expect(200).json;
        assert_eq!(settings["settings"], changed["settings"], "the settings came back");
        assert_eq!(lanes(cluster.a())[0]["generation"], settings["generation"]);
        // What the dead one held at its peer is given back.
        let pid = cluster.b().dataplane_pid();
        let now = || (procfs::open_files(pid).len(), procfs::mapped_memory_files(pid));
        if round == 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
        let before = *held.get_or_insert_with(now);
        until("the peer holds what it held before", LIMIT, || (now() == before).then_some(()));
    }
    bystander.finish().assert_no_failure();
    let sender = attach(cluster.a(), "sender", 1);
    let source = region(&sender, "", REGION_BYTES);
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    transfer_ok(&mut port, &write(1, &source, &remote, REGION_BYTES));
    drop((port, source, sender, receiver));
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

/// The target's dataplane dies: transfers to it end within a stated time, others do not notice, and after its return a new
/// handle works while the old one stays stale.
#[test]
fn the_targets_dataplane_dies() {
    let mut cluster = Cluster::pair();
    let own = attach(cluster.a(), "own", 1);
    let _own = region(&own, "own", REGION_BYTES);
    let bystander = Load::start(attach(cluster.a(), "bystander", 1), "self", "own", false);
    let sender = attach(cluster.a(), "sender", 1);
    let source = region(&sender, "", REGION_BYTES);
    let mut port = sender.take_port().unwrap();
    let mut held = None;
    for round in 0..ROUNDS {
        let receiver = attach(cluster.b(), "receiver", 1);
        let destination = region(&receiver, "destination", REGION_BYTES);
        let remote = open(&sender, "b", "destination");
        let data = pattern(round, usize::try_from(REGION_BYTES).unwrap());
        source.copy_in(0, &data).unwrap();
        transfer_ok(&mut port, &write(1, &source, &remote, REGION_BYTES));
        assert_bytes(&read(&destination, 0, REGION_BYTES), &data, "after the restart");
        let load = Load::start(attach(cluster.a(), "load", 1), "b", "destination", true);
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        cluster.nodes[1].kill_dataplane();
        let books = load.wait_for_failure();
        assert!(killed.elapsed() < Duration::from_secs(5), "outcomes after {:?}", killed.elapsed());
        books.assert_only(&[Code::PeerDown, Code::Unknown, Code::RemoteHandleStale]);
        drop((destination, receiver));
        cluster.nodes[1].start_dataplane();
        cluster.await_connected();
        let stale = transfer(&mut port, &write(2, &source, &remote, 100));
        assert_eq!(outcome(&stale).unwrap_err().code, Some(Code::RemoteHandleStale), "{stale:?}");
        sender.close(remote.handle()).unwrap();
        let pid = cluster.a().dataplane_pid();
        let now = || (procfs::open_files(pid).len(), procfs::mapped_memory_files(pid));
        if round == 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
        let before = *held.get_or_insert_with(now);
        until("the survivor holds what it held before", LIMIT, || (now() == before).then_some(()));
        assert!(cluster.a().has_event("peer_down") && cluster.a().has_event("peer_up"));
    }
    bystander.finish().assert_no_failure();
    drop((port, source, sender, own));
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

/// A peer that starts late is found, whichever of the two dials.
#[test]
fn a_peer_that_starts_late_is_found() {
    use railhead_system::NodeConfig;
    for late in [0, 1] {
        let mut cluster = Cluster::prepare(vec![NodeConfig::new("a"), NodeConfig::new("b")]);
        cluster.nodes[1 - late].start_both();
        std::thread::sleep(Duration::from_millis(1500));
        cluster.nodes[late].start_both();
        cluster.await_connected();
        cluster.stop();
    }
}

/// Stopped by SIGTERM in the middle of transfers: an end in good order, sockets removed, clients told.
#[test]
fn a_dataplane_that_is_asked_to_stop_under_load_stops_in_good_order() {
    let mut cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _destination = region(&receiver, "destination", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "sender", 1), "b", "destination", true);
    std::thread::sleep(Duration::from_millis(100));
    let mut dataplane = cluster.nodes[0].dataplane.take().unwrap();
    let (status, took) = dataplane.stop();
    assert!(
        status.success() && took < Duration::from_secs(4),
        "{status} after {took:?}: {}",
        dataplane.said()
    );
    assert!(!cluster.a().session_socket().exists() && !cluster.a().admin_socket().exists());
    let books = load.wait_for_failure();
    books.assert_only(&[Code::DataplaneLost, Code::SessionClosed]);
    drop(receiver);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}
