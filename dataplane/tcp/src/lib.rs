//! The fabric for nodes without RDMA, and the authenticated channel between nodes.
//!
//! **Owns** data sockets, the frames on them, and the table of memories that peers may write. [`TcpFabric`] belongs to
//! one lane and is called on its thread only: all memory is allocated at construction, every call is non-blocking and
//! moves a bounded number of bytes. [`channel`] is ordinary blocking code for registrar threads.
//!
//! **Never** trusts what the other node sends: frames are checked before use, keys, ranges and rights when bytes are
//! placed. A bad frame ends its connection; a bad key or range only its write. Payload is not encrypted.
//!
//! ```text
//! registrar: channel::dial / accept -> channel::data::{dial, admit} -> socket
//! lane:      TcpFabric::attach(connection, socket) -> write / send / kick / poll
//! ```

mod busy;
pub mod channel;
mod fabric;
mod frame;
mod inbound;
mod outbound;
mod regions;
mod ring;
mod shared;
mod socket;
mod windows;

pub use fabric::{AttachError, AttachInfo, TcpConfig, TcpFabric};
pub use regions::RegionEntry;
pub use shared::TcpCounters;
