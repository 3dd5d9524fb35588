use std::thread;
use std::time::Duration;

use railhead_abi::frame::{ADMIN_PEER_ADD, ADMIN_PEER_REMOVE, Empty, Text};
use railhead_abi::segment::ControlHeader;
use railhead_shm::{Access, Mapping};

use super::*;

struct Fixture {
    desk: Arc<AdminDesk>,
    knocks: flume::Receiver<Knock>,
}

fn fixture() -> Fixture {
    let carry_out = Box::new(|command| match command {
        Command::AddPeer { name, address } if name == "slow" => {
            thread::sleep(Duration::from_millis(300));
            Ok(address.len() as u64)
        }
        Command::AddPeer { address, .. } => Ok(address.len() as u64),
        Command::RemovePeer { name, drain } => {
            Err(Refusal::new(Code::PeerUnknown, "name", format!("{name} after {drain:?}")))
        }
    });
    let header = ControlHeader { lanes: 1, incarnation: 77, pid: 5, ..ControlHeader::default() };
    let segment = Arc::new(ControlSegment::create(&header).unwrap());
    let events = Arc::new(EventLog::new(segment.registrar_events()));
    let (sender, knocks) = flume::unbounded();
    Fixture { desk: Arc::new(AdminDesk::new(segment, events, sender, "n1", carry_out)), knocks }
}

/// A process that has sent its first frame, and what it was answered.
fn attach(desk: &Arc<AdminDesk>, first: &Frame) -> (OwnedFd, Frame, Vec<OwnedFd>) {
    let (ours, theirs) = socket::pair().unwrap();
    let desk = Arc::clone(desk);
    thread::spawn(move || desk.serve(&Arc::new(theirs)));
    let (bytes, count) = first.encode(LOCAL_VERSION);
    socket::send_frame(&ours, &bytes[..count], &[]).unwrap();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let answer = socket::recv_frame(&ours, &mut buffer, 4).unwrap();
    (ours, Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]).unwrap(), answer.fds)
}

const HOLD: Frame = Frame::AdminHello(AdminHello { hold: 1, pid: 1 });
const LOOK: Frame = Frame::AdminHello(AdminHello { hold: 0, pid: 1 });

#[test]
fn holder_gets_the_segment_and_its_wake_reaches_the_settings_thread() {
    let Fixture { desk, knocks } = fixture();
    let (holder, answer, fds) = attach(&desk, &HOLD);
    let Frame::AdminWelcome(welcome) = answer else { panic!("{answer:?}") };
    assert_eq!((welcome.incarnation, welcome.pid, welcome.lanes), (77, 5, 1));
    let mapping = Mapping::of_sealed(&fds[0], Access::ReadWrite).unwrap();
    assert!(mapping.len() >= 8 * usize::try_from(welcome.segment_words).unwrap());
    let (bytes, count) = Frame::AdminWake(Empty::default()).encode(LOCAL_VERSION);
    socket::send_frame(&holder, &bytes[..count], &[]).unwrap();
    assert_eq!(knocks.recv_timeout(Duration::from_secs(5)), Ok(Knock::Look));
}

#[test]
fn second_holder_is_refused_with_the_first_ones_pid_until_that_one_is_gone() {
    let Fixture { desk, knocks } = fixture();
    let (holder, _, _) = attach(&desk, &HOLD);
    let (_second, answer, fds) = attach(&desk, &HOLD);
    let Frame::Refused(refused) = answer else { panic!("{answer:?}") };
    assert_eq!(refused.code, Code::ControlHeld.number());
    assert_eq!(refused.figure, u64::from(std::process::id()), "as the kernel says, not as claimed");
    assert!(fds.is_empty());
    let (_looker, answer, _) = attach(&desk, &LOOK);
    assert!(matches!(answer, Frame::AdminWelcome(_)), "looking needs no hold");
    drop(holder);
    // The end of the hold is announced by one last look.
    assert_eq!(knocks.recv_timeout(Duration::from_secs(5)), Ok(Knock::Look));
    let (_third, answer, _) = attach(&desk, &HOLD);
    assert!(matches!(answer, Frame::AdminWelcome(_)), "{answer:?}");
}

#[test]
fn a_looker_cannot_wake() {
    let Fixture { desk, knocks } = fixture();
    let (looker, _, _) = attach(&desk, &LOOK);
    let (bytes, count) = Frame::AdminWake(Empty::default()).encode(LOCAL_VERSION);
    socket::send_frame(&looker, &bytes[..count], &[]).unwrap();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let answer = socket::recv_frame(&looker, &mut buffer, 0).unwrap();
    assert!(matches!(Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]), Ok(Frame::Refused(_))));
    assert!(knocks.is_empty());
}

#[test]
fn another_version_or_other_frames_are_refused() {
    let Fixture { desk, .. } = fixture();
    let (_, answer, _) = attach(&desk, &Frame::Heartbeat(Empty::default()));
    let Frame::Refused(refused) = answer else { panic!("{answer:?}") };
    assert_eq!(refused.code, Code::FrameMalformed.number());

    let (ours, theirs) = socket::pair().unwrap();
    let desk = Arc::clone(&desk);
    thread::spawn(move || desk.serve(&Arc::new(theirs)));
    let (bytes, count) = HOLD.encode(LOCAL_VERSION + 1);
    socket::send_frame(&ours, &bytes[..count], &[]).unwrap();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let answer = socket::recv_frame(&ours, &mut buffer, 0).unwrap();
    let Frame::Refused(refused) = Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]).unwrap() else {
        panic!()
    };
    assert_eq!(refused.code, Code::VersionMismatch.number());
}

#[test]
fn control_that_is_started_again_at_once_holds() {
    let Fixture { desk, .. } = fixture();
    for _ in 0..50 {
        let (holder, answer, _) = attach(&desk, &HOLD);
        assert!(matches!(answer, Frame::AdminWelcome(_)), "{answer:?}");
        // Nobody waits for the dataplane to notice.
        drop(holder);
    }
}

fn command(cookie: u64, command: u16, name: &str) -> Frame {
    let (name, address) = (name_words(name), name_words("host:7410"));
    Frame::AdminCommand(AdminCommand { cookie, command, limit_ms: 7, name, address })
}

fn send_and_read(socket: &OwnedFd, frame: &Frame) -> Frame {
    let (bytes, count) = frame.encode(LOCAL_VERSION);
    socket::send_frame(socket, &bytes[..count], &[]).unwrap();
    next(socket)
}

fn next(socket: &OwnedFd) -> Frame {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let answer = socket::recv_frame(socket, &mut buffer, 0).unwrap();
    Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]).unwrap()
}

#[test]
fn commands_of_the_holder_are_carried_out_and_answered_by_their_cookie() {
    let Fixture { desk, knocks } = fixture();
    let (holder, _, _) = attach(&desk, &HOLD);
    let (bytes, count) = command(1, ADMIN_PEER_ADD, "slow").encode(LOCAL_VERSION);
    socket::send_frame(&holder, &bytes[..count], &[]).unwrap();
    // The slow one delays neither another command nor a wake-up.
    let (bytes, count) = Frame::AdminWake(Empty::default()).encode(LOCAL_VERSION);
    socket::send_frame(&holder, &bytes[..count], &[]).unwrap();
    assert_eq!(knocks.recv_timeout(Duration::from_millis(250)), Ok(Knock::Look));
    let Frame::AdminAnswer(refused) = send_and_read(&holder, &command(2, ADMIN_PEER_REMOVE, "b")) else {
        panic!()
    };
    assert_eq!((refused.cookie, refused.status), (2, Code::PeerUnknown.number()));
    assert_eq!(
        (Text::of(&refused.field).as_str(), Text::of(&refused.detail).as_str()),
        ("name", "b after 7ms")
    );
    let Frame::AdminAnswer(malformed) = send_and_read(&holder, &command(3, 999, "b")) else { panic!() };
    assert_eq!((malformed.cookie, malformed.status), (3, Code::FrameMalformed.number()));
    let Frame::AdminAnswer(done) = next(&holder) else { panic!() };
    assert_eq!((done.cookie, done.status, done.figure), (1, 0, 9));
}

#[test]
fn a_looker_has_nothing_carried_out_and_commands_at_once_are_bounded() {
    let Fixture { desk, .. } = fixture();
    let (looker, _, _) = attach(&desk, &LOOK);
    let answer = send_and_read(&looker, &command(1, ADMIN_PEER_ADD, "b"));
    assert!(matches!(answer, Frame::Refused(_)), "{answer:?}");
    let (holder, _, _) = attach(&desk, &HOLD);
    for cookie in 0..=COMMANDS_MAX {
        let (bytes, count) = command(cookie, ADMIN_PEER_ADD, "slow").encode(LOCAL_VERSION);
        socket::send_frame(&holder, &bytes[..count], &[]).unwrap();
    }
    let Frame::AdminAnswer(full) = next(&holder) else { panic!() };
    assert_eq!((full.cookie, full.status), (COMMANDS_MAX, Code::QuotaExceeded.number()));
    for _ in 0..COMMANDS_MAX {
        let Frame::AdminAnswer(done) = next(&holder) else { panic!() };
        assert_eq!(done.status, 0);
    }
}
