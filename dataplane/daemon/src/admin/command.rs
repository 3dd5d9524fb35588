//! What control asks that is no setting: one enum, checked here and carried out for one process at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{ADMIN_PEER_ADD, ADMIN_PEER_REMOVE, AdminCommand, Text};
use railhead_config::{Config, ConfigError, Peer};

use crate::peers::Peers;
use crate::peers::directory::PeerName;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A peer that is to be known from now on.
    AddPeer {
        /// Its name.
        name: String,
        /// Where it listens.
        address: String,
    },
    /// A peer that is not to be known any more.
    RemovePeer {
        /// Its name.
        name: String,
        /// How long transfers to it may take to end by themselves.
        drain: Duration,
    },
}

/// Why a command was not carried out; nothing changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Which of the frozen codes.
    pub(crate) code: Code,
    /// The field of the command to blame; may be empty.
    pub(crate) field: String,
    /// What is wrong this time.
    pub(crate) detail: String,
}

impl Refusal {
    /// A refusal that blames `field`.
    pub(crate) fn new(code: Code, field: &str, detail: impl Into<String>) -> Self {
        Self { code, field: field.to_owned(), detail: detail.into() }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        // The place in the list of peers means nothing to whoever named one peer.
        let field = match error.field.split_once("].") {
            Some((_, field)) => field.to_owned(),
            None => error.field,
        };
        Self { code: error.code, field, detail: error.what }
    }
}

impl Command {
    /// Reads a command from its frame.
    ///
    /// # Errors
    /// [`Code::FrameMalformed`].
    pub(crate) fn read(frame: &AdminCommand) -> Result<Self, Refusal> {
        let name = Text::of(&frame.name).as_str().to_owned();
        match frame.command {
            ADMIN_PEER_ADD => {
                Ok(Self::AddPeer { name, address: Text::of(&frame.address).as_str().to_owned() })
            }
            ADMIN_PEER_REMOVE => {
                Ok(Self::RemovePeer { name, drain: Duration::from_millis(u64::from(frame.limit_ms)) })
            }
            other => Err(Refusal::new(Code::FrameMalformed, "command", other.to_string())),
        }
    }
}

/// Carries commands out.
#[derive(Debug)]
pub(crate) struct Commands {
    peers: Arc<Peers>,
    config: Config,
    /// Held while a peer is judged and added, so that two of them are judged against each other.
    adding: Mutex<()>,
}

impl Commands {
    /// For these peers, judged against the rest of the configuration.
    pub(crate) fn new(peers: Arc<Peers>, config: Config) -> Self {
        Self { peers, config, adding: Mutex::new(()) }
    }

    /// Carries one out. Returns the figure of its answer.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(crate) fn carry_out(&self, command: Command) -> Result<u64, Refusal> {
        match command {
            Command::AddPeer { name, address } => self.add_peer(name, address),
            Command::RemovePeer { name, drain } => {
                let removed = self.peers.remove(&name, drain);
                removed.map(u64::from).map_err(|code| Refusal::new(code, "name", name))
            }
        }
    }

    fn add_peer(&self, name: String, address: String) -> Result<u64, Refusal> {
        let _turn = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.peers.known();
        if all.iter().any(|peer| peer.name == name) {
            return Err(Refusal::new(Code::NameTaken, "name", format!("\"{name}\" is a peer of this node")));
        }
        all.push(Peer { name: name.clone(), address: address.clone() });
        self.config.check_peers(&all)?;
        let added = self.peers.add(PeerName { name: &name, address: &address });
        added.map(u64::from).map_err(|code| Refusal::new(code, "name", name))
    }
}
