//! The gates, as data: one [`Stage`] each, in the order in which they run. To add a gate, add an entry.

/// What a stage cannot run without, shown by doing it. When it is absent the stage is skipped, and the lines above
/// the closing one say why.
#[derive(Debug)]
pub(crate) struct Need {
    /// Must be installed, and succeed with `arguments`.
    pub(crate) program: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// Why it may be installed and yet fail.
    pub(crate) refused: &'static str,
}

/// Two sparse regions of a little more than 4 GiB that fill up.
const MEMORY: Need = Need {
    program: "awk",
    arguments: &["/^MemAvailable:/ { exit $2 < 10 * 1024 * 1024 }", "/proc/meminfo"],
    refused: "less than 10 GiB of memory are free",
};

/// A few pages for regions, and a small pool.
const HUGEPAGES: Need = Need {
    program: "awk",
    arguments: &["/^HugePages_Free:/ { exit $2 < 16 }", "/proc/meminfo"],
    refused: "fewer than 16 hugepages are free (vm.nr_hugepages)",
};

/// QEMU, Debian's kernel and the tools inside: it installs and builds what is missing, once.
const LAB: Need = Need { program: "ops/lab/image", arguments: &[], refused: "no guest can be made" };

/// One command of a stage.
#[derive(Debug)]
pub(crate) struct Step {
    /// Program and arguments; the program `xtask` is this binary.
    pub(crate) command: &'static [&'static str],
    /// Set beside the environment of the caller.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// The command is `cargo test` or `ops/lab/run-tests`: no test run is a failure, whatever its exit status.
    pub(crate) tests: bool,
}

/// One gate.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    /// Time for all steps together, building included; a stage that passes it is killed and has failed.
    pub(crate) limit_s: u64,
    pub(crate) needs: &'static [Need],
    /// Stages whose result this one stands on: they run first, and when one fails this one fails unrun.
    pub(crate) after: &'static [&'static str],
    pub(crate) steps: &'static [Step],
}

/// A stage that needs nothing.
const fn stage(name: &'static str, limit_s: u64, steps: &'static [Step]) -> Stage {
    Stage { name, limit_s, needs: &[], after: &[], steps }
}

/// A stage of whole processes: it runs the release binaries.
const fn system(name: &'static str, limit_s: u64, needs: &'static [Need], steps: &'static [Step]) -> Stage {
    Stage { name, limit_s, needs, after: &["build"], steps }
}

const fn run(command: &'static [&'static str]) -> Step {
    Step { command, environment: &[], tests: false }
}

const fn test(command: &'static [&'static str]) -> Step {
    Step { command, environment: &[], tests: true }
}

/// How the loom suite is built and run; the mutants use the same, so that one build serves both.
pub(crate) const LOOM_ENVIRONMENT: &[(&str, &str)] =
    &[("RUSTFLAGS", "--cfg loom"), ("LOOM_MAX_PREEMPTIONS", "3")];
/// See [`LOOM_ENVIRONMENT`]. A target folder of its own: the flag rebuilds everything.
pub(crate) const LOOM_COMMAND: &[&str] =
    &["cargo", "test", "--package", "railhead-ring", "--release", "--target-dir", "target-loom", "--tests"];

/// Every gate, cheap ones first.
pub(crate) const STAGES: &[Stage] = &[
    stage(
        "fmt",
        60,
        &[
            run(&["cargo", "fmt", "--all", "--check", "--", "--color", "never"]),
            run(&[
                "cargo",
                "fmt",
                "--manifest-path",
                "ops/proof/Cargo.toml",
                "--check",
                "--",
                "--color",
                "never",
            ]),
        ],
    ),
    stage(
        "clippy",
        900,
        &[run(&["cargo", "clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])],
    ),
    stage("tidy", 60, &[run(&["xtask", "tidy"])]),
    stage("edges", 60, &[run(&["xtask", "edges"])]),
    stage("abi-digest", 300, &[run(&["xtask", "abi-digest"])]),
    stage("proof", 300, &[run(&["xtask", "proof"])]),
    stage(
        "unit",
        900,
        &[test(&["cargo", "test", "--workspace", "--exclude", "railhead-system", "--no-fail-fast"])],
    ),
    stage("loom", 600, &[Step { command: LOOM_COMMAND, environment: LOOM_ENVIRONMENT, tests: true }]),
    stage("loom-mutants", 900, &[run(&["xtask", "loom-mutants"])]),
    stage("sim", 600, &[test(&["cargo", "test", "--package", "railhead-sim", "--release"])]),
    // One step per backend: each must have run conformance tests of its own.
    stage(
        "conformance",
        600,
        &[
            test(&["cargo", "test", "--package", "railhead-sim", "--test", "conformance"]),
            test(&["cargo", "test", "--package", "railhead-host", "--test", "conformance"]),
            test(&["cargo", "test", "--package", "railhead-tcp", "--test", "conformance"]),
        ],
    ),
    stage("build", 1200, &[run(&["cargo", "build", "--workspace", "--release", "--bins"])]),
    system("seal", 600, &[], &[test(&["cargo", "test", "--package", "railhead-system", "--test", "seal"])]),
    system(
        "two-node",
        600,
        &[],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "two_node"])],
    ),
    system(
        "two-node-large",
        300,
        &[MEMORY],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "large"])],
    ),
    system(
        "hugepages",
        300,
        &[HUGEPAGES],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "hugepages"])],
    ),
    system(
        "direct-path",
        300,
        &[],
        &[
            test(&["cargo", "test", "--package", "railhead-system", "--lib"]),
            test(&["cargo", "test", "--package", "railhead-system", "--test", "direct_addresses"]),
        ],
    ),
    system(
        "kill-restart",
        600,
        &[],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "kill_restart"])],
    ),
    system(
        "settings",
        600,
        &[],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "settings"])],
    ),
    system(
        "configs",
        300,
        &[],
        &[test(&["cargo", "test", "--package", "railhead-system", "--test", "configs"])],
    ),
    // All of it on real verbs: soft RDMA devices in one guest.
    system(
        "verbs-guest",
        900,
        &[LAB],
        &[test(&[
            "ops/lab/run-tests",
            "--net",
            "veth",
            "--limit",
            "500",
            "--",
            "railhead-system/guest_wire",
            "railhead-verbs/guest",
            "railhead-verbs/guest_links",
        ])],
    ),
    // Two nodes over them, on a wire that also loses packets and is cut.
    system(
        "rdma-guest",
        900,
        &[LAB],
        &[test(&[
            "ops/lab/run-tests",
            "--net",
            "veth",
            "--limit",
            "600",
            "--",
            "railhead-system/guest_rdma",
        ])],
    ),
    system(
        "numa-guest",
        900,
        &[LAB],
        &[test(&[
            "ops/lab/run-tests",
            "--net",
            "numa",
            "--hugepages",
            "128",
            "--memory",
            "3G",
            "--limit",
            "500",
            "--",
            "railhead-system/guest_numa",
        ])],
    ),
    system(
        "pair-guests",
        900,
        &[LAB],
        &[test(&["ops/lab/run-tests", "--pair", "--limit", "500", "--", "railhead-system/guest_pair"])],
    ),
    system("demo", 300, &[], &[run(&["ops/demo"])]),
];
