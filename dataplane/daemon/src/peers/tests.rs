use std::net::SocketAddr;

use railhead_abi::frame::{ACCESS_WRITE, Empty, Frame, NodeOpen};
use railhead_abi::segment::{PEER_DOWN, PEER_UP, PeerStatus};
use railhead_abi::settings::{Mode, Plan, Plans};
use railhead_core::Notice;
use railhead_core::port::{ConnectionIndex, Key};

use super::*;
use crate::grants::Grant;
use crate::lane::connections;
use crate::peers::directory::PeerName;
use crate::stub::{StubNode, within};
use crate::tables::{RegionEntry, RegionState};

const KEY: [u8; 32] = [7; 32];

/// A node whose channels run.
struct Running {
    node: StubNode,
    peers: Arc<Peers>,
    listener: TcpListener,
}

impl Running {
    /// Of a listener that is bound already, since each side has to know the other's address.
    fn start(
        name: &str,
        incarnation: u64,
        key: [u8; 32],
        listener: &TcpListener,
        peer: (&str, SocketAddr),
    ) -> Self {
        let address = peer.1.to_string();
        let node = StubNode::new(name, incarnation, 1, &[PeerName { name: peer.0, address: &address }]);
        let identity = Identity { keys: Keys::new(key), small_bytes: 16 << 10, large_bytes: 256 << 10 };
        let peers = Peers::start(&node.registrar, identity, listener.try_clone().unwrap()).unwrap();
        Self { node, peers, listener: listener.try_clone().unwrap() }
    }

    fn status(&self) -> PeerStatus {
        let words = self.node.segment.peer(1);
        PeerStatus::decode(&core::array::from_fn(|at| words[at].load_acquire()))
    }

    fn is_up(&self) -> bool {
        within(|| self.status().state == PEER_UP)
    }

    /// Puts a region into the tables, as a session would.
    fn add_region(&self, name: &str, grant: &str) -> Key {
        let entry = RegionEntry {
            state: RegionState::Coming,
            session: 0,
            name: name.to_owned(),
            grant: Grant::parse(grant).unwrap(),
            access: ACCESS_WRITE,
            bytes: 4096,
            page_bytes: 4096,
            direct_possible: true,
            span: None,
            rdma: None,
            is_lost: false,
            holds: std::collections::HashMap::new(),
            lanes: 1,
        };
        let mut tables = self.node.registrar.tables();
        let (slot, _) = tables.add_region(entry).unwrap();
        tables.region_ready(slot);
        tables.key(slot)
    }

    /// Asks the peer for a region as session `session`.
    fn ask(&self, region: &str, session: &str) -> Result<Key, Code> {
        let (region, session) = (name_words(region), name_words(session));
        let open = NodeOpen { region, session, access: ACCESS_WRITE, ..NodeOpen::default() };
        let (opened, _) = self.node.registrar.peers.open(1, open)?;
        Ok(Key { index: opened.index, epoch: opened.epoch })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.peers.stop();
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Nodes `a` and `b`, connected.
fn pair() -> (Running, Running) {
    let ((at_a, a_address), (at_b, b_address)) = (listener(), listener());
    let a = Running::start("a", 11, KEY, &at_a, ("b", b_address));
    let b = Running::start("b", 22, KEY, &at_b, ("a", a_address));
    assert!(a.is_up() && b.is_up());
    (a, b)
}

#[test]
fn both_ends_know_each_other_and_use_each_others_plans() {
    let (a, b) = pair();
    assert_eq!((a.status().incarnation, b.status().incarnation), (22, 11));
    assert!(
        within(|| a.status().planned_generation == 1 && b.status().planned_generation == 1),
        "first plans"
    );
    let plan = Plan { mode: Mode::Staged, direct_from_bytes: 77, generation: 5, direct_possible: true };
    assert_eq!(a.node.registrar.peers.publish(Plans { receive: plan, send: plan }), 1);
    assert!(b.node.has_seen("plan 1 5"), "its lanes use it");
    assert!(within(|| a.status().planned_generation == 5), "and it said so");
    assert_eq!((b.status().plan_generation, b.status().receive_direct_from_bytes), (5, 77));
}

#[test]
fn older_plans_and_claims_of_plans_to_come_change_nothing() {
    let (a, b) = pair();
    let plan = |generation, direct_from_bytes| {
        let plan = Plan { mode: Mode::Auto, direct_from_bytes, generation, direct_possible: true };
        Plans { receive: plan, send: plan }
    };
    a.node.registrar.peers.publish(plan(5, 77));
    a.node.registrar.peers.publish(plan(4, 66));
    a.node.registrar.peers.publish(plan(6, 88));
    assert!(within(|| a.status().planned_generation == 6));
    let log = b.node.take_log();
    assert!(log.contains(&"plan 1 5".to_owned()) && !log.contains(&"plan 1 4".to_owned()), "{log:?}");
    assert_eq!((b.status().plan_generation, b.status().receive_direct_from_bytes), (6, 88));
    let claim = Empty { figure: u64::MAX };
    assert!(b.node.registrar.peers.get(1).unwrap().post(Frame::NodePlanned(claim)));
    // The answer to this comes after the claim was read.
    assert_eq!(b.ask("nothing", "x"), Err(Code::RegionUnknown));
    assert_eq!(a.status().planned_generation, 6);
}

#[test]
fn regions_are_opened_by_grant_only_and_lanes_know_before_the_peer_does() {
    let (a, b) = pair();
    let key = b.add_region("r", "a/x");
    assert_eq!(a.ask("r", "y"), Err(Code::GrantMissing));
    assert_eq!(a.ask("s", "x"), Err(Code::RegionUnknown));
    assert!(!b.node.take_log().iter().any(|seen| seen.starts_with("allow")));
    assert_eq!(a.ask("r", "x"), Ok(key));
    assert!(b.node.take_log().contains(&"allow 11".to_owned()), "this node and peer 1, before the answer");
    a.node.registrar.peers.close(1, key, 22);
    assert!(b.node.has_seen("allow 1"), "the right ends with the last handle");
}

#[test]
fn a_handle_of_an_earlier_start_is_not_given_back_to_a_later_one() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    b.node.take_log();
    a.node.registrar.peers.close(1, key, 21);
    a.ask("r", "y").unwrap();
    assert!(!b.node.take_log().contains(&"allow 1".to_owned()));
}

/// A handle of a session of `a` for a key of `b`, as opening it would have left it.
fn remote_at(a: &Running, key: Key) -> u32 {
    let remote =
        crate::tables::RemoteEntry { session: 0, peer: 1, key, incarnation: 22, is_going: false, lanes: 1 };
    a.node.registrar.tables().add_remote(remote).unwrap().0
}

#[test]
fn owner_revokes_a_key_and_holder_confirms_after_its_lanes() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    let slot = remote_at(&a, key);
    a.node.hold.store_release(1);
    let limit = Duration::from_secs(2);
    let since = Instant::now();
    let confirmed = b.node.registrar.peers.revoke(1, key, limit).unwrap();
    assert!(a.node.has_seen(&format!("end remote {slot}")));
    assert!(confirmed.recv_timeout(Duration::from_millis(100)).is_err(), "its transfers have not ended");
    // Asked once more: the handle's end has begun, and is still not there.
    let again = b.node.registrar.peers.revoke(1, key, limit).unwrap();
    assert!(again.recv_timeout(Duration::from_millis(100)).is_err());
    assert!(a.node.has_seen(&format!("stop remote {slot} revoked")), "transfers that do not end are stopped");
    assert!(since.elapsed() >= limit / 4, "but not at once");
    a.node.hold.store_release(0);
    confirmed.recv_timeout(Duration::from_secs(5)).expect("the holder's word");
    again.recv_timeout(Duration::from_secs(5)).expect("for both");
}

#[test]
fn a_holder_that_does_not_give_a_region_up_is_fenced_and_its_key_kept_until_then() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    remote_at(&a, key);
    let [latency, _] = connections::of_peer(1);
    a.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    assert!(b.node.has_seen("target 16"));
    b.node.take_log();
    a.node.hold.store_release(1);
    let mut settings = railhead_abi::settings::Settings::default();
    settings.set(railhead_abi::settings::Setting::RevokeMaxMs, 200);
    b.node.registrar.current.set(&settings, 2);
    let since = Instant::now();
    b.node.registrar.deregister(0, key.index, key.epoch).unwrap();
    assert!((200..1500).contains(&since.elapsed().as_millis()), "took {:?}", since.elapsed());
    let log = b.node.take_log();
    let ended = format!("end region {}", key.index);
    let expected = ["close 16 true".to_owned(), "allow 1".to_owned(), ended];
    assert_eq!(log, expected, "its connection, its right, then the region");
    assert!(b.node.registrar.tables().region(key.index).is_none());
    a.node.hold.store_release(0);
}

#[test]
fn a_key_that_nobody_has_is_confirmed_at_once_and_an_opening_that_it_overtakes_is_refused() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    let confirmed = b.node.registrar.peers.revoke(1, key, Duration::from_secs(5)).unwrap();
    confirmed.recv_timeout(Duration::from_secs(1)).expect("no handle is there yet");
    assert!(a.node.registrar.peers.get(1).unwrap().was_revoked(key));
}

#[test]
fn a_region_that_goes_takes_its_holders_right_to_write_before_it_drains() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    assert!(b.node.take_log().contains(&"allow 11".to_owned()));
    b.node.registrar.deregister(0, key.index, key.epoch).unwrap();
    assert_eq!(b.node.take_log(), ["allow 1".to_owned(), format!("end region {}", key.index)]);
}

#[test]
fn wanted_connections_are_made_and_a_second_one_replaces_the_first() {
    let (a, b) = pair();
    let [latency, bulk] = connections::of_peer(1);
    for connection in [latency, bulk] {
        a.node.registrar.notice(0, Notice::ConnectionWanted { connection, peer: 1 });
    }
    assert!(a.node.has_seen(&format!("initiator {} class 0", latency.0)));
    assert!(a.node.has_seen(&format!("initiator {} class 1", bulk.0)));
    assert!(b.node.has_seen("target 16 class") && b.node.has_seen("target 17 class"));
    b.node.take_log();
    a.node.registrar.notice(0, Notice::ConnectionWanted { connection: bulk, peer: 1 });
    assert!(b.node.has_seen("target"));
    let log = b.node.take_log();
    assert!(log[0].starts_with("close") && log[1].starts_with("target"), "the old one ends first: {log:?}");
}

#[test]
fn connections_end_with_the_channel_and_wanted_ones_are_refused() {
    let (a, b) = pair();
    let [latency, _] = connections::of_peer(1);
    b.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    assert!(b.node.has_seen("initiator 4 class 0") && a.node.has_seen("target"));
    drop(b);
    assert!(within(|| a.status().state == PEER_DOWN));
    assert!(a.node.has_seen("close 16 true"), "the peer's connection to us");
    assert_eq!(a.ask("r", "x"), Err(Code::PeerNotConnected));
    a.node.take_log();
    a.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    assert!(a.node.has_seen("refuse 4"));
}

#[test]
fn a_restarted_peer_holds_nothing_and_its_handles_expire() {
    let ((at_a, a_address), (at_b, b_address)) = (listener(), listener());
    let a = Running::start("a", 11, KEY, &at_a, ("b", b_address));
    let b = Running::start("b", 22, KEY, &at_b, ("a", a_address));
    assert!(a.is_up() && b.is_up());
    let key = a.add_region("r", "*");
    assert_eq!(b.ask("r", "x"), Ok(key));
    // The listener outlives the node here, as it would not outside of a test: nobody answers it meanwhile.
    b.peers.stop();
    drop(b);
    assert!(within(|| a.status().state == PEER_DOWN));
    a.node.take_log();
    let (at_b, _) = (TcpListener::bind(b_address).or_else(|_| at_b.try_clone()).unwrap(), ());
    let again = Running::start("b", 23, KEY, &at_b, ("a", a_address));
    assert!(again.is_up() && a.is_up());
    assert!(a.node.has_seen("allow 1"), "it may not write any more");
    assert!(a.node.has_seen("expire 1"));
    assert_eq!(a.status().incarnation, 23);
}

#[test]
fn another_key_is_refused_and_named_as_the_cause() {
    let ((at_a, a_address), (at_b, b_address)) = (listener(), listener());
    let a = Running::start("a", 11, KEY, &at_a, ("b", b_address));
    let _b = Running::start("b", 22, [8; 32], &at_b, ("a", a_address));
    assert!(within(|| a.status().cause == Code::KeyMismatch.number()), "cause {}", a.status().cause);
    assert_eq!(a.status().state, PEER_DOWN);
}

#[test]
fn a_node_that_is_not_configured_is_refused_and_named_as_the_cause() {
    let ((at_a, a_address), (at_b, b_address)) = (listener(), listener());
    let a = Running::start("a", 11, KEY, &at_a, ("b", b_address));
    let _b = Running::start("b", 22, KEY, &at_b, ("c", a_address));
    assert!(within(|| a.status().cause == Code::NodeUnknown.number()), "cause {}", a.status().cause);
}

#[test]
fn only_the_node_that_dials_by_the_rule_is_answered_and_only_with_lanes_that_it_can_have() {
    let (a, b) = pair();
    let greet = |to: &Running, ours: NodeHello| {
        let address = to.listener.local_addr().unwrap().to_string();
        let mut channel = channel::dial(&address, &Keys::new(KEY), HANDSHAKE_MAX).unwrap();
        channel.greet(&ours, HANDSHAKE_MAX, |_| None).unwrap_err().code()
    };
    let (of_a, of_b) = (a.peers.hello().unwrap(), b.peers.hello().unwrap());
    assert_eq!(greet(&a, of_b), Code::ProtocolViolation, "a dials b, not the other way round");
    for lanes in [0, 65] {
        assert_eq!(greet(&b, NodeHello { lanes, ..of_a }), Code::ProtocolViolation, "{lanes} lanes");
    }
    assert_eq!((a.status().state, a.status().ups, b.status().ups), (PEER_UP, 1, 1), "the channel stays");
}

#[test]
fn nobody_at_the_address_is_named_as_the_cause() {
    let (at_a, _) = listener();
    let (gone, address) = listener();
    drop(gone);
    let a = Running::start("a", 11, KEY, &at_a, ("b", address));
    assert!(within(|| a.status().cause == Code::ConnectRefused.number()));
}

#[test]
fn a_stranger_with_a_data_hello_gets_nothing() {
    let (a, b) = pair();
    let hello = railhead_abi::frame::DataHello { token: 1, ..Default::default() };
    let address = b.listener.local_addr().unwrap().to_string();
    let refused = channel::dial_data(&address, &hello, HANDSHAKE_MAX).unwrap_err();
    assert!(matches!(refused, ChannelError::Closed), "{refused}");
    assert!(!b.node.take_log().iter().any(|seen| seen.starts_with("target")));
    assert_eq!(a.status().state, PEER_UP);
    a.node.registrar.peers.connection_down(0, ConnectionIndex(60), Code::Ok);
}

/// The status of the peer in a slot.
fn status_of(node: &StubNode, slot: usize) -> PeerStatus {
    let words = node.segment.peer(slot);
    PeerStatus::decode(&core::array::from_fn(|at| words[at].load_acquire()))
}

#[test]
fn peers_are_added_live_on_both_sides_and_no_more_than_there_is_room_for() {
    let ((at_a, a_address), (at_b, b_address)) = (listener(), listener());
    let a = Running::start("a", 11, KEY, &at_a, ("z", a_address));
    let b = Running::start("b", 22, KEY, &at_b, ("z", b_address));
    let add = |to: &Running, name: &str, address: SocketAddr| {
        to.peers.add(PeerName { name, address: &address.to_string() })
    };
    assert_eq!(add(&a, "b", b_address), Ok(2));
    assert_eq!(add(&b, "a", a_address), Ok(2));
    assert!(within(|| [&a, &b].iter().all(|side| status_of(&side.node, 2).state == PEER_UP)));
    assert_eq!(add(&a, "b", b_address), Err(Code::NameTaken));
    // Two more than a stub starts with.
    assert_eq!(add(&a, "c", a_address), Ok(3));
    assert_eq!(add(&a, "d", a_address), Err(Code::PeersFull));
    assert_eq!(a.peers.remove("c", Duration::ZERO), Ok(3));
    assert_eq!(add(&a, "d", a_address), Ok(3));
}

#[test]
fn a_peer_that_is_removed_leaves_nothing_and_its_slot_is_free_again() {
    let (a, b) = pair();
    let (of_a, of_b) = (a.add_region("r", "*"), b.add_region("r", "*"));
    a.ask("r", "x").unwrap();
    b.ask("r", "x").unwrap();
    let slot = remote_at(&a, of_b);
    let [latency, _] = connections::of_peer(1);
    a.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    b.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    assert!(a.node.has_seen("initiator 4") && a.node.has_seen("target"));
    a.node.take_log();
    assert_eq!(a.peers.remove("b", Duration::from_secs(1)), Ok(1));
    let log = a.node.take_log();
    let at = |word: &str| {
        log.iter().position(|seen| seen.starts_with(word)).unwrap_or_else(|| panic!("{word}: {log:?}"))
    };
    assert!(at(&format!("end remote {slot}")) < at("close 4 true"), "its handles first: {log:?}");
    at("close 16 true");
    at("allow 1");
    assert!(a.node.registrar.tables().region(of_a.index).unwrap().holds.is_empty());
    assert_eq!(status_of(&a.node, 1).state, railhead_abi::segment::PEER_ABSENT);
    assert!(b.node.has_seen("allow 1"), "its handle was given back before the channel ended");
    assert_eq!(a.peers.remove("b", Duration::ZERO), Err(Code::PeerUnknown));
    assert_eq!(a.ask("r", "x"), Err(Code::PeerUnknown));
    // It is not let in, and says why.
    assert!(within(|| b.status().state == PEER_DOWN));
    // The session gives its handle back later, to nobody.
    assert_eq!(a.node.registrar.tables().remote(slot).unwrap().peer, crate::tables::NO_PEER);
    let address = b.listener.local_addr().unwrap().to_string();
    assert_eq!(
        a.peers.add(PeerName { name: "b", address: &address }),
        Ok(2),
        "the slot that was free the longest"
    );
    assert!(within(|| status_of(&a.node, 2).state == PEER_UP && b.status().state == PEER_UP));
}

#[test]
fn removal_waits_for_transfers_as_long_as_it_was_told_and_then_ends_them() {
    let (a, b) = pair();
    let key = b.add_region("r", "*");
    a.ask("r", "x").unwrap();
    remote_at(&a, key);
    let [latency, _] = connections::of_peer(1);
    a.node.registrar.notice(0, Notice::ConnectionWanted { connection: latency, peer: 1 });
    assert!(a.node.has_seen("initiator 4"));
    a.node.hold.store_release(1);
    let peers = Arc::clone(&a.peers);
    let since = Instant::now();
    let removing = thread::spawn(move || peers.remove("b", Duration::from_millis(200)));
    assert!(a.node.has_seen("close 4 true"));
    assert!(since.elapsed() >= Duration::from_millis(200));
    thread::sleep(Duration::from_millis(50));
    assert!(!removing.is_finished(), "its transfers have not ended");
    a.node.hold.store_release(0);
    assert_eq!(removing.join().unwrap(), Ok(1));
}
