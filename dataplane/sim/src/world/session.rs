//! Simulated clients: sessions with ports, memory, and a model of what their memory must hold.

use std::ops::Range;

use railhead_abi::segment::SIGNALS;
use railhead_abi::submission::{Completion, SessionEvent, Submission};
use railhead_core::port::RegionIndex;
use railhead_core::tables::{PortIndex, PortParts, SessionParts};
use railhead_ring::{Bell, Consumer, Producer, ring_words};

use super::tables::{Words, words};
use crate::{Rng, SimMemory, Use, Window};

/// Names an [`Area`] of a world.
pub(super) type AreaIndex = usize;

/// What a region of a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// What its writes come from, and what others read.
    Source,
    /// What others write to.
    Destination,
    /// What its reads go into: nobody else was given any right to it.
    Sink,
}

impl Purpose {
    pub(super) const ALL: [Purpose; 3] = [Purpose::Source, Purpose::Destination, Purpose::Sink];
}

/// What a session says of its region.
#[derive(Debug, Clone, Copy)]
pub(super) struct AreaInfo {
    /// Its session, counted over all nodes.
    pub(super) session: usize,
    pub(super) region: RegionIndex,
    pub(super) generation: u32,
    pub(super) purpose: Purpose,
    pub(super) direct_possible: bool,
    /// Inbound writes need a flush.
    pub(super) flush: bool,
}

/// A region of a session with the bytes that it must hold outside of what is under way. One that was registered again
/// leaves its predecessor behind, so that late transfers can still be judged.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) memory: SimMemory,
    pub(super) info: AreaInfo,
    /// It is being deregistered, or was.
    pub(super) is_leaving: bool,
    model: Vec<u8>,
    busy: Vec<Range<usize>>,
}

impl Area {
    pub(super) fn new(info: AreaInfo, bytes: usize, rng: &mut Rng) -> Self {
        let name = format!("{:?} {} of session {}", info.purpose, info.generation, info.session);
        let memory = if info.flush { SimMemory::lazy(&name, bytes) } else { SimMemory::new(&name, bytes) };
        let mut model = vec![0; bytes];
        rng.fill(&mut model);
        memory.write(0, &model);
        memory.watch();
        Self { memory, info, is_leaving: false, model, busy: Vec::new() }
    }

    /// A random range that nothing under way touches.
    pub(super) fn reserve(&mut self, bytes: usize, rng: &mut Rng) -> Option<usize> {
        for _ in 0..8 {
            let at = rng.index(self.model.len() - bytes + 1);
            let range = at..at + bytes;
            if self.busy.iter().all(|busy| busy.end <= range.start || range.end <= busy.start) {
                self.busy.push(range);
                return Some(at);
            }
        }
        None
    }

    /// The range is nobody's any more; its bytes are now what the memory holds.
    pub(super) fn release(&mut self, at: usize, bytes: usize) {
        let range = at..at + bytes;
        let found = self.busy.iter().position(|busy| *busy == range).expect("a reserved range");
        self.busy.swap_remove(found);
        let mut now = vec![0; bytes];
        self.memory.read(at, &mut now);
        self.model[range].copy_from_slice(&now);
    }

    /// The owner writes.
    pub(super) fn fill(&mut self, at: usize, bytes: usize, rng: &mut Rng) -> Vec<u8> {
        let mut fresh = vec![0; bytes];
        rng.fill(&mut fresh);
        self.memory.write(at, &fresh);
        self.model[at..at + bytes].copy_from_slice(&fresh);
        fresh
    }

    /// Whether a range still holds what the model says.
    pub(super) fn is_unchanged(&self, at: usize, bytes: usize) -> bool {
        self.memory.holds_bytes(at, &self.model[at..at + bytes])
    }

    /// Compares all that nothing under way may touch.
    pub(super) fn check(&self) {
        let mut now = vec![0; self.model.len()];
        self.memory.read(0, &mut now);
        for (at, byte) in now.iter().enumerate() {
            let is_busy = self.busy.iter().any(|busy| busy.contains(&at));
            assert!(is_busy || *byte == self.model[at], "byte {at} changed outside of every transfer");
        }
    }

    pub(super) fn open(&self, at: usize, bytes: usize, usage: Use) -> Window {
        self.memory.open(at as u64, bytes as u64, usage)
    }
}

/// A client's end of a port.
#[derive(Debug)]
pub(super) struct ClientPort {
    pub(super) submissions: Producer<Words, { Submission::WORDS }>,
    pub(super) completions: Consumer<Words, { Completion::WORDS }>,
    pub(super) bell: Bell<Words>,
    pub(super) is_asleep: bool,
    /// Its client is gone, and its last completion has not come.
    pub(super) is_abandoned: bool,
    pub(super) index: PortIndex,
}

/// A session: one port and one event ring per lane of its node.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) node: usize,
    /// Slot of the session on its node.
    pub(super) slot: u32,
    pub(super) ports: Vec<ClientPort>,
    pub(super) events: Vec<Consumer<Words, { SessionEvent::WORDS }>>,
    pub(super) signals: Words,
    pub(super) event_bell: Bell<Words>,
    pub(super) is_event_asleep: bool,
    /// Its regions by [`Purpose`].
    pub(super) areas: [AreaIndex; 3],
    /// Sum of the addends of transfers that succeeded, and of those of which nobody knows, by signal.
    pub(super) sure: Vec<u64>,
    pub(super) unsure: Vec<u64>,
    pub(super) left: usize,
    pub(super) in_flight: usize,
}

/// Both ends of a new port.
pub(super) fn port(entries: usize) -> (ClientPort, PortParts<Words>) {
    let submission = words(ring_words(entries, Submission::WORDS));
    let completion = words(ring_words(entries, Completion::WORDS));
    let bell = words(1);
    let parts = PortParts {
        submissions: Consumer::new(submission.clone(), entries).expect("a sound ring"),
        completions: Producer::new(completion.clone(), entries).expect("a sound ring"),
        bell: Bell::new(bell.clone()).expect("one word"),
    };
    let client = ClientPort {
        submissions: Producer::new(submission, entries).expect("a sound ring"),
        completions: Consumer::new(completion, entries).expect("a sound ring"),
        bell: Bell::new(bell).expect("one word"),
        is_asleep: false,
        is_abandoned: false,
        index: PortIndex(0),
    };
    (client, parts)
}

impl Session {
    pub(super) fn new((node, slot): (usize, u32), left: usize) -> Self {
        Self {
            node,
            slot,
            ports: Vec::new(),
            events: Vec::new(),
            signals: words(SIGNALS),
            event_bell: Bell::new(words(1)).expect("one word"),
            is_event_asleep: false,
            areas: [0; 3],
            sure: vec![0; SIGNALS],
            unsure: vec![0; SIGNALS],
            left,
            in_flight: 0,
        }
    }

    pub(super) const fn area(&self, purpose: Purpose) -> AreaIndex {
        self.areas[purpose as usize]
    }

    /// What a lane needs to notify this session.
    pub(super) fn parts(&mut self, entries: usize) -> SessionParts<Words> {
        let ring = words(ring_words(entries, SessionEvent::WORDS));
        self.events.push(Consumer::new(ring.clone(), entries).expect("a sound ring"));
        SessionParts {
            signals: self.signals.clone(),
            events: Producer::new(ring, entries).expect("a sound ring"),
            bell: Bell::new(self.event_bell.memory().clone()).expect("one word"),
            name: [0; 4],
        }
    }
}
