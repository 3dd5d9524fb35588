//! Memory for an engine: what the daemon carves out of its segments, here from the heap.

use std::rc::Rc;

use railhead_abi::observe::COUNTER_WORDS;
use railhead_abi::record::SLOTS_MAX;
use railhead_core::Notice;
use railhead_core::list::Link;
use railhead_core::storage::{Bounds, Observe, Storage};
use railhead_core::tables::{
    BlockEntry, ChunkEntry, Connection, Inbound, Port, Region, Remote, SessionParts, SessionQueue, Transfer,
};
use railhead_ring::{Counters, LogWriter, Word, log_words};

/// Words that a client and an engine share.
pub type Words = Rc<[Word]>;

/// Zeroed words.
#[must_use]
pub fn words(count: usize) -> Words {
    (0..count).map(|_| Word::new(0)).collect()
}

/// Entries of the flight log and of the event log.
pub const LOG_ENTRIES: usize = 64;

/// Owns what an engine's [`Storage`] borrows.
#[derive(Debug)]
pub struct Tables {
    transfers: Vec<Transfer>,
    transfer_links: Vec<Link>,
    chunks: Vec<ChunkEntry>,
    chunk_links: Vec<Link>,
    connections: Vec<Connection>,
    slots: Vec<u32>,
    inbound: Vec<Inbound>,
    demand_links: Vec<Link>,
    answer_links: Vec<Link>,
    pool_links: Vec<Link>,
    blocks: Vec<BlockEntry>,
    block_links: Vec<Link>,
    regions: Vec<Region>,
    remotes: Vec<Remote>,
    sessions: Vec<Option<SessionParts<Words>>>,
    session_queues: Vec<SessionQueue>,
    session_links: [Vec<Link>; 2],
    ports: Vec<Option<Port<Words>>>,
    notices: Vec<Option<Notice<Words>>>,
}

fn free<T>(count: usize) -> Vec<Option<T>> {
    (0..count).map(|_| None).collect()
}

impl Tables {
    /// Tables of these lengths, all free.
    #[must_use]
    pub fn new(bounds: &Bounds) -> Self {
        let links = |count: usize| vec![Link::UNLINKED; count];
        Self {
            transfers: vec![Transfer::FREE; bounds.transfers],
            transfer_links: links(bounds.transfers),
            chunks: vec![ChunkEntry::default(); bounds.chunks],
            chunk_links: links(bounds.chunks),
            connections: vec![Connection::FREE; bounds.connections],
            slots: vec![0; bounds.connections * usize::from(SLOTS_MAX)],
            inbound: vec![Inbound::IDLE; bounds.inbound()],
            demand_links: links(bounds.inbound()),
            answer_links: links(bounds.inbound()),
            pool_links: links(bounds.pool.blocks()),
            blocks: vec![BlockEntry::default(); bounds.pool.blocks()],
            block_links: links(bounds.pool.blocks()),
            regions: vec![Region::default(); bounds.regions],
            remotes: vec![Remote::default(); bounds.remotes],
            sessions: free(bounds.sessions),
            session_queues: vec![SessionQueue::EMPTY; bounds.sessions],
            session_links: [links(bounds.sessions), links(bounds.sessions)],
            ports: free(bounds.ports),
            notices: free(bounds.notices()),
        }
    }

    /// What the engine borrows.
    pub fn storage(&mut self) -> Storage<'_, Words> {
        Storage {
            transfers: &mut self.transfers,
            transfer_links: &mut self.transfer_links,
            chunks: &mut self.chunks,
            chunk_links: &mut self.chunk_links,
            connections: &mut self.connections,
            slots: &mut self.slots,
            inbound: &mut self.inbound,
            demand_links: &mut self.demand_links,
            answer_links: &mut self.answer_links,
            pool_links: &mut self.pool_links,
            blocks: &mut self.blocks,
            block_links: &mut self.block_links,
            regions: &mut self.regions,
            remotes: &mut self.remotes,
            sessions: &mut self.sessions,
            session_queues: &mut self.session_queues,
            session_links: self.session_links.each_mut().map(Vec::as_mut_slice),
            ports: &mut self.ports,
            notices: &mut self.notices,
        }
    }
}

/// Logs and counters that nobody else reads.
///
/// # Panics
/// Never: the memory has the length that the logs ask for.
#[must_use]
pub fn observe() -> Observe<Words> {
    const FLIGHT: usize = railhead_abi::observe::Flight::WORDS;
    const EVENT: usize = railhead_abi::observe::EventEntry::WORDS;
    Observe {
        counters: Counters::new(words(COUNTER_WORDS)),
        flight: LogWriter::new(words(log_words(LOG_ENTRIES, FLIGHT)), LOG_ENTRIES).expect("long enough"),
        events: LogWriter::new(words(log_words(LOG_ENTRIES, EVENT)), LOG_ENTRIES).expect("long enough"),
    }
}
