//! The control segment: the memory that a control process maps, made anew at each start.
//!
//! Who writes what: control the settings cell (the dataplane once, before anyone is attached), the settings thread
//! [`Prepared`] and the lanes' cores, the registrar its events and the peers, each lane its own part. Everything else
//! only reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use railhead_abi::frame::name_words;
use railhead_abi::observe::{COUNTER_WORDS, Counter};
use railhead_abi::segment::{
    CONTROL_MAGIC, ControlHeader, ControlShape, LANES_PAGE_WORDS, LaneRail, LaneStatus, PeerStatus, Prepared,
    RAILS_MAX, RailStatus, Registrations,
};
use railhead_abi::words::{FieldLayout, Layout};
use railhead_abi::{ABI_VERSION, Code};
use railhead_ring::Word;
use railhead_shm::memfd::{self, Huge};
use railhead_shm::{Access, MapError, Mapping, Words};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::StartError;

/// The word that holds a field; evaluated while compiling, where an unknown name is an error.
pub(crate) const fn word_of<L: Layout>(name: &str) -> usize {
    let fields: &[FieldLayout] = L::FIELDS;
    let mut at = 0;
    while at < fields.len() {
        if is_same(fields[at].name.as_bytes(), name.as_bytes()) {
            return fields[at].word;
        }
        at += 1;
    }
    panic!("the layout has no field of this name")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The parts of the segment that one lane writes.
#[derive(Debug, Clone)]
pub(crate) struct LaneWords {
    /// [`LaneStatus`].
    pub(crate) status: Words,
    /// Counters, one a word.
    pub(crate) counters: Words,
    /// Log of flight records.
    pub(crate) flight: Words,
    /// Log of events.
    pub(crate) events: Words,
    /// [`LaneRail`] by rail.
    pub(crate) rails: Words,
}

/// The segment and its memory file.
#[derive(Debug)]
pub(crate) struct ControlSegment {
    file: OwnedFd,
    words: Words,
    shape: ControlShape,
}

impl ControlSegment {
    /// Makes the segment and writes its header.
    ///
    /// # Errors
    /// [`Code::MappingFailed`].
    pub(crate) fn create(header: &ControlHeader) -> Result<Self, StartError> {
        let refuse = |cause: MapError| StartError::new(Code::MappingFailed, "control segment", cause);
        let shape = ControlShape { lanes: header.lanes as usize };
        let file = memfd::create("railhead-control", 8 * shape.words() as u64, Huge::No)
            .map_err(|error| refuse(error.into()))?;
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite).map_err(refuse)?;
        mapping.populate().map_err(|error| StartError::new(Code::MappingFailed, "control segment", error))?;
        let words = mapping.words(0, shape.words()).map_err(refuse)?;
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            abi_version: ABI_VERSION,
            segment_words: shape.words() as u64,
            ..*header
        };
        for (word, value) in words.iter().zip(header.encode()) {
            word.store_relaxed(value);
        }
        Ok(Self { file, words, shape })
    }

    /// The memory file, for passing on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The header as it stands.
    pub(crate) fn header(&self) -> ControlHeader {
        let mut words = [0; ControlHeader::WORDS];
        for (value, word) in words.iter_mut().zip(self.words.iter()) {
            *value = word.load_relaxed();
        }
        ControlHeader::decode(&words)
    }

    /// Writes what is known of the staging pools only after they were made.
    pub(crate) fn set_pool(&self, pool_bytes: u64, page_bytes: u64) {
        self.words[word_of::<ControlHeader>("pool_bytes")].store_relaxed(pool_bytes);
        self.words[word_of::<ControlHeader>("pool_page_bytes")].store_relaxed(page_bytes);
    }

    /// The settings cell.
    pub(crate) fn settings(&self) -> Words {
        self.part(ControlShape::SETTINGS, 1 + railhead_abi::settings::SETTINGS_WORDS)
    }

    /// Newest generation that lanes may apply, and the newest refused one.
    pub(crate) fn prepared(&self) -> Words {
        self.part(ControlShape::PREPARED, Prepared::WORDS)
    }

    /// One peer's status.
    pub(crate) fn peer(&self, peer: usize) -> Words {
        self.part(ControlShape::PEERS + peer * PeerStatus::WORDS, PeerStatus::WORDS)
    }

    /// One rail's status.
    pub(crate) fn rail(&self, rail: usize) -> Words {
        self.part(ControlShape::RAILS + rail * RailStatus::WORDS, RailStatus::WORDS)
    }

    /// What the cache of registrations has done.
    pub(crate) fn registrations(&self) -> Words {
        self.part(ControlShape::REGISTRATIONS, Registrations::WORDS)
    }

    /// The registrar's event log.
    pub(crate) fn registrar_events(&self) -> Words {
        self.part(ControlShape::REGISTRAR_EVENTS, ControlShape::REGISTRAR_EVENTS_WORDS)
    }

    /// What `lane` writes.
    pub(crate) fn lane(&self, lane: usize) -> LaneWords {
        let start = self.shape.lane(lane);
        LaneWords {
            status: self.part(start + ControlShape::LANE_STATUS, LaneStatus::WORDS),
            counters: self.part(start + ControlShape::LANE_COUNTERS, COUNTER_WORDS),
            flight: self.part(start + ControlShape::LANE_FLIGHT, ControlShape::LANE_FLIGHT_WORDS),
            events: self.part(start + ControlShape::LANE_EVENTS, ControlShape::LANE_EVENTS_WORDS),
            rails: self.part(start + ControlShape::LANE_RAILS, RAILS_MAX * LaneRail::WORDS),
        }
    }

    /// The one counter of lane 0 that the registrar writes.
    pub(crate) fn regions_lost(&self) -> Words {
        let counter = Counter::RegionsLost as usize;
        self.lane(0).counters.part(counter, 1).expect("a word for each counter")
    }

    fn part(&self, first: usize, count: usize) -> Words {
        self.words.part(first, count).expect("the shape gives only parts of itself")
    }
}

/// Says that lanes may apply `generation`.
pub(crate) fn write_prepared(words: &Words, generation: u64) {
    words[word_of::<Prepared>("prepared_generation")].store_release(generation);
}

/// Says that `generation` was refused, and why.
pub(crate) fn write_refused(words: &Words, generation: u64, code: Code, setting_word: usize) {
    let why = Prepared {
        refusal_code: code.number(),
        refusal_word: u32::try_from(setting_word).unwrap_or(u32::MAX),
        ..Prepared::default()
    };
    let word = word_of::<Prepared>("refusal_code");
    words[word].store_relaxed(why.encode()[word]);
    // The generation last: whoever sees it (with acquire) also sees why.
    words[word_of::<Prepared>("refused_generation")].store_release(generation);
}

/// Writes a peer's status over what was there.
pub(crate) fn write_peer(words: &Words, status: &PeerStatus) {
    for (word, value) in words.iter().zip(status.encode()) {
        word.store_release(value);
    }
}

/// Writes a structure of the segment over what was there, word by word.
pub(crate) fn write_words(words: &[Word], values: &[u64]) {
    for (word, value) in words.iter().zip(values) {
        word.store_relaxed(*value);
    }
}

/// A name as the header holds it.
pub(crate) fn name(text: &str) -> [u64; 8] {
    name_words(text)
}

/// The lanes' page: one word a lane, not zero while that lane sleeps. Clients get it read-only.
#[derive(Debug)]
pub(crate) struct LanesPage {
    file: OwnedFd,
    words: Words,
}

impl LanesPage {
    /// Makes the page. It is mapped here before it is sealed against any further writable mapping.
    ///
    /// # Errors
    /// [`Code::MappingFailed`].
    pub(crate) fn create() -> Result<Self, StartError> {
        let refuse =
            |cause: &dyn core::fmt::Display| StartError::new(Code::MappingFailed, "lanes' page", cause);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("railhead-lanes", flags).map_err(|error| refuse(&error))?;
        let bytes = (8 * LANES_PAGE_WORDS).next_multiple_of(memfd::base_page_bytes());
        rustix::fs::ftruncate(&file, bytes as u64).map_err(|error| refuse(&error))?;
        let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).map_err(|error| refuse(&error))?;
        mapping.populate().map_err(|error| refuse(&error))?;
        let words = mapping.words(0, LANES_PAGE_WORDS).map_err(|error| refuse(&error))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|error| refuse(&error))?;
        Ok(Self { file, words })
    }

    /// The memory file, for passing on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The word that says whether `lane` sleeps.
    pub(crate) fn lane(&self, lane: usize) -> Words {
        let first = lane * railhead_abi::segment::LINE_WORDS;
        self.words.part(first, 1).expect("the page has a line for each lane")
    }
}

#[cfg(test)]
mod tests;
