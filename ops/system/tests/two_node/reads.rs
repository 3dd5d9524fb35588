//! Reads: every route and size at an edge, rights, failures, and both nodes reading from each other at once.

use std::time::{Duration, Instant};

use railhead_client::{ACCESS_READ, ACCESS_WRITE, Class, Code, Leg, Read};
use railhead_system::{Cluster, Node, NodeConfig, until};
use rustix::process::Signal;

use crate::support::*;

/// Page, small block, slice and chunk of the defaults, each with its neighbours, and some of many chunks.
const SIZES: [u64; 16] = [
    0, 1, 7, 4095, 4096, 4097, 16_383, 16_384, 16_385, 131_073, 262_143, 262_144, 262_145, 524_287,
    1_048_583, 5_000_011,
];
/// In the destination and in the source.
const OFFSETS: [(u64, u64); 3] = [(65_536, 0), (65_537, 1), (70_001, 8191)];
const REGION_BYTES: u64 = 6 << 20;

fn every_route_and_size(target: &str, of_itself: bool) {
    let cluster = Cluster::pair();
    let reader = attach(cluster.a(), "reader", 1);
    let owner = attach(if of_itself { cluster.a() } else { cluster.b() }, "owner", 1);
    // The owner's region may not be written, the reader's not be read: neither is needed.
    let source = region_for(&owner, "source", REGION_BYTES, ACCESS_READ);
    let destination = region_for(&reader, "", REGION_BYTES, ACCESS_WRITE);
    let remote = open_to_read(&reader, target, "source");
    assert_eq!(remote.bytes(), REGION_BYTES);
    let mut port = reader.take_port().unwrap();
    let mut cookie = 0;
    for (send_leg, receive_leg) in ROUTES {
        for bytes in SIZES {
            for (local_offset, remote_offset) in OFFSETS {
                cookie += 1;
                let class = if cookie % 2 == 0 { Class::BULK } else { Class::LATENCY };
                let read_of = read_of(cookie, destination.handle(), &remote, bytes);
                let asked = Read { class, send_leg, receive_leg, local_offset, remote_offset, ..read_of };
                let data = pattern(cookie, usize::try_from(bytes).unwrap());
                source.copy_in(remote_offset, &data).unwrap();
                poison(&destination, local_offset, bytes);
                port.submit_read(&asked).unwrap();
                let completion = one(&mut port);
                assert_eq!(Code::from_number(completion.status), Some(Code::Ok), "{asked:?}: {completion:?}");
                assert_eq!((completion.cookie, completion.bytes), (cookie, bytes));
                if bytes > 0 {
                    let legs = (Leg(completion.send_leg), Leg(completion.receive_leg));
                    assert_eq!(legs, (send_leg, receive_leg), "{asked:?}: {completion:?}");
                }
                assert_landed(&destination, local_offset, &data, &format!("{asked:?}"));
                assert_bytes(&read(&source, remote_offset, bytes), &data, "the source");
            }
        }
    }
    assert_eq!(port.strays(), 0);
    // The connections of reads have standing credits, too.
    assert_blocks_home(cluster.a(), 2);
    assert_blocks_home(cluster.b(), 2);
    drop(port);
    cluster.stop();
}

#[test]
fn every_route_and_size_from_a_peer() {
    every_route_and_size("b", false);
}

#[test]
fn every_route_and_size_from_the_node_itself() {
    every_route_and_size("self", true);
}

/// The owner's settings decide the owner's leg, the reader's settings the reader's.
#[test]
fn each_node_decides_its_own_leg() {
    let cluster = Cluster::pair();
    let (reader, owner) = (attach(cluster.a(), "reader", 1), attach(cluster.b(), "owner", 1));
    let source = region_for(&owner, "source", 1 << 20, ACCESS_READ);
    let destination = region_for(&reader, "", 1 << 20, ACCESS_WRITE);
    let remote = open_to_read(&reader, "b", "source");
    source.fill(0, 1 << 20, 0x5a).unwrap();
    let mut port = reader.take_port().unwrap();
    let set = |node: &Node, send: &str, receive: &str| {
        node.rest().set(&serde_json::json!({ "send.mode": send, "receive.mode": receive }));
    };
    set(cluster.b(), "staged", "direct");
    set(cluster.a(), "direct", "direct");
    let mut take = |expected: (Leg, Leg)| {
        port.submit_read(&read_of(1, destination.handle(), &remote, 300_000)).unwrap();
        let completion = one(&mut port);
        assert_eq!(completion.status, 0, "{completion:?}");
        assert_eq!((Leg(completion.send_leg), Leg(completion.receive_leg)), expected, "{completion:?}");
    };
    take((Leg::STAGED, Leg::DIRECT));
    set(cluster.b(), "direct", "staged");
    set(cluster.a(), "staged", "staged");
    take((Leg::DIRECT, Leg::STAGED));
    let answer = cluster.a().rest().get("/v1/transfers?limit=1").expect(200);
    let last = &answer.json["transfers"][0];
    assert_eq!((&last["operation"], &last["route"]), (&"read".into(), &"direct-staged".into()), "{last}");
    let told = cluster.a().rest().get(&format!("/v1/transfers/{}", last["ticket"].as_str().unwrap()));
    let why = told.expect(200).json["why"].clone();
    assert!(why["send"].as_str().unwrap().contains("the peer's plan for reads"), "{why}");
    assert!(why["receive"].as_str().unwrap().contains("of settings"), "{why}");
    drop(port);
    cluster.stop();
}

#[test]
fn what_was_not_opened_or_registered_for_it_is_refused() {
    let cluster = Cluster::pair();
    let (reader, owner) = (attach(cluster.a(), "reader", 1), attach(cluster.b(), "owner", 1));
    let _readable = region_for(&owner, "readable", 1 << 16, ACCESS_READ);
    let _writable = region_for(&owner, "writable", 1 << 16, ACCESS_WRITE);
    let own = region_for(&reader, "", 1 << 16, ACCESS_READ | ACCESS_WRITE);
    let source_only = region_for(&reader, "", 1 << 16, ACCESS_READ);
    let to_read = open_to_read(&reader, "b", "readable");
    let to_write = open(&reader, "b", "writable");
    assert_eq!(refusal(reader.open_for("b", "writable", ACCESS_READ)), Code::GrantMissing);
    assert_eq!(refusal(reader.open_for("b", "readable", ACCESS_WRITE)), Code::GrantMissing);
    let mut port = reader.take_port().unwrap();
    let mut status = |read: &Read| {
        port.submit_read(read).unwrap();
        Code::from_number(one(&mut port).status).unwrap()
    };
    assert_eq!(status(&read_of(1, own.handle(), &to_write, 100)), Code::AccessMissing);
    assert_eq!(status(&read_of(2, source_only.handle(), &to_read, 100)), Code::AccessMissing);
    let beyond = Read { remote_offset: 1 << 16, ..read_of(3, own.handle(), &to_read, 1) };
    assert_eq!(status(&beyond), Code::RemoteRange);
    assert_eq!(status(&read_of(4, own.handle(), &to_read, (1 << 16) + 1)), Code::LocalRange);
    assert_eq!(status(&read_of(5, own.handle(), &to_read, 1 << 16)), Code::Ok);
    port.submit(&write(6, &own, &to_read, 100)).unwrap();
    assert_eq!(Code::from_number(one(&mut port).status), Some(Code::AccessMissing));
    drop(port);
    cluster.stop();
}

/// A peer that stops while it serves: the read ends in time, says so, and nothing lands afterwards.
#[test]
fn a_stopped_owner_ends_reads_in_time() {
    let mut cluster = Cluster::pair();
    let (reader, owner) = (attach(cluster.a(), "reader", 1), attach(cluster.b(), "owner", 1));
    let source = region_for(&owner, "source", 64 << 20, ACCESS_READ);
    let destination = region_for(&reader, "", 64 << 20, ACCESS_WRITE);
    source.fill(0, 64 << 20, 0x77).unwrap();
    let remote = open_to_read(&reader, "b", "source");
    let mut port = reader.take_port().unwrap();
    port.submit_read(&read_of(1, destination.handle(), &remote, 4096)).unwrap();
    assert_eq!(one(&mut port).status, 0);
    cluster.nodes[1].dataplane.as_mut().unwrap().signal(Signal::STOP);
    let begin = Instant::now();
    port.submit_read(&Read { deadline_us: 300_000, ..read_of(2, destination.handle(), &remote, 64 << 20) })
        .unwrap();
    let completion = one(&mut port);
    let status = Code::from_number(completion.status).unwrap();
    assert!(matches!(status, Code::DeadlineExceeded | Code::Interrupted | Code::PeerDown), "{completion:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    destination.fill(0, 64 << 20, POISON).unwrap();
    cluster.nodes[1].dataplane.as_mut().unwrap().signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(300));
    let after = read(&destination, 0, 64 << 20);
    assert!(after.iter().all(|byte| *byte == POISON), "a byte landed after the completion");
    // And once it is back, so are its reads.
    until("reading again", LIMIT, || {
        let remote = reader.open_for("b", "source", ACCESS_READ).ok()?;
        port.submit_read(&read_of(3, destination.handle(), &remote, 1 << 20)).ok()?;
        (one(&mut port).status == 0).then_some(())
    });
    assert!(read(&destination, 0, 1 << 20).iter().all(|byte| *byte == 0x77));
    drop(port);
    cluster.stop();
}

/// Two nodes that fill each other's tables with reads do not wait for each other for ever.
#[test]
fn two_nodes_read_from_each_other_at_once() {
    let cluster = Cluster::start(vec![NodeConfig::new("a"), NodeConfig::new("b")]);
    let sides: Vec<_> = [(cluster.a(), "b"), (cluster.b(), "a")]
        .into_iter()
        .map(|(node, other)| {
            let session = attach(node, "both", 1);
            let source = region_for(&session, "source", 1 << 20, ACCESS_READ);
            source.fill(0, 1 << 20, other.as_bytes()[0]).unwrap();
            let destination = region_for(&session, "", 1 << 20, ACCESS_WRITE);
            (session, source, destination, other)
        })
        .collect();
    std::thread::scope(|scope| {
        for (session, _, destination, other) in &sides {
            scope.spawn(move || {
                let remote = open_to_read(session, other, "source");
                let mut port = session.take_port().unwrap();
                for round in 0..8u64 {
                    let mut cookie = 0;
                    let room = port.room() as u64;
                    for at in 0..room {
                        cookie += 1;
                        let leg = if (at + round) % 3 == 0 { Leg::STAGED } else { Leg::AUTO };
                        let bytes = 1 + (at * 7919 + round * 104_729) % 40_000;
                        let offset = (at * 4096) % ((1 << 20) - 40_000);
                        port.submit_read(&Read {
                            send_leg: leg,
                            receive_leg: leg,
                            local_offset: offset,
                            remote_offset: offset,
                            ..read_of(cookie, destination.handle(), &remote, bytes)
                        })
                        .unwrap();
                    }
                    port.ring();
                    for completion in drain(&mut port, LIMIT) {
                        assert_eq!(completion.status, 0, "{completion:?}");
                    }
                }
            });
        }
    });
    for (_, _, destination, _) in &sides {
        let own = read(destination, 0, 1);
        assert!(own[0] == b'a' || own[0] == b'b');
    }
    drop(sides);
    cluster.stop();
}

/// The load generator reads, and verifies what it has read.
#[test]
fn a_sweep_reads_and_verifies() {
    let cluster = Cluster::pair();
    let bench = railhead_system::binary("railhead-bench");
    let mut serve = std::process::Command::new(&bench);
    serve.args(["serve", "--once", "--socket"]).arg(cluster.b().session_socket());
    let log = cluster.b().file().with_extension("serve.log");
    let mut serving = railhead_system::Process::start("serve", &mut serve, &log);
    let mut sweep = std::process::Command::new(&bench);
    sweep.args(["sweep", "--operation", "read", "--sizes", "1,4097,300K", "--iterations", "200"]);
    sweep.args(["--to", "b", "--json", "-", "--socket"]).arg(cluster.a().session_socket());
    let ended = railhead_system::run(&mut sweep, LIMIT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&report["operation"], &report["verified"]), (&"read".into(), &true.into()), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "three sizes by four routes");
    for row in rows {
        let routes = row["routes"].as_object().unwrap();
        assert_eq!(routes.keys().collect::<Vec<_>>(), [row["route"].as_str().unwrap()], "{row}");
    }
    assert!(serving.wait(LIMIT).success());
    cluster.stop();
}
