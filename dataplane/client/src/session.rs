//! The session: attaching, and everything that is asked over the socket.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{
    ACCESS_WRITE, Frame, Handle, Hello, NAME_BYTES_MAX, Open, Register, Release, is_name, name_words,
    text_words,
};
use railhead_abi::segment::{PORT_ENTRIES_MAX, PORTS_PER_LANE_MAX};
use railhead_abi::settings::LANES_MAX;

use crate::error::SessionError;
use crate::events::Events;
use crate::line::{Line, lock};
use crate::port::Port;
use crate::region::{Region, RegionOptions};
use crate::shared::Shared;
use crate::write::{RegionHandle, RemoteHandle};

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

    /// Slot, at the peer, of the session that owns the region and gets the notifications.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.owner
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
        let line = Line::connect(path.as_ref(), options.timeout)?;
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
        self.shared.shape().lanes
    }

    /// Ports that were granted.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared.shape().ports
    }

    /// Transfers that each port can have in flight.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.shared.shape().entries
    }

    /// The next port that nobody has taken, or `None`. Move it to the thread that will submit.
    #[must_use]
    pub fn take_port(&self) -> Option<Port> {
        let index = {
            let mut taken = lock(&self.shared.taken);
            if taken.ports == self.shared.shape().ports {
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

    /// Opens the region `region` of the peer `node` for writing: [`Self::open_for`] [`crate::ACCESS_WRITE`].
    ///
    /// # Errors
    /// As there.
    pub fn open(&self, node: &str, region: &str) -> Result<Remote, SessionError> {
        self.open_for(node, region, ACCESS_WRITE)
    }

    /// Opens the region `region` of the peer `node` for reading ([`crate::ACCESS_READ`]), writing or both; `self` or this node's own name is this node.
    ///
    /// # Errors
    /// [`SessionError::Argument`]; [`SessionError::Refused`] with `peer_unknown`, `peer_not_connected`, `region_unknown` or
    /// `grant_missing`, also for access that the region was not registered with; [`SessionError::DataplaneLost`].
    pub fn open_for(&self, node: &str, region: &str, access: u32) -> Result<Remote, SessionError> {
        check_name("node", node)?;
        check_name("region", region)?;
        let open = Open { node: name_words(node), region: name_words(region), access };
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
