//! The control segment: what the dataplane and control share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use railhead_abi::ABI_VERSION;
use railhead_abi::observe::{COUNTER_WORDS, EventEntry, Flight};
use railhead_abi::segment::{
    CONTROL_MAGIC, ControlHeader, ControlShape, FLIGHT_ENTRIES, LANE_EVENT_ENTRIES, LaneStatus, PEERS_MAX,
    PeerStatus, Prepared, REGISTRAR_EVENT_ENTRIES,
};
use railhead_abi::settings::{LANES_MAX, SETTINGS_WORDS};
use railhead_ring::{CellReader, CellWriter, Counters, LogReader, LogWriter, cell_words, log_words};

use super::{SegmentError, check_kind, check_range, check_words, header, store};
use crate::mapping::{Access, Mapping, Words};
use crate::memfd::{self, Huge};

#[cfg(test)]
mod tests;

/// Writer of a log of events.
pub type EventWriter = LogWriter<Words, { EventEntry::WORDS }>;
/// Reader of a log of events.
pub type EventReader = LogReader<Words, { EventEntry::WORDS }>;
/// Writer of a log of flight records.
pub type FlightWriter = LogWriter<Words, { Flight::WORDS }>;
/// Reader of a log of flight records.
pub type FlightReader = LogReader<Words, { Flight::WORDS }>;

/// The dataplane's ends. Take the fields apart and move each to its thread.
#[derive(Debug)]
pub struct ControlSegment {
    /// The file, to be passed to control over the admin socket.
    pub file: OwnedFd,
    /// What the header says.
    pub header: ControlHeader,
    /// The settings cell, for the settings thread.
    pub settings: CellReader<Words>,
    /// [`Prepared`], for the settings thread.
    pub prepared: Words,
    /// One [`PeerStatus`] per peer slot, for the registrar.
    pub peers: Vec<Words>,
    /// Events of the registrar.
    pub events: EventWriter,
    /// One per lane, in the order of lanes.
    pub lanes: Vec<LaneEnds>,
}

/// What a lane writes.
#[derive(Debug)]
pub struct LaneEnds {
    /// [`LaneStatus`].
    pub status: Words,
    /// Counters.
    pub counters: Counters<Words>,
    /// Flight records.
    pub flight: FlightWriter,
    /// Events.
    pub events: EventWriter,
}

impl ControlSegment {
    /// Makes the segment of an incarnation. Magic, version and size of `header` are filled in here.
    ///
    /// # Errors
    /// [`SegmentError::Shape`] for no lanes or too many, [`SegmentError::Map`].
    pub fn create(header: ControlHeader) -> Result<Self, SegmentError> {
        check_range("lanes", header.lanes.into(), 1, LANES_MAX as u64)?;
        let shape = ControlShape { lanes: header.lanes as usize };
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            abi_version: ABI_VERSION,
            segment_words: shape.words() as u64,
            ..header
        };
        let file =
            memfd::create("railhead-control", shape.words() as u64 * 8, Huge::No).map_err(map_error)?;
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite)?;
        // Lanes count their page faults from the seal on; this memory must not cause any.
        mapping.populate().map_err(crate::MapError::Map)?;
        let words = mapping.words(0, shape.words())?;
        store(&words, &header.encode());
        let lanes =
            (0..shape.lanes).map(|lane| LaneEnds::new(&words, shape.lane(lane))).collect::<Result<_, _>>()?;
        Ok(Self {
            header,
            settings: CellReader::new(settings_cell(&words)?)?,
            prepared: words.part(ControlShape::PREPARED, Prepared::WORDS)?,
            peers: peers(&words)?,
            events: LogWriter::new(registrar_events(&words)?, REGISTRAR_EVENT_ENTRIES)?,
            lanes,
            file,
        })
    }

    /// The file, for passing.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl LaneEnds {
    fn new(words: &Words, base: usize) -> Result<Self, SegmentError> {
        let parts = LaneParts::new(words, base)?;
        Ok(Self {
            status: parts.status,
            counters: Counters::new(parts.counters),
            flight: LogWriter::new(parts.flight, FLIGHT_ENTRIES)?,
            events: LogWriter::new(parts.events, LANE_EVENT_ENTRIES)?,
        })
    }
}

/// Control's ends. It may store only through [`Self::settings`].
#[derive(Debug)]
pub struct ControlView {
    /// What the header said when the segment was opened.
    pub header: ControlHeader,
    /// The settings cell: one control at a time, which the admin socket sees to.
    pub settings: CellWriter<Words>,
    /// The settings cell as the dataplane sees it.
    pub current: CellReader<Words>,
    /// [`Prepared`].
    pub prepared: Words,
    /// One [`PeerStatus`] per peer slot.
    pub peers: Vec<Words>,
    /// Events of the registrar.
    pub events: EventReader,
    /// One per lane, in the order of lanes.
    pub lanes: Vec<LaneView>,
}

/// What control reads of a lane.
#[derive(Debug)]
pub struct LaneView {
    /// [`LaneStatus`].
    pub status: Words,
    /// Counters; only to be read.
    pub counters: Counters<Words>,
    /// Flight records.
    pub flight: FlightReader,
    /// Events.
    pub events: EventReader,
}

impl ControlView {
    /// Opens the segment that the dataplane passed.
    ///
    /// # Errors
    /// [`SegmentError`]: what the header says cannot be, or is of another version.
    pub fn open(file: impl AsFd) -> Result<Self, SegmentError> {
        let mapping = Mapping::of_sealed(file, Access::ReadWrite)?;
        let words = mapping.words(0, mapping.len() / 8)?;
        let header = ControlHeader::decode(&header(&words)?);
        check_kind(header.magic, CONTROL_MAGIC, header.abi_version)?;
        check_range("lanes", header.lanes.into(), 1, LANES_MAX as u64)?;
        let shape = ControlShape { lanes: header.lanes as usize };
        check_words(header.segment_words, shape.words(), &words)?;
        let lanes =
            (0..shape.lanes).map(|lane| LaneView::new(&words, shape.lane(lane))).collect::<Result<_, _>>()?;
        Ok(Self {
            header,
            settings: CellWriter::new(settings_cell(&words)?)?,
            current: CellReader::new(settings_cell(&words)?)?,
            prepared: words.part(ControlShape::PREPARED, Prepared::WORDS)?,
            peers: peers(&words)?,
            events: LogReader::new(registrar_events(&words)?, REGISTRAR_EVENT_ENTRIES)?,
            lanes,
        })
    }
}

impl LaneView {
    fn new(words: &Words, base: usize) -> Result<Self, SegmentError> {
        let parts = LaneParts::new(words, base)?;
        Ok(Self {
            status: parts.status,
            counters: Counters::new(parts.counters),
            flight: LogReader::new(parts.flight, FLIGHT_ENTRIES)?,
            events: LogReader::new(parts.events, LANE_EVENT_ENTRIES)?,
        })
    }
}

/// The words of a lane's structures: the one place that knows where they are.
struct LaneParts {
    status: Words,
    counters: Words,
    flight: Words,
    events: Words,
}

impl LaneParts {
    fn new(words: &Words, base: usize) -> Result<Self, SegmentError> {
        let part = |offset, count| words.part(base + offset, count);
        Ok(Self {
            status: part(ControlShape::LANE_STATUS, LaneStatus::WORDS)?,
            counters: part(ControlShape::LANE_COUNTERS, COUNTER_WORDS)?,
            flight: part(ControlShape::LANE_FLIGHT, log_words(FLIGHT_ENTRIES, Flight::WORDS))?,
            events: part(ControlShape::LANE_EVENTS, log_words(LANE_EVENT_ENTRIES, EventEntry::WORDS))?,
        })
    }
}

fn settings_cell(words: &Words) -> Result<Words, SegmentError> {
    Ok(words.part(ControlShape::SETTINGS, cell_words(SETTINGS_WORDS))?)
}

fn registrar_events(words: &Words) -> Result<Words, SegmentError> {
    Ok(words.part(ControlShape::REGISTRAR_EVENTS, log_words(REGISTRAR_EVENT_ENTRIES, EventEntry::WORDS))?)
}

fn peers(words: &Words) -> Result<Vec<Words>, SegmentError> {
    let peer = |slot| words.part(ControlShape::PEERS + slot * PeerStatus::WORDS, PeerStatus::WORDS);
    Ok((0..PEERS_MAX).map(peer).collect::<Result<_, _>>()?)
}

fn map_error(error: memfd::MemfdError) -> SegmentError {
    SegmentError::Map(error.into())
}
