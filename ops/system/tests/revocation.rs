//! A region that is taken back while peers hold it and write to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

#[path = "kill_restart/load.rs"]
mod load;

use std::time::{Duration, Instant};

use load::{Load, REGION_BYTES};
use railhead_client::{Code, Write, outcome};
use railhead_system::{Cluster, Node, NodeConfig, Rest, until};
use rustix::process::Signal;
use serde_json::json;
use support::*;

fn fenced(node: &Node) -> usize {
    node.events().iter().filter(|event| event["event"] == "peer_fenced").count()
}

/// The holder writes all the time: its transfers end with outcomes within the limit, nothing lands afterwards, and another
/// tenant on the same connections notices nothing.
#[test]
fn a_region_that_is_written_to_is_given_up_by_its_holder_and_others_go_on() {
    let cluster = Cluster::pair();
    let (a, b) = (cluster.a(), cluster.b());
    let _ = b.rest().set(&json!({"revoke_max_ms": 2000}));
    let neighbour = attach(b, "neighbour", 1);
    let _kept = region(&neighbour, "kept", REGION_BYTES);
    let bystander = Load::start(attach(a, "bystander", 1), "b", "kept", false);
    let owner = attach(b, "owner", 1);
    let sender = attach(a, "sender", 1);
    let source = region(&sender, "", REGION_BYTES);
    let mut port = sender.take_port().unwrap();
    for round in 0..4 {
        let destination = region(&owner, "goes", REGION_BYTES);
        let stale = open(&sender, "b", "goes");
        let load = Load::start(attach(a, "load", 1), "b", "goes", true);
        std::thread::sleep(Duration::from_millis(100));
        let since = Instant::now();
        // Taken back while it is written to; the memory stays mapped here, so that whatever lands late is seen.
        owner.deregister(destination.handle()).unwrap();
        let took = since.elapsed();
        assert!(took < Duration::from_millis(2500), "round {round} took {took:?}");
        let after = read(&destination, 0, REGION_BYTES);
        let books = load.wait_for_failure();
        assert!(books.done > 0);
        books.assert_only(&[Code::Revoked, Code::RemoteHandleStale]);
        let refused = transfer(&mut port, &write(1, &source, &stale, 100));
        assert_eq!(outcome(&refused).unwrap_err().code, Some(Code::RemoteHandleStale));
        assert_bytes(&read(&destination, 0, REGION_BYTES), &after, "written after it was taken back");
        sender.close(stale.handle()).unwrap();
    }
    bystander.finish().assert_no_failure();
    assert_eq!((fenced(a), fenced(b)), (0, 0));
    drop((port, source, sender, owner, neighbour));
    assert_blocks_home(a, 1);
    assert_blocks_home(b, 1);
    cluster.stop();
}

/// A transfer that cannot end by itself, because the owner takes none of its events, is stopped for the owner.
#[test]
fn a_transfer_that_waits_for_the_owner_is_stopped_in_time() {
    let cluster = Cluster::pair();
    let (a, b) = (cluster.a(), cluster.b());
    let _ = b.rest().set(&json!({"revoke_max_ms": 2000}));
    let owner = attach(b, "owner", 1);
    let destination = region(&owner, "goes", 65_536);
    let sender = attach(a, "sender", 1);
    let source = region(&sender, "", 65_536);
    let remote = open(&sender, "b", "goes");
    let mut port = sender.take_port().unwrap();
    // More events than the ring holds: the last ones wait.
    let count = railhead_abi::segment::EVENT_ENTRIES as u64 + 8;
    let mut ended = Vec::new();
    let mut some = [railhead_client::Completion::default(); 64];
    for number in 0..count {
        let notify = railhead_client::Notify::event(number);
        while port.submit(&Write { notify, ..write(number, &source, &remote, 64) }).is_err() {
            port.wait(LIMIT);
            let count = port.poll(&mut some);
            ended.extend_from_slice(&some[..count]);
        }
    }
    until("the ring of events is full", LIMIT, || {
        port.wait(Duration::from_millis(1));
        let count = port.poll(&mut some);
        ended.extend_from_slice(&some[..count]);
        (ended.len() == railhead_abi::segment::EVENT_ENTRIES).then_some(())
    });
    let since = Instant::now();
    owner.deregister(destination.handle()).unwrap();
    assert!(since.elapsed() < Duration::from_millis(2500), "took {:?}", since.elapsed());
    ended.extend(drain(&mut port, LIMIT));
    assert_eq!(ended.len() as u64, count);
    let failed: Vec<_> = ended.iter().filter_map(|completion| outcome(completion).err()).collect();
    assert_eq!(failed.len(), 8, "{failed:?}");
    assert!(failed.iter().all(|failure| failure.code == Some(Code::Revoked)), "{failed:?}");
    assert_eq!(fenced(b), 0);
    drop((port, source, sender, destination, owner));
    cluster.stop();
}

/// The holder's dataplane is stopped, so it can confirm nothing: the owner gets its memory back within the limit, that peer
/// alone is fenced, and when it goes on it is a peer like before.
#[test]
fn a_holder_that_is_stopped_is_fenced_and_nobody_else() {
    let mut cluster = Cluster::start(["a", "b", "c"].map(NodeConfig::new).to_vec());
    let rest: Rest = cluster.b().rest();
    let _ = rest.set(&json!({"revoke_max_ms": 400}));
    let (owner, neighbour) = (attach(cluster.b(), "owner", 1), attach(cluster.b(), "neighbour", 1));
    let _kept = region(&neighbour, "kept", REGION_BYTES);
    let bystander = Load::start(attach(&cluster.nodes[2], "bystander", 1), "b", "kept", false);
    let own = Load::start(attach(cluster.b(), "own", 1), "self", "kept", false);
    for round in 0..2 {
        cluster.await_connected();
        let destination = region(&owner, "goes", REGION_BYTES);
        let load = Load::start(attach(cluster.a(), "load", 1), "b", "goes", true);
        std::thread::sleep(Duration::from_millis(100));
        cluster.nodes[0].dataplane.as_mut().unwrap().signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(20));
        let since = Instant::now();
        owner.deregister(destination.handle()).unwrap();
        let took = since.elapsed();
        let limits = Duration::from_millis(350)..Duration::from_millis(1500);
        assert!(limits.contains(&took), "round {round} took {took:?}");
        let after = read(&destination, 0, REGION_BYTES);
        assert_eq!(fenced(cluster.b()), round + 1);
        cluster.nodes[0].dataplane.as_mut().unwrap().signal(Signal::CONT);
        let books = load.wait_for_failure();
        books.assert_only(&[Code::Revoked, Code::RemoteHandleStale, Code::Unknown, Code::PeerDown]);
        assert_bytes(&read(&destination, 0, REGION_BYTES), &after, "written after it was taken back");
        drop(destination);
        // It comes back, and other regions are its own to open.
        let sender = attach(cluster.a(), "again", 1);
        let source = region(&sender, "", REGION_BYTES);
        let remote = open(&sender, "b", "kept");
        let mut port = sender.take_port().unwrap();
        until("a transfer goes again", LIMIT, || {
            outcome(&transfer(&mut port, &write(1, &source, &remote, 4096))).ok()
        });
        drop((port, source, sender));
    }
    bystander.finish().assert_no_failure();
    own.finish().assert_no_failure();
    drop((owner, neighbour));
    assert_blocks_home(cluster.b(), 2);
    cluster.stop();
}
