//! In two guests at once, one node in each: `ops/lab/run-tests --pair -- railhead-system/guest_pair`. Both run the same
//! test at the same time, and each is the other's peer. Unlike nodes on one machine, their only way is the wire.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use railhead_client::{Code, Events, Notify, Port, Region, Remote, Session, Write, outcome};
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
/// Signals: a message has come; the other side has seen all of them; they have all been sent.
const ARRIVED: u32 = 1;
const SEEN: u32 = 2;
const ALL: u32 = 3;

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
    /// checked, too. `disturb` runs meanwhile.
    fn exchange(&mut self, wire: Wire, disturb: impl FnOnce()) {
        let session = attach(&self.node, "client", 1);
        let inbox = region(&session, "inbox", ROUNDS * SLOT_BYTES);
        let source = region(&session, "", SLOT_BYTES);
        let remote = open_within(&session, self.peer, "inbox", PEER_LIMIT);
        let (port, mut events) = (session.take_port().unwrap(), session.take_events().unwrap());
        let mut writer = Writer { session: &session, peer: self.peer, port, source, remote, wire };
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| writer.write_all());
            disturb();
            if wire == Wire::Whole {
                check_each(&mut events, &inbox);
            } else {
                assert!(await_signal(&mut events, ALL, 1), "the messages did not come");
                (0..ROUNDS).for_each(|round| check(&inbox, round));
            }
            writing.join().unwrap();
        });
        writer.tell(SEEN);
        assert!(await_signal(&mut events, SEEN, 1), "the other machine has not seen all");
        drop(writer);
        drop((events, inbox, session));
        assert_blocks_home(&self.node, 1);
        self.node.stop();
    }
}

/// What may become of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// Each succeeds.
    Whole,
    /// Connections may end, and with them transfers; but each message comes through in the end.
    Cut,
}

/// The sending side of one machine.
struct Writer<'a> {
    session: &'a Session,
    peer: &'static str,
    port: Port,
    source: Region,
    remote: Remote,
    wire: Wire,
}

impl Writer<'_> {
    fn write_all(&mut self) {
        for round in 0..ROUNDS {
            let (bytes, seed) = message(round);
            let (send_leg, receive_leg) = ROUTES[usize::try_from(round / 5).unwrap() % 4];
            self.source.copy_in(0, &pattern(seed, usize::try_from(bytes).unwrap())).unwrap();
            let notify = Notify::signal(ARRIVED, 1);
            let places = Write { remote_offset: round * SLOT_BYTES, bytes, ..self.nothing() };
            self.completes(&Write { send_leg, receive_leg, notify, ..places });
            if self.wire == Wire::Cut {
                std::thread::sleep(CUT_EVERY / 2);
            }
        }
        self.tell(ALL);
    }

    /// Adds to a signal of the other machine's client. When an end is not known it may be added to again.
    fn tell(&mut self, signal: u32) {
        let write = Write { notify: Notify::signal(signal, 1), ..self.nothing() };
        self.completes(&write);
    }

    fn nothing(&self) -> Write {
        write(7, &self.source, &self.remote, 0)
    }

    /// Submits one write, waits long enough for the worst wire, and asserts its success; over a wire that is cut, again
    /// and again until it has.
    fn completes(&mut self, write: &Write) {
        let start = Instant::now();
        loop {
            let write = Write { remote: self.remote.handle(), ..*write };
            self.port.submit(&write).unwrap();
            self.port.ring();
            let completion = one_within(&mut self.port, PEER_LIMIT);
            match outcome(&completion) {
                Err(failure) if self.wire == Wire::Cut && start.elapsed() < PEER_LIMIT => {
                    if failure.code == Some(Code::RemoteHandleStale) {
                        self.remote = open_within(self.session, self.peer, "inbox", PEER_LIMIT);
                    }
                }
                _ => return assert_ok(&completion, &write),
            }
        }
    }
}

fn await_signal(events: &mut Events, index: u32, value: u64) -> bool {
    events.wait_signal(usize::try_from(index).unwrap(), value, PEER_LIMIT).unwrap()
}

/// What both machines write in a round: bytes, and the seed of the pattern.
fn message(round: u64) -> (u64, u64) {
    (SIZES[usize::try_from(round).unwrap() % SIZES.len()], 7 + round)
}

/// Each message is there, whole, when its signal says so.
fn check_each(events: &mut Events, inbox: &Region) {
    for round in 0..ROUNDS {
        assert!(await_signal(events, ARRIVED, round + 1), "message {round} did not come");
        check(inbox, round);
    }
}

#[track_caller]
fn check(inbox: &Region, round: u64) {
    let (bytes, seed) = message(round);
    let expected = pattern(seed, usize::try_from(bytes).unwrap());
    assert_bytes(&read(inbox, round * SLOT_BYTES, bytes), &expected, &format!("message {round}"));
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_write_into_each_other() {
    let mut machine = Machine::start();
    let before = guest::sent_bytes(WIRE);
    machine.exchange(Wire::Whole, || ());
    let payload: u64 = (0..ROUNDS).map(|round| message(round).0).sum();
    assert!(guest::sent_bytes(WIRE) - before >= payload, "the bytes went elsewhere");
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_over_a_wire_that_loses() {
    let mut machine = Machine::start();
    let lossy = Impaired::new(WIRE, "loss 2%");
    machine.exchange(Wire::Whole, || ());
    assert!(lossy.dropped() > 0, "nothing was lost");
}

#[test]
#[ignore = "needs two guests: ops/lab/run-tests --pair"]
fn two_machines_over_a_wire_that_is_cut_again_and_again() {
    let mut machine = Machine::start();
    machine.exchange(Wire::Cut, || {
        for _ in 0..CUTS {
            std::thread::sleep(CUT_EVERY);
            guest::set_link(WIRE, false);
            std::thread::sleep(CUT);
            guest::set_link(WIRE, true);
        }
    });
}
