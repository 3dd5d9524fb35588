//! The session: attaching, and everything that is asked over the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use railhead_abi::frame::{
    ACCESS_WRITE, FRAME_BYTES_MAX, Frame, Handle, Hello, NAME_BYTES_MAX, Open, Register, Release, Text,
    Welcome, is_name, name_words, text_words,
};
use railhead_abi::segment::{
    EVENT_ENTRIES, PORT_ENTRIES_MAX, PORTS_PER_LANE_MAX, SESSION_MAGIC, SIGNALS, SessionHeader, SessionShape,
};
use railhead_abi::settings::LANES_MAX;
use railhead_abi::{ABI_VERSION, Code};
use railhead_ring::sync::fence_seq_cst;
use railhead_shm::socket::{self, SocketError};
use railhead_shm::{Access, Mapping, Word, Words, eventfd};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::SessionError;
use crate::events::Events;
use crate::lanes::LanesPage;
use crate::port::Port;
use crate::region::{Region, RegionOptions};
use crate::write::{RegionHandle, RemoteHandle};

/// The session's version on the socket.
#[expect(clippy::cast_possible_truncation, reason = "checked by the assertion below")]
const VERSION: u16 = ABI_VERSION as u16;
const _: () = assert!(ABI_VERSION <= u16::MAX as u32);

/// Bytes of a grant's text: what the frame's field holds, less the terminating zero.
const GRANT_BYTES_MAX: usize = 95;

/// What to ask for when attaching.
#[derive(Debug, Clone, Copy)]
pub struct AttachOptions<'a> {
    /// Name of the session, by which regions are granted to it; empty takes `pid-N`.
    pub name: &'a str,
    /// Ports, spread over the dataplane's lanes; one for each thread that submits.
    pub ports: u32,
    /// Transfers that each port can have in flight, a power of two up to 1,024; 0 takes 256.
    pub entries: u32,
    /// How long to wait for an answer on the socket, for this and all later requests.
    pub timeout: Duration,
}

impl Default for AttachOptions<'_> {
    fn default() -> Self {
        Self { name: "", ports: 1, entries: 0, timeout: Duration::from_secs(30) }
    }
}

impl AttachOptions<'_> {
    fn check(&self) -> Result<(), SessionError> {
        if !self.name.is_empty() && !is_name(self.name) {
            return Err(SessionError::argument(
                "name",
                Code::NameInvalid,
                format!("{:?} is not a name", self.name),
            ));
        }
        if self.ports as usize > LANES_MAX * PORTS_PER_LANE_MAX {
            return Err(SessionError::argument(
                "ports",
                Code::PortsFull,
                format!("{} are too many", self.ports),
            ));
        }
        if self.entries != 0 && (!self.entries.is_power_of_two() || self.entries as usize > PORT_ENTRIES_MAX)
        {
            let problem = format!("{} is not a power of two up to {PORT_ENTRIES_MAX}", self.entries);
            return Err(SessionError::argument("entries", Code::QuotaExceeded, problem));
        }
        Ok(())
    }
}

/// An attached session. Clones are the same session; it ends when the last clone, port and region is dropped.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// An opened remote region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Remote {
    handle: RemoteHandle,
    bytes: u64,
    peer: u32,
    owner: u32,
}

impl Remote {
    /// For [`crate::Write::remote`].
    #[must_use]
    pub const fn handle(&self) -> RemoteHandle {
        self.handle
    }

    /// Bytes of the region.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Slot of the peer in the control segment's table.
    #[must_use]
    pub const fn peer(&self) -> u32 {
        self.peer
    }
}

impl Session {
    /// Attaches to the dataplane that listens at `path`.
    ///
    /// # Errors
    /// [`SessionError::Argument`], [`SessionError::Absent`], [`SessionError::Version`], [`SessionError::Refused`], or what stands in [`SessionError`] for answers
    /// that are wrong or do not come.
    pub fn attach(path: impl AsRef<Path>, options: &AttachOptions<'_>) -> Result<Self, SessionError> {
        options.check()?;
        let path = path.as_ref();
        let connection = socket::connect(path)
            .map_err(|source| SessionError::Absent { path: PathBuf::from(path), source })?;
        for which in [Timeout::Recv, Timeout::Send] {
            // A timeout of zero would mean none at all.
            let timeout = options.timeout.max(Duration::from_millis(1));
            set_socket_timeout(&connection, which, Some(timeout)).map_err(|errno| {
                SessionError::Socket(SocketError::System { call: "setsockopt(SO_RCVTIMEO)", errno })
            })?;
        }
        let line =
            Line { connection, timeout: options.timeout, in_step: Mutex::new(true), lost: Word::new(0) };
        let hello = Hello { name: name_words(options.name), ports: options.ports, entries: options.entries };
        let (answer, fds) = line.request(&Frame::Hello(hello), &[])?;
        let Frame::Welcome(welcome) = answer else {
            return Err(SessionError::Answer { what: "it does not follow the hello" });
        };
        Ok(Self { shared: Arc::new(Shared::new(line, &welcome, fds)?) })
    }

    /// Name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        self.shared.node.as_str()
    }

    /// Name of this session.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shared.name.as_str()
    }

    /// Random number of this start of the dataplane.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    /// Lanes of the dataplane.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.shared.shape.lanes
    }

    /// Ports that were granted.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared.shape.ports
    }

    /// Transfers that each port can have in flight.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.shared.shape.entries
    }

    /// The next port that nobody has taken, or `None`. Move it to the thread that will submit.
    #[must_use]
    pub fn take_port(&self) -> Option<Port> {
        let index = {
            let mut taken = lock(&self.shared.taken);
            if taken.ports == self.shared.shape.ports {
                return None;
            }
            taken.ports += 1;
            taken.ports - 1
        };
        Port::new(Arc::clone(&self.shared), index).ok()
    }

    /// The receiving end of events and signals, or `None` if it was taken.
    #[must_use]
    pub fn take_events(&self) -> Option<Events> {
        if std::mem::replace(&mut lock(&self.shared.taken).events, true) {
            return None;
        }
        Events::new(Arc::clone(&self.shared)).ok()
    }

    /// The signal word `index`, with everything visible that was written before it was added to. Any thread.
    #[must_use]
    pub fn signal(&self, index: usize) -> Option<u64> {
        self.shared.signal(index)
    }

    /// Makes memory, maps it and registers it.
    ///
    /// # Errors
    /// [`SessionError::Argument`], [`SessionError::Memory`], [`SessionError::Hugepages`], [`SessionError::Map`], [`SessionError::Refused`], [`SessionError::DataplaneLost`].
    pub fn create_region(&self, options: &RegionOptions<'_>) -> Result<Region, SessionError> {
        Region::create(self, options)
    }

    /// Registers `options.bytes` bytes from `offset` on of a memory file of the caller's, sealed with `F_SEAL_SHRINK` and
    /// `F_SEAL_GROW`, and maps it. `options.pages` is not looked at.
    ///
    /// # Errors
    /// As [`Self::create_region`].
    pub fn register_fd(
        &self,
        file: OwnedFd,
        offset: u64,
        options: &RegionOptions<'_>,
    ) -> Result<Region, SessionError> {
        Region::of_file(self, file, offset, options)
    }

    /// Opens the region `region` of the peer `node`; `self` or this node's own name is this node.
    ///
    /// # Errors
    /// [`SessionError::Argument`]; [`SessionError::Refused`] with `peer_unknown`, `peer_not_connected`, `region_unknown` or
    /// `grant_missing`; [`SessionError::DataplaneLost`].
    pub fn open(&self, node: &str, region: &str) -> Result<Remote, SessionError> {
        check_name("node", node)?;
        check_name("region", region)?;
        let open = Open { node: name_words(node), region: name_words(region), access: ACCESS_WRITE };
        match self.shared.line.request(&Frame::Open(open), &[])? {
            (Frame::Opened(handle), _) => Ok(Remote {
                handle: RemoteHandle { index: handle.index, generation: handle.generation },
                bytes: handle.bytes,
                peer: handle.peer,
                owner: handle.session,
            }),
            _ => Err(SessionError::Answer { what: "it does not follow the open" }),
        }
    }

    /// Gives a remote handle back. Transfers that use it must have completed.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `remote_handle_stale` or `region_busy`; [`SessionError::DataplaneLost`].
    pub fn close(&self, remote: RemoteHandle) -> Result<(), SessionError> {
        self.shared.line.release(Release { index: remote.index, generation: remote.generation, remote: 1 })
    }

    /// Deregisters a region. Transfers that use it must have completed; peers that hold it are told first.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `local_handle_stale` or `region_busy`; [`SessionError::DataplaneLost`].
    pub fn deregister(&self, region: RegionHandle) -> Result<(), SessionError> {
        self.shared.line.release(Release { index: region.index, generation: region.generation, remote: 0 })
    }

    /// Whether the dataplane has gone. Makes a system call.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.line.look()
    }

    pub(crate) fn register(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        options: &RegionOptions<'_>,
    ) -> Result<Handle, SessionError> {
        let register = Register {
            offset,
            bytes: options.bytes,
            access: options.access,
            name: name_words(options.name),
            grant: text_words(options.grant),
        };
        match self.shared.line.request(&Frame::Register(register), &[file])? {
            (Frame::Registered(handle), _) => Ok(handle),
            _ => Err(SessionError::Answer { what: "it does not follow the registration" }),
        }
    }
}

pub(crate) fn check_name(argument: &'static str, name: &str) -> Result<(), SessionError> {
    if is_name(name) {
        return Ok(());
    }
    Err(SessionError::argument(
        argument,
        Code::NameInvalid,
        format!("{name:?} is not a name of 1 to {NAME_BYTES_MAX} bytes"),
    ))
}

/// A grant is empty, `*`, `NODE/*` or `NODE/NAME`.
pub(crate) fn check_grant(grant: &str) -> Result<(), SessionError> {
    if grant.is_empty() || grant == "*" {
        return Ok(());
    }
    let sound =
        grant.split_once('/').is_some_and(|(node, name)| is_name(node) && (name == "*" || is_name(name)));
    if !sound || grant.len() > GRANT_BYTES_MAX {
        let problem = format!("{grant:?} is not NODE/NAME, NODE/* or * of at most {GRANT_BYTES_MAX} bytes");
        return Err(SessionError::argument("grant", Code::NameInvalid, problem));
    }
    Ok(())
}

/// The socket: one request and its answer at a time.
#[derive(Debug)]
struct Line {
    connection: OwnedFd,
    timeout: Duration,
    /// False once an answer did not come in time: a later one would be taken for the wrong request's.
    in_step: Mutex<bool>,
    /// 1 once the dataplane is known to be gone.
    lost: Word,
}

impl Line {
    fn request(&self, frame: &Frame, fds: &[BorrowedFd<'_>]) -> Result<(Frame, Vec<OwnedFd>), SessionError> {
        let mut in_step = lock(&self.in_step);
        if self.is_lost() {
            return Err(SessionError::DataplaneLost);
        }
        if !*in_step {
            return Err(SessionError::TimedOut(self.timeout));
        }
        let (bytes, count) = frame.encode(VERSION);
        // Out of step until the whole exchange is over, whichever way this function is left.
        *in_step = false;
        match socket::send_frame(&self.connection, &bytes[..count], fds) {
            // A refusal may lie in the socket although it is closed for sending.
            Ok(()) | Err(SocketError::Closed) => {}
            Err(error) => return Err(self.failed(error)),
        }
        let mut buffer = [0; FRAME_BYTES_MAX];
        let answer = socket::recv_frame(&self.connection, &mut buffer, socket::FDS_MAX);
        let answer = answer.map_err(|error| self.failed(error))?;
        *in_step = true;
        match Frame::decode(VERSION, &buffer[..answer.bytes]) {
            Ok(Frame::Refused(refused)) => Err(SessionError::refused(&refused)),
            Ok(frame) => Ok((frame, answer.fds)),
            Err(code) => Err(SessionError::Version { code }),
        }
    }

    fn release(&self, release: Release) -> Result<(), SessionError> {
        match self.request(&Frame::Release(release), &[])? {
            (Frame::Released(_), _) => Ok(()),
            _ => Err(SessionError::Answer { what: "it does not follow the release" }),
        }
    }

    fn failed(&self, error: SocketError) -> SessionError {
        match error {
            SocketError::Closed => {
                self.lost.store_release(1);
                SessionError::DataplaneLost
            }
            SocketError::NotReady => SessionError::TimedOut(self.timeout),
            error => SessionError::Socket(error),
        }
    }

    /// Whether it is known to be gone: one load.
    #[inline]
    fn is_lost(&self) -> bool {
        // Partner: the release stores of `lost`. The kernel reported the end after the dataplane's last store.
        self.lost.load_acquire() != 0
    }

    /// Asks the kernel whether it is gone.
    fn look(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        let mut wanted = [PollFd::new(&self.connection, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // A failed poll says nothing: the next one will.
        let polled = rustix::event::poll(&mut wanted, Some(&now));
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        if polled.is_ok() && wanted[0].revents().intersects(ended) {
            self.lost.store_release(1);
        }
        self.is_lost()
    }
}

#[derive(Debug, Default)]
struct Taken {
    ports: usize,
    events: bool,
}

/// What ports, events and regions keep alive.
#[derive(Debug)]
pub(crate) struct Shared {
    line: Line,
    lanes_page: LanesPage,
    /// One for each lane, never read here.
    bells: Vec<OwnedFd>,
    memory: Words,
    shape: SessionShape,
    incarnation: u64,
    node: Text,
    name: Text,
    taken: Mutex<Taken>,
}

impl Shared {
    fn new(line: Line, welcome: &Welcome, fds: Vec<OwnedFd>) -> Result<Self, SessionError> {
        let shape = SessionShape {
            lanes: welcome.lanes as usize,
            ports: welcome.ports as usize,
            entries: welcome.entries as usize,
        };
        check_shape(&shape, welcome)?;
        if fds.len() != 2 + shape.lanes {
            return Err(SessionError::Answer { what: "the welcome carries the wrong number of descriptors" });
        }
        let mut fds = fds.into_iter();
        let (Some(memory), Some(lanes_page)) = (fds.next(), fds.next()) else {
            return Err(SessionError::Answer { what: "the welcome carries no memory" });
        };
        let bells: Vec<OwnedFd> = fds.collect();
        for bell in &bells {
            keep_from_blocking(bell)?;
        }
        Ok(Self {
            line,
            lanes_page: LanesPage::map(lanes_page)?,
            bells,
            memory: map_session(memory, &shape, welcome.incarnation)?,
            shape,
            incarnation: welcome.incarnation,
            node: Text::of(&welcome.node),
            name: Text::of(&welcome.name),
            taken: Mutex::default(),
        })
    }

    pub(crate) const fn shape(&self) -> &SessionShape {
        &self.shape
    }

    /// A part of the session memory; attach checked that the shape lies inside.
    pub(crate) fn words(&self, first: usize, count: usize) -> Result<Words, SessionError> {
        self.memory
            .part(first, count)
            .map_err(|_| SessionError::Answer { what: "the session memory is too small" })
    }

    /// Makes the lane look at what was published before, if it sleeps. Never blocks.
    #[inline]
    pub(crate) fn ring(&self, lane: usize) {
        // Partner: the lane's fence between setting its asleep word and looking at the rings again.
        fence_seq_cst();
        if self.lanes_page.is_asleep(lane) {
            // It fails only for a descriptor that is no eventfd; the lane then finds the entries when it next wakes.
            let rung = eventfd::ring(&self.bells[lane]);
            debug_assert!(rung.is_ok(), "the welcome carried something else than an eventfd");
        }
    }

    pub(crate) fn signal(&self, index: usize) -> Option<u64> {
        // Partner: the lane's release add after the data was placed.
        (index < SIGNALS).then(|| self.memory[SessionShape::SIGNALS + index].load_acquire())
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.line.is_lost()
    }

    pub(crate) fn look(&self) -> bool {
        self.line.look()
    }

    /// The dataplane broke the rules of the shared memory: what it says is not to be used any more.
    pub(crate) fn condemn(&self) {
        self.line.lost.store_release(1);
    }
}

fn check_shape(shape: &SessionShape, welcome: &Welcome) -> Result<(), SessionError> {
    let wrong = |what| Err(SessionError::Answer { what });
    if shape.lanes == 0 || shape.lanes > LANES_MAX {
        return wrong("it names an impossible number of lanes");
    }
    if shape.ports > LANES_MAX * PORTS_PER_LANE_MAX {
        return wrong("it names an impossible number of ports");
    }
    if !shape.entries.is_power_of_two() || shape.entries > PORT_ENTRIES_MAX {
        return wrong("it names an impossible number of entries");
    }
    if welcome.event_entries as usize != EVENT_ENTRIES || welcome.signals as usize != SIGNALS {
        return wrong("its event rings or signals have another size");
    }
    Ok(())
}

/// Maps the session memory and checks that its header says what the welcome said.
fn map_session(memory: OwnedFd, shape: &SessionShape, incarnation: u64) -> Result<Words, SessionError> {
    let what = "the session memory";
    let mapping =
        Mapping::of_sealed(memory, Access::ReadWrite).map_err(|source| SessionError::Map { what, source })?;
    let words = mapping.words(0, shape.words()).map_err(|source| SessionError::Map { what, source })?;
    let header = SessionHeader::decode(&core::array::from_fn(|at| words[at].load_acquire()));
    let expected = SessionHeader {
        magic: SESSION_MAGIC,
        abi_version: ABI_VERSION,
        lanes: header.lanes,
        segment_words: shape.words() as u64,
        incarnation,
        ports: header.ports,
        entries: header.entries,
    };
    let same_shape = header.lanes as usize == shape.lanes
        && header.ports as usize == shape.ports
        && header.entries as usize == shape.entries;
    if header != expected || !same_shape {
        return Err(SessionError::Answer {
            what: "the header of the session memory does not agree with the welcome",
        });
    }
    Ok(words)
}

/// A full eventfd must make a ring fail, not sleep. The flag belongs to the open file, which the dataplane shares.
fn keep_from_blocking(bell: &OwnedFd) -> Result<(), SessionError> {
    let refused = |errno| SessionError::Socket(SocketError::System { call: "fcntl(O_NONBLOCK)", errno });
    let flags = rustix::fs::fcntl_getfl(bell.as_fd()).map_err(refused)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    rustix::fs::fcntl_setfl(bell.as_fd(), flags | OFlags::NONBLOCK).map_err(refused)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing under these locks is left half-done by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
