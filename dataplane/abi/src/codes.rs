//! Every code that Railhead answers with: one frozen number, name, text and remedy each.
//!
//! REST problems, the CLI, completions, refusals on sockets and the documentation all read this table.

macro_rules! codes {
    ($( $(#[$meta:meta])* $variant:ident = $number:literal, $name:literal, $text:literal, $remedy:literal; )*) => {
        /// A stable code. Numbers are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Code { $( $(#[$meta])* #[doc = $text] $variant = $number, )* }

        impl Code {
            /// All codes in order of their numbers.
            pub const ALL: &'static [Code] = &[ $( Code::$variant, )* ];

            /// The code of a number, or `None` if this version does not know it.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $( $number => Some(Code::$variant), )* _ => None }
            }

            /// The stable name, as in JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Code::$variant => $name, )* }
            }

            /// What it means, for people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( Code::$variant => $text, )* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $( Code::$variant => $remedy, )* }
            }
        }
    };
}

codes! {
    Ok = 0, "ok", "done", "nothing";

    // Refused submissions: nothing was moved.
    OperationUnknown = 1, "operation_unknown", "the submission's operation is not one this dataplane has", "use operation write";
    ReservedNotZero = 2, "reserved_not_zero", "reserved bits of the submission are set", "clear the entry before filling it, or use a client library of the dataplane's version";
    LocalHandleStale = 3, "local_handle_stale", "the local region handle is unknown or of an earlier registration", "register the region again and use the new handle";
    LocalRange = 4, "local_range", "offset and bytes leave the local region", "keep offset + bytes within the registered size";
    RemoteHandleStale = 5, "remote_handle_stale", "the remote handle is unknown, closed or stale", "open the remote region again";
    RemoteRange = 6, "remote_range", "offset and bytes leave the remote region", "keep offset + bytes within the remote region's size";
    RouteUnknown = 7, "route_unknown", "the route override is not auto, staged or direct", "use 0 (auto), 1 (staged) or 2 (direct)";
    ClassUnknown = 8, "class_unknown", "the class is not latency or bulk", "use 0 (latency) or 1 (bulk)";
    NotificationUnknown = 9, "notification_unknown", "the notification is not none, signal or event, or its target is out of range", "use 0, 1 (signal) or 2 (event) with an existing signal word";
    Unsupported = 10, "unsupported", "the submission uses a feature that this dataplane does not have", "see the features in /v1/node";
    GroupUnknown = 11, "group_unknown", "the completion group is not valid", "use group 0, or a group opened in this batch";
    DirectImpossible = 12, "direct_impossible", "the route was forced direct, and direct is not possible for this region", "force staged, or leave the route on auto";
    QuotaExceeded = 13, "quota_exceeded", "the session holds as many of these as it may", "wait for completions, or raise the quota";
    LevelUnknown = 14, "level_unknown", "the submission's completion level is not known to this dataplane", "use 0 (visible) or 1 (placed)";
    AccessMissing = 15, "access_missing", "a region is not registered, or the handle not opened, for what the operation does", "a write reads the local region and needs a handle for writing; a read writes it and needs a handle for reading";

    // Outcomes of accepted transfers.
    DeadlineExceeded = 100, "deadline_exceeded", "the deadline passed; nothing lands any more", "retry, or give a longer deadline";
    Unknown = 101, "unknown", "the peer could not confirm how the transfer ended; its destination range is undefined", "open the remote region again, then retry";
    PeerDown = 102, "peer_down", "the peer went away before anything was posted", "retry when the peer is back (see /v1/node)";
    RegionLost = 103, "region_lost", "memory of the region was taken away while it was used", "register new memory";
    RemoteRefused = 104, "remote_refused", "the peer refused the range or the key", "open the remote region again and check its grant";
    DeviceError = 105, "device_error", "a device reported an error for posted work", "see the events; retry if the cause has ended";
    DataplaneLost = 106, "dataplane_lost", "the dataplane died; how the transfer ended is unknown", "attach again and reopen regions, then retry";
    Cancelled = 107, "cancelled", "the transfer was cancelled before it was delivered", "nothing";
    Replan = 108, "replan", "the peer's receive plan changed and the one retry did not fit it either", "retry";
    RemoteRegionLost = 109, "remote_region_lost", "memory of the remote region was taken away while it was written", "have its owner register new memory, then open it again";
    SessionClosed = 110, "session_closed", "the session ended while the transfer was in flight", "attach again";
    ChecksumMismatch = 111, "checksum_mismatch", "the data that arrived is not what was sent", "retry; look at the events for the cause";
    NotificationRefused = 112, "notification_refused", "the target session cannot take this notification", "use a signal or event index that the target session has";
    Interrupted = 113, "interrupted", "the path to the peer ended while its memory was read; nothing lands any more, and the destination range is undefined", "retry";

    Revoked = 114, "revoked", "the owner withdrew the remote region while it was written; nothing lands any more", "have its owner register it again, then open it again";

    // Settings.
    SettingUnknown = 200, "setting_unknown", "no setting has this name", "see configs/README.md or GET /v1/settings for the names";
    SettingType = 201, "setting_type", "the value has the wrong type", "use the type shown for the setting";
    SettingRange = 202, "setting_range", "the value is outside the setting's range", "use a value within the range shown";
    SettingRestartOnly = 203, "setting_restart_only", "this setting only changes at a restart", "change it in the configuration file and restart the dataplane";
    SettingContradiction = 204, "setting_contradiction", "the value contradicts another setting", "change both in one request";
    SettingBlockBytes = 205, "setting_block_bytes", "chunk_bytes is larger than a large staging block", "use at most pool.large_bytes of the configuration";
    SettingCoreAbsent = 206, "setting_core_absent", "the core does not exist or this process may not run on it", "choose one of the cores listed in /v1/node";
    SettingLaneAbsent = 207, "setting_lane_absent", "this node has no lane of that number", "choose one of the lanes listed in /v1/lanes";
    GenerationOld = 208, "generation_old", "the snapshot's generation is not newer than the published one", "read the settings again and repeat the change";
    EtagMismatch = 209, "etag_mismatch", "the settings changed since they were read", "GET /v1/settings, look at the change, and repeat with its ETag";
    SettingsPending = 210, "settings_pending", "not every lane has acknowledged within the time limit", "GET /v1/settings shows what is pending";
    SettingNodeAbsent = 211, "setting_node_absent", "this machine has no NUMA node of that number", "choose one of the nodes counted in /v1/node";
    SettingMemoryStuck = 212, "setting_memory_stuck", "memory cannot be moved to that NUMA node", "free memory or hugepages there; what a NIC has registered cannot move while the node runs";

    // Sessions and regions.
    VersionMismatch = 300, "version_mismatch", "the other side speaks another version", "use builds of the same version on both sides";
    NotPermitted = 301, "not_permitted", "this user may not attach", "add its uid to session.uids in the configuration";
    SessionsFull = 302, "sessions_full", "all sessions are taken", "close a session, or raise session.max";
    PortsFull = 303, "ports_full", "a lane has no free port", "ask for fewer ports, or use more lanes";
    RegionsFull = 304, "regions_full", "all region slots are taken", "deregister regions that are no longer used";
    SealsMissing = 305, "seals_missing", "the memory file can still shrink or grow", "seal it with F_SEAL_SHRINK and F_SEAL_GROW before registering";
    RegionSize = 306, "region_size", "offset and bytes do not fit the memory file", "keep offset + bytes within the file, and bytes above 0";
    NameTaken = 307, "name_taken", "this name is in use on this node", "choose another name";
    NameInvalid = 308, "name_invalid", "a name is 1 to 63 bytes of letters, digits, '.', '-', '_'", "choose such a name";
    RegionUnknown = 309, "region_unknown", "the peer has no region of that name", "check the name; its owner must have registered it";
    GrantMissing = 310, "grant_missing", "the region is not granted to this session", "have its owner grant NODE/NAME of this session";
    PeerUnknown = 311, "peer_unknown", "no peer of that name is configured", "add it to [[peer]] in the configuration";
    PeerNotConnected = 312, "peer_not_connected", "the peer is not connected now", "see /v1/node for the reason; retry when it is back";
    FrameMalformed = 313, "frame_malformed", "a message on the socket is not one of this protocol", "use the client library of the dataplane's version";
    MappingFailed = 314, "mapping_failed", "the memory could not be mapped", "check the limits of mapped memory (vm.max_map_count, address space)";
    RegionBusy = 315, "region_busy", "transfers still use the region", "wait for their completions, then deregister again";

    // Nodes.
    KeyMismatch = 400, "key_mismatch", "the other node holds another cluster key, or is no Railhead node", "give both nodes the same cluster key file";
    MajorMismatch = 401, "major_mismatch", "the other node speaks another major version", "upgrade the older node";
    NodeUnknown = 402, "node_unknown", "this node has no [[peer]] of that name", "add the node to [[peer]] on both sides";
    ConnectRefused = 403, "connect_refused", "nothing accepts connections at the peer's address", "start the peer, or correct its address";
    HeartbeatLost = 404, "heartbeat_lost", "the peer sent no heartbeat for two seconds", "see the peer's log";
    ConnectionReset = 405, "connection_reset", "the connection was closed by the other side", "see the peer's log";
    IncarnationChanged = 406, "incarnation_changed", "the peer was restarted", "open its regions again";
    ProtocolViolation = 407, "protocol_violation", "the peer broke the protocol", "use builds of the same version on both nodes";
    PeersFull = 408, "peers_full", "this node has no room for another peer", "remove a peer, or raise fabric.peers_max and restart the dataplane";
    PeerRemoved = 409, "peer_removed", "the peer was removed from this node", "add it again, or use another node";

    // Configuration and start.
    ConfigMissing = 500, "config_missing", "the configuration file cannot be read", "check the path and its permissions";
    ConfigSyntax = 501, "config_syntax", "the configuration file is not valid TOML", "correct the line named";
    ConfigField = 502, "config_field", "a field of the configuration is unknown or wrong", "correct the field named; see configs/README.md";
    ConfigContradiction = 503, "config_contradiction", "two fields of the configuration contradict each other", "correct the fields named";
    PortTaken = 504, "port_taken", "the address is in use", "stop what uses it, or choose another address";
    PathDenied = 505, "path_denied", "a path cannot be created or opened", "check its folder and permissions";
    MemoryShort = 506, "memory_short", "the staging pool could not be reserved", "reserve more hugepages or make the pool smaller";
    KeyFile = 507, "key_file", "the cluster key file is missing, too open or not 32 bytes in hex", "create it with `openssl rand -hex 32` and mode 0600";
    ControlHeld = 508, "control_held", "another control process holds this dataplane", "stop that process first";
    DataplaneAbsent = 509, "dataplane_absent", "the dataplane cannot be reached", "start railhead-dataplane, or correct the admin socket's path";
    CoresShort = 510, "cores_short", "there are too few cores", "give the dataplane more cores, or fewer lanes";

    RdmaAbsent = 511, "rdma_absent", "this node has no RDMA NIC that can be used", "install libibverbs1 and ibverbs-providers, bring the NIC's link up, allow /dev/infiniband; or set rdma.use";
    RdmaRefused = 512, "rdma_refused", "a queue pair could not be made or connected", "see the events of both nodes";

    // REST.
    RequestMalformed = 600, "request_malformed", "the request's body or query is not valid", "correct the part named";
    NotFound = 601, "not_found", "there is no such resource", "see the list of routes in the README";
    MethodNotAllowed = 602, "method_not_allowed", "the resource does not take this method", "use the methods in the Allow header";
    TransferUnknown = 603, "transfer_unknown", "the flight recorder no longer or never held this transfer", "only the last transfers of each lane are kept";
    ListenRefused = 604, "listen_refused", "control binds only loopback addresses and Unix sockets", "use 127.0.0.1, [::1] or a socket path";
}

impl Code {
    /// The frozen number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether the initiator gave up on a transfer for this: had the target delivered it by then, it is a success.
    #[must_use]
    pub const fn is_given_up(self) -> bool {
        matches!(self, Code::DeadlineExceeded | Code::Revoked)
    }

    /// Whether the same submission may succeed if it is simply made again.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Code::DeadlineExceeded
                | Code::PeerDown
                | Code::Interrupted
                | Code::DeviceError
                | Code::Replan
                | Code::ChecksumMismatch
                | Code::QuotaExceeded
        )
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}; {}", self.name(), self.text(), self.remedy())
    }
}

impl core::error::Error for Code {}
