//! All nodes of the fake and its loop.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use railhead_abi::frame::{
    Empty, FRAME_BYTES_MAX, Frame, Handle, Hello, Open, Refused, Register, Release, Text,
};
use railhead_abi::segment::{LANES_PAGE_WORDS, LINE_WORDS};
use railhead_abi::submission::{
    Completion, LEG_AUTO, LEG_DIRECT, LEG_STAGED, NOTIFY_EVENT, NOTIFY_SIGNAL, SIDE_LOCAL, SIDE_REMOTE,
    SessionEvent, Submission,
};
use railhead_abi::words::reserved_is_zero;
use railhead_abi::{ABI_VERSION, Code};
use railhead_ring::sync::fence_seq_cst;
use railhead_shm::memfd::{self, Huge};
use railhead_shm::socket::{self, SocketError, recv_frame, send_frame};
use railhead_shm::{Access, Mapping, OwnedSpan, Words, eventfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::session::Session;
use super::{Command, Wrong, socket_path};

const VERSION: u16 = ABI_VERSION as u16;
/// Idle turns before the lanes sleep.
const IDLE_TURNS: usize = 100;
/// Above this many bytes both legs are direct.
const DIRECT_FROM: u64 = 16 << 10;

struct Region {
    session: usize,
    generation: u32,
    span: OwnedSpan,
    name: String,
    grant: String,
}

#[derive(Clone, Copy)]
struct Taken {
    session: usize,
    port: usize,
    submission: Submission,
}

#[derive(Default)]
struct Moods {
    hold: bool,
    refuse: Option<(Code, &'static str)>,
    other_version: bool,
    mute: bool,
    wrong: Option<Wrong>,
    strays: bool,
    reverse: bool,
    spoil: Option<u64>,
    overrun: bool,
    fail: Option<(u64, Code)>,
}

pub(crate) struct World {
    nodes: Vec<(String, OwnedFd)>,
    lanes: usize,
    lanes_page: Words,
    lanes_file: OwnedFd,
    commands: Receiver<(Command, Sender<()>)>,
    waker: Arc<OwnedFd>,
    /// Connected, no hello yet.
    strangers: Vec<(usize, OwnedFd)>,
    sessions: Vec<Option<Session>>,
    regions: Vec<Option<Region>>,
    generation: u32,
    taken: VecDeque<Taken>,
    moods: Moods,
    sleepers: Vec<Sender<()>>,
}

impl World {
    pub(crate) fn new(
        folder: &Path,
        nodes: &[&str],
        lanes: usize,
        commands: Receiver<(Command, Sender<()>)>,
        waker: Arc<OwnedFd>,
    ) -> Self {
        let file = memfd::create("fake-lanes", 8 * LANES_PAGE_WORDS as u64, Huge::No).unwrap();
        let lanes_page =
            Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, LANES_PAGE_WORDS).unwrap();
        // Clients get the page through a descriptor that cannot be written through.
        let read_only = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let lanes_file = std::fs::File::open(read_only).unwrap().into();
        let listen = |name: &&str| {
            let listener = socket::listen(&socket_path(folder, name), 16).unwrap();
            set_non_blocking(&listener);
            ((*name).to_owned(), listener)
        };
        Self {
            nodes: nodes.iter().map(listen).collect(),
            lanes,
            lanes_page,
            lanes_file,
            commands,
            waker,
            strangers: Vec::new(),
            sessions: Vec::new(),
            regions: Vec::new(),
            generation: 0,
            taken: VecDeque::new(),
            moods: Moods::default(),
            sleepers: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) {
        let mut idle = 0;
        loop {
            match self.turn() {
                None => return,
                Some(true) => idle = 0,
                Some(false) if idle < IDLE_TURNS => idle += 1,
                Some(false) => {
                    self.sleep();
                    idle = 0;
                }
            }
        }
    }

    /// Whether there was something to do; `None` at the end.
    fn turn(&mut self) -> Option<bool> {
        let mut busy = false;
        loop {
            match self.commands.try_recv() {
                Ok((command, heard)) => {
                    self.obey(command);
                    let _ = heard.send(());
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        busy |= self.accept();
        busy |= self.greet();
        for slot in 0..self.sessions.len() {
            busy |= self.serve_frames(slot);
            busy |= self.take_submissions(slot);
        }
        if !self.moods.hold {
            busy |= self.complete(usize::MAX);
        }
        Some(busy)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Hold(hold) => self.moods.hold = hold,
            Command::Let(count) => drop(self.complete(count)),
            Command::Refuse(code, detail) => self.moods.refuse = Some((code, detail)),
            Command::OtherVersion => self.moods.other_version = true,
            Command::Mute => self.moods.mute = true,
            Command::WrongWelcome(wrong) => self.moods.wrong = Some(wrong),
            Command::Strays => self.moods.strays = true,
            Command::Reverse => self.moods.reverse = true,
            Command::Spoil(offset) => self.moods.spoil = Some(offset),
            Command::Overrun => self.moods.overrun = true,
            Command::Fail(bytes, code) => self.moods.fail = Some((bytes, code)),
            Command::SpoilRings => self.spoil_rings(),
            Command::CountRegions(sender) => {
                let _ = sender.send(self.regions.iter().flatten().count());
            }
            Command::Asleep(sender) => self.sleepers.push(sender),
        }
    }

    fn spoil_rings(&self) {
        for session in self.sessions.iter().flatten() {
            let shape = railhead_abi::segment::SessionShape {
                lanes: self.lanes,
                ports: session.ports.len(),
                entries: session.ports[0].completions.capacity(),
            };
            for port in 0..session.ports.len() {
                session.memory[shape.port(port) + shape.port_completions()].store_release(1 << 40);
            }
        }
    }

    fn accept(&mut self) -> bool {
        let mut busy = false;
        for (node, (_, listener)) in self.nodes.iter().enumerate() {
            while let Ok(connection) = socket::accept(listener) {
                set_non_blocking(&connection);
                self.strangers.push((node, connection));
                busy = true;
            }
        }
        busy
    }

    fn greet(&mut self) -> bool {
        if self.moods.mute {
            return false;
        }
        let mut busy = false;
        for (node, connection) in std::mem::take(&mut self.strangers) {
            let mut buffer = [0; FRAME_BYTES_MAX];
            match recv_frame(&connection, &mut buffer, 0) {
                Err(SocketError::NotReady) => self.strangers.push((node, connection)),
                Err(_) => busy = true,
                Ok(frame) => {
                    busy = true;
                    match Frame::decode(VERSION, &buffer[..frame.bytes]) {
                        Ok(Frame::Hello(hello)) => self.attach(node, connection, &hello),
                        other => panic!("no hello: {other:?}"),
                    }
                }
            }
        }
        busy
    }

    fn attach(&mut self, node: usize, connection: OwnedFd, hello: &Hello) {
        if let Some((code, detail)) = self.moods.refuse.take() {
            answer(&connection, VERSION, &Frame::Refused(Refused::because(code, detail)));
            return;
        }
        if std::mem::take(&mut self.moods.other_version) {
            let refused = Refused::because(Code::VersionMismatch, "");
            answer(&connection, VERSION + 1, &Frame::Refused(refused));
            return;
        }
        let slot = self.sessions.len();
        let session = Session::welcome(
            connection,
            hello,
            slot as u32,
            (node, &self.nodes[node].0),
            &self.lanes_file,
            self.lanes,
            self.moods.wrong.take(),
        );
        self.sessions.push(session);
    }

    fn serve_frames(&mut self, slot: usize) -> bool {
        let mut busy = false;
        while let Some(session) = &self.sessions[slot] {
            if self.moods.mute {
                break;
            }
            let mut buffer = [0; FRAME_BYTES_MAX];
            match recv_frame(&session.connection, &mut buffer, 1) {
                Err(SocketError::NotReady) => break,
                Err(_) => {
                    self.sessions[slot] = None;
                    self.taken.retain(|taken| taken.session != slot);
                    for region in &mut self.regions {
                        region.take_if(|region| region.session == slot);
                    }
                }
                Ok(mut frame) => {
                    let request = Frame::decode(VERSION, &buffer[..frame.bytes]).unwrap();
                    let reply = match request {
                        Frame::Register(register) => self.register(slot, &register, frame.fds.pop().unwrap()),
                        Frame::Open(open) => self.open(slot, &open),
                        Frame::Release(release) => self.release(slot, &release),
                        other => panic!("no request: {other:?}"),
                    };
                    let reply =
                        reply.unwrap_or_else(|code| Frame::Refused(Refused::because(code, "by the fake")));
                    answer(&self.sessions[slot].as_ref().unwrap().connection, VERSION, &reply);
                }
            }
            busy = true;
        }
        busy
    }

    fn register(&mut self, slot: usize, register: &Register, file: OwnedFd) -> Result<Frame, Code> {
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite).map_err(|_| Code::SealsMissing)?;
        let span = mapping.span().part(register.offset, register.bytes).map_err(|_| Code::RegionSize)?;
        let name = Text::of(&register.name).as_str().to_owned();
        let node = self.node_of(slot);
        let taken = self
            .regions
            .iter()
            .flatten()
            .any(|region| region.name == name && self.node_of(region.session) == node);
        if taken && !name.is_empty() {
            return Err(Code::NameTaken);
        }
        self.generation += 1;
        let region = Region {
            session: slot,
            generation: self.generation,
            span,
            name,
            grant: Text::of(&register.grant).as_str().to_owned(),
        };
        self.regions.push(Some(region));
        Ok(Frame::Registered(Handle {
            index: self.regions.len() as u32 - 1,
            generation: self.generation,
            bytes: register.bytes,
            page_bytes: mapping.page_bytes() as u64,
            peer: u32::MAX,
            session: slot as u32,
        }))
    }

    fn open(&mut self, slot: usize, open: &Open) -> Result<Frame, Code> {
        let (node, name) = (Text::of(&open.node), Text::of(&open.region));
        let own = self.node_of(slot);
        let target = match node.as_str() {
            "self" => own,
            node => self.nodes.iter().position(|(name, _)| name == node).ok_or(Code::PeerUnknown)?,
        };
        let named = |region: &Region| region.name == name.as_str() && self.node_of(region.session) == target;
        let found = self.regions.iter().position(|region| region.as_ref().is_some_and(named));
        let index = found.ok_or(Code::RegionUnknown)?;
        let region = self.regions[index].as_ref().ok_or(Code::RegionUnknown)?;
        let asker = &self.nodes[own].0;
        let session = self.sessions[slot].as_mut().ok_or(Code::SessionClosed)?;
        let granted = match region.grant.split_once('/') {
            Some((node, name)) => node == asker && (name == "*" || name == session.name),
            None => region.grant == "*",
        };
        if !granted {
            return Err(Code::GrantMissing);
        }
        session.remotes.push((index as u32, region.generation));
        Ok(Frame::Opened(Handle {
            index: session.remotes.len() as u32 - 1,
            generation: 1,
            bytes: region.span.len() as u64,
            page_bytes: 4096,
            peer: target as u32,
            session: region.session as u32,
        }))
    }

    fn release(&mut self, slot: usize, release: &Release) -> Result<Frame, Code> {
        let index = release.index as usize;
        if release.remote == 0 {
            let region = self.regions.get_mut(index).ok_or(Code::LocalHandleStale)?;
            region
                .take_if(|region| region.session == slot && region.generation == release.generation)
                .ok_or(Code::LocalHandleStale)?;
        } else {
            let session = self.sessions[slot].as_mut().ok_or(Code::SessionClosed)?;
            let remote = session
                .remotes
                .get_mut(index)
                .filter(|remote| remote.1 != 0)
                .ok_or(Code::RemoteHandleStale)?;
            *remote = (0, 0);
        }
        Ok(Frame::Released(Empty::default()))
    }

    fn take_submissions(&mut self, slot: usize) -> bool {
        let Some(session) = &mut self.sessions[slot] else { return false };
        let mut busy = false;
        for (port, end) in session.ports.iter_mut().enumerate() {
            while let Some(words) = end.submissions.pop().unwrap() {
                assert!(reserved_is_zero::<Submission>(&words), "reserved bits are set");
                let taken = Taken { session: slot, port, submission: Submission::decode(&words) };
                if self.moods.reverse {
                    self.taken.push_front(taken);
                } else {
                    self.taken.push_back(taken);
                }
                busy = true;
            }
            end.submissions.release();
        }
        busy
    }

    /// Executes up to `count` of what was taken. Stops where an event ring has no room.
    fn complete(&mut self, count: usize) -> bool {
        let mut busy = false;
        for _ in 0..count.min(self.taken.len()) {
            let Some(taken) = self.taken.pop_front() else { break };
            let Some(completion) = self.execute(&taken) else {
                self.taken.push_front(taken);
                break;
            };
            busy = true;
            let strays = self.moods.strays;
            let Some(session) = &mut self.sessions[taken.session] else { continue };
            let port = &mut session.ports[taken.port];
            port.complete(&completion);
            if strays && port.completions.free() > 0 {
                port.complete(&Completion { cookie: u64::MAX - 7, ..completion });
            }
        }
        busy
    }

    /// `None` while the target's event ring is full.
    fn execute(&mut self, taken: &Taken) -> Option<Completion> {
        let submission = taken.submission;
        let leg = |wanted: u8| match wanted {
            LEG_AUTO if submission.bytes == 0 => 0,
            LEG_AUTO if submission.bytes >= DIRECT_FROM => LEG_DIRECT,
            LEG_AUTO => LEG_STAGED,
            forced => forced,
        };
        let mut completion = Completion {
            cookie: submission.cookie,
            ticket: 1,
            send_leg: leg(submission.send_leg),
            receive_leg: leg(submission.receive_leg),
            bytes: submission.bytes,
            generation: 1,
            duration_ns: 1000,
            ..Completion::default()
        };
        match self.write(taken) {
            Ok(true) => {}
            Ok(false) => return None,
            Err((code, side)) => {
                completion.status = code.number();
                completion.side = side;
                completion.retry = u8::from(code.is_retryable());
                completion.bytes = 0;
            }
        }
        Some(completion)
    }

    fn write(&mut self, taken: &Taken) -> Result<bool, (Code, u8)> {
        let submission = taken.submission;
        if let Some((bytes, code)) = self.moods.fail
            && submission.bytes >= bytes
        {
            return Err((code, SIDE_REMOTE));
        }
        let stale = (Code::LocalHandleStale, SIDE_LOCAL);
        let local =
            self.regions.get(submission.local_index as usize).and_then(Option::as_ref).ok_or(stale)?;
        if local.session != taken.session || local.generation != submission.local_generation {
            return Err(stale);
        }
        let source = local.span.part(submission.local_offset, submission.bytes);
        let source = source.map_err(|_| (Code::LocalRange, SIDE_LOCAL))?;
        let stale = (Code::RemoteHandleStale, SIDE_LOCAL);
        let session = self.sessions[taken.session].as_ref().ok_or(stale)?;
        let &(index, generation) = session.remotes.get(submission.remote_index as usize).ok_or(stale)?;
        let region = self.regions.get(index as usize).and_then(Option::as_ref).ok_or(stale)?;
        if region.generation != generation {
            return Err(stale);
        }
        let target = region.span.part(submission.remote_offset, submission.bytes);
        let target = target.map_err(|_| (Code::RemoteRange, SIDE_LOCAL))?;
        copy(&source, &target);
        if let Some(at) = self.moods.spoil.and_then(|at| at.checked_sub(submission.remote_offset))
            && at < submission.bytes
        {
            let mut byte = [0];
            target.read(at, &mut byte).unwrap();
            target.write(at, &[!byte[0]]).unwrap();
        }
        if self.moods.overrun {
            let _ = region.span.write(submission.remote_offset + submission.bytes, &[0x11]);
        }
        let owner = region.session;
        let event = SessionEvent {
            value: submission.notify_value,
            region_index: index,
            region_generation: generation,
            offset: submission.remote_offset,
            bytes: submission.bytes,
        };
        let lane = taken.port % self.lanes;
        let owner = self.sessions[owner].as_mut().ok_or(stale)?;
        match submission.notify {
            NOTIFY_SIGNAL => owner.signal(submission.notify_index as usize, submission.notify_value),
            NOTIFY_EVENT => return Ok(owner.event(lane, &event)),
            _ => {}
        }
        Ok(true)
    }

    fn node_of(&self, session: usize) -> usize {
        self.sessions[session].as_ref().map_or(usize::MAX, |session| session.node)
    }

    /// Sleeps until something rings, with the handshake of a lane: nothing but a doorbell wakes it for a submission.
    fn sleep(&mut self) {
        for lane in 0..self.lanes {
            self.lanes_page[lane * LINE_WORDS].store_relaxed(1);
        }
        fence_seq_cst();
        let quiet = self
            .sessions
            .iter()
            .flatten()
            .flat_map(|session| &session.ports)
            .all(|port| port.submissions.is_empty());
        if quiet && (self.taken.is_empty() || self.moods.hold) {
            for sleeper in self.sleepers.drain(..) {
                let _ = sleeper.send(());
            }
            let mut inputs: Vec<PollFd<'_>> = vec![PollFd::new(&*self.waker, PollFlags::IN)];
            inputs.extend(self.nodes.iter().map(|(_, listener)| PollFd::new(listener, PollFlags::IN)));
            if !self.moods.mute {
                inputs.extend(
                    self.strangers.iter().map(|(_, connection)| PollFd::new(connection, PollFlags::IN)),
                );
                for session in self.sessions.iter().flatten() {
                    inputs.push(PollFd::new(&session.connection, PollFlags::IN));
                }
            }
            for session in self.sessions.iter().flatten() {
                inputs.extend(session.bells.iter().map(|bell| PollFd::new(bell, PollFlags::IN)));
            }
            let _ = poll(&mut inputs, Some(&Timespec { tv_sec: 20, tv_nsec: 0 }));
        }
        for lane in 0..self.lanes {
            self.lanes_page[lane * LINE_WORDS].store_relaxed(0);
        }
        let _ = eventfd::drain(&*self.waker);
        for bell in self.sessions.iter().flatten().flat_map(|session| &session.bells) {
            let _ = eventfd::drain(bell);
        }
    }
}

fn copy(source: &OwnedSpan, target: &OwnedSpan) {
    let mut bounce = vec![0; 1 << 16];
    let mut at = 0;
    while at < source.len() as u64 {
        let count = bounce.len().min(source.len() - at as usize);
        source.read(at, &mut bounce[..count]).unwrap();
        target.write(at, &bounce[..count]).unwrap();
        at += count as u64;
    }
}

fn answer(connection: &OwnedFd, version: u16, frame: &Frame) {
    let (bytes, count) = frame.encode(version);
    let _ = send_frame(connection, &bytes[..count], &[]);
}

fn set_non_blocking(socket: &OwnedFd) {
    let flags = rustix::fs::fcntl_getfl(socket.as_fd()).unwrap();
    rustix::fs::fcntl_setfl(socket.as_fd(), flags | rustix::fs::OFlags::NONBLOCK).unwrap();
}
