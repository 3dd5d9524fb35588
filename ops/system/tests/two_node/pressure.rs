//! Full is not an error: rings, pools and peers that do not answer.

use std::time::{Duration, Instant};

use railhead_client::{Class, Code, Leg, Write, outcome};
use railhead_system::{Cluster, NodeConfig, procfs, until};
use rustix::process::Signal;

use crate::support::*;

/// As few blocks as the file allows: everything forced staged has to wait its turn, and nothing fails.
const TINY_POOL: &str =
    "hugepages = \"never\"\nsmall_send = 1\nsmall_receive = 4\nlarge_send = 1\nlarge_receive = 1\n";

#[test]
fn full_rings_and_empty_pools_only_hold_up() {
    let config = |name| NodeConfig { pool: TINY_POOL.to_owned(), ..NodeConfig::new(name) };
    let cluster = Cluster::start(vec![config("a"), config("b")]);
    for (target, node) in [("b", cluster.b()), ("self", cluster.a())] {
        let sender = attach_with(cluster.a(), "sender", 1, 16);
        let receiver = attach(node, "receiver", 1);
        let (source, destination) = (region(&sender, "", 4 << 20), region(&receiver, "destination", 4 << 20));
        let remote = open(&sender, target, "destination");
        let data = pattern(9, 4 << 20);
        source.copy_in(0, &data).unwrap();
        destination.fill(0, 4 << 20, POISON).unwrap();
        let mut port = sender.take_port().unwrap();
        let (mut next, mut done, mut full) = (0, 0, 0);
        // 64 KiB pieces of the region, small and large ones mixed, more than the ring holds.
        while done < 64 {
            while next < 64 {
                let bytes = if next % 3 == 0 { 9000 } else { 65_536 };
                let write = Write {
                    class: Class(u8::try_from(next % 2).unwrap()),
                    send_leg: Leg::STAGED,
                    receive_leg: Leg::STAGED,
                    local_offset: next * 65_536,
                    remote_offset: next * 65_536,
                    ..write(next, &source, &remote, bytes)
                };
                if port.submit(&write).is_err() {
                    full += 1;
                    break;
                }
                next += 1;
            }
            assert!(port.wait(LIMIT), "stuck after {done} of 64");
            let mut some = [railhead_client::Completion::default(); 16];
            let count = port.poll(&mut some);
            for completion in &some[..count] {
                outcome(completion)
                    .unwrap_or_else(|failure| panic!("transfer {}: {failure}", completion.cookie));
            }
            done += count;
        }
        assert!(full > 0, "the ring was never full");
        for piece in 0..64_u64 {
            let (at, bytes) = (piece * 65_536, if piece % 3 == 0 { 9000 } else { 65_536 });
            let expected = &data[usize::try_from(at).unwrap()..usize::try_from(at + bytes).unwrap()];
            assert_bytes(&read(&destination, at, bytes), expected, "a piece");
        }
    }
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}

/// Both nodes full of sends to each other must not wait for each other's blocks.
#[test]
fn two_nodes_full_of_sends_do_not_wait_for_each_other() {
    let config = |name| NodeConfig { pool: TINY_POOL.to_owned(), ..NodeConfig::new(name) };
    let cluster = Cluster::start(vec![config("a"), config("b")]);
    std::thread::scope(|scope| {
        for (from, to) in [(cluster.a(), cluster.b()), (cluster.b(), cluster.a())] {
            scope.spawn(move || {
                let session = attach(from, "sender", 1);
                let receiver = attach(to, "receiver", 1);
                let (source, _destination) =
                    (region(&session, "", 1 << 20), region(&receiver, "in", 1 << 20));
                let remote = open(&session, &to.config.name, "in");
                let mut port = session.take_port().unwrap();
                for number in 0..200 {
                    let bytes = if number % 2 == 0 { 1 << 20 } else { 10_000 };
                    let staged = (Leg::STAGED, Leg::STAGED);
                    let write = Write {
                        send_leg: staged.0,
                        receive_leg: staged.1,
                        ..write(number, &source, &remote, bytes)
                    };
                    port.submit(&write).unwrap();
                }
                port.ring();
                let completions = drain(&mut port, Duration::from_secs(60));
                assert!(completions.iter().all(|completion| outcome(completion).is_ok()));
                assert_eq!(completions.len(), 200);
                // Until both are done the other side needs its destination.
                (session, receiver)
            });
        }
    });
    cluster.stop();
}

/// A peer that hangs: the outcome comes within the deadline and `quiesce_max`, and afterwards everything works again.
#[test]
fn a_peer_that_hangs_ends_transfers_within_the_stated_time() {
    const DEADLINE: Duration = Duration::from_millis(300);
    const QUIESCE_MAX: Duration = Duration::from_millis(700);
    let settings = "quiesce_max_ms = 700\n".to_owned();
    let mut cluster =
        Cluster::start(vec![NodeConfig { settings, ..NodeConfig::new("a") }, NodeConfig::new("b")]);
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, destination) = (region(&sender, "", 8 << 20), region(&receiver, "destination", 8 << 20));
    let local = region(&sender, "local", 4096);
    let mut port = sender.take_port().unwrap();
    for (send_leg, receive_leg) in ROUTES {
        let remote = open(&sender, "b", "destination");
        transfer_ok(&mut port, &Write { send_leg, receive_leg, ..write(1, &source, &remote, 8 << 20) });
        let peer = cluster.nodes[1].dataplane.as_mut().unwrap();
        peer.signal(Signal::STOP);
        let pid = peer.pid();
        until("the peer has stopped", LIMIT, || procfs::is_stopped(pid).then_some(()));
        let start = Instant::now();
        let deadline_us = u32::try_from(DEADLINE.as_micros()).unwrap();
        for cookie in 0..8 {
            let write =
                Write { send_leg, receive_leg, deadline_us, ..write(cookie, &source, &remote, 8 << 20) };
            port.submit(&write).unwrap();
        }
        port.ring();
        let completions = drain(&mut port, LIMIT);
        let took = start.elapsed();
        // A shared core may hold a lane up for a while.
        assert!(took < DEADLINE + QUIESCE_MAX + Duration::from_millis(700), "{took:?}");
        assert!(took > DEADLINE / 2, "{took:?}: nobody can know so early");
        for completion in &completions {
            let code = outcome(completion).expect_err("the peer hangs").code;
            let expected = [Code::DeadlineExceeded, Code::Unknown, Code::PeerDown].map(Some);
            assert!(expected.contains(&code), "{completion:?}");
        }
        // Who does not need the peer is not held up.
        let mine = open(&sender, "self", "local");
        transfer_ok(&mut port, &write(9, &source, &mine, 4096));
        cluster.nodes[1].dataplane.as_mut().unwrap().signal(Signal::CONT);
        cluster.await_connected();
        let data = pattern(77, 8 << 20);
        until("the peer serves again", LIMIT, || {
            source.copy_in(0, &data).unwrap();
            destination.fill(0, 8 << 20, POISON).unwrap();
            let remote = sender.open("b", "destination").ok()?;
            let write = Write { send_leg, receive_leg, ..write(2, &source, &remote, 8 << 20) };
            outcome(&transfer(&mut port, &write)).ok()
        });
        assert_bytes(&read(&destination, 0, 8 << 20), &data, "after the peer came back");
    }
    assert_eq!(port.strays(), 0);
    drop((port, local, source, destination, sender, receiver));
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    cluster.stop();
}
