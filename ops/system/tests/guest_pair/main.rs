//! In two guests at once, one node in each: `ops/lab/run-tests --pair -- railhead-system/guest_pair`. Both run the same
//! test at the same time, and each is the other's peer. Unlike nodes on one machine, their only way is the wire.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use railhead_client::{Events, Notify, Port, Region, Remote, Write};
use railhead_system::guest::{self, Impaired};
use railhead_system::{Folder, Node, NodeConfig, Peer, write_key};
use support::*;

const FABRIC_PORT: u16 = 7410;
const WIRE: &str = "eth0";
/// The first test waits for the other guest to come up, and a lossy wire is slow.
const PEER_LIMIT: Duration = Duration::from_secs(60);
const SIZES: [u64; 5] = [0, 1, 5000, 70_001, 600_000];
const ROUNDS: u64 = 20;
const SLOT_BYTES: u64 = 1 << 20;
/// How often each machine cuts its end, for how long, and how long after the last time.
const CUTS: usize = 5;
const CUT: Duration = Duration::from_millis(200);
const CUT_EVERY: Duration = Duration::from_millis(300);
/// Signals: a message has come; the other side has seen all of them.
const ARRIVED: u32 = 1;
const SEEN: u32 = 2;

/// One machine's node, and a client that has the other machine's memory open.
struct Machine {
    peer: &'static str,
    node: Node,
    // Dropped behind the node, which writes into it.
    _folder: Folder,
}

impl Machine {
    fn start() -> Self {
        guest::needs("pair");
        let own = std::env::var("RAILHEAD_LAB_ADDRESS").unwrap();
        let (name, peer, other) =
            if own == "10.7.0.1" { ("a", "b", "10.7.0.2") } else { ("b", "a", "10.7.0.1") };
        let folder = Folder::new();
        write_key(&folder.join("cluster.key"), '7');
        let mut config = NodeConfig { fabric_port: FABRIC_PORT, ..NodeConfig::new(name) };
        config.peers = vec![Peer { name: peer.to_owned(), port: FABRIC_PORT }];
        let mut node = Node::new(config, folder.path());
        let loopback = format!("\"127.0.0.1:{FABRIC_PORT}\"");
        let text = node.config.text();
        let text = text.replacen(&loopback, &format!("\"{own}:{FABRIC_PORT}\""), 1);
        let text = text.replacen(&loopback, &format!("\"{other}:{FABRIC_PORT}\""), 1);
        std::fs::write(node.file(), text).unwrap();
        node.start_both();
        Self { peer, node, _folder: folder }
    }

    /// Writes everything to the other machine while it does the same, checks what it wrote here, and waits until it has
    /// checked, too. Rests for `pace` between writes; `disturb` runs meanwhile.
    fn exchange(&mut self, pace: Duration, disturb: impl FnOnce()) {
        let session = attach(&self.node, "client", 1);
        let inbox = region(&session, "inbox", ROUNDS * SLOT_BYTES);
        let source = region(&session, "", SLOT_BYTES);
        let remote = open_within(&session, self.peer, "inbox", PEER_LIMIT);
        let (mut port, mut events) = (session.take_port().unwrap(), session.take_events().unwrap());
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write_all(&mut port, &source, &remote, pace));
            disturb();
            check_all(&mut events, &inbox);
            writing.join().unwrap();
        });
        let seen = Write { notify: Notify::signal(SEEN, 1), ..write(1, &source, &remote, 0) };
        completes(&mut port, &seen);
        assert!(await_signal(&mut events, SEEN, 1), "the other machine has not seen all");
        drop((port, events, source, inbox, session));
        assert_blocks_home(&self.node, 1);
        self.node.stop();
    }
}

fn await_signal(events: &mut Events, index: u32, value: u64) -> bool {
    events.wait_signal(usize::try_from(index).unwrap(), value, PEER_LIMIT).unwrap()
}

/// What both machines write in a round: bytes, and the seed of the pattern.
fn message(round: u64) -> (u64, u64) {
    (SIZES[usize::try_from(round).unwrap() % SIZES.len()], 7 + round)
}

fn write_all(port: &mut Port, source: &Region, remote: &Remote, pace: Duration) {
    for round in 0..ROUNDS {
        let (bytes, seed) = message(round);
        let (send_leg, receive_leg) = ROUTES[usize::try_from(round / 5).unwrap() % 4];
        source.copy_in(0, &pattern(seed, usize::try_from(bytes).unwrap())).unwrap();
        let notify = Notify::signal(ARRIVED, 1);
        let remote_offset = round * SLOT_BYTES;
        let write = write(round, source, remote, bytes);
        completes(port, &Write { send_leg, receive_leg, notify, remote_offset, ..write });
        std::thread::sleep(pace);
    }
}

/// Submits one write, waits long enough for the worst wire, and asserts its success.
#[track_caller]
fn completes(port: &mut Port, write: &Write) {
    port.submit(write).unwrap();
    port.ring();
    assert_ok(&one_within(port, PEER_LIMIT), write);
}

/// Each message is there, whole, when its signal says so.
fn check_all(events: &mut Events, inbox: &Region) {
    for round in 0..ROUNDS {
        assert!(await_signal(events, ARRIVED, round + 1), "message {round} did not come");
        let (bytes, seed) = message(round);
        let expected = pattern(seed, usize::try_from(bytes).unwrap());
        assert_bytes(&read(inbox, round * SLOT_BYTES, bytes), &expected, &format!("message {round}"));
    }
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_write_into_each_other() {
    let mut machine = Machine::start();
    let before = guest::sent_bytes(WIRE);
    machine.exchange(Duration::ZERO, || ());
    let payload: u64 = (0..ROUNDS).map(|round| message(round).0).sum();
    assert!(guest::sent_bytes(WIRE) - before >= payload, "the bytes went elsewhere");
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_over_a_wire_that_loses() {
    let mut machine = Machine::start();
    let lossy = Impaired::new(WIRE, "loss 2%");
    machine.exchange(Duration::ZERO, || ());
    assert!(lossy.dropped() > 0, "nothing was lost");
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_over_a_wire_that_is_cut_again_and_again() {
    let mut machine = Machine::start();
    machine.exchange(CUT_EVERY / 2, || {
        for _ in 0..CUTS {
            std::thread::sleep(CUT_EVERY);
            guest::set_link(WIRE, false);
            std::thread::sleep(CUT);
            guest::set_link(WIRE, true);
        }
    });
}
