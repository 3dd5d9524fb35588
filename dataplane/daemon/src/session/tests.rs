use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE, Handle, Welcome, name_words, text_words};
use railhead_abi::segment::{SESSION_MAGIC, SessionHeader, SessionShape};
use railhead_ring::Bell;
use railhead_shm::memfd::{self, Huge};
use railhead_shm::{Access, Mapping, futex};
use rustix::fs::MemfdFlags;

use super::*;
use crate::stub::{PORTS_OF_A_LANE, StubNode, number, within};

/// A client's end of a session socket.
struct Client {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn connect(node: &StubNode) -> Self {
        let (ours, theirs) = socket::pair().unwrap();
        let credentials = socket::peer_credentials(&theirs).unwrap();
        let connection = Connection::new(Arc::clone(&node.registrar), Arc::new(theirs), credentials);
        let thread = Some(thread::spawn(move || connection.serve()));
        Self { socket: ours, thread }
    }

    fn attach(node: &StubNode, name: &str, ports: u32) -> (Self, Welcome, Vec<OwnedFd>) {
        let mut client = Self::connect(node);
        let (answer, fds) = client.ask(&hello(name, ports), &[]);
        let Frame::Welcome(welcome) = answer else { panic!("{answer:?}") };
        (client, welcome, fds)
    }

    fn ask(&mut self, frame: &Frame, fds: &[&OwnedFd]) -> (Frame, Vec<OwnedFd>) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let (bytes, count) = frame.encode(LOCAL_VERSION);
        socket::send_frame(&self.socket, &bytes[..count], &fds).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> (Frame, Vec<OwnedFd>) {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let answer = socket::recv_frame(&self.socket, &mut buffer, socket::FDS_MAX).unwrap();
        (Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]).unwrap(), answer.fds)
    }

    fn code(&mut self, frame: &Frame, fds: &[&OwnedFd]) -> u16 {
        match self.ask(frame, fds).0 {
            Frame::Refused(refused) => refused.code,
            _ => 0,
        }
    }

    fn register(&mut self, name: &str, grant: &str) -> Handle {
        let file = memfd::create("test", 4096, Huge::No).unwrap();
        let (answer, _) = self.ask(&register(name, grant, 0, 4096), &[&file]);
        let Frame::Registered(handle) = answer else { panic!("{answer:?}") };
        handle
    }

    fn open(&mut self, node: &str, region: &str) -> Result<Handle, u16> {
        let open = Open { node: name_words(node), region: name_words(region), access: ACCESS_WRITE };
        match self.ask(&Frame::Open(open), &[]).0 {
            Frame::Opened(handle) => Ok(handle),
            Frame::Refused(refused) => Err(refused.code),
            other => panic!("{other:?}"),
        }
    }

    /// Dies, and waits until its thread has taken everything back.
    fn die(mut self) {
        let thread = self.thread.take();
        drop(self.socket);
        thread.unwrap().join().unwrap();
    }
}

fn hello(name: &str, ports: u32) -> Frame {
    Frame::Hello(Hello { name: name_words(name), ports, entries: 16 })
}

fn register(name: &str, grant: &str, offset: u64, bytes: u64) -> Frame {
    let access = ACCESS_READ | ACCESS_WRITE;
    Frame::Register(Register { offset, bytes, access, name: name_words(name), grant: text_words(grant) })
}

fn release(handle: &Handle, remote: u32) -> Frame {
    Frame::Release(Release { index: handle.index, generation: handle.generation, remote })
}

#[test]
fn welcome_carries_memory_whose_header_agrees_and_one_doorbell_a_lane() {
    let node = StubNode::new("a", 9, 3, &[]);
    let (client, welcome, fds) = Client::attach(&node, "trainer", 4);
    assert_eq!((welcome.incarnation, welcome.lanes, welcome.ports, welcome.entries), (9, 3, 4, 16));
    assert_eq!(Text::of(&welcome.name).as_str(), "trainer");
    assert_eq!(Text::of(&welcome.node).as_str(), "a");
    assert_eq!(fds.len(), 2 + 3);
    let words =
        Mapping::of_sealed(&fds[0], Access::ReadWrite).unwrap().words(0, SessionHeader::WORDS).unwrap();
    let header = SessionHeader::decode(&core::array::from_fn(|at| words[at].load_acquire()));
    assert_eq!((header.magic, header.incarnation, header.ports), (SESSION_MAGIC, 9, 4));
    assert!(Mapping::of_sealed(&fds[1], Access::ReadWrite).is_err(), "the lanes' page is read-only");
    client.die();
    // Ports 0 and 3 are on lane 0, the others on lanes 1 and 2.
    let expected = ["session 0", "port of 0", "port of 0", "end port", "end port", "end session 0"];
    assert_eq!(node.take_log(), expected);
}

#[test]
fn a_nameless_client_is_called_after_its_process() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (_client, welcome, _) = Client::attach(&node, "", 0);
    let name = format!("pid-{}", std::process::id());
    assert_eq!(Text::of(&welcome.name).as_str(), name);
    let (_second, welcome, _) = Client::attach(&node, "", 0);
    assert_eq!(Text::of(&welcome.name).as_str(), format!("{name}.1"));
}

#[test]
fn bad_hellos_are_refused_by_name_of_the_cause() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (_first, ..) = Client::attach(&node, "taken", 1);
    let cases = [
        (hello("taken", 1), Code::NameTaken),
        (hello("no name", 1), Code::NameInvalid),
        (hello("x", PORTS_OF_A_LANE), Code::PortsFull),
        (Frame::Hello(Hello { name: name_words("x"), ports: 1, entries: 3 }), Code::QuotaExceeded),
        (Frame::Released(Empty::default()), Code::FrameMalformed),
    ];
    for (frame, code) in cases {
        assert_eq!(Client::connect(&node).code(&frame, &[]), number(code), "{frame:?}");
    }
    let (_other, ..) = Client::attach(&node, "x", PORTS_OF_A_LANE - 1);
}

#[test]
fn sessions_beyond_the_limit_are_refused_until_one_ends() {
    let node = StubNode::new("a", 1, 1, &[]);
    let mut clients: Vec<Client> = (0..4).map(|at| Client::attach(&node, &format!("s{at}"), 1).0).collect();
    assert_eq!(Client::connect(&node).code(&hello("more", 1), &[]), number(Code::SessionsFull));
    clients.pop().unwrap().die();
    let (_late, ..) = Client::attach(&node, "late", 1);
}

#[test]
fn memory_that_could_be_taken_away_is_refused() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 1);
    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert_eq!(client.code(&register("r", "*", 0, 4096), &[&unsealed]), number(Code::SealsMissing));
    let plain = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert_eq!(client.code(&register("r", "*", 0, 4096), &[&plain]), number(Code::SealsMissing));
    assert_eq!(client.code(&register("r", "*", 0, 4096), &[]), number(Code::SealsMissing));
    assert!(!node.take_log().iter().any(|seen| seen.starts_with("region")), "no lane heard of it");
}

#[test]
fn ranges_names_and_grants_of_regions_are_checked() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 1);
    let file = memfd::create("test", 8192, Huge::No).unwrap();
    let cases = [
        (register("r", "*", 0, 8193), Code::RegionSize),
        (register("r", "*", 0, 0), Code::RegionSize),
        (register("r", "*", 8, 16), Code::RegionSize),
        (register("r", "*", u64::MAX - 4095, 8192), Code::RegionSize),
        (register("a/b", "*", 0, 8192), Code::NameInvalid),
        (register("r", "b/", 0, 8192), Code::NameInvalid),
    ];
    for (frame, code) in cases {
        assert_eq!(client.code(&frame, &[&file]), number(code), "{frame:?}");
    }
    assert_eq!(client.code(&register("r", "*", 4096, 4096), &[&file]), 0);
    assert_eq!(client.code(&register("r", "*", 0, 4096), &[&file]), number(Code::NameTaken));
    assert_eq!(client.code(&register("", "", 0, 1), &[&file]), 0, "nameless regions need no other name");
}

#[test]
fn only_the_registered_part_of_a_file_is_mapped_and_counted() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 1);
    // Sparse: no page of it is taken.
    let file = memfd::create("test", 2 << 40, Huge::No).unwrap();
    assert_eq!(client.code(&register("r", "*", 0, (1 << 40) + 1), &[&file]), number(Code::QuotaExceeded));
    rustix::io::pwrite(&file, b"here", 1 << 40).unwrap();
    let (answer, _) = client.ask(&register("r", "*", 1 << 40, 8), &[&file]);
    let Frame::Registered(handle) = answer else { panic!("{answer:?}") };
    let span = node.registrar.tables().region(handle.index).unwrap().span.clone().unwrap();
    let mut seen = [0; 4];
    span.read(0, &mut seen).unwrap();
    assert_eq!((&seen, span.len()), (b"here", 8));
    assert!(span.read(8, &mut seen).is_err(), "what follows is not the region's");
}

#[test]
fn lost_memory_is_reported_once_while_its_owner_lives() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 1);
    let (lost, kept) = (client.register("lost", "*"), client.register("kept", "*"));
    let span = node.registrar.tables().region(lost.index).unwrap().span.clone().unwrap();
    let count = || node.segment.regions_lost()[0].load_acquire();
    assert_eq!(count(), 0);
    // As after a system call that found the memory gone.
    span.guard().unwrap().condemn().unwrap();
    assert!(within(|| count() == 1), "the notices thread has seen it");
    node.registrar.report_losses();
    drop(span);
    assert_eq!(client.code(&release(&lost, 0), &[]), 0);
    assert_eq!(client.code(&release(&kept, 0), &[]), 0);
    assert_eq!(count(), 1, "once, and the other region is as it was");
}

#[test]
fn a_client_that_does_not_take_its_welcome_has_no_session() {
    let node = StubNode::new("a", 1, 1, &[]);
    let client = Client::connect(&node);
    rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Read).unwrap();
    let (bytes, count) = hello("s", 1).encode(LOCAL_VERSION);
    socket::send_frame(&client.socket, &bytes[..count], &[]).unwrap();
    assert!(node.has_seen("end session 0"), "although its socket is open");
    assert!(within(|| node.registrar.tables().session(0).is_none()));
}

#[test]
fn a_thread_that_sleeps_on_a_port_wakes_when_the_session_ends() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (client, welcome, fds) = Client::attach(&node, "s", 1);
    let shape = SessionShape { lanes: 1, ports: 1, entries: welcome.entries as usize };
    let memory = Mapping::of_sealed(&fds[0], Access::ReadWrite).unwrap().words(0, shape.words()).unwrap();
    let word = memory.part(shape.port(0) + SessionShape::PORT_BELL, 1).unwrap();
    let bell = Bell::new(word.clone()).unwrap();
    bell.prepare();
    let sleeper = thread::spawn(move || futex::wait(&word[0], 1, Some(Duration::from_secs(10))));
    client.die();
    assert_ne!(sleeper.join().unwrap(), futex::Wait::TimedOut);
    assert!(!bell.is_sleeping(), "whoever was about to sleep does not");
}

#[test]
fn region_is_opened_by_whom_it_is_granted_to_and_given_back() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut owner, ..) = Client::attach(&node, "owner", 1);
    let (mut friend, ..) = Client::attach(&node, "friend", 1);
    let (mut stranger, ..) = Client::attach(&node, "stranger", 1);
    let region = owner.register("r", "a/friend");
    assert_eq!(stranger.open("a", "r"), Err(number(Code::GrantMissing)));
    assert_eq!(friend.open("a", "other"), Err(number(Code::RegionUnknown)));
    assert_eq!(friend.open("nowhere", "r"), Err(number(Code::PeerUnknown)));
    let opened = friend.open("self", "r").unwrap();
    assert_eq!((opened.bytes, opened.peer, opened.session), (4096, 0, 0));
    assert!(owner.open("a", "r").is_ok(), "its owner needs no grant");
    assert_eq!(
        stranger.code(&release(&opened, 1), &[]),
        number(Code::RemoteHandleStale),
        "another session's handle"
    );
    assert_eq!(friend.code(&release(&opened, 1), &[]), 0);
    assert_eq!(friend.code(&release(&opened, 1), &[]), number(Code::RemoteHandleStale));
    assert_eq!(
        stranger.code(&release(&region, 0), &[]),
        number(Code::LocalHandleStale),
        "another session's region"
    );
    assert_eq!(owner.code(&release(&region, 0), &[]), 0);
    assert_eq!(friend.open("a", "r"), Err(number(Code::RegionUnknown)));
}

#[test]
fn deregistering_withdraws_what_others_opened_first() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut owner, ..) = Client::attach(&node, "owner", 0);
    let (mut friend, ..) = Client::attach(&node, "friend", 0);
    let region = owner.register("r", "*");
    let opened = friend.open("a", "r").unwrap();
    node.take_log();
    assert_eq!(owner.code(&release(&region, 0), &[]), 0);
    let expected = [format!("end remote {}", opened.index), format!("end region {}", region.index)];
    assert_eq!(node.take_log(), expected, "holders stop before the region goes");
    assert_eq!(
        friend.code(&release(&opened, 1), &[]),
        0,
        "the handle's slot is still its session's to give back"
    );
}

#[test]
fn a_client_that_dies_gives_everything_back_in_order() {
    let node = StubNode::new("a", 1, 2, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 2);
    let region = client.register("r", "*");
    let opened = client.open("a", "r").unwrap();
    node.take_log();
    // What is still under way is waited for: the name is free at once, the slots are not.
    node.hold.store_release(1);
    let thread = client.thread.take().unwrap();
    drop(client.socket);
    assert!(node.has_seen("end port"));
    let (mut again, welcome, _) = Client::attach(&node, "s", 2);
    assert_eq!(welcome.session, 1, "the first slot is in use until its transfers have ended");
    let other = again.register("r", "*");
    assert_ne!(other.index, region.index);
    node.hold.store_release(0);
    thread.join().unwrap();
    let log = node.take_log();
    let place =
        |word: String| log.iter().position(|seen| *seen == word).unwrap_or_else(|| panic!("{word}: {log:?}"));
    let order = [
        place("end port".to_owned()),
        place(format!("end remote {}", opened.index)),
        place(format!("end region {}", region.index)),
        place("end session 0".to_owned()),
    ];
    assert!(order.is_sorted(), "{log:?}");
    again.die();
    assert!(within(|| node.registrar.tables().session(1).is_none()));
}

#[test]
fn a_client_that_breaks_the_protocol_is_told_and_dropped() {
    let node = StubNode::new("a", 1, 1, &[]);
    let (mut client, ..) = Client::attach(&node, "s", 1);
    socket::send_frame(&client.socket, &[1, 2, 3], &[]).unwrap();
    let (answer, _) = client.answer();
    assert!(matches!(answer, Frame::Refused(refused) if refused.code == number(Code::FrameMalformed)));
    let mut buffer = [0; FRAME_BYTES_MAX];
    assert!(matches!(socket::recv_frame(&client.socket, &mut buffer, 0), Err(SocketError::Closed)));
}

#[test]
fn bits_without_a_meaning_are_refused() {
    let node = StubNode::new("a", 1, 1, &[]);
    let mut client = Client::connect(&node);
    let (mut bytes, count) = hello("s", 1).encode(LOCAL_VERSION);
    // The last word of a hello has no field.
    bytes[count - 1] = 1;
    socket::send_frame(&client.socket, &bytes[..count], &[]).unwrap();
    let (answer, _) = client.answer();
    assert!(
        matches!(answer, Frame::Refused(refused) if refused.code == number(Code::ReservedNotZero)),
        "{answer:?}"
    );
}

#[test]
fn a_client_that_attaches_again_at_once_gets_its_names_back() {
    let node = StubNode::new("a", 1, 1, &[]);
    for _ in 0..50 {
        let (mut client, ..) = Client::attach(&node, "trainer", 1);
        client.register("weights", "*");
        // The socket closes; nobody waits for the dataplane to notice.
        drop(client.socket);
    }
    let (mut other, ..) = Client::attach(&node, "other", 1);
    other.register("weights", "*");
}
