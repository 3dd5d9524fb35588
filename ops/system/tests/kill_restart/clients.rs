//! Killed clients: their transfers end, their memory and blocks come home, and nobody else notices.

use std::process::Command;
use std::time::Duration;

use railhead_client::{AttachOptions, Code, Notify, Session, Write, outcome};
use railhead_system::{Cluster, Node, Process, procfs, until};

use crate::load::{Load, REGION_BYTES};
use crate::support::*;

const ROUNDS: usize = 12;
/// Tells the child what it is: `send SOCKET NODE REGION` or `receive SOCKET REGION`.
const ROLE: &str = "RAILHEAD_TEST_CLIENT";

/// Not a test: this binary as a client process that the tests below kill.
#[test]
#[ignore = "the body of a client process; started by the other tests"]
fn client_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let attach = |name| {
        let options = AttachOptions { name, ports: 2, ..AttachOptions::default() };
        Session::attach(words[1], &options).unwrap()
    };
    if words[0] == "receive" {
        let session = attach("victim");
        let _region = region(&session, words[2], REGION_BYTES);
        println!("receiving");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let session = attach("victim");
    let source = region(&session, "", REGION_BYTES);
    let _own = region(&session, "own", REGION_BYTES);
    let (to_peer, to_self) = (open(&session, words[2], words[3]), open(&session, "self", "own"));
    let mut events = session.take_events().unwrap();
    let mut ports = [session.take_port().unwrap(), session.take_port().unwrap()];
    println!("sending");
    let mut cookie = 0;
    loop {
        for (port, remote) in ports.iter_mut().zip([&to_peer, &to_self]) {
            for (send_leg, receive_leg) in ROUTES {
                cookie += 1;
                let notify = Notify::event(cookie);
                // The ring may be full: at the peer nobody takes the events, so deliveries wait there.
                let _ = port.submit(&Write {
                    send_leg,
                    receive_leg,
                    notify,
                    ..write(cookie, &source, remote, REGION_BYTES)
                });
            }
            port.wait(Duration::from_millis(1));
            let mut some = [railhead_client::Completion::default(); 4];
            port.poll(&mut some);
        }
        events.poll(&mut [railhead_client::SessionEvent::default(); 16]);
    }
}

/// Starts this binary as a client and waits until it is at work.
fn client(cluster: &Cluster, round: usize, role: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "clients::client_process", "--ignored", "--nocapture"]).env(ROLE, role);
    let log = cluster.folder().join(format!("client-{round}.log"));
    let mut process = Process::start("client", &mut command, &log);
    let ready = if role.starts_with("send") { "sending" } else { "receiving" };
    until("the client is at work", LIMIT, || {
        assert!(process.ended().is_none(), "the client ended: {}", process.said());
        process.said().contains(ready).then_some(())
    });
    process
}

/// What a dataplane holds: descriptors and mapped memory files.
fn held(node: &Node) -> (usize, usize) {
    let pid = node.dataplane_pid();
    (procfs::open_files(pid).len(), procfs::mapped_memory_files(pid))
}

/// Waits until the node holds what it held before and all ports of the dead are gone.
#[track_caller]
fn assert_as_before(node: &Node, before: (usize, usize), ports: u64) {
    let mut now = before;
    let back = railhead_system::within(Duration::from_secs(10), || {
        now = held(node);
        let open: u64 = lanes(node).iter().filter_map(|lane| lane["ports"].as_u64()).sum();
        (now == before && open == ports).then_some(())
    });
    let files = procfs::open_files(node.dataplane_pid());
    assert!(back.is_some(), "{} holds {now:?} and not {before:?}: {files:?}", node.config.name);
}

#[test]
fn killed_senders_cost_nobody_else() {
    let cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _steady = region(&receiver, "steady", REGION_BYTES);
    let _victims = region(&receiver, "victims", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "steady", 1), "b", "steady", false);
    let role = format!("send {} b victims", cluster.a().session_socket().display());
    // The first round makes what is made once.
    client(&cluster, 0, &role).kill();
    std::thread::sleep(Duration::from_secs(1));
    let before = [held(cluster.a()), held(cluster.b())];
    for round in 1..=ROUNDS {
        let mut process = client(&cluster, round, &role);
        std::thread::sleep(Duration::from_millis(20 + 7 * round as u64));
        process.kill();
        assert_as_before(cluster.a(), before[0], 1);
        assert_as_before(cluster.b(), before[1], 1);
        // Who comes next finds everything free, the name too.
        let next = attach(cluster.a(), "victim", 1);
        let source = region(&next, "", 4096);
        let mut port = next.take_port().unwrap();
        let remote = open(&next, "b", "victims");
        transfer_ok(&mut port, &write(1, &source, &remote, 4096));
        drop((port, source, next));
        assert_as_before(cluster.a(), before[0], 1);
    }
    load.finish().assert_no_failure();
    drop(receiver);
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

#[test]
fn killed_receivers_end_the_transfers_to_them_and_no_others() {
    let cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _steady = region(&receiver, "steady", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "steady", 1), "b", "steady", false);
    let role = format!("receive {} victim", cluster.b().session_socket().display());
    let mut before = None;
    for round in 0..ROUNDS {
        let mut process = client(&cluster, round, &role);
        let doomed = Load::start(attach(cluster.a(), "doomed", 1), "b", "victim", true);
        std::thread::sleep(Duration::from_millis(30 + 5 * round as u64));
        process.kill();
        let books = doomed.wait_for_failure();
        books.assert_only(&[
            Code::RemoteRefused,
            Code::RemoteHandleStale,
            Code::RemoteRegionLost,
            Code::Unknown,
            Code::SessionClosed,
        ]);
        assert!(books.done > 0 || round > 0, "nothing was moved before the kill: {books:?}");
        match before {
            None => {
                std::thread::sleep(Duration::from_secs(1));
                before = Some((held(cluster.a()), held(cluster.b())));
            }
            Some((a, b)) => {
                assert_as_before(cluster.a(), a, 1);
                assert_as_before(cluster.b(), b, 1);
            }
        }
    }
    load.finish().assert_no_failure();
    drop(receiver);
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

/// Memory that its owner takes away under a lane: that region is lost, the lane and all others go on.
#[test]
fn memory_taken_away_under_a_lane_costs_its_owner_only() {
    let cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _steady = region(&receiver, "steady", REGION_BYTES);
    let destination = region(&receiver, "destination", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "steady", 1), "b", "steady", false);
    let session = attach(cluster.a(), "hole", 1);
    let source = region(&session, "", REGION_BYTES);
    let remote = open(&session, "b", "destination");
    let mut port = session.take_port().unwrap();
    transfer_ok(&mut port, &write(1, &source, &remote, REGION_BYTES));
    // Ordinary pages come back as zeroes: not an error, and it must not become one.
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(source.file(), flags, 0, REGION_BYTES).unwrap();
    let completion = transfer(&mut port, &write(2, &source, &remote, REGION_BYTES));
    assert!(outcome(&completion).is_ok(), "{completion:?}");
    assert!(read(&destination, 0, REGION_BYTES).iter().all(|byte| *byte == 0));
    drop((port, source));
    load.finish().assert_no_failure();
    cluster.stop();
}
