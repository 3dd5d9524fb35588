//! What each crate may depend on, as data. A new edge or a new external crate is a line here; an external crate
//! also needs its reason in `ops/adr/0001-dependencies.md`.

/// The rule of one crate. Railhead's own crates are named without the `railhead-` of their package.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) package: &'static str,
    /// Own crates it may use.
    pub(crate) own: &'static [&'static str],
    /// Own crates that only its tests may use.
    pub(crate) own_in_tests: &'static [&'static str],
    /// External crates it may use.
    pub(crate) external: &'static [&'static str],
    /// External crates that only its tests may use, and those under `cfg(loom)`.
    pub(crate) external_in_tests: &'static [&'static str],
}

/// daemon -> adapters -> resources (memory, shm) -> core -> abi -> ring. No adapter imports another, but the
/// conformance tests of one may stand on `sim`, `memory` and `host`. Nobody else imports core: control and loadgen
/// are clients. config, which both processes read, knows the settings of abi only.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        package: "ring",
        own: &[],
        own_in_tests: &[],
        external: &[],
        external_in_tests: &["loom", "proptest"],
    },
    Rule {
        package: "abi",
        own: &["ring"],
        own_in_tests: &[],
        external: &[],
        external_in_tests: &["proptest"],
    },
    Rule {
        package: "core",
        own: &["ring", "abi"],
        own_in_tests: &[],
        external: &[],
        external_in_tests: &["proptest"],
    },
    Rule {
        package: "shm",
        own: &["ring", "abi", "core"],
        own_in_tests: &[],
        external: &["libc", "memmap2", "rustix", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "memory",
        own: &["ring", "abi", "core", "shm"],
        own_in_tests: &[],
        external: &["hugepage-rs", "libc", "rustix", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "sim",
        own: &["ring", "abi", "core"],
        own_in_tests: &[],
        external: &[],
        external_in_tests: &["proptest"],
    },
    Rule {
        package: "host",
        own: &["ring", "abi", "core", "shm", "memory"],
        own_in_tests: &["sim"],
        external: &["libc", "rustix", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "tcp",
        own: &["ring", "abi", "core", "shm", "memory"],
        own_in_tests: &["sim", "host"],
        external: &["libc", "rustix", "snow", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "verbs",
        own: &["ring", "abi", "core", "shm", "memory"],
        own_in_tests: &["sim", "host"],
        external: &["libc", "rdma-core-sys", "rustix", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "rdma-core-sys",
        own: &[],
        own_in_tests: &[],
        external: &["libc", "thiserror"],
        external_in_tests: &[],
    },
    Rule {
        package: "cuda",
        own: &["ring", "abi", "core", "shm", "memory"],
        own_in_tests: &["sim", "host"],
        external: &["cudarc", "libc", "thiserror"],
        external_in_tests: &["libc", "serde_json"],
    },
    Rule {
        package: "client",
        own: &["ring", "abi", "shm"],
        own_in_tests: &[],
        external: &["libc", "rustix", "thiserror"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "config",
        own: &["abi"],
        own_in_tests: &[],
        external: &["serde", "serde_json", "thiserror", "toml"],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "daemon",
        own: &["ring", "abi", "core", "shm", "memory", "sim", "host", "tcp", "verbs", "config"],
        own_in_tests: &["client"],
        external: &[
            "clap",
            "flume",
            "libc",
            "rustix",
            "serde",
            "signal-hook",
            "thiserror",
            "toml",
            "tracing",
            "tracing-subscriber",
        ],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "control",
        own: &["ring", "abi", "shm", "client", "config"],
        own_in_tests: &[],
        external: &[
            "axum",
            "clap",
            "http-body-util",
            "hyper",
            "hyper-util",
            "libc",
            "rustix",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "toml",
            "tracing",
            "tracing-subscriber",
        ],
        external_in_tests: &["proptest", "tempfile", "tower"],
    },
    Rule {
        package: "loadgen",
        // core and verbs: `railhead-bench verbs-raw` drives the fabric alone.
        own: &["ring", "abi", "shm", "client", "core", "verbs"],
        own_in_tests: &[],
        external: &[
            "clap",
            "hdrhistogram",
            "indicatif",
            "libc",
            "memmap2",
            "rustix",
            "safetensors",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
        ],
        external_in_tests: &["proptest", "tempfile"],
    },
    Rule {
        package: "compare",
        own: &["ring", "abi", "shm", "client"],
        own_in_tests: &[],
        external: &["clap", "memmap2", "rtrb", "rustix", "serde_json", "tempfile", "thiserror"],
        external_in_tests: &[],
    },
    Rule {
        package: "micro",
        own: &[],
        own_in_tests: &["ring", "abi", "core", "shm", "host"],
        external: &[],
        external_in_tests: &["divan", "rtrb"],
    },
    Rule {
        package: "system",
        own: &[],
        // tcp: a node of another version is played by hand.
        own_in_tests: &["ring", "abi", "shm", "client", "tcp"],
        external: &["libc", "rustix", "serde_json", "tempfile", "ureq"],
        external_in_tests: &["toml"],
    },
    Rule {
        package: "xtask",
        own: &[],
        own_in_tests: &["abi"],
        external: &["rustix", "signal-hook", "toml"],
        external_in_tests: &["tempfile"],
    },
    // Outside the workspace; see ops/proof.
    Rule {
        package: "proof",
        own: &["ring", "abi", "core"],
        own_in_tests: &[],
        external: &[],
        external_in_tests: &[],
    },
];
