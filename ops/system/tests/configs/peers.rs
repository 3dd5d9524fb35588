//! Nodes with another key, strangers, other versions: a clear refusal, and nobody else is disturbed.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use railhead_abi::frame::NodeHello;
use railhead_client::{AttachOptions, Code, Session};
use railhead_system::{Cluster, Node, NodeConfig, until, write_key};
use railhead_tcp::channel::{self, Keys};

use crate::support::*;

fn peer_of(node: &Node) -> serde_json::Value {
    node.rest().get("/v1/node").expect(200).json["peers"][0].clone()
}

#[test]
fn a_peer_with_another_key_is_refused_until_it_has_the_right_one() {
    let other_key = NodeConfig { key_file: "other.key".to_owned(), ..NodeConfig::new("b") };
    let mut cluster = Cluster::prepare(vec![NodeConfig::new("a"), other_key]);
    write_key(&cluster.folder().join("other.key"), '8');
    for node in &mut cluster.nodes {
        node.start_both();
    }
    // `a` dials. Whoever holds the wrong key is told nothing, so either side says what it saw.
    until("node a says why", LIMIT, || {
        let peer = peer_of(cluster.a());
        (peer["state"] == "down" && peer["code"] == "key_mismatch").then_some(())
    });
    until("node b says whom it refused", LIMIT, || {
        let refused = cluster.b().events().into_iter().find(|event| event["event"] == "peer_refused")?;
        assert_eq!(refused["code"], "key_mismatch", "{refused}");
        Some(())
    });
    let session = attach(cluster.a(), "session", 1);
    assert_eq!(refusal(session.open("b", "anything")), Code::PeerNotConnected);
    // Each alone goes on as if nothing was.
    let (source, _own) = (region(&session, "", 4096), region(&session, "own", 4096));
    let mut port = session.take_port().unwrap();
    let remote = open(&session, "self", "own");
    transfer_ok(&mut port, &write(1, &source, &remote, 4096));
    cluster.nodes[1].stop();
    write_key(&cluster.folder().join("other.key"), '7');
    cluster.nodes[1].start_both();
    cluster.await_connected();
    drop((port, source, session));
    cluster.stop();
}

#[test]
fn a_node_that_is_nobodys_peer_is_refused_by_name() {
    let mut cluster = Cluster::prepare(vec![NodeConfig::new("a")]);
    cluster.nodes[0].start_both();
    let address = format!("127.0.0.1:{}", cluster.a().config.fabric_port);
    let mut channel = channel::dial(&address, &Keys::new([0x77; 32]), LIMIT).unwrap();
    let ours = hello("stranger", railhead_abi::PROTOCOL_MAJOR);
    let error = channel.greet(&ours, LIMIT, |_| None).unwrap_err();
    assert_eq!(error.code(), Code::NodeUnknown, "{error}");
    until("the node says so", LIMIT, || cluster.a().has_event("peer_refused").then_some(()));
    cluster.stop();
}

fn hello(node: &str, major: u16) -> NodeHello {
    NodeHello {
        node: railhead_abi::frame::name_words(node),
        incarnation: 1,
        major,
        lanes: 1,
        slots: 16,
        small_bytes: 16_384,
        large_bytes: 262_144,
        ..NodeHello::default()
    }
}

#[test]
fn a_node_of_another_major_version_is_refused_clearly() {
    let mut cluster = Cluster::prepare(vec![NodeConfig::new("a"), NodeConfig::new("b")]);
    cluster.nodes[1].start_both();
    // In place of `a`, which dials `b`, with the right key and name.
    let address = format!("127.0.0.1:{}", cluster.b().config.fabric_port);
    let mut channel = channel::dial(&address, &Keys::new([0x77; 32]), LIMIT).unwrap();
    let ours = hello("a", railhead_abi::PROTOCOL_MAJOR + 1);
    let error = channel.greet(&ours, LIMIT, |_| None).unwrap_err();
    assert_eq!(error.code(), Code::MajorMismatch, "{error}");
    until("the node says so", LIMIT, || {
        let events = cluster.b().events();
        events
            .iter()
            .any(|event| event["event"] == "peer_refused" && event["code"] == "major_mismatch")
            .then_some(())
    });
    assert_eq!(peer_of(cluster.b())["state"], "down");
    // The real one is welcome.
    cluster.nodes[0].start_both();
    cluster.await_connected();
    cluster.stop();
}

/// Noise on the fabric's port: closed within a stated time, and peers do not notice.
#[test]
fn strangers_on_the_fabric_port_get_nothing() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, _destination) = (region(&sender, "", 65_536), region(&receiver, "destination", 65_536));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let noise: Vec<u8> = pattern(1, 100_000);
    let zeroes = vec![0; 4096];
    for what in [&b"GET / HTTP/1.1\r\n\r\n"[..], &noise, &zeroes, b"\x16\x03\x01", b""] {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.b().config.fabric_port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let start = Instant::now();
        // It may be closed before all is written.
        let _ = stream.write_all(what);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(start.elapsed() < Duration::from_secs(6), "not closed: {read:?}");
        assert!(answer.is_empty(), "a stranger was told {answer:?}");
        transfer_ok(&mut port, &write(1, &source, &remote, 65_536));
    }
    assert_eq!(
        (peer_of(cluster.a())["downs"].as_u64(), peer_of(cluster.b())["downs"].as_u64()),
        (Some(0), Some(0))
    );
    drop((port, source));
    cluster.stop();
}

/// Noise on the session socket: that connection ends or is refused, others do not notice.
#[test]
fn frames_that_are_none_are_refused_on_the_session_socket() {
    use railhead_abi::frame::{Empty, FRAME_BYTES_MAX, Frame, Hello};
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let session = attach(cluster.a(), "session", 1);
    let version = u16::try_from(railhead_abi::ABI_VERSION).unwrap();
    let good = Frame::Hello(Hello { ports: 1, ..Hello::default() }).encode(version);
    let other_version = Frame::Hello(Hello { ports: 1, ..Hello::default() }).encode(version + 1);
    let too_early = Frame::AdminWake(Empty { figure: 1 }).encode(version);
    let noise = pattern(9, FRAME_BYTES_MAX);
    for (bytes, expected) in [
        (&noise[..], Some(Code::FrameMalformed)),
        (&noise[..1], Some(Code::FrameMalformed)),
        (&good.0[..good.1 - 8], Some(Code::FrameMalformed)),
        (&too_early.0[..too_early.1], Some(Code::FrameMalformed)),
        (&other_version.0[..other_version.1], Some(Code::VersionMismatch)),
    ] {
        let socket = railhead_shm::socket::connect(&cluster.a().session_socket()).unwrap();
        railhead_shm::socket::send_frame(&socket, bytes, &[]).unwrap();
        let mut buffer = [0; FRAME_BYTES_MAX];
        // Closed without a word is allowed; a wrong word is not.
        if let Ok(answer) = railhead_shm::socket::recv_frame(&socket, &mut buffer, 8) {
            let frame = [version, version + 1]
                .iter()
                .find_map(|version| Frame::decode(*version, &buffer[..answer.bytes]).ok());
            match frame {
                Some(Frame::Refused(refused)) => assert_eq!(Code::from_number(refused.code), expected),
                other => panic!("answered with {other:?}"),
            }
        }
    }
    let (source, _own) = (region(&session, "", 4096), region(&session, "own", 4096));
    let remote = open(&session, "self", "own");
    let mut port = session.take_port().unwrap();
    transfer_ok(&mut port, &write(1, &source, &remote, 4096));
    let absent = Session::attach(cluster.folder().join("absent.sock"), &AttachOptions::default());
    assert_eq!(refusal(absent), Code::DataplaneAbsent);
    drop((port, source, session));
    cluster.stop();
}
