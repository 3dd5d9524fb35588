//! What a start comes to: the configuration, checked against the machine, before anything is made.

use railhead_abi::Code;
use railhead_abi::settings::Limits;
use railhead_config::{Config, Hugepages, peers_file};
use railhead_core::pool::PoolShape;
use railhead_memory::{ArenaConfig, Policy};

use crate::copies::Copies;
use crate::error::StartError;
use crate::lane::connections::Map;
use crate::machine::{self, Cores};
use crate::settings::StartSettings;

/// A client gets one descriptor for each lane, and two more, in one message.
const _: () = assert!(railhead_shm::socket::FDS_MAX >= railhead_abi::settings::LANES_MAX + 2);

/// The cluster key; not to be printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClusterKey(pub(crate) [u8; 32]);

impl core::fmt::Debug for ClusterKey {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("ClusterKey")
    }
}

/// A start that is known to make sense.
#[derive(Debug)]
pub struct Plan {
    pub(crate) config: Config,
    pub(crate) key: ClusterKey,
    pub(crate) allowed: Cores,
    pub(crate) limits: Limits,
    pub(crate) start: StartSettings,
    pub(crate) uids: Vec<u32>,
    /// Why the saved peers were not used, if there were some.
    pub(crate) peers_ignored: Option<(Code, String)>,
}

impl Plan {
    /// Checks a configuration against this machine and this process. Makes nothing.
    ///
    /// # Errors
    /// The first contradiction, naming the field.
    pub fn new(mut config: Config) -> Result<Self, StartError> {
        let key = config.fabric.read_key().map_err(|error| {
            StartError::new(error.code, "fabric.key_file", error.what).remedy(error.remedy)
        })?;
        let peers_ignored = overlay_peers(&mut config);
        if let Some(node) = config.pool.numa_node
            && !std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
        {
            return Err(StartError::new(
                Code::ConfigContradiction,
                "pool.numa_node",
                format!("no node {node} here"),
            ));
        }
        let allowed = Cores::allowed()?;
        let limits = config.limits(allowed.0, machine::numa_mask());
        let start = StartSettings::load(&config, &limits)?;
        let own = rustix::process::geteuid().as_raw();
        let uids = config.session.uids.clone().unwrap_or_else(|| vec![own, 0]);
        let plan = Self { config, key: ClusterKey(key), allowed, limits, start, uids, peers_ignored };
        if !plan.pool().is_sound() {
            return Err(StartError::new(
                Code::ConfigContradiction,
                "pool",
                "block sizes do not fit together",
            ));
        }
        Ok(plan)
    }

    /// What `--check` prints.
    #[must_use]
    pub fn summary(&self) -> String {
        let (config, pool) = (&self.config, self.pool().bytes() >> 20);
        let (node, lanes, peers) = (&config.node.name, config.dataplane.lanes, config.peers.len());
        let cores = self.allowed.text();
        format!("{node}: {lanes} lane(s) with {pool} MiB each, {peers} peer(s), may run on cores {cores}")
    }

    /// How much to log, as a filter of `tracing`.
    #[must_use]
    pub fn log_filter(&self) -> &'static str {
        self.config.dataplane.log.name()
    }

    /// The blocks of each lane.
    pub(crate) fn pool(&self) -> PoolShape {
        let pool = &self.config.pool;
        PoolShape {
            large_bytes: pool.large_bytes,
            small_bytes: pool.small_bytes,
            large_send: pool.large_send,
            large_receive: pool.large_receive,
            small_send: pool.small_send,
            small_receive: pool.small_receive,
        }
    }

    /// Where the blocks of each lane shall lie.
    pub(crate) fn arena(&self) -> ArenaConfig {
        let huge = match self.config.pool.hugepages {
            Hugepages::Prefer => Policy::Prefer,
            Hugepages::Require => Policy::Require,
            Hugepages::Never => Policy::Never,
        };
        ArenaConfig { bytes: self.pool().bytes(), huge, numa_node: self.config.pool.numa_node }
    }

    /// Whether lanes have copy threads.
    pub(crate) fn copies(&self) -> Copies {
        Copies::of(&self.config.dataplane, self.allowed.count())
    }

    /// Which connection of a lane is which.
    pub(crate) fn map(&self) -> Map {
        Map::new(self.config.peers_room(), self.config.dataplane.lanes)
    }
}

/// Puts the peers that control saved in the place of the configuration's. Says why, if it cannot be done.
fn overlay_peers(config: &mut Config) -> Option<(Code, String)> {
    match peers_file::load(&config.node.state_dir) {
        Ok(None) => None,
        Ok(Some(saved)) => match config.check_peers(&saved) {
            Ok(()) => {
                config.peers = saved;
                None
            }
            Err(error) => Some((error.code, format!("{}: {}", error.field, error.what))),
        },
        Err(error) => Some((Code::ConfigSyntax, error.to_string())),
    }
}

#[cfg(test)]
mod tests;
