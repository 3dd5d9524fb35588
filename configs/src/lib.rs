//! The configuration of a node: one TOML file, read by the dataplane and by control.
//!
//! **Owns** the file's grammar, its defaults, the checks of one field against another, the names of live settings as
//! people write them ([`setting`]), and what control saves in the state directory ([`settings_file`], [`peers_file`]).
//!
//! **Never** opens a device, binds a port or changes anything but those two files.
//!
//! **Called by** both processes before anything starts, by control when it saves, and by tests; any thread.

mod check;
mod error;
mod file;
mod outline;
pub mod peers_file;
pub mod reference;
pub mod setting;
pub mod settings_file;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use railhead_abi::settings::{Limits, Settings};

pub use error::ConfigError;

/// A whole configuration, defaults filled in, paths resolved against the folder of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file that it was read from.
    pub path: PathBuf,
    /// `[node]`
    pub node: Node,
    /// `[dataplane]`
    pub dataplane: Dataplane,
    /// `[session]`
    pub session: Session,
    /// `[pool]`: what each lane gets.
    pub pool: Pool,
    /// `[fabric]`
    pub fabric: Fabric,
    /// `[rdma]`
    pub rdma: Rdma,
    /// `[[peer]]`, in the order of the file: the peer's slot is its place here.
    pub peers: Vec<Peer>,
    /// `[settings]` over the defaults, with `dataplane.cores` as the lanes' cores.
    pub settings: Settings,
    /// `[control]`
    pub control: Control,
}

/// `[node]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name of this node: what peers call it.
    pub name: String,
    /// Folder for sockets and the settings file; made by [`Config::make_state_dir`].
    pub state_dir: PathBuf,
}

/// `[dataplane]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataplane {
    /// Socket that clients attach to.
    pub session_socket: PathBuf,
    /// Socket that control attaches to.
    pub admin_socket: PathBuf,
    /// Lanes, 1 to 64.
    pub lanes: usize,
    /// Whether each lane gets a second thread, which does its larger copies.
    pub copy_threads: CopyThreads,
    /// The core of each lane's copy thread, lane 0 first; `None` leaves it to the scheduler, away from the lanes' cores.
    pub copy_cores: Option<Vec<u64>>,
    /// How much the dataplane's ordinary threads log.
    pub log: LogLevel,
}

/// Whether lanes get copy threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyThreads {
    /// If there are two cores for each lane and one more.
    Auto,
    /// Each lane has one.
    On,
    /// Lanes do all copies themselves.
    Off,
}

/// `[session]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Users that may attach; `None` means the dataplane's own user and root.
    pub uids: Option<Vec<u32>>,
    /// Sessions at once, 1 to 256.
    pub max: usize,
}

/// `[pool]`: the staging blocks of each lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Bytes of a small block, a multiple of 4,096.
    pub small_bytes: u64,
    /// Small blocks that only sends use.
    pub small_send: u32,
    /// Small blocks that only receives use.
    pub small_receive: u32,
    /// Bytes of a large block, a multiple of 4,096.
    pub large_bytes: u64,
    /// Large blocks that only sends use.
    pub large_send: u32,
    /// Large blocks that only receives use.
    pub large_receive: u32,
    /// Whether the blocks lie on hugepages.
    pub hugepages: Hugepages,
    /// NUMA node of the blocks; `None` leaves it to the kernel.
    pub numa_node: Option<u32>,
}

impl Pool {
    /// Bytes of all blocks of one lane.
    #[must_use]
    pub const fn lane_bytes(&self) -> u64 {
        self.small_bytes * (self.small_send as u64 + self.small_receive as u64)
            + self.large_bytes * (self.large_send as u64 + self.large_receive as u64)
    }
}

/// Which pages the staging blocks lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hugepages {
    /// Hugepages if there are any, else ordinary pages and an event.
    Prefer,
    /// Hugepages, or the dataplane does not start.
    Require,
    /// Ordinary pages.
    Never,
}

/// `[rdma]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// Whether this node uses its RDMA NICs.
    pub use_rdma: UseRdma,
    /// Their names, at most four; none means every device whose first port carries traffic.
    pub devices: Vec<String>,
    /// The IP traffic class of their packets: DSCP << 2 | ECN.
    pub traffic_class: u8,
    /// Whether the NIC may place the bytes of one write in any order before its completion.
    pub relaxed_ordering: bool,
    /// The most bytes of clients' regions that are registered at once; what is beyond is staged.
    pub pinned_bytes_max: u64,
}

/// Whether a node uses its RDMA NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UseRdma {
    /// If there are any.
    Auto,
    /// Or the dataplane does not start.
    Require,
    /// Not at all.
    Off,
}

/// `[fabric]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Address that peers connect to.
    pub listen: SocketAddr,
    /// File of the cluster key: 64 hex digits, readable by its owner only. Read it with [`Fabric::read_key`].
    pub key_file: PathBuf,
    /// Peers that tables are made for, so that some can be added live; `None` is [`PEERS_SPARE`] more than there are.
    pub peers_max: Option<usize>,
}

impl Fabric {
    /// Reads the cluster key.
    ///
    /// # Errors
    /// [`Code::KeyFile`](railhead_abi::Code::KeyFile), saying what is wrong with the file.
    pub fn read_key(&self) -> Result<[u8; 32], ConfigError> {
        check::read_key(&self.key_file)
    }
}

/// Peers that can be added live when the configuration does not say how many.
pub const PEERS_SPARE: usize = 8;
/// Peers of a node: the first slot of the peer tables is the node itself.
pub const PEERS_MOST: usize = railhead_abi::segment::PEERS_MAX - 1;

/// One `[[peer]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The peer's own name.
    pub name: String,
    /// `HOST:PORT` of its fabric, at most 63 bytes. A host name is looked up at each attempt to connect.
    pub address: String,
}

/// `[control]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Where REST is served.
    pub listen: Listen,
    /// How much control logs.
    pub log: LogLevel,
}

/// Where control listens: loopback or a Unix socket, nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How much a process logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What failed.
    Error,
    /// Also what is weaker than asked for.
    Warn,
    /// Also what happens.
    Info,
    /// Also how.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The name, as `tracing` filters take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// Reads and checks a file, fields and contradictions; [`Self::check_machine`] does the rest.
    ///
    /// # Errors
    /// The first [`ConfigError`]: file, line, field, what is wrong and the remedy.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, &text)
    }

    /// As [`Self::load`], with the file's content at hand. `path` is what errors name and what relative paths start from.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let outline = outline::Outline::of(path, text)?;
        let config = file::read(path, text, &outline)?;
        check::contradictions(&config).map_err(|problem| problem.at(path, &outline))?;
        Ok(config)
    }

    /// Checks what only the machine can say: that the key file is there, private and well-formed.
    ///
    /// # Errors
    /// [`Code::KeyFile`](railhead_abi::Code::KeyFile).
    pub fn check_machine(&self) -> Result<(), ConfigError> {
        self.fabric.read_key().map(drop)
    }

    /// Everything that `--check` checks: [`Self::load`], then [`Self::check_machine`].
    ///
    /// # Errors
    /// As those.
    pub fn check(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::load(path)?;
        config.check_machine()?;
        Ok(config)
    }

    /// What settings of this node are validated against.
    #[must_use]
    pub const fn limits(&self, cores: [u64; 16], numa_nodes: u64) -> Limits {
        Limits { large_block_bytes: self.pool.large_bytes, lanes: self.dataplane.lanes, cores, numa_nodes }
    }

    /// Checks other peers in place of those of the file, against each other and the rest of the configuration.
    ///
    /// # Errors
    /// As [`Self::load`], naming the field as if they stood in the file.
    pub fn check_peers(&self, peers: &[Peer]) -> Result<(), ConfigError> {
        let other = Self { peers: peers.to_vec(), ..self.clone() };
        check::peers(&other).map_err(|problem| problem.in_file(&self.path))
    }

    /// Peers that tables are made for.
    #[must_use]
    pub fn peers_room(&self) -> usize {
        self.fabric.peers_max.unwrap_or((self.peers.len() + PEERS_SPARE).min(PEERS_MOST))
    }

    /// Makes the state directory, private to this user, if it is not there.
    ///
    /// # Errors
    /// [`Code::PathDenied`](railhead_abi::Code::PathDenied).
    pub fn make_state_dir(&self) -> Result<(), ConfigError> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.node.state_dir)
            .map_err(|error| ConfigError::state_dir(&self.path, &self.node.state_dir, &error))
    }
}
