//! Stand-ins for tests: lanes that answer commands without an engine, and registrars over them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::segment::{ControlHeader, PEERS_MAX, PORTS_PER_LANE_MAX};
use railhead_abi::settings::Settings;
use railhead_core::Notice;
use railhead_core::tables::{PortIndex, PortParts, Role};
use railhead_ring::Word;
use railhead_shm::handoff::Taker;
use railhead_shm::{Words, eventfd, guard};

use crate::events::EventLog;
use crate::lane::connections::Map;
use crate::lane::handle::{LaneHandle, LaneMail, Lanes};
use crate::lane::mail::{Answer, Command, Content, Parcel};
use crate::notices::Notices;
use crate::peers::directory::{Directory, PeerName};
use crate::registrar::Registrar;
use crate::segment::{ControlSegment, LanesPage};
use crate::settings::Current;

/// What a stub lane saw, in short words.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

/// A lane that does what it is told at once, and says so.
struct StubLane {
    mail: LaneMail,
    doorbell: Arc<OwnedFd>,
    log: Log,
    ports: HashMap<u8, (u32, PortParts<Words>)>,
    sockets: HashMap<u16, OwnedFd>,
    /// While not zero, ends that were asked for are kept back.
    hold: Arc<Word>,
    held: Vec<Notice<Words>>,
    next_port: u8,
}

impl StubLane {
    fn run(mut self, stop: &Word) {
        while stop.load_acquire() == 0 {
            if self.hold.load_acquire() == 0 {
                for notice in core::mem::take(&mut self.held) {
                    self.notify(notice);
                }
            }
            let Some(mut parcel) = self.mail.commands.take() else {
                thread::sleep(Duration::from_micros(100));
                continue;
            };
            if let Content::Command(command) = parcel.take() {
                let (answer, notice) = self.execute(command);
                parcel.content = Content::Answer(answer);
                self.give(parcel);
                self.held.extend(notice);
            }
        }
    }

    fn execute(&mut self, command: Command) -> (Answer, Option<Notice<Words>>) {
        let (word, answer, notice) = match command {
            Command::AttachSession { session, .. } => (format!("session {session}"), Answer::Done, None),
            Command::CloseSession { session } => (format!("end session {session}"), Answer::Done, None),
            Command::AttachPort { session, parts } => {
                self.next_port += 1;
                self.ports.insert(self.next_port, (session, parts));
                (format!("port of {session}"), Answer::Port(PortIndex(self.next_port)), None)
            }
            Command::AbandonPort { port } => {
                let notice = self.ports.remove(&port.0).map(|(session, parts)| Notice::PortClosed {
                    session,
                    port,
                    parts,
                });
                ("end port".to_owned(), Answer::Done, notice)
            }
            Command::InstallRegion { region, .. } => (format!("region {}", region.0), Answer::Done, None),
            Command::AllowPeers { peers, readers, .. } => {
                let read = if readers == 1 { String::new() } else { format!(", read {readers:b}") };
                (format!("allow {peers:b}{read}"), Answer::Done, None)
            }
            Command::RemoveRegion { region } => {
                (format!("end region {}", region.0), Answer::Done, Some(Notice::RegionDrained { region }))
            }
            Command::InstallRemote { remote, info, .. } => {
                (format!("remote {remote} plan {}", info.plan.generation), Answer::Done, None)
            }
            Command::RemoveRemote { remote } => {
                (format!("end remote {remote}"), Answer::Done, Some(Notice::RemoteDrained { remote }))
            }
            Command::StopRemote { remote, cause } => {
                (format!("stop remote {remote} {}", cause.name()), Answer::Done, None)
            }
            Command::UpdatePlans { peer, plans } => {
                (format!("plan {peer} {}", plans.generation()), Answer::Done, None)
            }
            Command::ExpireRemotes { peer } => (format!("expire {peer}"), Answer::Done, None),
            Command::AttachQueuePair { ready, .. } => {
                (format!("queue pair {}", ready.connection().0), Answer::Refused(Code::RdmaRefused), None)
            }
            Command::AttachConnection { connection, socket, info } => {
                self.sockets.insert(connection.0, socket);
                let role = if info.role == Role::Target { "target" } else { "initiator" };
                (format!("{role} {} class {}", connection.0, info.class), Answer::Done, None)
            }
            Command::CloseConnection { connection, cause } => {
                let was_up = self.sockets.remove(&connection.0).is_some();
                let notice = was_up.then_some(Notice::ConnectionDown { connection, cause });
                (format!("close {} {was_up}", connection.0), Answer::Done, notice)
            }
            Command::RefuseConnection { connection } => {
                (format!("refuse {}", connection.0), Answer::Done, None)
            }
            Command::Stop => ("stop".to_owned(), Answer::Done, None),
        };
        self.log.lock().unwrap().push(word);
        (answer, notice)
    }

    fn notify(&mut self, notice: Notice<Words>) {
        self.give(Box::new(Parcel { content: Content::Notice(notice), reply: None }));
    }

    fn give(&mut self, parcel: Box<Parcel>) {
        self.mail.returns.give(parcel).expect("the ring is far larger than any test");
        eventfd::ring(&*self.doorbell).unwrap();
    }
}

/// A registrar over stub lanes, with everything that ends with it.
pub(crate) struct StubNode {
    pub(crate) registrar: Arc<Registrar>,
    pub(crate) segment: Arc<ControlSegment>,
    /// What each lane saw.
    pub(crate) logs: Vec<Log>,
    /// Ends are kept back while this is not zero.
    pub(crate) hold: Arc<Word>,
    stop: Arc<Word>,
    doorbell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

/// Stub lanes and what they are reached by.
pub(crate) struct StubLanes {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) returns: Vec<Taker<Parcel>>,
    pub(crate) doorbell: Arc<OwnedFd>,
    /// What each saw.
    pub(crate) logs: Vec<Log>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

/// Starts stub lanes that run until `stop` is not zero.
pub(crate) fn lanes(count: usize, page: &LanesPage, stop: &Arc<Word>, hold: &Arc<Word>) -> StubLanes {
    let doorbell = Arc::new(eventfd::create().unwrap());
    let (mut handles, mut returns, mut logs, mut threads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for lane in 0..count {
        let (handle, mail, taker) = LaneHandle::new(lane, page.lane(lane)).unwrap();
        let log = Log::default();
        let stub = StubLane {
            mail,
            doorbell: Arc::clone(&doorbell),
            log: Arc::clone(&log),
            ports: HashMap::new(),
            sockets: HashMap::new(),
            hold: Arc::clone(hold),
            held: Vec::new(),
            next_port: 0,
        };
        let stop = Arc::clone(stop);
        threads.push(thread::spawn(move || stub.run(&stop)));
        handles.push(handle);
        returns.push(taker);
        logs.push(log);
    }
    StubLanes { lanes: Arc::new(Lanes::new(handles)), returns, doorbell, logs, threads }
}

impl StubNode {
    /// A node of this name and incarnation with `lanes` lanes that knows these peers, in the order of their slots.
    pub(crate) fn new(name: &str, incarnation: u64, lane_count: usize, peers: &[PeerName<'_>]) -> Self {
        guard::install().unwrap();
        let header = ControlHeader {
            lanes: u32::try_from(lane_count).unwrap(),
            incarnation,
            ..ControlHeader::default()
        };
        let segment = Arc::new(ControlSegment::create(&header).unwrap());
        let page = LanesPage::create().unwrap();
        let (stop, hold) = (Arc::new(Word::new(0)), Arc::new(Word::new(0)));
        let StubLanes { lanes, returns, doorbell, logs, mut threads } =
            lanes(lane_count, &page, &stop, &hold);
        let words = (1..PEERS_MAX).map(|slot| segment.peer(slot));
        let map = Map::new(peers.len() + 2, lane_count);
        let directory = Directory::new(words, Arc::clone(&lanes), map);
        for peer in peers {
            directory.add(*peer).unwrap();
        }
        let registrar = Arc::new(Registrar::new(
            name,
            incarnation,
            4,
            Arc::clone(&lanes),
            page,
            Arc::new(EventLog::new(segment.registrar_events())),
            Arc::new(Current::new(Settings::default(), 1)),
            directory,
            None,
            segment.regions_lost(),
        ));
        let notices = Notices::new(lanes, returns, Arc::clone(&doorbell));
        let (reading, stopping) = (Arc::clone(&registrar), Arc::clone(&stop));
        threads.push(thread::spawn(move || notices.run(&reading, &stopping)));
        Self { registrar, segment, logs, hold, stop, doorbell, threads }
    }

    /// Whether lane 0 has seen a command that begins so; waits a little for it.
    pub(crate) fn has_seen(&self, word: &str) -> bool {
        within(|| self.logs[0].lock().unwrap().iter().any(|seen| seen.starts_with(word)))
    }

    /// What lane 0 has seen so far; forgotten afterwards.
    pub(crate) fn take_log(&self) -> Vec<String> {
        core::mem::take(&mut *self.logs[0].lock().unwrap())
    }
}

impl Drop for StubNode {
    fn drop(&mut self) {
        self.stop.store_release(1);
        eventfd::ring(&*self.doorbell).unwrap();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether something comes true within some seconds.
pub(crate) fn within(mut is_true: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_true() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Ports of a lane, as a number of ports to ask for.
pub(crate) const PORTS_OF_A_LANE: u32 = PORTS_PER_LANE_MAX as u32;

/// The number of a code, for comparing with frames.
pub(crate) const fn number(code: Code) -> u16 {
    code.number()
}
