//! Peers added and removed while transfers run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

#[path = "kill_restart/load.rs"]
mod load;

use std::process::Command;
use std::time::{Duration, Instant};

use load::{Load, REGION_BYTES};
use railhead_client::{Code, outcome};
use railhead_system::{Cluster, Node, NodeConfig, binary, procfs, run, until};
use serde_json::json;
use support::*;

fn add(to: &Node, peer: &Node) -> railhead_system::Answer {
    let address = format!("127.0.0.1:{}", peer.config.fabric_port);
    to.rest().post("/v1/peers", &json!({"name": peer.config.name, "address": address}).to_string())
}

fn await_up(node: &Node, peer: &str) {
    until(&format!("{peer} is up at {}", node.config.name), LIMIT, || {
        let answer = node.rest().get(&format!("/v1/peers/{peer}"));
        (answer.status == 200 && answer.json["state"] == "up").then_some(())
    });
}

/// Two nodes that did not know each other, then do, and still do after both were started again.
#[test]
fn peers_that_were_added_live_are_there_after_a_restart() {
    let mut cluster = Cluster::prepare_as_they_are(vec![NodeConfig::new("a"), NodeConfig::new("b")]);
    cluster.nodes.iter_mut().for_each(Node::start_both);
    let (a, b) = (cluster.a(), cluster.b());
    assert_eq!(a.rest().get("/v1/peers").expect(200).json, json!({"peers": [], "room": 8}));
    assert_eq!(add(a, b).expect(201).json["saved"], true);
    assert_eq!(add(a, b).expect(409).code(), "name_taken");
    assert_eq!(a.rest().get("/v1/peers/b").expect(200).json["state"], "down");
    // By the command, as an operator would.
    let address = format!("127.0.0.1:{}", a.config.fabric_port);
    let ended = run(
        Command::new(binary("railhead")).args(["--url", b.rest().base(), "peers", "add", "a", &address]),
        LIMIT,
    );
    assert_eq!((ended.code, ended.out.starts_with("a is added")), (Some(0), true), "{ended:?}");
    for round in 0..2 {
        await_up(cluster.a(), "b");
        await_up(cluster.b(), "a");
        let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
        let (source, destination) =
            (region(&sender, "", REGION_BYTES), region(&receiver, "destination", REGION_BYTES));
        let data = pattern(round, usize::try_from(REGION_BYTES).unwrap());
        source.copy_in(0, &data).unwrap();
        let remote = open(&sender, "b", "destination");
        let mut port = sender.take_port().unwrap();
        for (send_leg, receive_leg) in ROUTES {
            destination.fill(0, REGION_BYTES, POISON).unwrap();
            let write =
                railhead_client::Write { send_leg, receive_leg, ..write(1, &source, &remote, REGION_BYTES) };
            transfer_ok(&mut port, &write);
            assert_bytes(&read(&destination, 0, REGION_BYTES), &data, "over the new connection");
        }
        drop((port, source, destination, sender, receiver));
        if round == 0 {
            cluster.nodes.iter_mut().for_each(Node::stop);
            cluster.nodes.iter_mut().for_each(Node::start_both);
        }
    }
    cluster.stop();
}

/// A peer is removed while transfers to it, from it and to another peer run: the first two end with outcomes, the third
/// does not notice. Then it is added again and works.
#[test]
fn a_peer_that_is_removed_under_load_takes_nothing_with_it() {
    let cluster = Cluster::start(["a", "b", "c"].map(NodeConfig::new).to_vec());
    let (a, b, c) = (cluster.a(), cluster.b(), &cluster.nodes[2]);
    let owners = [a, b, c].map(|node| attach(node, "owner", 1));
    let _regions = owners.each_ref().map(|owner| region(owner, "destination", REGION_BYTES));
    let bystander = Load::start(attach(a, "bystander", 1), "c", "destination", false);
    let sender = attach(a, "kept", 1);
    let source = region(&sender, "", REGION_BYTES);
    let kept = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    transfer_ok(&mut port, &write(1, &source, &kept, REGION_BYTES));
    let mut files = None;
    for round in 0..3 {
        await_up(a, "b");
        let to_b = Load::start(attach(a, "to-b", 1), "b", "destination", true);
        let from_b = Load::start(attach(b, "from-b", 1), "a", "destination", true);
        std::thread::sleep(Duration::from_millis(150));
        let since = Instant::now();
        let removed = a.rest().delete("/v1/peers/b?drain_ms=100").expect(200);
        assert_eq!(removed.json, json!({"name": "b", "saved": true, "pending": false}), "round {round}");
        assert!(since.elapsed() < Duration::from_secs(5), "took {:?}", since.elapsed());
        let books = to_b.wait_for_failure();
        books.assert_only(&[Code::RemoteHandleStale, Code::PeerDown, Code::Unknown]);
        let books = from_b.wait_for_failure();
        books.assert_only(&[Code::Revoked, Code::RemoteHandleStale, Code::PeerDown, Code::Unknown]);
        let stale = transfer(&mut port, &write(2, &source, &kept, 100));
        assert_eq!(outcome(&stale).unwrap_err().code, Some(Code::RemoteHandleStale), "{stale:?}");
        assert_eq!(refusal(sender.open("b", "destination")), Code::PeerUnknown);
        assert_eq!(a.rest().delete("/v1/peers/b").expect(404).code(), "peer_unknown");
        assert!(a.has_event("peer_removed"));
        until("the other node says why it is not let in", LIMIT, || {
            let peer = b.rest().get("/v1/peers/a").expect(200).json;
            (peer["state"] == "down").then_some(())
        });
        let now =
            || (procfs::open_files(a.dataplane_pid()).len(), procfs::mapped_memory_files(a.dataplane_pid()));
        let before = *files.get_or_insert_with(|| {
            std::thread::sleep(Duration::from_millis(500));
            now()
        });
        until("it holds what it held before", LIMIT, || (now() == before).then_some(()));
        let _ = add(a, b).expect(201);
        await_up(a, "b");
        let again = open(&sender, "b", "destination");
        transfer_ok(&mut port, &write(3, &source, &again, REGION_BYTES));
        sender.close(again.handle()).unwrap();
    }
    // A handle of a peer that was removed can be given back, whoever has its slot now.
    sender.close(kept.handle()).unwrap();
    bystander.finish().assert_no_failure();
    drop((port, source, sender, owners));
    assert_blocks_home(a, 2);
    assert_blocks_home(b, 2);
    cluster.stop();
}

/// Tables have room from the start; what does not fit is refused and changes nothing.
#[test]
fn peers_beyond_the_room_and_such_as_cannot_be_are_refused() {
    let mut cluster = Cluster::prepare_as_they_are(vec![NodeConfig::new("a"), NodeConfig::new("b")]);
    cluster.nodes[0].start_both();
    let (a, b) = (cluster.a(), cluster.b());
    let post = |name: &str, address: &str| {
        a.rest().post("/v1/peers", &json!({"name": name, "address": address}).to_string())
    };
    for (name, address, status, code, field) in [
        ("a", "h:1", 409, "config_contradiction", "name"),
        ("self", "h:1", 422, "config_field", "name"),
        ("x/y", "h:1", 422, "name_invalid", "name"),
        ("x", "h", 422, "config_field", "address"),
        ("x", "h:0", 422, "config_field", "address"),
    ] {
        let answer = post(name, address).expect(status);
        assert_eq!((answer.code(), &answer.json["field"]), (code, &json!(field)), "{name} at {address}");
    }
    for at in 0..8 {
        let _ = post(&format!("p{at}"), &format!("127.0.0.1:{}", 1 + at)).expect(201);
    }
    assert_eq!(add(a, b).expect(409).code(), "peers_full");
    assert_eq!(post("q", "127.0.0.1:1").expect(409).code(), "config_contradiction", "the address of another");
    assert_eq!(a.rest().get("/v1/peers").expect(200).json["peers"].as_array().unwrap().len(), 8);
    let _ = a.rest().delete("/v1/peers/p3").expect(200);
    let _ = add(a, b).expect(201);
    cluster.stop();
}
