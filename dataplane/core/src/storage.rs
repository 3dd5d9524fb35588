//! The memory that an engine works in. Whoever makes an engine makes this first; the engine never asks for more.

use crate::list::Link;
use crate::notice::Notice;
use crate::pool::PoolShape;
use crate::tables::{
    BlockEntry, ChunkEntry, Connection, Inbound, Port, Region, Remote, SessionParts, SessionQueue, Transfer,
};
use core::ops::Deref;
use railhead_abi::observe::{EventEntry, Flight};
use railhead_abi::record::SLOTS_MAX;
use railhead_abi::submission::CLASSES;
use railhead_ring::{Counters, LogWriter, Word};

/// Bounds of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Transfers in flight.
    pub transfers: usize,
    /// Chunks on their way.
    pub chunks: usize,
    /// Connections.
    pub connections: usize,
    /// Regions, the arena's slot 0 included.
    pub regions: usize,
    /// Remote regions.
    pub remotes: usize,
    /// Sessions.
    pub sessions: usize,
    /// Ports, at most 64.
    pub ports: usize,
    /// Staging blocks.
    pub pool: PoolShape,
}

impl Bounds {
    /// Entries of the inbound table.
    #[must_use]
    pub const fn inbound(&self) -> usize {
        self.connections * SLOTS_MAX as usize
    }

    /// Entries of the queue of notices: one for each thing that can be reported once, and one connection
    /// wanted each.
    #[must_use]
    pub const fn notices(&self) -> usize {
        2 * self.connections + self.regions + self.remotes + self.ports
    }
}

/// Tables, all entries free; their lengths are those of [`Bounds`].
#[derive(Debug)]
#[expect(missing_docs, reason = "each table holds the entry type documented in tables.rs")]
pub struct Storage<'s, M> {
    pub transfers: &'s mut [Transfer],
    pub transfer_links: &'s mut [Link],
    pub chunks: &'s mut [ChunkEntry],
    pub chunk_links: &'s mut [Link],
    pub connections: &'s mut [Connection],
    /// `connections x SLOTS_MAX`: the transfer that holds a slot.
    pub slots: &'s mut [u32],
    /// `connections x SLOTS_MAX`.
    pub inbound: &'s mut [Inbound],
    pub demand_links: &'s mut [Link],
    pub answer_links: &'s mut [Link],
    pub pool_links: &'s mut [Link],
    pub blocks: &'s mut [BlockEntry],
    pub block_links: &'s mut [Link],
    pub regions: &'s mut [Region],
    pub remotes: &'s mut [Remote],
    pub sessions: &'s mut [Option<SessionParts<M>>],
    pub session_queues: &'s mut [SessionQueue],
    pub session_links: [&'s mut [Link]; CLASSES],
    pub ports: &'s mut [Option<Port<M>>],
    pub notices: &'s mut [Option<Notice<M>>],
}

/// Where the engine writes what others look at.
#[derive(Debug)]
pub struct Observe<M> {
    /// Counters by [`railhead_abi::observe::Counter`].
    pub counters: Counters<M>,
    /// One record a completed transfer.
    pub flight: LogWriter<M, { Flight::WORDS }>,
    /// Events of this lane.
    pub events: LogWriter<M, { EventEntry::WORDS }>,
}

impl<M: Deref<Target = [Word]>> Observe<M> {
    pub(crate) fn add(&self, counter: railhead_abi::observe::Counter, count: u64) {
        self.counters.add(counter as usize, count);
    }
}
