//! The two programs: control over real sockets, the command against it, and how both fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::Reason;
use railhead_abi::frame::{name_words, text_words};
use railhead_abi::observe::{Counter, EventCode, EventEntry, Flight};
use railhead_abi::segment::{LANE_SEALED, LaneStatus, PEER_DOWN, PEER_UP, PeerStatus};
use railhead_abi::settings::Settings;
use serde_json::{Value as Json, json};
use support::{Fake, PATIENCE};

/// A control process that is told to stop at the end.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process writes, read to the end so that it never blocks on it.
struct Lines(mpsc::Receiver<String>);

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // Nobody may be interested any more.
                drop(sender.send(line));
            }
        });
        Self(receiver)
    }

    /// The next line; fails the test when none comes.
    fn next(&self) -> String {
        self.0.recv_timeout(PATIENCE).expect("one more line in time")
    }
}

/// Runs a command to its end; kills it and fails the test when that does not come.
fn output(command: &mut Command) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(&mut child);
    child.wait_with_output().unwrap()
}

fn ended(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new(listen: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[node]\nname = \"a\"\nstate_dir = \"state\"\n[dataplane]\nlanes = 2\n[fabric]\nkey_file = \"key\"\n\
             [control]\nlisten = \"{listen}\"\n"
        );
        std::fs::write(folder.path().join("node.toml"), text).unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "00".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir(folder.path().join("state")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fake(&self) -> Fake {
        Fake::start(&self.path("state/admin.sock"), 2, 0xaaaa << 32, Some((1, Settings::default())))
    }

    fn control(&self) -> Command {
        self.control_with("--config")
    }

    fn control_with(&self, option: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railhead-control"));
        command.arg(option).arg(self.path("node.toml")).stderr(Stdio::piped());
        command
    }

    /// Starts control and waits until it serves.
    fn serve(&self) -> Server {
        let child = self.control().stdout(Stdio::null()).spawn().unwrap();
        // Owned from here on, so that it is killed whatever fails below.
        let mut server = Server { child, url: String::new() };
        let lines = Lines::of(server.child.stderr.take().unwrap());
        while server.url.is_empty() {
            let line = lines.next();
            if line.contains("serving") {
                let (_, url) = line.split_once("url=\"").unwrap_or_else(|| panic!("{line}"));
                server.url = url.trim_end_matches('"').to_owned();
            }
        }
        server
    }
}

fn railhead(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railhead"));
    output(command.args(["--url", url]).args(arguments).env("USER", "ada"))
}

#[track_caller]
fn succeeds(url: &str, arguments: &[&str]) -> String {
    let output = railhead(url, arguments);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    assert_eq!(err, "");
    assert!(out.lines().all(|line| !line.ends_with(' ')), "{out}");
    out
}

#[track_caller]
fn fails(url: &str, arguments: &[&str], exit: i32) -> String {
    let output = railhead(url, arguments);
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {err}");
    err
}

/// A node with something to show.
fn fill(fake: &Fake) {
    for (lane, core) in [(0, 3), (1, 0)] {
        let status = LaneStatus {
            acknowledged: 1,
            state: LANE_SEALED,
            core_wanted: 3,
            core_pinned: core,
            ports: 2,
            in_flight: 5,
            small_send: 64,
            small_send_free: 60,
            small_receive: 256,
            small_receive_free: 256,
            large_send: 32,
            large_send_free: 16,
            large_receive: 64,
            large_receive_free: 64,
            ..LaneStatus::default()
        };
        support::store(&fake.words, fake.shape.lane(lane), &status.encode());
        for (counter, value) in [
            (Counter::Turns, 1000),
            (Counter::BusyTurns, 423),
            (Counter::Done, 1_234_567),
            (Counter::BytesStagedStaged, 5 << 20),
            (Counter::BytesDirectDirect, 95 << 20),
            (Counter::TransfersStagedStaged, 1000),
            (Counter::TransfersDirectDirect, 95),
        ] {
            fake.set_counter(lane, counter, value);
        }
    }
    let peer = |name: &str, address: &str, state, cause: Code| PeerStatus {
        name: name_words(name),
        address: name_words(address),
        state,
        cause: cause.number(),
        receive_direct_from_bytes: 16384,
        ..PeerStatus::default()
    };
    fake.set_peer(0, &peer("b", "127.0.0.1:7420", PEER_UP, Code::Ok));
    fake.set_peer(1, &peer("node-c", "10.0.0.3:7410", PEER_DOWN, Code::ConnectRefused));
    fake.add_event(&EventEntry {
        event: EventCode::HugepagesSteppedDown as u16,
        severity: 1,
        unix_ns: 1_700_000_000_000_000_000,
        first: 64 << 20,
        second: 4096,
        text: text_words("no free hugepages"),
        ..EventEntry::default()
    });
    fake.add_flight(
        1,
        &Flight {
            ticket: 0x0100_0000_002a,
            cookie: 42,
            bytes: 1 << 20,
            class: 1,
            send_leg: 2,
            receive_leg: 1,
            send_reason: Reason::FromThreshold as u8,
            receive_reason: Reason::Mode as u8,
            send_threshold: 16384,
            generation: 7,
            plan_generation: 3,
            intake_ns: 5_000_000_000,
            wait_ns: 12_345,
            post_ns: 201_000,
            receive_ns: 90_000,
            total_ns: 412_300,
            chunks: 4,
            session_name: text_words("push"),
            ..Flight::default()
        },
    );
}

#[test]
fn command_shows_and_changes_a_node_over_tcp() {
    let node = Node::new("127.0.0.1:0");
    let fake = node.fake();
    fill(&fake);
    let server = node.serve();
    let url = server.url.as_str();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");

    let status = succeeds(url, &["status"]);
    println!("{status}");
    for part in [
        "node fake",
        "settings generation 1: applied by all lanes",
        "direct > direct",
        "190.0 MiB",
        "95 %",
        "node-c",
    ] {
        assert!(status.contains(part), "{part}\n{status}");
    }
    let body: Json = serde_json::from_str(&succeeds(url, &["status", "--json"])).unwrap();
    assert_eq!((&body["node"]["name"], body["lanes"].as_array().unwrap().len()), (&json!("fake"), 2));

    let dry = succeeds(url, &["set", "send.mode=staged", "--dry-run"]);
    println!("{dry}");
    assert!(dry.starts_with("dry run: nothing was changed, generation 1 stays\n"), "{dry}");
    assert_eq!(fake.published().0, 1);
    let set = succeeds(url, &["set", "send.mode=staged", "chunk_bytes=64KiB", "--if-match", "1"]);
    println!("{set}");
    assert!(set.starts_with("generation 2 is applied by all lanes after "), "{set}");
    assert!(set.contains("chunk_bytes  262,144 (256.0 KiB)  ->  65,536 (64.0 KiB)\n"), "{set}");
    assert_eq!(fake.published().0, 2);
    println!("{}", succeeds(url, &["set"]));

    let events = succeeds(url, &["events"]);
    println!("{events}");
    assert!(
        events.contains("memory is on smaller pages than asked: 64.0 MiB, page bytes now 4.0 KiB"),
        "{events}"
    );
    println!("{}", succeeds(url, &["transfers"]));
    let why = succeeds(url, &["why", "last"]);
    println!("{why}");
    assert_eq!(why, succeeds(url, &["why", "0x01000000002a"]));
    for part in ["sent direct: 1,048,576 bytes reach send.direct_from_bytes = 16,384", "12.3 us", "3 %"] {
        assert!(why.contains(part), "{part}\n{why}");
    }
}

#[test]
fn command_says_what_was_refused() {
    let node = Node::new("127.0.0.1:0");
    let fake = node.fake();
    let server = node.serve();
    let url = server.url.as_str();
    let error = fails(url, &["set", "chunk_bytes=1"], 1);
    println!("{error}");
    assert_eq!(
        error,
        "railhead: setting_range: chunk_bytes: 1 is not allowed; allowed: 4096 to 67108864 bytes\n  \
         remedy: use a value within the range shown\n"
    );
    let error = fails(url, &["set", "send.mod=staged"], 1);
    assert!(error.contains("did you mean `send.mode`?"), "{error}");
    let error = fails(url, &["set", "send.mode=staged", "--if-match", "7"], 1);
    assert!(error.contains("etag_mismatch") && error.contains("\"1-0000aaaa\""), "{error}");
    assert!(fails(url, &["why", "0xdead"], 1).contains("transfer_unknown"));
    let problem = railhead(url, &["--json", "set", "chunk_bytes=1"]);
    let body: Json = serde_json::from_slice(&problem.stdout).unwrap();
    assert_eq!((body["code"].as_str(), problem.status.code()), (Some("setting_range"), Some(1)));
    for wrong in [
        &["set", "x"][..],
        &["set", "=1"],
        &["frobnicate"],
        &[],
        &["why"],
        &["why", "../x"],
        &["set", "a=1", "a=2"],
    ] {
        fails(url, wrong, 2);
    }
    fails("ftp://x", &["status"], 2);
    {
        let mut behaviour = fake.behaviour();
        (behaviour.refuse, behaviour.refusal) = (1, (Code::MemoryShort.number(), 4));
    }
    assert!(
        fails(url, &["set", "chunk_bytes=8192"], 1)
            .contains("memory_short: chunk_bytes: the dataplane refused generation 2")
    );
    fake.behaviour().stalled.insert(1);
    let told = succeeds(url, &["set", "chunk_bytes=8192", "--timeout-ms", "30"]);
    assert!(told.starts_with("generation 4 is published; not yet applied by lanes 1\n"), "{told}");
    drop(fake);
    let deadline = Instant::now() + PATIENCE;
    while railhead(url, &["status"]).status.code() != Some(3) {
        assert!(Instant::now() < deadline, "the dataplane is gone");
    }
    assert!(fails(url, &["status"], 3).contains("dataplane_absent"));
}

#[test]
fn command_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", folder.path().join("none.sock").display());
    for url in [url.as_str(), "http://127.0.0.1:1"] {
        let error = fails(url, &["status"], 3);
        assert!(error.contains(url) && error.contains("railhead-control --config"), "{error}");
    }
    // Something else answers there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap();
    });
    assert!(fails(&url, &["status"], 3).contains("no railhead-control"));
    other.join().unwrap();
}

#[test]
fn control_serves_a_unix_socket_and_cleans_up() {
    let node = Node::new("unix:state/control.sock");
    let _fake = node.fake();
    let socket = node.path("state/control.sock");
    // Left behind by a control that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut server = node.serve();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(succeeds(&server.url, &["status"]).contains("node fake"));
    // A second control of the same configuration finds the socket in use.
    let second = output(&mut node.control());
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("port_taken"));
    let mut follower = Command::new(env!("CARGO_BIN_EXE_railhead"))
        .args(["--url", &server.url, "events", "--follow"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let since = Instant::now();
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&server.child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(ended(&mut server.child), Some(0));
    assert!(since.elapsed() < Duration::from_secs(3), "an open stream does not hold up the stop");
    assert_eq!(ended(&mut follower), Some(3));
    assert!(!socket.exists());
}

#[test]
fn followed_events_come_as_they_happen() {
    let node = Node::new("127.0.0.1:0");
    let fake = node.fake();
    let server = node.serve();
    let mut follower = Command::new(env!("CARGO_BIN_EXE_railhead"))
        .args(["--url", &server.url, "events", "--follow", "--limit", "10"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Lines::of(follower.stdout.take().unwrap());
    for name in ["first", "second"] {
        let entry =
            EventEntry { event: EventCode::PeerUp as u16, text: text_words(name), ..EventEntry::default() };
        fake.add_event(&entry);
        let line = lines.next();
        assert!(line.ends_with(&format!("a peer is connected: incarnation 0x0, name {name}")), "{line}");
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn control_refuses_to_start_with_a_reason() {
    let refused = |node: &Node, part: &str| {
        let output = output(&mut node.control());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(part) && error.contains("remedy: "), "{error}");
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    refused(&Node::new(&taken.local_addr().unwrap().to_string()), "port_taken");
    refused(&Node::new("0.0.0.0:7411"), "listen_refused");
    refused(&Node::new("unix:nowhere/control.sock"), "path_denied");
    let node = Node::new("127.0.0.1:0");
    std::fs::set_permissions(node.path("key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&node, "chmod 600");
    let node = Node::new("127.0.0.1:0");
    let _fake = node.fake();
    let _first = node.serve();
    refused(&node, "control_held");
}

#[test]
fn check_validates_only() {
    let node = Node::new("127.0.0.1:0");
    let checked = output(&mut node.control_with("--check"));
    assert!(checked.status.success());
    assert!(String::from_utf8_lossy(&checked.stdout).contains("valid configuration of node a"));
    assert!(!Path::new(&node.path("state/settings.json")).exists());
    std::fs::write(node.path("node.toml"), "[node]\nnam = \"a\"\n").unwrap();
    let checked = output(&mut node.control_with("--check"));
    assert_eq!(checked.status.code(), Some(1));
    let error = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(error.contains("node.toml:2: node.nam: no such field; did you mean `name`?"), "{error}");
}
