//! What the ports, events and regions of a session share: its memory, its doorbells, its socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use railhead_abi::ABI_VERSION;
use railhead_abi::frame::{Text, Welcome};
use railhead_abi::segment::{
    EVENT_ENTRIES, PORT_ENTRIES_MAX, PORTS_PER_LANE_MAX, SESSION_MAGIC, SIGNALS, SessionHeader, SessionShape,
};
use railhead_abi::settings::LANES_MAX;
use railhead_ring::sync::fence_seq_cst;
use railhead_shm::socket::SocketError;
use railhead_shm::{Access, Mapping, Words, eventfd};
use rustix::fs::OFlags;

use crate::error::SessionError;
use crate::lanes::LanesPage;
use crate::line::Line;

/// What was given out already.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) ports: usize,
    pub(crate) events: bool,
}

/// What ports, events and regions keep alive.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) line: Line,
    lanes_page: LanesPage,
    /// One for each lane, never read here.
    bells: Vec<OwnedFd>,
    memory: Words,
    shape: SessionShape,
    pub(crate) incarnation: u64,
    pub(crate) node: Text,
    pub(crate) name: Text,
    pub(crate) taken: Mutex<Taken>,
}

impl Shared {
    /// Takes over what came with the welcome, and checks that all of it agrees.
    pub(crate) fn new(line: Line, welcome: &Welcome, fds: Vec<OwnedFd>) -> Result<Self, SessionError> {
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
        self.line.condemn();
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
