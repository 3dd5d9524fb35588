//! The entries of the engine's tables. All state of a lane is in these; everything is found by index.

mod connection;
mod inbound;
mod region;
mod session;
mod transfer;

pub use connection::{Connection, ConnectionInfo, ConnectionPhase, Role, SMALL_CREDITS_MAX};
pub use inbound::{BlockEntry, BlockPhase, Inbound, Reader};
pub use region::{Region, RegionInfo, Remote, RemoteInfo};
pub use session::{Port, PortParts, SessionParts, SessionQueue};
pub use transfer::{ChunkEntry, ChunkPhase, GRANTS_MAX, Kind, Leg, Phase, Seal, Transfer};

/// A slot of the lane's table of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortIndex(pub u8);
