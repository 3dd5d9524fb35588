//! Sessions and their ports.

use crate::list::List;
use railhead_abi::submission::{CLASSES, Completion, SessionEvent, Submission};
use railhead_ring::{Bell, Consumer, Producer};

/// A session's memory that lanes write to.
#[derive(Debug)]
pub struct SessionParts<M> {
    /// Signal words.
    pub signals: M,
    /// Event ring of this lane.
    pub events: Producer<M, { SessionEvent::WORDS }>,
    /// Rung after a signal or event.
    pub bell: Bell<M>,
    /// The session's name, for flight records.
    pub name: [u64; 4],
}

/// A session as a lane sees it: its turn in each class.
#[derive(Debug, Clone, Copy)]
pub struct SessionQueue {
    /// Transfers that can be worked on, by class.
    pub runnable: [List; CLASSES],
    /// Bytes that it may still post in this round, by class.
    pub deficit: [i64; CLASSES],
    /// Submissions taken and not completed, over all its ports of this lane.
    pub in_flight: u32,
    /// Send blocks that its transfers hold: small, large.
    pub blocks: [u32; 2],
}

impl SessionQueue {
    /// Most transfers of one session in flight on one lane: its next submissions wait in its rings.
    pub const IN_FLIGHT_MAX: u32 = 1024;

    /// Nothing to do.
    pub const EMPTY: SessionQueue = SessionQueue {
        runnable: [List::EMPTY; CLASSES],
        deficit: [0; CLASSES],
        in_flight: 0,
        blocks: [0; 2],
    };
}

/// The two rings of a port and the bell of its client.
#[derive(Debug)]
pub struct PortParts<M> {
    /// From the client.
    pub submissions: Consumer<M, { Submission::WORDS }>,
    /// To the client.
    pub completions: Producer<M, { Completion::WORDS }>,
    /// Rung after completions.
    pub bell: Bell<M>,
}

/// A port.
#[derive(Debug)]
pub struct Port<M> {
    /// Rings and bell.
    pub parts: PortParts<M>,
    /// Session.
    pub session: u32,
    /// Submissions accepted and not completed.
    pub in_flight: u32,
    /// No intake; reported when `in_flight` is 0.
    pub is_closing: bool,
}
