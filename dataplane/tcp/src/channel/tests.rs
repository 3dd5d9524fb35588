use std::io::{Read, Write};
use std::thread;

use railhead_abi::frame::{DataHello, Empty, NodeClose};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);
const KEY: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [8; 32];

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

/// Both ends of a handshake.
fn handshake(ours: &Keys, theirs: &Keys) -> (Result<Channel, ChannelError>, Result<Channel, ChannelError>) {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let acceptor = scope.spawn(|| accept(&listener, theirs, TIMEOUT));
        let dialled = dial(&address, ours, TIMEOUT);
        (dialled, acceptor.join().expect("the acceptor ends"))
    })
}

fn pair() -> (Channel, Channel) {
    let (near, far) = handshake(&Keys::new(KEY), &Keys::new(KEY));
    (near.expect("dialled"), far.expect("accepted"))
}

/// A stream to somebody who admits and accepts with `KEY`.
fn stranger() -> (TcpStream, thread::JoinHandle<Result<Channel, ChannelError>>) {
    let (listener, address) = listener();
    let acceptor = thread::spawn(move || accept(&listener, &Keys::new(KEY), SHORT));
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    (stream, acceptor)
}

fn hello(token: u64) -> NodeHello {
    NodeHello { major: PROTOCOL_MAJOR, token, lanes: 2, ..NodeHello::default() }
}

fn heartbeat(figure: u64) -> Frame {
    Frame::Heartbeat(Empty { figure })
}

#[test]
fn frames_go_both_ways() {
    let (mut near, mut far) = pair();
    assert_eq!(near.hash(), far.hash());
    assert!(near.is_initiator() && !far.is_initiator());
    for figure in 0..100 {
        near.send(&heartbeat(figure), TIMEOUT).expect("sent");
        far.send(&Frame::NodeClose(NodeClose { index: 4, epoch: 5 }), TIMEOUT).expect("sent");
        assert_eq!(far.recv(TIMEOUT).expect("received"), heartbeat(figure));
        assert_eq!(near.recv(TIMEOUT).expect("received"), Frame::NodeClose(NodeClose { index: 4, epoch: 5 }));
    }
    drop(near);
    assert!(matches!(far.recv(TIMEOUT), Err(ChannelError::Closed)));
}

#[test]
fn every_channel_has_a_hash_of_its_own() {
    assert_ne!(pair().0.hash(), pair().0.hash());
}

#[test]
fn halves_serve_two_threads() {
    let (near, far) = pair();
    let pump = |channel: Channel| {
        let (mut sender, mut receiver) = channel.split();
        let sending = thread::spawn(move || {
            for figure in 0..2_000 {
                sender.send(&heartbeat(figure), TIMEOUT).expect("sent");
            }
            sender
        });
        let receiving = thread::spawn(move || {
            for figure in 0..2_000 {
                assert_eq!(receiver.recv(TIMEOUT).expect("received"), heartbeat(figure));
            }
            receiver
        });
        (sending, receiving)
    };
    let (near_sending, near_receiving) = pump(near);
    let (far_sending, far_receiving) = pump(far);
    let _senders = (near_sending.join().expect("sent"), far_sending.join().expect("sent"));
    near_receiving.join().expect("received");
    far_receiving.join().expect("received");
}

#[test]
fn shutdown_wakes_the_receiver() {
    let (near, _far) = pair();
    let (sender, mut receiver) = near.split();
    let waiting = thread::spawn(move || receiver.recv(TIMEOUT));
    sender.shutdown();
    assert!(matches!(waiting.join().expect("woken"), Err(ChannelError::Closed)));
}

#[test]
fn two_keys_are_accepted_during_a_change() {
    let old = Keys::new(KEY);
    let changing = Keys::new(OTHER).and(KEY);
    let (near, far) = handshake(&old, &changing);
    assert_eq!(near.expect("dialled").hash(), far.expect("accepted").hash());
    let (near, far) = handshake(&Keys::new(OTHER), &changing);
    assert_eq!(near.expect("dialled").hash(), far.expect("accepted").hash());
}

#[test]
fn another_key_is_refused_on_both_sides() {
    let (near, far) = handshake(&Keys::new(KEY), &Keys::new(OTHER).and([9; 32]));
    assert!(matches!(near, Err(ChannelError::KeyMismatch)), "{near:?}");
    assert!(matches!(far, Err(ChannelError::KeyMismatch)), "{far:?}");
}

#[test]
fn strangers_are_told_nothing() {
    let noise: Vec<u8> = (0..200).map(|at: u8| at.wrapping_mul(37)).collect();
    let mut handshake_of_noise = vec![48, 0];
    handshake_of_noise.extend_from_slice(&noise[..48]);
    let mut frame_of_noise = FRAME_MAGIC.to_vec();
    frame_of_noise.extend_from_slice(&noise);
    for bytes in [
        noise.as_slice(),
        &handshake_of_noise,
        &frame_of_noise,
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 64],
        &[48, 0],
    ] {
        let (mut stream, acceptor) = stranger();
        stream.write_all(bytes).expect("written");
        let outcome = acceptor.join().expect("the acceptor ends");
        assert!(outcome.is_err(), "{bytes:?} got a channel");
        let mut answer = Vec::new();
        // The end may come as a reset, because what was written was not all read.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{bytes:?} was answered with {answer:?}");
    }
}

#[test]
fn slow_strangers_get_no_more_time() {
    let (mut stream, acceptor) = stranger();
    let start = std::time::Instant::now();
    let feeding = thread::spawn(move || {
        // A byte at a time, each within the time limit of a single read.
        for byte in [48, 0].into_iter().chain([1; 200]) {
            if stream.write_all(&[byte]).is_err() {
                break;
            }
            thread::sleep(SHORT / 6);
        }
    });
    let outcome = acceptor.join().expect("the acceptor ends");
    assert!(matches!(outcome, Err(ChannelError::Timeout)), "{outcome:?}");
    assert!(start.elapsed() < SHORT * 10, "the deadline is for the whole");
    feeding.join().expect("fed");
}

#[test]
fn nobody_there_and_nobody_answering() {
    let (listener, address) = listener();
    let outcome = dial(&address, &Keys::new(KEY), SHORT);
    assert!(matches!(outcome, Err(ChannelError::Timeout)), "{outcome:?}");
    drop(listener);
    let outcome = dial(&address, &Keys::new(KEY), SHORT);
    assert!(matches!(outcome, Err(ChannelError::Connect(_))), "{outcome:?}");
    assert_eq!(outcome.expect_err("nobody").code(), Code::ConnectRefused);
}

#[test]
fn a_timeout_loses_nothing() {
    let (near, mut far) = pair();
    let (mut sender, _receiver) = near.split();
    let mut message = [0; MESSAGE_BYTES_MAX];
    let (bytes, length) = heartbeat(5).encode(PROTOCOL_MAJOR);
    let length = sender.transport.seal(0, &bytes[..length], &mut message).expect("sealed");
    for part in message[..length].chunks(length.div_ceil(4)) {
        assert!(matches!(far.recv(Duration::from_millis(5)), Err(ChannelError::Timeout)));
        sender.stream.write_all(part).expect("written");
    }
    assert_eq!(far.recv(TIMEOUT).expect("received"), heartbeat(5));
    sender.nonce = 1;
    sender.send(&heartbeat(6), TIMEOUT).expect("sent");
    assert_eq!(far.recv(TIMEOUT).expect("received"), heartbeat(6));
}

#[test]
fn changed_repeated_and_foreign_messages_are_refused() {
    for damage in 0..3 {
        let (near, mut far) = pair();
        let (mut sender, _receiver) = near.split();
        let mut message = [0; MESSAGE_BYTES_MAX];
        let (bytes, length) = heartbeat(5).encode(PROTOCOL_MAJOR);
        let length = sender.transport.seal(0, &bytes[..length], &mut message).expect("sealed");
        match damage {
            0 => message[10] ^= 1,
            1 => {
                sender.stream.write_all(&message[..length]).expect("written");
                assert_eq!(far.recv(TIMEOUT).expect("the first time it is good"), heartbeat(5));
            }
            _ => message[..2].copy_from_slice(&u16::MAX.to_le_bytes()),
        }
        sender.stream.write_all(&message[..length]).expect("written");
        assert!(matches!(far.recv(TIMEOUT), Err(ChannelError::Malformed)), "damage {damage}");
    }
}

/// Both ends greet; each judges with its own closure.
fn greet(
    ours: NodeHello,
    theirs: NodeHello,
    judge_theirs: impl FnOnce(&NodeHello) -> Option<Refused> + Send,
    judge_ours: impl FnOnce(&NodeHello) -> Option<Refused> + Send,
) -> (Result<NodeHello, ChannelError>, Result<NodeHello, ChannelError>) {
    let (mut near, mut far) = pair();
    thread::scope(|scope| {
        let acceptor = scope.spawn(move || far.greet(&theirs, TIMEOUT, judge_ours));
        let dialled = near.greet(&ours, TIMEOUT, judge_theirs);
        (dialled, acceptor.join().expect("the acceptor ends"))
    })
}

fn refusal(outcome: &Result<NodeHello, ChannelError>) -> (Code, u64) {
    match outcome {
        Err(error @ ChannelError::Refused(refused)) => (error.code(), refused.figure),
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn hellos_are_exchanged() {
    let (near, far) = greet(hello(1), hello(2), |_| None, |_| None);
    assert_eq!(near.expect("greeted"), hello(2));
    assert_eq!(far.expect("greeted"), hello(1));
}

#[test]
fn both_sides_learn_of_a_refusal() {
    let refuse = |_: &NodeHello| Some(Refused::because(Code::NodeUnknown, "node"));
    let (near, far) = greet(hello(1), hello(2), |_| panic!("there is no hello to judge"), refuse);
    assert_eq!(refusal(&near).0, Code::NodeUnknown);
    assert_eq!(refusal(&far).0, Code::NodeUnknown);
    assert!(near.expect_err("refused").to_string().contains("node_unknown"));
}

#[test]
fn another_major_version_is_refused_clearly() {
    let other = NodeHello { major: PROTOCOL_MAJOR + 1, ..hello(1) };
    let (near, far) = greet(other, hello(2), |_| None, |_| None);
    assert_eq!(refusal(&near), (Code::MajorMismatch, u64::from(PROTOCOL_MAJOR)), "it learns our version");
    assert_eq!(refusal(&far), (Code::MajorMismatch, u64::from(PROTOCOL_MAJOR + 1)));
}

/// A node of another version frames everything with that version.
#[test]
fn another_versions_frames_are_refused_in_its_version() {
    let (mut near, mut far) = pair();
    let theirs = PROTOCOL_MAJOR + 3;
    near.sender.send_as(theirs, &Frame::NodeHello(hello(1)), TIMEOUT).expect("sent");
    let outcome = far.greet(&hello(2), TIMEOUT, |_| panic!("not to be judged"));
    assert_eq!(refusal(&outcome), (Code::MajorMismatch, u64::from(theirs)));
    let message =
        near.receiver.inbox.read(&mut near.receiver.stream, Deadline::after(TIMEOUT)).expect("answered");
    let mut bytes = [0; FRAME_BYTES_MAX];
    let length = near.receiver.transport.open(0, message, &mut bytes).expect("opened");
    let Ok(Frame::Refused(refused)) = Frame::decode(theirs, &bytes[..length]) else { panic!("no refusal") };
    assert_eq!((refused.code, refused.figure), (Code::MajorMismatch.number(), u64::from(PROTOCOL_MAJOR)));
}

#[test]
fn data_hellos_are_good_once_and_in_any_near_order() {
    let (near, far) = pair();
    let mut signer = near.data_signer(77);
    let mut verifier = far.data_verifier(77);
    let hellos: Vec<DataHello> = (0..300).map(|at| signer.sign(at, at % 3, at % 2, at % 5 == 0)).collect();
    for at in [0, 2, 1, 100, 50, 3] {
        assert_eq!(verifier.verify(&hellos[at]), Ok(()), "attempt {at}");
    }
    for at in [0, 1, 2, 3, 50, 100] {
        assert_eq!(verifier.verify(&hellos[at]), Err(Code::KeyMismatch), "attempt {at} again");
    }
    assert_eq!(verifier.verify(&hellos[299]), Ok(()));
    assert_eq!(verifier.verify(&hellos[299 - 127]), Ok(()), "the oldest that may still come");
    assert_eq!(verifier.verify(&hellos[299 - 128]), Err(Code::KeyMismatch), "older than that");
    assert_eq!(verifier.verify(&hellos[299 - 127]), Err(Code::KeyMismatch));
}

#[test]
fn data_hellos_are_bound_to_all_they_say() {
    let (near, far) = pair();
    let mut verifier = far.data_verifier(77);
    let good = near.data_signer(77).sign(1, 2, 1, false);
    for changed in [
        DataHello { token: 78, ..good },
        DataHello { lane: 0, ..good },
        DataHello { target_lane: 1, ..good },
        DataHello { class: 0, ..good },
        DataHello { attempt: 2, ..good },
        DataHello { mac: [good.mac[0] ^ 1, good.mac[1], good.mac[2], good.mac[3]], ..good },
        DataHello { mac: [good.mac[0], good.mac[1], good.mac[2], good.mac[3] ^ (1 << 63)], ..good },
    ] {
        assert_eq!(verifier.verify(&changed), Err(Code::KeyMismatch), "{changed:?}");
    }
    // Not of this channel, not of this direction, not for this token.
    let (elsewhere, _) = pair();
    for foreign in [elsewhere.data_signer(77), far.data_signer(77), near.data_signer(78)] {
        let mut foreign = foreign;
        assert_eq!(verifier.verify(&foreign.sign(1, 2, 1, false)), Err(Code::KeyMismatch));
    }
    assert_eq!(verifier.verify(&good), Ok(()), "what was refused used nothing up");
}

#[test]
fn data_connections_carry_bytes_right_behind_the_hello() {
    let (near, far) = pair();
    let (listener, address) = listener();
    let mut verifier = far.data_verifier(5);
    let hello = near.data_signer(5).sign(3, 1, 0, false);
    let acceptor = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accepted");
        let Ok(Incoming::Data(knock)) = admit(stream, TIMEOUT) else { panic!("no data connection") };
        verifier.verify(knock.hello()).expect("verified");
        assert_eq!((knock.hello().lane, knock.hello().target_lane), (3, 1));
        let mut stream = knock.ready(TIMEOUT).expect("ready");
        stream.write_all(b"right behind").expect("written");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("read");
        bytes
    });
    let mut stream = dial_data(&address, &hello, TIMEOUT).expect("accepted");
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"right behind");
    stream.write_all(b"hello").expect("written");
    assert_eq!(&acceptor.join().expect("the acceptor ends"), b"hello");
}

#[test]
fn data_connections_can_be_refused_or_dropped() {
    let (near, _far) = pair();
    for told in [true, false] {
        let (listener, address) = listener();
        let hello = near.data_signer(5).sign(3, 1, 0, false);
        let acceptor = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accepted");
            let Ok(Incoming::Data(knock)) = admit(stream, TIMEOUT) else { panic!("no data connection") };
            if told {
                knock.refuse(&Refused::because(Code::PeerUnknown, "lane"), TIMEOUT);
            }
        });
        let error = dial_data(&address, &hello, TIMEOUT).expect_err("not accepted");
        let expected = if told { Code::PeerUnknown } else { Code::ConnectionReset };
        assert_eq!(error.code(), expected, "{error}");
        acceptor.join().expect("the acceptor ends");
    }
}

#[test]
fn keys_are_never_printed() {
    let keys = Keys::new([0x5a; 32]).and([0x5b; 32]);
    assert_eq!(format!("{keys:?}"), "Keys { second: true, .. }");
    let text = format!("{:?}", pair().0);
    assert!(text.len() < 500, "no key, no digest and no message: {text}");
}
