//! What a dataplane lets others see: events, flight records and counters.

use crate::words::words;

words! {
    /// One flight record: what happened to one transfer, written when it completed.
    pub struct Flight: 24 {
        /// The transfer's ticket: lane, slot and generation in one word.
        ticket: u64 = 0, 0;
        /// The client's cookie.
        cookie: u64 = 1, 0;
        /// Bytes of the transfer.
        bytes: u64 = 2, 0;
        /// A [`crate::Code`] number.
        status: u16 = 3, 0;
        /// Class.
        class: u8 = 3, 16;
        /// Send leg taken.
        send_leg: u8 = 3, 24;
        /// Receive leg taken.
        receive_leg: u8 = 3, 32;
        /// Why.
        send_reason: u8 = 3, 40;
        /// Why.
        receive_reason: u8 = 3, 48;
        /// Retries after REPLAN.
        replans: u8 = 3, 56;
        /// Session slot.
        session: u32 = 4, 0;
        /// Peer slot of the control segment's peer table.
        peer: u32 = 4, 32;
        /// Settings generation that chose the send leg.
        generation: u64 = 5, 0;
        /// Generation of the peer's receive plan.
        plan_generation: u64 = 6, 0;
        /// Monotonic nanoseconds at intake.
        intake_ns: u64 = 7, 0;
        /// Nanoseconds from intake to the first post; 0 if nothing was posted.
        wait_ns: u64 = 8, 0;
        /// Nanoseconds from the first post to the last.
        post_ns: u64 = 9, 0;
        /// Nanoseconds at the target, from the transfer's first record to delivery.
        receive_ns: u64 = 10, 0;
        /// Nanoseconds from intake to completion.
        total_ns: u64 = 11, 0;
        /// Nanoseconds that a model predicted; 0 means none.
        predicted_ns: u64 = 12, 0;
        /// Chunks posted.
        chunks: u64 = 13, 0;
        /// Nanoseconds from posting copies of the send leg to their ends, added up; copies overlap.
        copy_ns: u64 = 14, 0;
        /// Threshold that was looked up for the send leg, in bytes.
        send_threshold: u64 = 15, 0;
        /// Threshold that was looked up for the receive leg, in bytes.
        receive_threshold: u64 = 16, 0;
        /// Session name of the initiator, 63 bytes at most, zero-padded (see [`crate::frame::name_words`]).
        session_name: [u64; 4] = 17, 0;
        /// [`crate::submission::OPERATION_WRITE`] or [`crate::submission::OPERATION_READ`].
        operation: u8 = 21, 0;
    }
}

words! {
    /// One event.
    pub struct EventEntry: 20 {
        /// An [`EventCode`] number.
        event: u16 = 0, 0;
        /// [`SEVERITY_INFO`] and so on.
        severity: u8 = 0, 16;
        /// A [`crate::Code`] number that gives the reason; 0 if none.
        code: u16 = 0, 32;
        /// Lane + 1, or 0 if no lane is meant.
        lane: u16 = 0, 48;
        /// Wall clock, nanoseconds since 1970.
        unix_ns: u64 = 1, 0;
        /// First figure; the event's text says what it is.
        first: u64 = 2, 0;
        /// Second figure.
        second: u64 = 3, 0;
        /// Text such as a name, path or errno, zero-padded UTF-8.
        text: [u64; 16] = 4, 0;
    }
}

/// For the record.
pub const SEVERITY_INFO: u8 = 0;
/// Something is weaker than it was asked to be.
pub const SEVERITY_WARNING: u8 = 1;
/// Something failed.
pub const SEVERITY_ERROR: u8 = 2;

macro_rules! events {
    ($( $variant:ident = $number:literal, $name:literal, $severity:ident, $text:literal; )*) => {
        /// What an event is about. Numbers are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum EventCode { $( #[doc = $text] $variant = $number, )* }
        impl EventCode {
            /// All event codes.
            pub const ALL: &'static [EventCode] = &[ $( EventCode::$variant, )* ];
            /// The event code of a number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $( $number => Some(EventCode::$variant), )* _ => None }
            }
            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( EventCode::$variant => $name, )* }
            }
            /// How bad it is.
            #[must_use]
            pub const fn severity(self) -> u8 {
                match self { $( EventCode::$variant => $severity, )* }
            }
            /// For people; what `first`, `second` and the text are stands in brackets.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( EventCode::$variant => $text, )* }
            }
        }
    };
}

events! {
    Started = 1, "started", SEVERITY_INFO, "the dataplane started [lanes, pool bytes; node]";
    Stopping = 2, "stopping", SEVERITY_INFO, "the dataplane was asked to stop [signal]";
    SettingsApplied = 3, "settings_applied", SEVERITY_INFO, "all lanes apply a new snapshot [generation]";
    SettingsRefused = 4, "settings_refused", SEVERITY_WARNING, "a snapshot was refused [generation, word; setting]";
    ControlAttached = 5, "control_attached", SEVERITY_INFO, "a control process attached [pid]";
    ControlDetached = 6, "control_detached", SEVERITY_INFO, "the control process went away [pid]";
    ControlRefused = 7, "control_refused", SEVERITY_WARNING, "a second control process was refused [holder's pid]";
    SettingsFileIgnored = 8, "settings_file_ignored", SEVERITY_WARNING, "the saved settings could not be used at start; the configuration's are [; cause]";
    PeersFileIgnored = 9, "peers_file_ignored", SEVERITY_WARNING, "the saved peers could not be used at start; the configuration's are [; cause]";

    HugepagesSteppedDown = 20, "hugepages_stepped_down", SEVERITY_WARNING, "memory is on smaller pages than asked [bytes, page bytes now; cause]";
    MemlockLimited = 21, "memlock_limited", SEVERITY_WARNING, "memory could not be locked: RLIMIT_MEMLOCK is too low [bytes, limit]";
    NumaNotBound = 22, "numa_not_bound", SEVERITY_WARNING, "memory could not be bound to its NUMA node [node, errno]";
    PinFailed = 23, "pin_failed", SEVERITY_WARNING, "a lane could not be pinned [core, errno]";
    LanesExceedCores = 24, "lanes_exceed_cores", SEVERITY_WARNING, "there are more lanes than cores: lanes share cores and latency suffers [lanes, cores]";
    CoresShared = 25, "cores_shared", SEVERITY_WARNING, "two lanes are pinned to one core [core, other lane]";
    CopyThreadsOff = 26, "copy_threads_off", SEVERITY_INFO, "lanes do all copies themselves: there are too few cores for copy threads [cores, cores needed]";
    CopyPinFailed = 27, "copy_pin_failed", SEVERITY_WARNING, "a copy thread could not be pinned [core, errno]";
    RdmaAbsent = 28, "rdma_absent", SEVERITY_INFO, "there is no RDMA NIC to use: peers are reached over TCP [lane plus 1; cause]";
    RailUp = 29, "rail_up", SEVERITY_INFO, "an RDMA NIC can be used, or its address changed [rail; device and address]";
    RailDown = 30, "rail_down", SEVERITY_ERROR, "an RDMA NIC cannot be used [rail; cause]";
    MemoryMoved = 31, "memory_moved", SEVERITY_INFO, "memory of a lane was moved to another NUMA node while it ran [node, bytes; what]";

    SessionOpened = 40, "session_opened", SEVERITY_INFO, "a client attached [session, pid; name]";
    SessionClosed = 41, "session_closed", SEVERITY_INFO, "a client went away and all it held was given back [session, pid; name]";
    SessionRefused = 42, "session_refused", SEVERITY_WARNING, "a client was refused [uid, pid; name]";
    RegionRegistered = 43, "region_registered", SEVERITY_INFO, "a region was registered [bytes, page bytes; name]";
    RegionDeregistered = 44, "region_deregistered", SEVERITY_INFO, "a region was taken back [bytes; name]";
    RegionLost = 45, "region_lost", SEVERITY_ERROR, "memory of a region was taken away while it was mapped [session; name]";
    RegionSteppedDown = 46, "region_stepped_down", SEVERITY_WARNING, "a client's region is not on hugepages [bytes, page bytes; name]";
    PortCorrupt = 47, "port_corrupt", SEVERITY_ERROR, "a client's ring holds impossible positions; the port is closed [session, port]";
    RegionOpened = 48, "region_opened", SEVERITY_INFO, "a remote session opened a region [peer; region]";
    GrantRefused = 49, "grant_refused", SEVERITY_WARNING, "a remote session was refused a region [peer; region]";
    RegionDemoted = 50, "region_demoted", SEVERITY_WARNING, "a region is not registered with the NICs: its transfers are staged [bytes, bytes registered; cause]";

    PeerUp = 60, "peer_up", SEVERITY_INFO, "a peer is connected [incarnation; name]";
    PeerDown = 61, "peer_down", SEVERITY_ERROR, "a peer is gone [; name]";
    PeerRefused = 62, "peer_refused", SEVERITY_WARNING, "a node that wanted to connect was refused [; address or name]";
    ConnectionDown = 63, "connection_down", SEVERITY_WARNING, "a data connection ended [peer, connection; cause]";
    ConnectionUp = 64, "connection_up", SEVERITY_INFO, "a data connection is up [peer, connection]";
    PlanPublished = 65, "plan_published", SEVERITY_INFO, "peers were told of a new receive plan [generation, peers pending]";
    PeerAdded = 66, "peer_added", SEVERITY_INFO, "a peer was added to this node [slot; name]";
    PeerRemoved = 67, "peer_removed", SEVERITY_INFO, "a peer was removed from this node and everything of it has ended [slot; name]";
    PeerFenced = 68, "peer_fenced", SEVERITY_WARNING, "a peer did not give a region up in time: its connections were ended [peer; peer's name]";
    RdmaRefused = 69, "rdma_refused", SEVERITY_ERROR, "an RDMA connection to a peer could not be made [peer, lane; cause]";

    RoutePressure = 80, "route_pressure", SEVERITY_WARNING, "a transfer went direct because no block was free in time [ticket, bytes]";
    RouteReplanned = 81, "route_replanned", SEVERITY_WARNING, "the peer demanded another route than its plan said [ticket, bytes]";
    TransferFailed = 82, "transfer_failed", SEVERITY_ERROR, "a transfer failed [ticket, bytes]";
    DeviceError = 83, "device_error", SEVERITY_ERROR, "a device reported an error [ticket or connection, errno]";
    ProtocolViolation = 84, "protocol_violation", SEVERITY_ERROR, "a peer broke the protocol; its connection is closed [peer, connection]";
}

macro_rules! counters {
    ($( $variant:ident, $name:literal, $text:literal; )*) => {
        /// The counters that each lane keeps, by their word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $( #[doc = $text] $variant, )* }
        impl Counter {
            /// All counters in order of their words.
            pub const ALL: &'static [Counter] = &[ $( Counter::$variant, )* ];
            /// The metric's name without the prefix `railhead_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Counter::$variant => $name, )* }
            }
            /// The metric's help line.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( Counter::$variant => $text, )* }
            }
        }
    };
}

counters! {
    Turns, "turns_total", "turns of the lane's loop";
    BusyTurns, "busy_turns_total", "turns that found something to do";
    Sleeps, "sleeps_total", "times that the lane slept";
    Wakes, "wakes_total", "wake-ups sent to clients";
    Submissions, "submissions_total", "submissions taken from ports";
    Refused, "refused_total", "submissions refused before anything moved";
    Done, "transfers_done_total", "transfers completed with success";
    Failed, "transfers_failed_total", "transfers completed with another outcome";
    BytesStagedStaged, "bytes_staged_staged_total", "bytes completed with send leg staged and receive leg staged";
    BytesStagedDirect, "bytes_staged_direct_total", "bytes completed with send leg staged and receive leg direct";
    BytesDirectStaged, "bytes_direct_staged_total", "bytes completed with send leg direct and receive leg staged";
    BytesDirectDirect, "bytes_direct_direct_total", "bytes completed with both legs direct";
    TransfersStagedStaged, "transfers_staged_staged_total", "transfers completed with send leg staged and receive leg staged";
    TransfersStagedDirect, "transfers_staged_direct_total", "transfers completed with send leg staged and receive leg direct";
    TransfersDirectStaged, "transfers_direct_staged_total", "transfers completed with send leg direct and receive leg staged";
    TransfersDirectDirect, "transfers_direct_direct_total", "transfers completed with both legs direct";
    Inbound, "inbound_transfers_total", "transfers delivered to this lane";
    InboundBytes, "inbound_bytes_total", "bytes of transfers delivered to this lane";
    ReadsServed, "reads_served_total", "reads of peers that this lane served";
    ReadBytesServed, "read_bytes_served_total", "bytes of reads of peers that this lane served";
    ReadsFailed, "reads_failed_total", "reads of peers that this lane began to serve and that failed";
    Chunks, "chunks_total", "chunks posted";
    CopyBytes, "copy_bytes_total", "bytes moved by the copy engine on either leg";
    PostsFull, "posts_full_total", "posts that the fabric had no room for";
    CopiesFull, "copies_full_total", "copies that the copy engine had no room for";
    BlockWaits, "block_waits_total", "times that a transfer found no free send block";
    CreditWaits, "credit_waits_total", "times that a transfer found no credit of the peer";
    RecordWaits, "record_waits_total", "times that a record had to wait for record credits";
    EventWaits, "event_waits_total", "times that a delivery waited for room in an event ring";
    Pressure, "route_pressure_total", "transfers that went direct for want of a block";
    Replans, "replans_total", "transfers that were planned again on the peer's demand";
    Deadlines, "deadlines_total", "transfers that met their deadline";
    Unknown, "outcomes_unknown_total", "transfers that the peer could not confirm";
    ConnectionsDown, "connections_down_total", "data connections that ended";
    ProtocolViolations, "protocol_violations_total", "records of peers that were refused";
    RemoteRefused, "inbound_refused_total", "inbound writes refused for their key or range";
    Duplicates, "duplicates_total", "records dropped because their transfer had ended";
    RecordOverrun, "record_overrun_total", "records that arrived without a credit (a bug of the peer)";
    PortsCorrupt, "ports_corrupt_total", "ports closed for impossible ring positions";
    SnapshotsApplied, "snapshots_applied_total", "settings snapshots applied";
    Allocations, "allocations_after_seal_total", "heap allocations on the lane after the seal (must stay 0)";
    SocketCalls, "socket_calls_total", "socket system calls of the lane";
    Flushes, "flushes_total", "flushes of inbound writes";
    RegionsLost, "regions_lost_total", "regions whose memory was taken away";
    CopyThreadBytes, "copy_thread_bytes_total", "bytes of copies that the lane handed to its copy thread";
}

/// Words kept for counters of a lane; more than there are, so that a new one moves nothing.
pub const COUNTER_WORDS: usize = 128;
const _: () = assert!(Counter::ALL.len() <= COUNTER_WORDS);
