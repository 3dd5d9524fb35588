//! The control segment as control sees it: everything read-only, except the settings cell.
//!
//! The dataplane made this memory, so its header is checked once; the words behind it are read one by one and judged by
//! whoever uses them. A structure that is read while it is written may mix two states: fit for show, not for decisions,
//! except where a comment says how it is ordered.

use std::os::fd::AsFd;

use railhead_abi::observe::{COUNTER_WORDS, Counter, EventEntry, Flight};
use railhead_abi::segment::{
    CONTROL_MAGIC, ControlHeader, ControlShape, FLIGHT_ENTRIES, HEADER_WORDS, LANE_EVENT_ENTRIES, LaneRail,
    LaneStatus, PEER_ABSENT, PEERS_MAX, PeerStatus, Prepared, RAIL_ABSENT, RAILS_MAX,
    REGISTRAR_EVENT_ENTRIES, RailStatus, Registrations,
};
use railhead_abi::settings::{LANES_MAX, Limits, SETTINGS_WORDS, Settings};
use railhead_abi::{ABI_VERSION, Code};
use railhead_ring::{Busy, CellReader, CellWriter, Counters, LogReader, cell_words};
use railhead_shm::{Access, Mapping, Word, Words};

/// Tries for one consistent copy of the settings: a writer that is alive is done within a few.
const SETTINGS_TRIES: u32 = 10_000;

/// A mapped control segment.
#[derive(Debug, Clone)]
pub struct Segment {
    words: Words,
    shape: ControlShape,
    header: ControlHeader,
}

/// A refused segment: the code, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSegment {
    /// [`Code::MappingFailed`] or [`Code::VersionMismatch`].
    pub code: Code,
    /// What is wrong.
    pub what: String,
}

/// A log of the segment.
pub type Log<const W: usize> = LogReader<Words, W>;

impl Segment {
    /// Maps a segment and checks its header.
    ///
    /// # Errors
    /// [`BadSegment`] if the file cannot be mapped or is not a control segment of this version.
    pub fn map(file: impl AsFd) -> Result<Self, BadSegment> {
        let bad = |code, what: String| BadSegment { code, what };
        let mapping = Mapping::of_sealed(file, Access::ReadWrite)
            .map_err(|error| bad(Code::MappingFailed, format!("control segment: {error}")))?;
        let count = mapping.len() / size_of::<u64>();
        if count < HEADER_WORDS {
            return Err(bad(Code::MappingFailed, format!("control segment has {count} words only")));
        }
        let words = mapping.words(0, count).map_err(|error| bad(Code::MappingFailed, error.to_string()))?;
        let header = ControlHeader::decode(&read(&words, 0));
        if header.magic != CONTROL_MAGIC || header.abi_version != ABI_VERSION {
            let what =
                format!("control segment of ABI version {}, this is {ABI_VERSION}", header.abi_version);
            return Err(bad(Code::VersionMismatch, what));
        }
        let lanes = header.lanes as usize;
        let shape = ControlShape { lanes };
        if lanes == 0
            || lanes > LANES_MAX
            || shape.words() as u64 != header.segment_words
            || shape.words() > count
        {
            let what = format!("control segment of {lanes} lanes has {} words", header.segment_words);
            return Err(bad(Code::MappingFailed, what));
        }
        Ok(Self { words, shape, header })
    }

    /// The header as it was when the segment was mapped.
    #[must_use]
    pub const fn header(&self) -> &ControlHeader {
        &self.header
    }

    /// Lanes, 1 to 64.
    #[must_use]
    pub const fn lanes(&self) -> usize {
        self.shape.lanes
    }

    /// What settings of this node are validated against.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        Limits {
            large_block_bytes: self.header.large_bytes,
            lanes: self.shape.lanes,
            cores: self.header.cores,
            numa_nodes: nodes(self.header.numa_nodes),
        }
    }

    /// The writing end of the settings cell: one at a time, held by whoever holds the dataplane.
    #[must_use]
    pub fn settings_writer(&self) -> CellWriter<Words> {
        CellWriter::new(self.settings_words()).expect("the shape has room for the cell")
    }

    /// The published snapshot and its generation; `None` if nothing was published yet.
    ///
    /// # Errors
    /// [`Busy`] if the last writer died while it wrote.
    pub fn settings(&self) -> Result<Option<(u64, Settings)>, Busy> {
        let cell = CellReader::new(self.settings_words()).expect("the shape has room for the cell");
        let mut settings = Settings { words: [0; SETTINGS_WORDS] };
        let generation = cell.read(&mut settings.words, SETTINGS_TRIES)?;
        Ok((generation != 0).then_some((generation, settings)))
    }

    fn settings_words(&self) -> Words {
        self.part(ControlShape::SETTINGS, cell_words(SETTINGS_WORDS))
    }

    /// What the dataplane says of snapshots.
    #[must_use]
    pub fn prepared(&self) -> Prepared {
        let words = &self.words[ControlShape::PREPARED..];
        // Partner: the settings thread's release stores of the two generations, each after what belongs to it.
        let prepared_generation = words[0].load_acquire();
        let refused_generation = words[1].load_acquire();
        let rest = Prepared::decode(&read(&self.words, ControlShape::PREPARED));
        Prepared { prepared_generation, refused_generation, ..rest }
    }

    /// The generation that a lane applies.
    ///
    /// # Panics
    /// If there is no such lane, here and in all that take a lane.
    #[must_use]
    pub fn acknowledged(&self, lane: usize) -> u64 {
        // Partner: the lane's release store after it applied the snapshot.
        self.words[self.lane(lane) + ControlShape::LANE_STATUS].load_acquire()
    }

    /// What a lane says of itself.
    #[must_use]
    pub fn lane_status(&self, lane: usize) -> LaneStatus {
        LaneStatus::decode(&read(&self.words, self.lane(lane) + ControlShape::LANE_STATUS))
    }

    /// A lane's counter.
    #[must_use]
    pub fn counter(&self, lane: usize, counter: Counter) -> u64 {
        let start = self.lane(lane) + ControlShape::LANE_COUNTERS;
        Counters::new(&self.words[start..start + COUNTER_WORDS]).get(counter as usize)
    }

    /// The RDMA rails, by number.
    pub fn rails(&self) -> impl Iterator<Item = (usize, RailStatus)> + '_ {
        let rail =
            |rail| RailStatus::decode(&read(&self.words, ControlShape::RAILS + rail * RailStatus::WORDS));
        (0..RAILS_MAX).map(move |at| (at, rail(at))).filter(|(_, rail)| rail.state != RAIL_ABSENT)
    }

    /// What a lane has done on a rail.
    #[must_use]
    pub fn lane_rail(&self, lane: usize, rail: usize) -> LaneRail {
        assert!(rail < RAILS_MAX, "rail {rail}");
        let start = self.lane(lane) + ControlShape::LANE_RAILS;
        LaneRail::decode(&read(&self.words, start + rail * LaneRail::WORDS))
    }

    /// What the cache of registrations has done.
    #[must_use]
    pub fn registrations(&self) -> Registrations {
        Registrations::decode(&read(&self.words, ControlShape::REGISTRATIONS))
    }

    /// The peers that are configured, with their slots.
    pub fn peers(&self) -> impl Iterator<Item = (usize, PeerStatus)> + '_ {
        (0..PEERS_MAX).map(|slot| (slot, self.peer(slot))).filter(|(_, peer)| peer.state != PEER_ABSENT)
    }

    /// The peer of a slot below 64, configured or not.
    #[must_use]
    pub fn peer(&self, slot: usize) -> PeerStatus {
        PeerStatus::decode(&read(&self.words, ControlShape::PEERS + slot * PeerStatus::WORDS))
    }

    /// A lane's flight records.
    #[must_use]
    pub fn flights(&self, lane: usize) -> Log<{ Flight::WORDS }> {
        let words = self.part(self.lane(lane) + ControlShape::LANE_FLIGHT, ControlShape::LANE_FLIGHT_WORDS);
        LogReader::new(words, FLIGHT_ENTRIES).expect("the shape has room for the log")
    }

    /// A lane's events.
    #[must_use]
    pub fn lane_events(&self, lane: usize) -> Log<{ EventEntry::WORDS }> {
        let words = self.part(self.lane(lane) + ControlShape::LANE_EVENTS, ControlShape::LANE_EVENTS_WORDS);
        LogReader::new(words, LANE_EVENT_ENTRIES).expect("the shape has room for the log")
    }

    /// The registrar's events.
    #[must_use]
    pub fn registrar_events(&self) -> Log<{ EventEntry::WORDS }> {
        let words = self.part(ControlShape::REGISTRAR_EVENTS, ControlShape::REGISTRAR_EVENTS_WORDS);
        LogReader::new(words, REGISTRAR_EVENT_ENTRIES).expect("the shape has room for the log")
    }

    fn lane(&self, lane: usize) -> usize {
        assert!(lane < self.shape.lanes, "lane {lane} of {}", self.shape.lanes);
        self.shape.lane(lane)
    }

    fn part(&self, first: usize, count: usize) -> Words {
        self.words.part(first, count).expect("the shape was checked against the mapping")
    }
}

/// So many nodes as a mask.
const fn nodes(count: u32) -> u64 {
    match 1u64.checked_shl(count) {
        Some(bit) => bit - 1,
        None => u64::MAX,
    }
}

fn read<const N: usize>(words: &[Word], first: usize) -> [u64; N] {
    let mut values = [0; N];
    for (value, word) in values.iter_mut().zip(&words[first..first + N]) {
        *value = word.load_relaxed();
    }
    values
}
