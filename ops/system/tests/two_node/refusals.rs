//! What is not allowed is refused with its code, moves nothing and costs nobody else anything.

use railhead_client::{
    ACCESS_READ, AttachOptions, Class, Code, Completion, Leg, Notify, Pages, RegionOptions, Session, Write,
    outcome,
};
use railhead_system::{Cluster, Node, NodeConfig, until};

use crate::support::*;

fn code(completion: &Completion) -> Code {
    outcome(completion).expect_err("should be refused").code.expect("a known code")
}

fn granted(session: &Session, name: &str, grant: &str) -> railhead_client::Region {
    let options = RegionOptions { bytes: 4096, name, grant, pages: Pages::BASE, ..RegionOptions::default() };
    session.create_region(&options).unwrap_or_else(|error| panic!("{name} for {grant}: {error}"))
}

#[test]
fn a_region_is_opened_only_by_whom_it_is_granted_to() {
    let cluster = Cluster::pair();
    let owner = attach(cluster.b(), "owner", 1);
    let regions = [
        ("all", "*"),
        ("nobody", ""),
        ("node-a", "a/*"),
        ("node-c", "c/*"),
        ("one", "a/one"),
        ("own-node", "b/*"),
    ];
    let _kept: Vec<_> = regions.map(|(name, grant)| granted(&owner, name, grant)).into();
    let one = attach(cluster.a(), "one", 1);
    open(&one, "b", "all");
    let two = attach(cluster.a(), "two", 1);
    let three = attach(cluster.b(), "three", 1);
    // Region, and whether each of the three may open it.
    for (name, allowed) in [
        ("all", [true, true, true]),
        ("nobody", [false, false, false]),
        ("node-a", [true, true, false]),
        ("node-c", [false, false, false]),
        ("one", [true, false, false]),
        ("own-node", [false, false, true]),
    ] {
        for ((session, node), allowed) in
            [(&one, "b"), (&two, "b"), (&three, "self")].into_iter().zip(allowed)
        {
            let opened = session.open(node, name);
            if allowed {
                assert_eq!(opened.unwrap_or_else(|error| panic!("{name}: {error}")).bytes(), 4096);
            } else {
                assert_eq!(refusal(opened), Code::GrantMissing, "{name} by {}", session.name());
            }
        }
    }
    assert_eq!(refusal(one.open("b", "absent")), Code::RegionUnknown);
    assert_eq!(refusal(one.open("c", "all")), Code::PeerUnknown);
    assert_eq!(refusal(one.open("self", "all")), Code::RegionUnknown, "it is a region of the other node");
    assert!(cluster.b().has_event("grant_refused"));
    drop((owner, one, two, three));
    cluster.stop();
}

#[test]
fn names_are_unique_on_a_node_and_free_again_when_their_owner_ends() {
    let cluster = Cluster::pair();
    let first = attach(cluster.a(), "first", 1);
    let region = granted(&first, "weights", "*");
    assert_eq!(
        refusal(Session::attach(
            cluster.a().session_socket(),
            &AttachOptions { name: "first", ..AttachOptions::default() }
        )),
        Code::NameTaken
    );
    let second = attach(cluster.a(), "second", 1);
    let again =
        RegionOptions { bytes: 4096, name: "weights", pages: Pages::BASE, ..RegionOptions::default() };
    assert_eq!(refusal(second.create_region(&again)), Code::NameTaken);
    region.release().unwrap();
    let taken_over = second.create_region(&again).unwrap();
    // Another node has names of its own.
    let elsewhere = attach(cluster.b(), "first", 1);
    granted(&elsewhere, "weights", "*");
    drop((second, taken_over, first));
    let reattached = until("the name is free again", LIMIT, || {
        Session::attach(
            cluster.a().session_socket(),
            &AttachOptions { name: "first", ..AttachOptions::default() },
        )
        .ok()
    });
    granted(&reattached, "weights", "*");
    drop((reattached, elsewhere));
    cluster.stop();
}

#[test]
fn bad_submissions_complete_once_with_their_code_and_move_nothing() {
    let cluster = Cluster::pair();
    for (target, node) in [("b", cluster.b()), ("self", cluster.a())] {
        let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(node, "receiver", 1));
        let (source, destination) = (region(&sender, "", 8192), region(&receiver, "destination", 4096));
        let remote = open(&sender, target, "destination");
        let closed = open(&sender, target, "destination");
        sender.close(closed.handle()).unwrap();
        let old = region(&sender, "", 4096);
        let old_handle = old.handle();
        old.release().unwrap();
        destination.fill(0, 4096, POISON).unwrap();
        let good = write(0, &source, &remote, 4096);
        let mut stale_local = good.local;
        stale_local.generation = stale_local.generation.wrapping_add(1);
        let mut other_local = good.local;
        other_local.index = 4_000_000;
        let mut other_remote = good.remote;
        other_remote.index = u32::MAX;
        let cases = [
            (Write { local: stale_local, ..good }, Code::LocalHandleStale),
            (Write { local: other_local, ..good }, Code::LocalHandleStale),
            (Write { local: old_handle, ..good }, Code::LocalHandleStale),
            (Write { remote: closed.handle(), ..good }, Code::RemoteHandleStale),
            (Write { remote: other_remote, ..good }, Code::RemoteHandleStale),
            (Write { local_offset: 4097, ..good }, Code::LocalRange),
            (Write { local_offset: u64::MAX, ..good }, Code::LocalRange),
            (Write { local_offset: 8193, bytes: 0, ..good }, Code::LocalRange),
            (Write { remote_offset: 1, ..good }, Code::RemoteRange),
            (Write { remote_offset: u64::MAX - 4095, ..good }, Code::RemoteRange),
            (Write { bytes: u64::MAX, ..good }, Code::LocalRange),
            (Write { send_leg: Leg(3), ..good }, Code::RouteUnknown),
            (Write { receive_leg: Leg(255), ..good }, Code::RouteUnknown),
            (Write { class: Class(2), ..good }, Code::ClassUnknown),
            (Write { notify: Notify { kind: 3, ..Notify::NONE }, ..good }, Code::NotificationUnknown),
        ];
        let mut port = sender.take_port().unwrap();
        for (number, (write, expected)) in cases.into_iter().enumerate() {
            let completion = transfer(&mut port, &Write { cookie: number as u64, ..write });
            assert_eq!(code(&completion), expected, "{write:?}");
            assert_eq!((completion.cookie, completion.bytes), (number as u64, 0));
        }
        assert!(read(&destination, 0, 4096).iter().all(|byte| *byte == POISON));
        transfer_ok(&mut port, &good);
        assert_eq!(port.strays(), 0);
    }
    cluster.stop();
}

/// What a peer took back is out of reach at once, and the connection serves others.
#[test]
fn a_region_that_its_owner_took_back_is_not_written() {
    let cluster = Cluster::pair();
    for (target, node) in [("b", cluster.b()), ("self", cluster.a())] {
        let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(node, "receiver", 1));
        let source = region(&sender, "", 1 << 20);
        let (kept, taken) = (region(&receiver, "kept", 1 << 20), region(&receiver, "taken", 1 << 20));
        let (to_kept, to_taken) = (open(&sender, target, "kept"), open(&sender, target, "taken"));
        let mut port = sender.take_port().unwrap();
        transfer_ok(&mut port, &write(1, &source, &to_taken, 1 << 20));
        let file = taken.file().try_clone().unwrap();
        taken.fill(0, 1 << 20, POISON).unwrap();
        taken.release().unwrap();
        for (send_leg, receive_leg) in ROUTES {
            let write = Write { send_leg, receive_leg, ..write(2, &source, &to_taken, 1 << 20) };
            let code = code(&transfer(&mut port, &write));
            assert!(matches!(code, Code::RemoteHandleStale | Code::RemoteRefused), "{code:?}");
            transfer_ok(&mut port, &self::write(3, &source, &to_kept, 1 << 20));
        }
        let mut byte = [0];
        for at in [0, 4095, (1 << 20) - 1] {
            rustix::io::pread(&file, &mut byte, at).unwrap();
            assert_eq!(byte, [POISON], "written after it was taken back");
        }
        assert_eq!(refusal(sender.open(target, "taken")), Code::RegionUnknown);
        drop(kept);
    }
    cluster.stop();
}

#[test]
fn a_region_for_reading_only_cannot_be_written() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let options =
        RegionOptions { bytes: 4096, name: "constant", grant: "*", access: ACCESS_READ, pages: Pages::BASE };
    let constant = receiver.create_region(&options).unwrap();
    constant.fill(0, 4096, POISON).unwrap();
    let _other = region(&receiver, "other", 4096);
    let other = open(&sender, "b", "other");
    let source = region(&sender, "", 4096);
    let mut port = sender.take_port().unwrap();
    match sender.open("b", "constant") {
        Err(error) => assert!(matches!(error.code(), Code::GrantMissing | Code::NotPermitted), "{error}"),
        Ok(remote) => {
            let code = code(&transfer(&mut port, &write(1, &source, &remote, 4096)));
            assert_eq!(code, Code::RemoteRefused);
        }
    }
    assert!(read(&constant, 0, 4096).iter().all(|byte| *byte == POISON));
    transfer_ok(&mut port, &write(2, &source, &other, 4096));
    drop((port, constant));
    cluster.stop();
}

/// A memory file that can still shrink is refused: a lane that touches what is gone would die.
#[test]
fn memory_without_seals_or_of_another_size_is_refused() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let cluster = Cluster::pair();
    let session = attach(cluster.a(), "session", 1);
    let file = |seals: SealFlags, bytes| {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let options = RegionOptions { bytes: 8192, ..RegionOptions::default() };
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        let refused = refused_raw(cluster.a(), file(seals, 8192), 8192);
        assert_eq!(refused, Code::SealsMissing, "{seals:?}");
    }
    let both = SealFlags::SHRINK | SealFlags::GROW;
    assert_eq!(refused_raw(cluster.a(), file(both, 4096), 8192), Code::RegionSize);
    assert!(session.register_fd(file(both, 8192), 0, &options).is_ok());
    drop(session);
    cluster.stop();
}

/// Registers over the bare socket: the client library would see the fault itself, and not ask.
fn refused_raw(node: &Node, file: std::os::fd::OwnedFd, bytes: u64) -> Code {
    use railhead_abi::frame::{ACCESS_WRITE, FRAME_BYTES_MAX, Frame, Hello, Register};
    use std::os::fd::AsFd;
    let version = u16::try_from(railhead_abi::ABI_VERSION).unwrap();
    let socket = railhead_shm::socket::connect(&node.session_socket()).unwrap();
    let ask = |frame: Frame, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let (buffer, length) = frame.encode(version);
        railhead_shm::socket::send_frame(&socket, &buffer[..length], fds).unwrap();
        let mut buffer = [0; FRAME_BYTES_MAX];
        let answer =
            railhead_shm::socket::recv_frame(&socket, &mut buffer, railhead_shm::socket::FDS_MAX).unwrap();
        Frame::decode(version, &buffer[..answer.bytes]).unwrap()
    };
    let welcome = ask(Frame::Hello(Hello { ports: 1, ..Hello::default() }), &[]);
    assert!(matches!(welcome, Frame::Welcome(_)), "{welcome:?}");
    let register = Register { bytes, access: ACCESS_WRITE, ..Register::default() };
    match ask(Frame::Register(register), &[file.as_fd()]) {
        Frame::Refused(refused) => Code::from_number(refused.code).expect("a known code"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn sessions_above_the_most_are_refused_and_their_slots_come_back() {
    let config = NodeConfig { sessions: 3, ..NodeConfig::new("a") };
    let cluster = Cluster::start(vec![config]);
    let attach = |number: u32| {
        let name = format!("session-{number}");
        Session::attach(
            cluster.a().session_socket(),
            &AttachOptions { name: &name, ..AttachOptions::default() },
        )
    };
    let mut sessions: Vec<Session> = (0..3).map(|number| attach(number).unwrap()).collect();
    assert_eq!(refusal(attach(3)), Code::SessionsFull);
    sessions.pop();
    let again = until("a slot comes back", LIMIT, || attach(4).ok());
    drop((sessions, again));
    cluster.stop();
}
