//! Every field of the file: the source of `configs/README.md` and of the answer "this only changes at a restart".

use std::fmt::Write;

use railhead_abi::settings::{FIELDS, Kind};

use crate::setting::Key;

/// One field that only changes at a restart.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Dotted name.
    pub name: &'static str,
    /// Unit or shape.
    pub unit: &'static str,
    /// The value when the field is left out.
    pub default: &'static str,
    /// One line for people.
    pub text: &'static str,
}

const fn field(name: &'static str, unit: &'static str, default: &'static str, text: &'static str) -> Field {
    Field { name, unit, default, text }
}

/// The fields outside `[settings]`, in the order of the file.
pub const FIELDS_AT_RESTART: &[Field] = &[
    field("node.name", "name", "(needed)", "name of this node: what peers call it"),
    field(
        "node.state_dir",
        "path",
        "(needed)",
        "folder of the sockets and the saved settings; made at start, mode 0700",
    ),
    field("dataplane.session_socket", "path", "STATE_DIR/session.sock", "Unix socket that clients attach to"),
    field("dataplane.admin_socket", "path", "STATE_DIR/admin.sock", "Unix socket that control attaches to"),
    field(
        "dataplane.lanes",
        "lanes, 1 to 64",
        "1",
        "threads that move data, each with a core, a pool and connections of its own",
    ),
    field(
        "dataplane.cores",
        "list of cores",
        "(not pinned)",
        "the core of each lane, lane 0 first: short for settings.lanes.N.core",
    ),
    field(
        "dataplane.copy_threads",
        "auto, on, off",
        "auto",
        "whether each lane has a second thread for its larger copies; auto: with two cores for each lane and one more",
    ),
    field(
        "dataplane.copy_cores",
        "list of cores",
        "(not pinned)",
        "the core of each lane's copy thread, lane 0 first; not pinned, they keep off the lanes' cores",
    ),
    field(
        "dataplane.log",
        "off, error, warn, info, debug, trace",
        "info",
        "what the dataplane's ordinary threads log; lanes never log",
    ),
    field("session.uids", "list of uids", "own uid and 0", "users that may attach"),
    field("session.max", "sessions, 1 to 256", "64", "sessions at once"),
    field(
        "pool.small_bytes",
        "bytes, multiple of 4096",
        "16384",
        "size of a small staging block; a transfer of at most this needs no grant",
    ),
    field("pool.small_send", "blocks per lane", "64", "small blocks that only sends use"),
    field(
        "pool.small_receive",
        "blocks per lane",
        "256",
        "small blocks that only receives use; at least two for each peer and the node itself",
    ),
    field(
        "pool.large_bytes",
        "bytes, multiple of 4096",
        "262144",
        "size of a large staging block; chunk_bytes is at most this",
    ),
    field("pool.large_send", "blocks per lane", "32", "large blocks that only sends use"),
    field(
        "pool.large_receive",
        "blocks per lane",
        "64",
        "large blocks that only receives use, granted for each transfer",
    ),
    field(
        "pool.hugepages",
        "prefer, require, never",
        "prefer",
        "prefer steps down to ordinary pages with an event; require refuses to start",
    ),
    field("pool.numa_node", "NUMA node", "(the kernel's choice)", "where the blocks lie"),
    field("fabric.listen", "IP:PORT", "127.0.0.1:7410", "address that peers connect to"),
    field(
        "fabric.key_file",
        "path",
        "(needed)",
        "cluster key: 64 hex digits, mode 0600, the same on all nodes",
    ),
    field(
        "fabric.peers_max",
        "peers, 1 to 63",
        "8 more than there are",
        "peers that tables are made for: as many can be added while the node runs",
    ),
    field(
        "rdma.use",
        "auto, require, off",
        "auto",
        "whether this node uses its RDMA NICs; auto: if there are any",
    ),
    field(
        "rdma.devices",
        "list of at most 4 devices",
        "(all that carry traffic)",
        "the NICs, such as mlx5_0; lanes are spread over them",
    ),
    field(
        "rdma.traffic_class",
        "0 to 255",
        "0",
        "IP traffic class of RDMA packets: the six bits of DSCP, then two of ECN",
    ),
    field(
        "rdma.relaxed_ordering",
        "true, false",
        "false",
        "whether the NIC may place the bytes of a write in any order before its completion: faster on some machines",
    ),
    field(
        "rdma.pinned_bytes_max",
        "bytes",
        "1099511627776",
        "bytes of clients' regions registered at once; a region beyond is staged, with an event",
    ),
    field("peer[].name", "name", "(needed)", "a peer's own name"),
    field(
        "peer[].address",
        "HOST:PORT",
        "(needed)",
        "the peer's fabric.listen; a host name is looked up at each attempt",
    ),
    field(
        "control.listen",
        "IP:PORT or unix:PATH",
        "127.0.0.1:7411",
        "where REST is served: loopback or a Unix socket",
    ),
    field("control.log", "off, error, warn, info, debug, trace", "info", "what control logs"),
];

/// Whether a name is a field of the file, or a table of it, that REST cannot change.
pub(crate) fn is_restart_only(name: &str) -> bool {
    FIELDS_AT_RESTART.iter().any(|field| {
        field.name == name || field.name.split(['.', '[']).next() == name.split(['.', '[']).next()
    })
}

/// The table of `configs/README.md`: one row a field.
#[must_use]
pub fn table() -> String {
    let mut out = String::from(
        "| key | unit or values | default | live or restart | what it is |\n|---|---|---|---|---|\n",
    );
    let mut row = |name: &str, unit: &str, default: &str, when: &str, text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {unit} | {default} | {when} | {text} |");
    };
    for Field { name, unit, default, text } in FIELDS_AT_RESTART {
        row(name, unit, &format!("`{default}`").replace("`(", "(").replace(")`", ")"), "restart", text);
    }
    for setting in FIELDS {
        let info = setting.info();
        let key = Key::Fixed(*setting);
        let unit = match info.kind {
            Kind::Number { unit, min, max } => format!("{unit}, {min} to {max}"),
            Kind::Choice(names) => names.join(", "),
        };
        row(
            &format!("settings.{}", info.name),
            &unit,
            &format!("`{}`", key.value_of(info.default)),
            "live",
            info.text,
        );
    }
    row("settings.lanes.N.core", "core", "(not pinned)", "live", Key::LaneCore(0).text());
    row("settings.lanes.N.numa_node", "NUMA node", "(not moved)", "live", Key::LaneNode(0).text());
    row("settings.lanes.N.pool_numa_node", "NUMA node", "(not moved)", "live", Key::LanePoolNode(0).text());
    out
}
