//! A running dataplane: what is started in which order, and how it ends.
//!
//! Everything that can be refused is taken before anything runs: state directory, sockets, address. Then the lanes, which
//! reserve their memory and seal themselves. Only when all are ready does anybody get in: settings, peers, control,
//! clients. The end goes the other way.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use railhead_abi::segment::{ControlHeader, LINE_WORDS, PEERS_MAX};
use railhead_config::UseRdma;
use railhead_memory::Reason;
use railhead_ring::Word;
use railhead_shm::handoff::Taker;
use railhead_shm::{eventfd, guard};
use railhead_tcp::channel::Keys;

use crate::acceptor::Acceptor;
use crate::admin::AdminDesk;
use crate::admin::command::Commands;
use crate::endpoint::{Endpoint, StateLock};
use crate::error::StartError;
use crate::events::{Event, EventLog};
use crate::lane::connections::Map;
use crate::lane::handle::{LaneHandle, LaneMail, Lanes};
use crate::lane::mail::{Command, Parcel};
use crate::lane::setup::{LaneReady, LaneSetup};
use crate::notices::Notices;
use crate::peers::data::pool_epoch;
use crate::peers::directory::{Directory, PeerName};
use crate::peers::{Identity, Peers};
use crate::places::Places;
use crate::plan::Plan;
use crate::rdma::{Opened, Rdma};
use crate::registrar::Registrar;
use crate::segment::{ControlSegment, LanesPage, name};
use crate::settings::{Current, DeskParts, Knock, PreparedCell, SettingsDesk};
use crate::{clock, machine};

mod threads;

use threads::{accept_admins, accept_sessions, read_notices, spawn};

/// How long the lanes may take to reserve their memory. Populating hugepages takes about a second for each 10 GB.
const READY_MAX: Duration = Duration::from_secs(300);
/// How long a stop waits for clients' transfers to end before it goes on without them.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Wake-ups of the settings thread that may wait. One would do; none is waited for but the last.
const KNOCKS: usize = 8;

/// What is taken before anything runs.
#[derive(Debug)]
struct Taken {
    // Dropped in this order: the sockets' files go before the lock does.
    sessions: Endpoint,
    admin: Endpoint,
    fabric: TcpListener,
    _lock: StateLock,
}

/// Threads of the lanes and what they are reached by.
#[derive(Debug)]
struct LaneThreads {
    lanes: Arc<Lanes>,
    returns: Vec<Taker<Parcel>>,
    doorbell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    ready: Vec<LaneReady>,
}

/// A dataplane that runs.
#[derive(Debug)]
pub struct Node {
    taken: Taken,
    registrar: Arc<Registrar>,
    sessions: Arc<Acceptor>,
    admins: Arc<Acceptor>,
    peers: Arc<Peers>,
    settings: flume::Sender<Knock>,
    lane_threads: Vec<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    notices: JoinHandle<()>,
    notices_stop: Arc<Word>,
    notices_doorbell: Arc<OwnedFd>,
}

impl Taken {
    fn take(plan: &Plan) -> Result<Self, StartError> {
        let config = &plan.config;
        config
            .make_state_dir()
            .map_err(|error| StartError::new(error.code, error.field, error.what).remedy(error.remedy))?;
        let lock = StateLock::take(&config.node.state_dir)?;
        let own = rustix::process::geteuid().as_raw();
        let is_shared = plan.uids.iter().any(|uid| *uid != own && *uid != 0);
        let mode = if is_shared { 0o666 } else { 0o600 };
        let sessions = Endpoint::bind("dataplane.session_socket", &config.dataplane.session_socket, mode)?;
        let admin = Endpoint::bind("dataplane.admin_socket", &config.dataplane.admin_socket, 0o600)?;
        let fabric = TcpListener::bind(config.fabric.listen).map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::AddrInUse => Code::PortTaken,
                io::ErrorKind::PermissionDenied => Code::PathDenied,
                _ => Code::ConfigField,
            };
            StartError::new(code, "fabric.listen", format!("{}: {error}", config.fabric.listen))
        })?;
        Ok(Self { sessions, admin, fabric, _lock: lock })
    }
}

impl Node {
    /// Starts a dataplane. When this returns, clients, peers and control can come.
    ///
    /// # Errors
    /// Why it does not start; nothing of it is left then.
    pub fn start(plan: &Plan) -> Result<Self, StartError> {
        let taken = Taken::take(plan)?;
        guard::install().map_err(|error| StartError::new(Code::DeviceError, "SIGBUS guard", error))?;
        machine::raise_descriptor_limit();
        let random = machine::random_u64();
        let incarnation = random.map_err(|error| StartError::new(Code::PathDenied, "/dev/urandom", error))?;
        let segment = Arc::new(ControlSegment::create(&header(plan, &taken.fabric, incarnation))?);
        let events = Arc::new(EventLog::new(segment.registrar_events()));
        let page = LanesPage::create()?;
        let prepared = PreparedCell::create(&plan.start)?;
        let rdma = open_rdma(plan, &events)?;
        let lanes = LaneThreads::start(plan, incarnation, rdma.as_ref(), &segment, &page, &prepared)?;
        lanes.report(plan, &segment, &events);
        Self::assemble(plan, taken, incarnation, rdma, segment, events, page, &prepared, lanes)
    }

    #[expect(clippy::too_many_arguments, reason = "the second half of `start`, with its parts")]
    fn assemble(
        plan: &Plan,
        taken: Taken,
        incarnation: u64,
        rdma: Option<Arc<Rdma>>,
        segment: Arc<ControlSegment>,
        events: Arc<EventLog>,
        page: LanesPage,
        prepared: &PreparedCell,
        started: LaneThreads,
    ) -> Result<Self, StartError> {
        let (config, lanes) = (&plan.config, started.lanes);
        let current = Arc::new(Current::new(plan.start.settings, plan.start.generation));
        let registrar = Arc::new(Registrar::new(
            &config.node.name,
            incarnation,
            config.session.max,
            Arc::clone(&lanes),
            page,
            Arc::clone(&events),
            Arc::clone(&current),
            directory(plan, map_of(plan, rdma.as_ref()), &segment, &lanes)?,
            rdma,
            segment.regions_lost(),
        ));
        let notices_stop = Arc::new(Word::new(0));
        if let Some(rdma) = &registrar.rdma {
            let failed = |error| StartError::new(Code::DeviceError, "NIC threads", error);
            rdma.watch(&segment, &events, &notices_stop).map_err(failed)?;
        }
        let notices_doorbell = started.doorbell;
        let notices = Notices::new(Arc::clone(&lanes), started.returns, Arc::clone(&notices_doorbell));
        let notices = read_notices(notices, &registrar, &notices_stop)?;
        let (settings, knocks) = flume::bounded(KNOCKS);
        let parts = DeskParts {
            limits: plan.limits,
            allowed: plan.allowed,
            copy_cores: plan.config.dataplane.copy_cores.clone(),
            places: Places::new(started.ready.into_iter().map(|lane| lane.places).collect()),
            segment: &segment,
            prepared,
            current,
            lanes,
            events: Arc::clone(&events),
            publish: publisher(&registrar),
        };
        let desk = SettingsDesk::start(parts, &plan.start)?;
        let mut threads = vec![spawn("railhead-set", move || desk.run(&knocks))?];
        let peers = start_peers(plan, &registrar, &taken.fabric)?;
        let commands = Commands::new(Arc::clone(&peers), config.clone());
        let carry_out = Box::new(move |command| commands.carry_out(command));
        let desk = AdminDesk::new(segment, events, settings.clone(), &config.node.name, carry_out);
        let (admins, thread) = accept_admins(&taken.admin, desk)?;
        threads.push(thread);
        let (sessions, thread) = accept_sessions(&taken.sessions, plan, &registrar)?;
        threads.push(thread);
        Ok(Self {
            taken,
            registrar,
            sessions,
            admins,
            peers,
            settings,
            lane_threads: started.threads,
            threads,
            notices,
            notices_stop,
            notices_doorbell,
        })
    }

    /// Stops in order: nobody new, clients' transfers end and their memory comes home, peers, settings, lanes. Whatever
    /// does not end within a few seconds ends with the process.
    pub fn stop(self, signal: i32) {
        let event = Event::new(EventCode::Stopping);
        self.registrar.events.emit(event.figures(u64::from(signal.unsigned_abs()), 0));
        self.sessions.stop(&self.taken.sessions.listener);
        self.admins.stop(&self.taken.admin.listener);
        let until = Instant::now() + STOP_MAX;
        while self.sessions.count() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let left = self.sessions.count();
        if left > 0 {
            tracing::warn!(left, "sessions whose transfers did not end in time");
        }
        self.peers.stop();
        // A listener's accept wakes when it is shut down.
        let _ = rustix::net::shutdown(&self.taken.fabric, rustix::net::Shutdown::Both);
        let _ = self.settings.send(Knock::Stop);
        for lane in 0..self.registrar.lanes.count() {
            if let Err(code) = self.registrar.lanes.call(lane, Command::Stop) {
                tracing::error!(lane, code = code.name(), "a lane does not stop");
                return;
            }
        }
        self.lane_threads.into_iter().for_each(|lane| drop(lane.join()));
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
        self.notices_stop.store_release(1);
        let _ = eventfd::ring(&*self.notices_doorbell);
        drop(self.notices.join());
    }
}

impl LaneThreads {
    /// Starts the lanes and waits until all are sealed.
    fn start(
        plan: &Plan,
        incarnation: u64,
        rdma: Option<&Arc<Rdma>>,
        segment: &ControlSegment,
        page: &LanesPage,
        prepared: &PreparedCell,
    ) -> Result<Self, StartError> {
        let failed = |errno| StartError::new(Code::DeviceError, "lane doorbells", errno);
        let count = plan.config.dataplane.lanes;
        let doorbell = Arc::new(eventfd::create().map_err(failed)?);
        let mut handles = Vec::new();
        let mut mails = Vec::new();
        let mut returns = Vec::new();
        for lane in 0..count {
            let (handle, mail, taker) = LaneHandle::new(lane, page.lane(lane)).map_err(failed)?;
            handles.push(handle);
            mails.push(mail);
            returns.push(taker);
        }
        let lanes = Arc::new(Lanes::new(handles));
        let (sender, reports) = flume::bounded(count);
        let setup = |index: usize, mail: LaneMail| LaneSetup {
            index,
            pool: plan.pool(),
            arena: plan.arena(),
            pool_epoch: pool_epoch(incarnation),
            map: map_of(plan, rdma),
            rdma: rdma.map(Arc::clone),
            is_rdma_required: plan.config.rdma.use_rdma == UseRdma::Require,
            settings: plan.start.settings,
            generation: plan.start.generation,
            words: segment.lane(index),
            bell: page.lane(index),
            prepared: prepared.reader(),
            mail,
            lanes: Arc::clone(&lanes),
            notices_doorbell: Arc::clone(&doorbell),
            copies: plan.copies(),
        };
        let mut threads = Vec::new();
        for (index, mail) in mails.into_iter().enumerate() {
            let (setup, sender) = (setup(index, mail), sender.clone());
            threads.push(spawn(&format!("railhead-lane-{index}"), move || setup.run(&sender))?);
        }
        drop(sender);
        let until = Instant::now() + READY_MAX;
        let mut ready = Vec::new();
        while ready.len() < count {
            let late = || StartError::new(Code::MemoryShort, "lanes", "not ready in time");
            match reports.recv_deadline(until).map_err(|_| late()).flatten() {
                Ok(report) => ready.push(report),
                Err(error) => {
                    // Those that are ready run on memory of their own until they are told.
                    for lane in 0..count {
                        let (reply, _) = flume::bounded(1);
                        let _ = lanes.get(lane).post(Parcel::command(Command::Stop, reply));
                    }
                    return Err(error);
                }
            }
        }
        ready.sort_by_key(|report: &LaneReady| report.index);
        Ok(Self { lanes, returns, doorbell, threads, ready })
    }

    /// Says what the lanes got, and what they did not.
    fn report(&self, plan: &Plan, segment: &ControlSegment, events: &EventLog) {
        let bytes: u64 = self.ready.iter().map(|lane| lane.pool_bytes).sum();
        let page_bytes = self.ready.iter().map(|lane| lane.page_bytes).min().unwrap_or(0);
        segment.set_pool(bytes, page_bytes);
        for lane in &self.ready {
            if let Some(cause) = &lane.rdma_refused {
                let event = Event::new(EventCode::RdmaAbsent).reason(Code::RdmaRefused).lane(lane.index);
                events.emit(event.figures(lane.index as u64 + 1, 0).text(cause));
            }
            for step in &lane.steps {
                let (code, reason) = match step.reason {
                    Reason::MemlockLimit { .. } | Reason::Unlocked => {
                        (EventCode::MemlockLimited, Code::MemoryShort)
                    }
                    Reason::NodeUnbound { .. } | Reason::NodeShort { .. } => {
                        (EventCode::NumaNotBound, Code::MemoryShort)
                    }
                    _ => (EventCode::HugepagesSteppedDown, Code::MemoryShort),
                };
                let figures = match step.reason {
                    Reason::MemlockLimit { limit_bytes, bytes } => (bytes, limit_bytes),
                    Reason::NodeUnbound { node } | Reason::NodeShort { node } => {
                        (u64::from(node), step.errno.map_or(0, |errno| u64::from(errno.unsigned_abs())))
                    }
                    _ => (lane.pool_bytes, lane.page_bytes),
                };
                let event = Event::new(code).reason(reason).lane(lane.index).text(step);
                events.emit(event.figures(figures.0, figures.1));
            }
        }
        let (lanes, cores) = (self.ready.len(), plan.allowed.count());
        if lanes > cores {
            let text = format!("{lanes} lanes on {cores} cores; set dataplane.lanes to at most {cores}");
            events
                .emit(Event::new(EventCode::LanesExceedCores).figures(lanes as u64, cores as u64).text(text));
        }
        plan.copies().report(lanes, cores, events);
        if let Some(limit) = machine::memlock_limit().filter(|limit| *limit < bytes) {
            tracing::info!(
                limit,
                bytes,
                "RLIMIT_MEMLOCK is below the pools' size; raise it before devices register memory"
            );
        }
        if let Some((code, cause)) = &plan.start.ignored {
            events.emit(Event::new(EventCode::SettingsFileIgnored).reason(*code).text(cause));
        }
        if let Some((code, cause)) = &plan.peers_ignored {
            events.emit(Event::new(EventCode::PeersFileIgnored).reason(*code).text(cause));
        }
        let event = Event::new(EventCode::Started).text(&plan.config.node.name);
        events.emit(event.figures(lanes as u64, bytes));
    }
}

/// The peers to start with, each in a slot of the segment's table. Slot 0 of that table is this node.
/// Opens the NICs, and says which, or why there are none.
fn open_rdma(plan: &Plan, events: &EventLog) -> Result<Option<Arc<Rdma>>, StartError> {
    match Rdma::open(&plan.config.rdma, plan.config.dataplane.lanes)? {
        Opened::Off => Ok(None),
        Opened::Absent(cause) => {
            events.emit(Event::new(EventCode::RdmaAbsent).reason(Code::RdmaAbsent).text(cause));
            Ok(None)
        }
        Opened::Open(rdma) => {
            for (rail, nic) in rdma.nics().iter().enumerate() {
                let text = format!("{} {}", nic.device().name(), nic.gid().gid);
                events.emit(Event::new(EventCode::RailUp).figures(rail as u64, 0).text(text));
            }
            Ok(Some(rdma))
        }
    }
}

/// Which connection of a lane is which.
fn map_of(plan: &Plan, rdma: Option<&Arc<Rdma>>) -> Map {
    if rdma.is_some() { plan.map().with_rdma() } else { plan.map() }
}

fn directory(
    plan: &Plan,
    map: Map,
    segment: &ControlSegment,
    lanes: &Arc<Lanes>,
) -> Result<Directory, StartError> {
    write_self(segment, &plan.config.node.name);
    let words = (1..PEERS_MAX).map(|slot| segment.peer(slot));
    let directory = Directory::new(words, Arc::clone(lanes), map);
    for peer in &plan.config.peers {
        let name = PeerName { name: &peer.name, address: &peer.address };
        directory.add(name).map_err(|code| StartError::new(code, "peer", &peer.name))?;
    }
    Ok(directory)
}

fn header(plan: &Plan, fabric: &TcpListener, incarnation: u64) -> ControlHeader {
    // With port 0 the kernel has chosen one.
    let listen = fabric.local_addr().unwrap_or(plan.config.fabric.listen);
    ControlHeader {
        lanes: u32::try_from(plan.config.dataplane.lanes).unwrap_or(u32::MAX),
        incarnation,
        pid: std::process::id(),
        numa_nodes: machine::numa_nodes(),
        started_unix_ns: clock::unix_ns(),
        started_ns: clock::monotonic_ns(),
        small_bytes: plan.config.pool.small_bytes,
        large_bytes: plan.config.pool.large_bytes,
        peers_max: u32::try_from(plan.config.peers_room()).unwrap_or(u32::MAX),
        cores: plan.allowed.0,
        node: name(&plan.config.node.name),
        listen: name(&listen.to_string()),
        ..ControlHeader::default()
    }
}

/// The node's own name, where flight records of transfers to itself look for it.
fn write_self(segment: &ControlSegment, node: &str) {
    for (word, value) in segment.peer(0).iter().zip(name(node)).take(LINE_WORDS) {
        word.store_release(value);
    }
}

fn start_peers(
    plan: &Plan,
    registrar: &Arc<Registrar>,
    fabric: &TcpListener,
) -> Result<Arc<Peers>, StartError> {
    let identity = Identity {
        keys: Keys::new(plan.key.0),
        small_bytes: plan.config.pool.small_bytes,
        large_bytes: plan.config.pool.large_bytes,
    };
    let fabric = fabric.try_clone();
    let fabric = fabric.map_err(|error| StartError::new(Code::DeviceError, "fabric.listen", error))?;
    Peers::start(registrar, identity, fabric)
}

/// Tells peers of new plans.
fn publisher(registrar: &Arc<Registrar>) -> crate::settings::Publish {
    let registrar = Arc::clone(registrar);
    let mut last = registrar.current.plans();
    Box::new(move |plans| {
        if registrar.peers.all().is_empty() {
            return;
        }
        // Each generation is told and acknowledged; only another plan is news to people.
        let told = registrar.peers.publish(plans) as u64;
        let said = |plans: &railhead_abi::settings::Plans| {
            [plans.receive, plans.send].map(|plan| (plan.mode, plan.direct_from_bytes))
        };
        if said(&plans) != said(&last) {
            registrar.events.emit(Event::new(EventCode::PlanPublished).figures(plans.generation(), told));
        }
        last = plans;
    })
}
