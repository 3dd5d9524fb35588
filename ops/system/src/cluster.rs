//! Nodes that know each other.

use std::time::Duration;

use crate::files::{Exclusive, Folder, write_key};
use crate::node::{Node, NodeConfig, Peer};
use crate::wait::until;

/// How long nodes may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// One to a few nodes on this machine, all peers of each other. Nothing else of this process has a cluster meanwhile.
#[derive(Debug)]
pub struct Cluster {
    // In order of their drop: processes, then files, then the turn.
    /// The nodes, as they were given.
    pub nodes: Vec<Node>,
    folder: Folder,
    _exclusive: Exclusive,
}

impl Cluster {
    /// Makes the files of nodes that are each other's peers; starts nothing.
    #[must_use]
    pub fn prepare(mut configs: Vec<NodeConfig>) -> Self {
        let all: Vec<Peer> = configs
            .iter()
            .map(|config| Peer { name: config.name.clone(), port: config.fabric_port })
            .collect();
        for config in &mut configs {
            config.peers = all.iter().filter(|peer| peer.name != config.name).cloned().collect();
        }
        Self::prepare_as_they_are(configs)
    }

    /// Makes the files of nodes that know the peers that they are given with; starts nothing.
    #[must_use]
    pub fn prepare_as_they_are(configs: Vec<NodeConfig>) -> Self {
        let exclusive = Exclusive::wait();
        let folder = Folder::new();
        write_key(&folder.join("cluster.key"), '7');
        let nodes = configs.into_iter().map(|config| Node::new(config, folder.path())).collect();
        Self { nodes, folder, _exclusive: exclusive }
    }

    /// Starts all and waits until they are connected.
    #[must_use]
    pub fn start(configs: Vec<NodeConfig>) -> Self {
        let mut cluster = Self::prepare(configs);
        for node in &mut cluster.nodes {
            node.start_dataplane();
        }
        for node in &mut cluster.nodes {
            node.start_control();
        }
        cluster.await_connected();
        cluster
    }

    /// Two nodes `a` and `b` of one lane each.
    #[must_use]
    pub fn pair() -> Self {
        Self::start(vec![NodeConfig::new("a"), NodeConfig::new("b")])
    }

    /// Node `a`.
    #[must_use]
    pub fn a(&self) -> &Node {
        &self.nodes[0]
    }

    /// Node `b`.
    ///
    /// # Panics
    /// If there is one only.
    #[must_use]
    pub fn b(&self) -> &Node {
        &self.nodes[1]
    }

    /// The folder of all files.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Waits until every node says that all its peers are up.
    ///
    /// # Panics
    /// If one does not in time.
    pub fn await_connected(&self) {
        for node in &self.nodes {
            let wanted = node.config.peers.len();
            let what = format!("{wanted} peers of {} up", node.config.name);
            until(&what, CONNECT_LIMIT, || {
                let answer = node.rest().try_get("/v1/node")?;
                let peers = answer.json["peers"].as_array()?;
                let up = peers.iter().filter(|peer| peer["state"] == "up").count();
                (up == wanted).then_some(())
            });
        }
    }

    /// Stops all with SIGTERM; each process must end with success.
    pub fn stop(mut self) {
        for node in &mut self.nodes {
            node.stop();
        }
    }
}
