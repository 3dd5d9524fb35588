//! Whole nodes in this process, with real lanes: coming up, being looked at, being refused, going down.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use railhead_abi::frame::{AdminHello, FRAME_BYTES_MAX, Frame, Hello, name_words};
use railhead_abi::observe::Counter;
use railhead_abi::segment::{ControlHeader, ControlShape, LANE_SEALED, LaneStatus, PEER_UP, PeerStatus};
use railhead_abi::{ABI_VERSION, Code};
use railhead_config::Config;
use railhead_daemon::allocator::CountingAllocator;
use railhead_daemon::{Node, Plan, StartError};
use railhead_shm::{Access, Mapping, Words, socket};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const VERSION: u16 = ABI_VERSION as u16;

/// A configuration in a folder of its own, with small pools so that any machine has them.
fn plan(folder: &Path, name: &str, listen: u16, more: &str) -> Result<Plan, StartError> {
    let key = folder.join("cluster.key");
    fs::write(&key, "cd".repeat(32)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "[node]\nname = \"{name}\"\nstate_dir = \"{name}\"\n\
         [dataplane]\nlanes = 2\nlog = \"warn\"\n\
         [pool]\nsmall_send = 4\nsmall_receive = 16\nlarge_send = 2\nlarge_receive = 8\nhugepages = \"never\"\n\
         [fabric]\nlisten = \"127.0.0.1:{listen}\"\nkey_file = \"cluster.key\"\n{more}"
    );
    Plan::new(Config::parse(&folder.join(format!("{name}.toml")), &text).expect("a sound file"))
}

/// A port that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn ask(path: &Path, frame: &Frame) -> (OwnedFd, Frame, Vec<OwnedFd>) {
    let connection = socket::connect(path).unwrap();
    let (bytes, count) = frame.encode(VERSION);
    socket::send_frame(&connection, &bytes[..count], &[]).unwrap();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let answer = socket::recv_frame(&connection, &mut buffer, socket::FDS_MAX).unwrap();
    (connection, Frame::decode(VERSION, &buffer[..answer.bytes]).unwrap(), answer.fds)
}

/// The control segment, as a process that only looks sees it.
fn segment(admin: &Path) -> (Words, ControlHeader) {
    let (_connection, answer, fds) = ask(admin, &Frame::AdminHello(AdminHello { hold: 0, pid: 1 }));
    let Frame::AdminWelcome(welcome) = answer else { panic!("{answer:?}") };
    let mapping = Mapping::of_sealed(&fds[0], Access::ReadWrite).unwrap();
    let words = mapping.words(0, usize::try_from(welcome.segment_words).unwrap()).unwrap();
    let header = ControlHeader::decode(&core::array::from_fn(|at| words[at].load_acquire()));
    (words, header)
}

fn lane_status(words: &Words, lane: usize) -> LaneStatus {
    let start = ControlShape { lanes: 2 }.lane(lane) + ControlShape::LANE_STATUS;
    LaneStatus::decode(&core::array::from_fn(|at| words[start + at].load_acquire()))
}

fn within(limit: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !is_true() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn lanes_are_sealed_and_stay_off_the_heap_while_sessions_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&plan(folder.path(), "a", 0, "").unwrap()).unwrap();
    let (words, header) = segment(&folder.path().join("a/admin.sock"));
    assert_eq!((header.lanes, header.pid), (2, std::process::id()));
    let session = folder.path().join("a/session.sock");
    for round in 0..20 {
        let hello = Hello { name: name_words(&format!("s{round}")), ports: 3, entries: 16 };
        let (_connection, answer, fds) = ask(&session, &Frame::Hello(hello));
        assert!(matches!(answer, Frame::Welcome(welcome) if welcome.ports == 3), "{answer:?}");
        assert_eq!(fds.len(), 4);
    }
    let ports = || (0..2).map(|lane| lane_status(&words, lane).ports).sum::<u64>();
    assert!(within(Duration::from_secs(10), || ports() == 0), "{} ports are left", ports());
    for lane in 0..2 {
        let status = lane_status(&words, lane);
        assert_eq!((status.state, status.acknowledged), (LANE_SEALED, 1));
        let counters = ControlShape { lanes: 2 }.lane(lane) + ControlShape::LANE_COUNTERS;
        assert_eq!(
            words[counters + Counter::Allocations as usize].load_acquire(),
            0,
            "lane {lane} used the heap"
        );
        assert!(words[counters + Counter::Turns as usize].load_acquire() > 0);
    }
    node.stop(15);
}

#[test]
fn a_second_node_with_the_same_sockets_is_refused_and_the_first_lives() {
    let folder = tempfile::tempdir().unwrap();
    let first = plan(folder.path(), "a", 0, "").unwrap();
    let node = Node::start(&first).unwrap();
    let refused = Node::start(&first).unwrap_err();
    assert_eq!((refused.code, refused.what.as_str()), (Code::PortTaken, "node.state_dir"));
    segment(&folder.path().join("a/admin.sock"));
    let (words, _) = segment(&folder.path().join("a/admin.sock"));
    node.stop(15);
    assert!(!folder.path().join("a/admin.sock").exists() && !folder.path().join("a/session.sock").exists());
    assert_eq!(lane_status(&words, 0).state, railhead_abi::segment::LANE_STOPPED);
    Node::start(&first).expect("everything was given back").stop(15);
}

#[test]
fn a_taken_address_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let refused = Node::start(&plan(folder.path(), "a", port, "").unwrap()).unwrap_err();
    assert_eq!((refused.code, refused.what.as_str()), (Code::PortTaken, "fabric.listen"));
    assert!(!folder.path().join("a/session.sock").exists(), "nothing is left of the attempt");
}

#[test]
fn hugepages_that_are_required_and_not_there_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Writes the key file, too.
    drop(plan(folder.path(), "a", 0, "").unwrap());
    // 512 GiB: more than machines that run tests have reserved.
    let config = "[node]\nname = \"a\"\nstate_dir = \"a\"\n\
        [pool]\nlarge_bytes = 67108864\nlarge_send = 4096\nlarge_receive = 4096\nhugepages = \"require\"\n\
        [fabric]\nlisten = \"127.0.0.1:0\"\nkey_file = \"cluster.key\"\n";
    let plan = Plan::new(Config::parse(&folder.path().join("a.toml"), config).unwrap()).unwrap();
    let refused = Node::start(&plan).unwrap_err();
    assert_eq!(refused.code, Code::MemoryShort, "{refused}");
    assert!(refused.what.contains("lane 0"), "{refused}");
}

#[test]
fn two_nodes_find_each_other_and_a_restart_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (port_a, port_b) = (free_port(), free_port());
    let peer =
        |name: &str, port: u16| format!("[[peer]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
    let plan_a = plan(folder.path(), "a", port_a, &peer("b", port_b)).unwrap();
    let plan_b = plan(folder.path(), "b", port_b, &peer("a", port_a)).unwrap();
    let node_a = Node::start(&plan_a).unwrap();
    let node_b = Node::start(&plan_b).unwrap();
    let (words, _) = segment(&folder.path().join("a/admin.sock"));
    let status = || {
        let start = ControlShape::PEERS + PeerStatus::WORDS;
        PeerStatus::decode(&core::array::from_fn(|at| words[start + at].load_acquire()))
    };
    let is_up = || status().state == PEER_UP && status().planned_generation == 1;
    assert!(within(Duration::from_secs(10), is_up), "{:?}", status());
    let first = status().incarnation;
    node_b.stop(15);
    assert!(within(Duration::from_secs(10), || status().state != PEER_UP));
    let node_b = Node::start(&plan_b).unwrap();
    assert!(within(Duration::from_secs(10), is_up), "{:?}", status());
    assert_ne!(status().incarnation, first);
    assert_eq!((status().ups, status().downs), (2, 1));
    node_b.stop(15);
    node_a.stop(15);
}
