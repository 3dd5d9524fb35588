//! A session's memory: what the dataplane and one client share. Made by the dataplane, mapped by the client.

use std::os::fd::{AsFd, OwnedFd};

use railhead_abi::ABI_VERSION;
use railhead_abi::segment::{
    EVENT_ENTRIES, PORT_ENTRIES_MAX, PORTS_PER_LANE_MAX, SESSION_MAGIC, SIGNALS, SessionHeader, SessionShape,
};
use railhead_abi::settings::LANES_MAX;
use railhead_abi::submission::{Completion, SessionEvent, Submission};
use railhead_ring::{Bell, Consumer, Producer, ring_words};

use super::{SegmentError, check_kind, check_range, check_words, header, store};
use crate::mapping::{Access, MapError, Mapping, Words};
use crate::memfd::{self, Huge};

#[cfg(test)]
mod tests;

/// The dataplane's end of a submission ring.
pub type SubmissionTaker = Consumer<Words, { Submission::WORDS }>;
/// The client's end of a submission ring.
pub type SubmissionSender = Producer<Words, { Submission::WORDS }>;
/// The dataplane's end of a completion ring.
pub type CompletionSender = Producer<Words, { Completion::WORDS }>;
/// The client's end of a completion ring.
pub type CompletionTaker = Consumer<Words, { Completion::WORDS }>;
/// The dataplane's end of an event ring.
pub type EventSender = Producer<Words, { SessionEvent::WORDS }>;
/// The client's end of an event ring.
pub type EventTaker = Consumer<Words, { SessionEvent::WORDS }>;

/// The dataplane's ends. Take the fields apart and move each to its lane; the client can write all of this memory, so
/// what is read from it is validated each time.
#[derive(Debug)]
pub struct SessionSegment {
    /// The file, to be passed to the client.
    pub file: OwnedFd,
    /// The shape that all offsets come from.
    pub shape: SessionShape,
    /// Signal words, shared by all lanes: each of them adds.
    pub signals: Words,
    /// Rung (once, by the lane that takes it) when the client sleeps for events or signals: one for each lane.
    pub event_bells: Vec<Bell<Words>>,
    /// The event rings, one for each lane.
    pub events: Vec<EventSender>,
    /// The ports. Port `p` belongs to lane `p mod lanes`.
    pub ports: Vec<PortEnds>,
}

/// The dataplane's ends of a port, for its lane.
#[derive(Debug)]
pub struct PortEnds {
    /// Rung after completions when the client sleeps for them.
    pub bell: Bell<Words>,
    /// What the client asks for.
    pub submissions: SubmissionTaker,
    /// How it ended.
    pub completions: CompletionSender,
}

impl SessionSegment {
    /// Makes the memory of a session.
    ///
    /// # Errors
    /// [`SegmentError::Shape`] when a number of `shape` is outside its limits, [`SegmentError::Map`].
    pub fn create(shape: SessionShape, incarnation: u64) -> Result<Self, SegmentError> {
        check_shape(shape)?;
        let file =
            memfd::create("railhead-session", shape.words() as u64 * 8, Huge::No).map_err(MapError::from)?;
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite)?;
        // A lane must not fault on a session's memory.
        mapping.populate().map_err(MapError::Map)?;
        let words = mapping.words(0, shape.words())?;
        let header = SessionHeader {
            magic: SESSION_MAGIC,
            abi_version: ABI_VERSION,
            // Checked to fit above.
            lanes: shape.lanes as u32,
            segment_words: shape.words() as u64,
            incarnation,
            ports: shape.ports as u32,
            entries: shape.entries as u32,
        };
        store(&words, &header.encode());
        let mut event_bells = Vec::with_capacity(shape.lanes);
        let mut events = Vec::with_capacity(shape.lanes);
        for lane in 0..shape.lanes {
            event_bells.push(Bell::new(words.part(SessionShape::EVENT_BELL, 1)?)?);
            events.push(Producer::new(event_ring(&words, shape, lane)?, EVENT_ENTRIES)?);
        }
        let port = |port| {
            let parts = PortParts::new(&words, shape, port)?;
            Ok(PortEnds {
                bell: Bell::new(parts.bell)?,
                submissions: Consumer::new(parts.submissions, shape.entries)?,
                completions: Producer::new(parts.completions, shape.entries)?,
            })
        };
        let ports = (0..shape.ports).map(port).collect::<Result<_, SegmentError>>()?;
        let signals = words.part(SessionShape::SIGNALS, SIGNALS)?;
        Ok(Self { file, shape, signals, event_bells, events, ports })
    }
}

/// The client's ends. Open a session's memory once: each ring has one owner on each side.
#[derive(Debug)]
pub struct SessionView {
    /// What the header said when the memory was opened.
    pub header: SessionHeader,
    /// The shape that all offsets come from.
    pub shape: SessionShape,
    /// Signal words.
    pub signals: Words,
    /// To sleep for events and signals (futex on the low half of its word, see [`Self::event_word`]).
    pub event_bell: Bell<Words>,
    /// The word of [`Self::event_bell`], for the futex.
    pub event_word: Words,
    /// The event rings, one for each lane.
    pub events: Vec<EventTaker>,
    /// The ports. Port `p` belongs to lane `p mod lanes`.
    pub ports: Vec<ClientPort>,
}

/// The client's ends of a port, for one of its threads.
#[derive(Debug)]
pub struct ClientPort {
    /// The lane that serves it.
    pub lane: usize,
    /// To sleep for completions.
    pub bell: Bell<Words>,
    /// The word of [`Self::bell`], for the futex.
    pub bell_word: Words,
    /// What to ask for.
    pub submissions: SubmissionSender,
    /// How it ended.
    pub completions: CompletionTaker,
}

impl SessionView {
    /// Opens the memory that the dataplane passed.
    ///
    /// # Errors
    /// [`SegmentError`]: what the header says cannot be, or is of another version.
    pub fn open(file: impl AsFd) -> Result<Self, SegmentError> {
        let mapping = Mapping::of_sealed(file, Access::ReadWrite)?;
        let words = mapping.words(0, mapping.len() / 8)?;
        let header = SessionHeader::decode(&header(&words)?);
        check_kind(header.magic, SESSION_MAGIC, header.abi_version)?;
        let shape = SessionShape {
            lanes: header.lanes as usize,
            ports: header.ports as usize,
            entries: header.entries as usize,
        };
        check_shape(shape)?;
        check_words(header.segment_words, shape.words(), &words)?;
        let events = (0..shape.lanes)
            .map(|lane| Ok(Consumer::new(event_ring(&words, shape, lane)?, EVENT_ENTRIES)?))
            .collect::<Result<_, SegmentError>>()?;
        let ports = (0..shape.ports)
            .map(|port| ClientPort::new(&words, shape, port))
            .collect::<Result<_, SegmentError>>()?;
        let event_word = words.part(SessionShape::EVENT_BELL, 1)?;
        Ok(Self {
            header,
            shape,
            signals: words.part(SessionShape::SIGNALS, SIGNALS)?,
            event_bell: Bell::new(event_word.clone())?,
            event_word,
            events,
            ports,
        })
    }
}

impl ClientPort {
    fn new(words: &Words, shape: SessionShape, port: usize) -> Result<Self, SegmentError> {
        let parts = PortParts::new(words, shape, port)?;
        Ok(Self {
            lane: port % shape.lanes,
            bell: Bell::new(parts.bell.clone())?,
            bell_word: parts.bell,
            submissions: Producer::new(parts.submissions, shape.entries)?,
            completions: Consumer::new(parts.completions, shape.entries)?,
        })
    }
}

/// The words of a port: the one place that knows where they are.
struct PortParts {
    bell: Words,
    submissions: Words,
    completions: Words,
}

impl PortParts {
    fn new(words: &Words, shape: SessionShape, port: usize) -> Result<Self, SegmentError> {
        let part = |offset, count| words.part(shape.port(port) + offset, count);
        Ok(Self {
            bell: part(SessionShape::PORT_BELL, 1)?,
            submissions: part(SessionShape::PORT_SUBMISSIONS, ring_words(shape.entries, Submission::WORDS))?,
            completions: part(shape.port_completions(), ring_words(shape.entries, Completion::WORDS))?,
        })
    }
}

fn event_ring(words: &Words, shape: SessionShape, lane: usize) -> Result<Words, SegmentError> {
    Ok(words.part(shape.events(lane), ring_words(EVENT_ENTRIES, SessionEvent::WORDS))?)
}

/// Limits, so that no offset computed from the shape can overflow.
fn check_shape(shape: SessionShape) -> Result<(), SegmentError> {
    check_range("lanes", shape.lanes as u64, 1, LANES_MAX as u64)?;
    check_range("ports", shape.ports as u64, 1, (shape.lanes * PORTS_PER_LANE_MAX) as u64)?;
    check_range("entries", shape.entries as u64, 1, PORT_ENTRIES_MAX as u64)?;
    if !shape.entries.is_power_of_two() {
        let found = shape.entries as u64;
        return Err(SegmentError::Shape {
            what: "entries (a power of two)",
            found,
            least: 1,
            most: PORT_ENTRIES_MAX as u64,
        });
    }
    Ok(())
}
