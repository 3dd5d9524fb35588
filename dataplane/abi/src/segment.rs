//! Where everything lies in the memory that processes share: the control segment (dataplane and
//! control), a session's memory (dataplane and one client) and the lanes' page (read-only to clients).
//!
//! Offsets are in words and computed from a shape that the header carries; whoever maps a segment
//! checks the header first and computes the same offsets.

use crate::frame::NAME_WORDS;
use crate::observe::{COUNTER_WORDS, EventEntry, Flight};
use crate::settings::{LANES_MAX, SETTINGS_WORDS};
use crate::submission::{Completion, SessionEvent, Submission};
use crate::words::words;
use railhead_ring::{RING_HEADER_WORDS, log_words, ring_words};

/// First word of the control segment.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"RHDCTRL1");
/// First word of a session's memory.
pub const SESSION_MAGIC: u64 = u64::from_le_bytes(*b"RHDSESS1");
/// Words of every header.
pub const HEADER_WORDS: usize = 64;
/// Words of a cache line.
pub const LINE_WORDS: usize = 8;
/// Peers of a node.
pub const PEERS_MAX: usize = 64;
/// Sessions of a node.
pub const SESSIONS_MAX: usize = 256;
/// Ports of a lane.
pub const PORTS_PER_LANE_MAX: usize = 64;
/// Flight records kept by each lane.
pub const FLIGHT_ENTRIES: usize = 1024;
/// Events kept by each lane.
pub const LANE_EVENT_ENTRIES: usize = 256;
/// Events kept by the registrar.
pub const REGISTRAR_EVENT_ENTRIES: usize = 1024;
/// Signal words of a session.
pub const SIGNALS: usize = 64;
/// Default entries of a port's rings.
pub const PORT_ENTRIES_DEFAULT: usize = 256;
/// Most entries of a port's rings.
pub const PORT_ENTRIES_MAX: usize = 1024;
/// Entries of a session's event ring, one ring a lane.
pub const EVENT_ENTRIES: usize = 256;

words! {
    /// Header of the control segment.
    pub struct ControlHeader: 64 {
        /// [`CONTROL_MAGIC`].
        magic: u64 = 0, 0;
        /// [`crate::ABI_VERSION`].
        abi_version: u32 = 1, 0;
        /// Lanes.
        lanes: u32 = 1, 32;
        /// Words of the whole segment.
        segment_words: u64 = 2, 0;
        /// Random number of this start of the dataplane.
        incarnation: u64 = 3, 0;
        /// Process id of the dataplane.
        pid: u32 = 4, 0;
        /// NUMA nodes of the machine.
        numa_nodes: u32 = 4, 32;
        /// Wall clock at start, nanoseconds since 1970.
        started_unix_ns: u64 = 5, 0;
        /// Monotonic clock at the same moment; flight records count on it.
        started_ns: u64 = 6, 0;
        /// Bytes of a small block.
        small_bytes: u64 = 7, 0;
        /// Bytes of a large block.
        large_bytes: u64 = 8, 0;
        /// Bytes of the pages that the staging arenas lie on (the smallest, if they differ).
        pool_page_bytes: u64 = 9, 0;
        /// Bytes of all staging arenas.
        pool_bytes: u64 = 10, 0;
        /// Peers that there is room for.
        peers_max: u32 = 11, 0;
        /// Cores that the dataplane may use, bit n of word n / 64.
        cores: [u64; 16] = 16, 0;
        /// This node's name.
        node: [u64; 8] = 32, 0;
        /// Address of the fabric port, as text.
        listen: [u64; 8] = 40, 0;
    }
}

words! {
    /// What the dataplane says of snapshots. Written by the settings thread.
    pub struct Prepared: 4 {
        /// Newest generation that lanes may apply.
        prepared_generation: u64 = 0, 0;
        /// Newest generation that was refused.
        refused_generation: u64 = 1, 0;
        /// Why: a [`crate::Code`] number.
        refusal_code: u16 = 2, 0;
        /// Which word of the snapshot.
        refusal_word: u32 = 2, 32;
    }
}

words! {
    /// One peer, written by the registrar.
    pub struct PeerStatus: 32 {
        /// Name.
        name: [u64; 8] = 0, 0;
        /// Address as text.
        address: [u64; 8] = 8, 0;
        /// [`PEER_ABSENT`] .. [`PEER_UP`].
        state: u32 = 16, 0;
        /// A [`crate::Code`] number: why it is down.
        cause: u16 = 16, 32;
        /// Incarnation of the peer.
        incarnation: u64 = 17, 0;
        /// Newest receive plan of ours that the peer said it uses.
        planned_generation: u64 = 18, 0;
        /// Newest receive plan of the peer that we use.
        plan_generation: u64 = 19, 0;
        /// Times that it came up.
        ups: u64 = 20, 0;
        /// Times that it went down.
        downs: u64 = 21, 0;
        /// Lanes of the peer.
        lanes: u32 = 22, 0;
        /// Mode of the peer's receive leg.
        receive_mode: u32 = 22, 32;
        /// In mode auto, the peer receives direct from this many bytes.
        receive_direct_from_bytes: u64 = 23, 0;
    }
}

/// No peer in this slot.
pub const PEER_ABSENT: u32 = 0;
/// Not connected.
pub const PEER_DOWN: u32 = 1;
/// Connected.
pub const PEER_UP: u32 = 2;

/// RDMA rails of a node at most.
pub const RAILS_MAX: usize = 4;

words! {
    /// One RDMA rail, written by the registrar.
    pub struct RailStatus: 16 {
        /// Device, such as `mlx5_0`.
        device: [u64; 8] = 0, 0;
        /// The address in use: 16 bytes, first byte lowest.
        gid: [u64; 2] = 8, 0;
        /// [`RAIL_ABSENT`] .. [`RAIL_UP`].
        state: u32 = 10, 0;
        /// Port of the device.
        port: u16 = 10, 32;
        /// 1 on RoCE, 0 on InfiniBand.
        is_ethernet: u8 = 10, 48;
        /// Bytes of payload of a packet at most.
        mtu_bytes: u32 = 11, 0;
        /// NUMA node plus 1; 0 is unknown.
        numa_node: u32 = 11, 32;
        /// Reads that a connection makes at a time, at most.
        reads_max: u32 = 12, 0;
        /// Index of the address in the port's table.
        gid_index: u32 = 12, 32;
    }
}

/// No such rail.
pub const RAIL_ABSENT: u32 = 0;
/// It cannot be used now.
pub const RAIL_DOWN: u32 = 1;
/// It carries traffic.
pub const RAIL_UP: u32 = 2;

words! {
    /// What a lane has done on one rail. Written by the lane alone; all but the first only grow.
    pub struct LaneRail: 16 {
        /// Queue pairs that are connected.
        connections: u64 = 0, 0;
        /// Calls that handed requests to the NIC.
        doorbells: u64 = 1, 0;
        /// Work requests handed to the NIC.
        requests: u64 = 2, 0;
        /// Of these, requests whose completion was asked for.
        signalled: u64 = 3, 0;
        /// Of these, requests that carried their payload themselves.
        inline: u64 = 4, 0;
        /// Bytes of writes.
        bytes_written: u64 = 5, 0;
        /// Bytes of reads.
        bytes_read: u64 = 6, 0;
        /// One-byte reads behind writes at peers.
        confirms: u64 = 7, 0;
        /// One-byte reads of this node's own memory, so that what came in can be seen.
        flush_reads: u64 = 8, 0;
        /// Messages that arrived.
        messages: u64 = 9, 0;
        /// Completions taken.
        completions: u64 = 10, 0;
        /// Of these, errors.
        errors: u64 = 11, 0;
        /// Posts that ended in this node, because key, range or right did not hold.
        refused: u64 = 12, 0;
        /// Connections that ended.
        downs: u64 = 13, 0;
    }
}

words! {
    /// The cache of registrations, written by the registrar.
    pub struct Registrations: 16 {
        /// Registrations that were found.
        hits: u64 = 0, 0;
        /// Registrations that had to be made.
        misses: u64 = 1, 0;
        /// Given up to make room.
        evictions: u64 = 2, 0;
        /// Given up because their memory went.
        invalidations: u64 = 3, 0;
        /// Refused: the budget is full of what is in use.
        over_budget: u64 = 4, 0;
        /// Microseconds that hits saved.
        saved_us: u64 = 5, 0;
        /// Entries now.
        entries: u64 = 6, 0;
        /// Bytes now.
        bytes: u64 = 7, 0;
        /// Bytes of regions that are pinned.
        pinned_bytes: u64 = 8, 0;
        /// The most of these.
        pinned_bytes_max: u64 = 9, 0;
        /// Memory keys of regions.
        pinned_keys: u64 = 10, 0;
    }
}

words! {
    /// What a lane says of itself, beside its counters. Each word is written by the lane alone.
    pub struct LaneStatus: 24 {
        /// Generation of the snapshot that the lane applies.
        acknowledged: u64 = 0, 0;
        /// [`LANE_STARTING`] ..
        state: u64 = 1, 0;
        /// Thread id.
        tid: u64 = 2, 0;
        /// Core that it was asked to be on, plus 1; 0 is unpinned. Written by the settings thread.
        core_wanted: u64 = 3, 0;
        /// Core that it is pinned to, plus 1; 0 is not pinned. Written by the settings thread.
        core_pinned: u64 = 4, 0;
        /// Ports attached.
        ports: u64 = 5, 0;
        /// Transfers in flight.
        in_flight: u64 = 6, 0;
        /// Inbound transfers in flight.
        inbound: u64 = 7, 0;
        /// Free small send blocks.
        small_send_free: u64 = 8, 0;
        /// Free small receive blocks.
        small_receive_free: u64 = 9, 0;
        /// Free large send blocks.
        large_send_free: u64 = 10, 0;
        /// Free large receive blocks.
        large_receive_free: u64 = 11, 0;
        /// All small send blocks.
        small_send: u64 = 12, 0;
        /// All small receive blocks.
        small_receive: u64 = 13, 0;
        /// All large send blocks.
        large_send: u64 = 14, 0;
        /// All large receive blocks.
        large_receive: u64 = 15, 0;
        /// Connections that are up.
        connections: u64 = 16, 0;
        /// Page bytes of the lane's arena.
        page_bytes: u64 = 17, 0;
        /// NUMA node of the arena plus 1; 0 is unknown.
        numa_node: u64 = 18, 0;
        /// Minor page faults of the lane's thread since the seal.
        minor_faults: u64 = 19, 0;
        /// Voluntary context switches of the lane's thread since the seal.
        voluntary_switches: u64 = 20, 0;
        /// [`COPY_THREAD_OFF`] ..: whether a thread of its own does the lane's larger copies.
        copy_thread: u64 = 21, 0;
        /// Thread id of the copy thread; 0 if there is none.
        copy_tid: u64 = 22, 0;
        /// Core that the copy thread is pinned to, plus 1; 0 is not pinned to one. Written by the settings thread.
        copy_core: u64 = 23, 0;
    }
}

/// The configuration says that lanes do all copies themselves.
pub const COPY_THREAD_OFF: u64 = 0;
/// The lane has a copy thread.
pub const COPY_THREAD_ON: u64 = 1;
/// The configuration leaves it to the dataplane, and there are too few cores.
pub const COPY_THREAD_SHORT: u64 = 2;

/// The lane sets itself up.
pub const LANE_STARTING: u64 = 0;
/// The lane is sealed and runs.
pub const LANE_SEALED: u64 = 1;
/// The lane has ended.
pub const LANE_STOPPED: u64 = 2;

/// Offsets of the control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlShape {
    /// Lanes, at most [`LANES_MAX`].
    pub lanes: usize,
}

impl ControlShape {
    /// Settings cell: sequence and payload.
    pub const SETTINGS: usize = HEADER_WORDS;
    /// Words of the settings cell.
    pub const SETTINGS_CELL_WORDS: usize = (1 + SETTINGS_WORDS).next_multiple_of(LINE_WORDS);
    /// [`Prepared`].
    pub const PREPARED: usize = Self::SETTINGS + Self::SETTINGS_CELL_WORDS;
    /// [`PeerStatus`] by peer slot.
    pub const PEERS: usize = Self::PREPARED + LINE_WORDS;
    /// Events of the registrar: an overwriting log of [`EventEntry`].
    pub const REGISTRAR_EVENTS: usize = Self::PEERS + PEERS_MAX * PeerStatus::WORDS;
    /// Words of that log.
    pub const REGISTRAR_EVENTS_WORDS: usize =
        log_words(REGISTRAR_EVENT_ENTRIES, EventEntry::WORDS).next_multiple_of(LINE_WORDS);
    /// [`RailStatus`] by rail.
    pub const RAILS: usize = Self::REGISTRAR_EVENTS + Self::REGISTRAR_EVENTS_WORDS;
    /// [`Registrations`].
    pub const REGISTRATIONS: usize = Self::RAILS + RAILS_MAX * RailStatus::WORDS;
    /// First lane's part.
    pub const LANES: usize = Self::REGISTRATIONS + Registrations::WORDS;
    /// In a lane's part: [`LaneStatus`].
    pub const LANE_STATUS: usize = 0;
    /// In a lane's part: counters.
    pub const LANE_COUNTERS: usize = LaneStatus::WORDS.next_multiple_of(LINE_WORDS);
    /// In a lane's part: log of [`Flight`].
    pub const LANE_FLIGHT: usize = Self::LANE_COUNTERS + COUNTER_WORDS;
    /// Words of that log.
    pub const LANE_FLIGHT_WORDS: usize =
        log_words(FLIGHT_ENTRIES, Flight::WORDS).next_multiple_of(LINE_WORDS);
    /// In a lane's part: log of [`EventEntry`].
    pub const LANE_EVENTS: usize = Self::LANE_FLIGHT + Self::LANE_FLIGHT_WORDS;
    /// Words of that log.
    pub const LANE_EVENTS_WORDS: usize =
        log_words(LANE_EVENT_ENTRIES, EventEntry::WORDS).next_multiple_of(LINE_WORDS);
    /// In a lane's part: [`LaneRail`] by rail.
    pub const LANE_RAILS: usize = Self::LANE_EVENTS + Self::LANE_EVENTS_WORDS;
    /// Words of a lane's part.
    pub const LANE_WORDS: usize = Self::LANE_RAILS + RAILS_MAX * LaneRail::WORDS;

    /// First word of a lane's part.
    #[must_use]
    pub const fn lane(&self, lane: usize) -> usize {
        Self::LANES + lane * Self::LANE_WORDS
    }

    /// Words of the whole segment.
    #[must_use]
    pub const fn words(&self) -> usize {
        Self::LANES + self.lanes * Self::LANE_WORDS
    }
}

words! {
    /// Header of a session's memory.
    pub struct SessionHeader: 64 {
        /// [`SESSION_MAGIC`].
        magic: u64 = 0, 0;
        /// [`crate::ABI_VERSION`].
        abi_version: u32 = 1, 0;
        /// Lanes of the dataplane.
        lanes: u32 = 1, 32;
        /// Words of the whole segment.
        segment_words: u64 = 2, 0;
        /// Incarnation of the dataplane.
        incarnation: u64 = 3, 0;
        /// Ports.
        ports: u32 = 4, 0;
        /// Entries of each port's rings.
        entries: u32 = 4, 32;
    }
}

/// Offsets of a session's memory. Port `p` belongs to lane `p mod lanes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionShape {
    /// Lanes of the dataplane.
    pub lanes: usize,
    /// Ports of the session.
    pub ports: usize,
    /// Entries of each port's rings, a power of two.
    pub entries: usize,
}

impl SessionShape {
    /// Signal words, one a word.
    pub const SIGNALS: usize = HEADER_WORDS;
    /// One word: 1 while the client sleeps for events or signals (FUTEX on its low half).
    pub const EVENT_BELL: usize = Self::SIGNALS + SIGNALS;
    /// Event ring of lane 0; the others follow.
    pub const EVENTS: usize = Self::EVENT_BELL + LINE_WORDS;
    /// Words of one event ring.
    pub const EVENT_RING_WORDS: usize =
        ring_words(EVENT_ENTRIES, SessionEvent::WORDS).next_multiple_of(LINE_WORDS);
    /// In a port's part: one word, 1 while the client sleeps for completions (FUTEX on its low half).
    pub const PORT_BELL: usize = 0;
    /// In a port's part: the submission ring.
    pub const PORT_SUBMISSIONS: usize = LINE_WORDS;

    /// Event ring of `lane`.
    #[must_use]
    pub const fn events(&self, lane: usize) -> usize {
        Self::EVENTS + lane * Self::EVENT_RING_WORDS
    }

    /// Words of a submission ring.
    #[must_use]
    pub const fn submission_ring_words(&self) -> usize {
        ring_words(self.entries, Submission::WORDS).next_multiple_of(LINE_WORDS)
    }

    /// Words of a completion ring.
    #[must_use]
    pub const fn completion_ring_words(&self) -> usize {
        ring_words(self.entries, Completion::WORDS).next_multiple_of(LINE_WORDS)
    }

    /// In a port's part: the completion ring.
    #[must_use]
    pub const fn port_completions(&self) -> usize {
        Self::PORT_SUBMISSIONS + self.submission_ring_words()
    }

    /// First word of a port's part.
    #[must_use]
    pub const fn port(&self, port: usize) -> usize {
        self.events(self.lanes) + port * (self.port_completions() + self.completion_ring_words())
    }

    /// Words of the whole segment.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.port(self.ports)
    }
}

/// The lanes' page: word `lane * LINE_WORDS` is 1 while that lane sleeps. Clients map it read-only.
pub const LANES_PAGE_WORDS: usize = LANES_MAX * LINE_WORDS;

const _: () = assert!(NAME_WORDS == 8 && RING_HEADER_WORDS >= LINE_WORDS);
