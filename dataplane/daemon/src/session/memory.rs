//! A session's memory: rings, signals and bells in one memory file, and the doorbells that wake lanes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use railhead_abi::frame::{Welcome, name_words, text_words};
use railhead_abi::segment::{EVENT_ENTRIES, SESSION_MAGIC, SIGNALS, SessionHeader, SessionShape};
use railhead_abi::{ABI_VERSION, Code};
use railhead_core::tables::{PortParts, SessionParts};
use railhead_ring::{Bell, Consumer, LayoutError, Producer};
use railhead_shm::memfd::{self, Huge};
use railhead_shm::{Access, Mapping, Words, eventfd};

use crate::segment::LanesPage;

/// The memory of one session and what goes with it.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    /// The session's name.
    pub(crate) name: String,
    shape: SessionShape,
    file: OwnedFd,
    words: Words,
    doorbells: Vec<OwnedFd>,
}

impl SessionMemory {
    /// Makes the memory and one doorbell a lane. Never on hugepages: it is small, and a client cannot punch holes into
    /// memory whose loss would hurt.
    pub(crate) fn create(name: &str, shape: SessionShape, incarnation: u64) -> Result<Self, (Code, String)> {
        let refuse = |cause: &dyn core::fmt::Display| (Code::MappingFailed, cause.to_string());
        let file = memfd::create("railhead-session", 8 * shape.words() as u64, Huge::No);
        let file = file.map_err(|error| refuse(&error))?;
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite).map_err(|error| refuse(&error))?;
        // Now, so that no lane faults on it.
        mapping.populate().map_err(|error| refuse(&error))?;
        let words = mapping.words(0, shape.words()).map_err(|error| refuse(&error))?;
        let count = |count: usize| u32::try_from(count).map_err(|error| refuse(&error));
        let header = SessionHeader {
            magic: SESSION_MAGIC,
            abi_version: ABI_VERSION,
            lanes: count(shape.lanes)?,
            segment_words: shape.words() as u64,
            incarnation,
            ports: count(shape.ports)?,
            entries: count(shape.entries)?,
        };
        for (word, value) in words.iter().zip(header.encode()) {
            word.store_relaxed(value);
        }
        let doorbells = (0..shape.lanes).map(|_| eventfd::create()).collect::<Result<_, _>>();
        let doorbells = doorbells.map_err(|error| refuse(&error))?;
        Ok(Self { name: name.to_owned(), shape, file, words, doorbells })
    }

    /// The shape.
    pub(crate) const fn shape(&self) -> &SessionShape {
        &self.shape
    }

    /// The doorbell that wakes `lane`. The client holds it too, so it is never read or written here.
    pub(crate) fn doorbell(&self, lane: usize) -> BorrowedFd<'_> {
        self.doorbells[lane].as_fd()
    }

    /// What the client is told.
    pub(crate) fn welcome(&self, session: u32, incarnation: u64, node: &str) -> Welcome {
        // The header was made from the same numbers.
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Welcome {
            incarnation,
            session,
            lanes: number(self.shape.lanes),
            ports: number(self.shape.ports),
            entries: number(self.shape.entries),
            event_entries: number(EVENT_ENTRIES),
            signals: number(SIGNALS),
            node: name_words(node),
            name: name_words(&self.name),
        }
    }

    /// What goes with the welcome: the memory, the lanes' page, the doorbells.
    pub(crate) fn descriptors<'a>(&'a self, page: &'a LanesPage) -> Vec<BorrowedFd<'a>> {
        let doorbells = self.doorbells.iter().map(AsFd::as_fd);
        [self.file.as_fd(), page.file()].into_iter().chain(doorbells).collect()
    }

    /// What `lane` writes to for the whole session.
    pub(crate) fn session_parts(&self, lane: usize) -> Result<SessionParts<Words>, LayoutError> {
        Ok(SessionParts {
            signals: self.part(SessionShape::SIGNALS, SIGNALS),
            events: Producer::new(
                self.part(self.shape.events(lane), SessionShape::EVENT_RING_WORDS),
                EVENT_ENTRIES,
            )?,
            bell: Bell::new(self.part(SessionShape::EVENT_BELL, 1))?,
            name: text_words(&self.name),
        })
    }

    /// The dataplane's ends of a port.
    pub(crate) fn port_parts(&self, port: usize) -> Result<PortParts<Words>, LayoutError> {
        let start = self.shape.port(port);
        let submissions =
            self.part(start + SessionShape::PORT_SUBMISSIONS, self.shape.submission_ring_words());
        let completions =
            self.part(start + self.shape.port_completions(), self.shape.completion_ring_words());
        Ok(PortParts {
            submissions: Consumer::new(submissions, self.shape.entries)?,
            completions: Producer::new(completions, self.shape.entries)?,
            bell: Bell::new(self.part(start + SessionShape::PORT_BELL, 1))?,
        })
    }

    fn part(&self, first: usize, count: usize) -> Words {
        self.words.part(first, count).expect("the shape gives only parts of itself")
    }
}
