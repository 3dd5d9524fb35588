//! The dataplane process: one per node, it moves the bytes.
//!
//! **Owns** the order in which a node comes up and goes down; the lanes' threads and their seal; the registrar, which is
//! everything slow between the world and the lanes: sessions of clients, regions, remote handles, channels to peers, data
//! connections; the settings thread, which prepares what control publishes; the control segment and the sockets.
//!
//! **Never** moves a byte of payload itself (the engine and the adapters do), parses JSON, or lets an ordinary thread's
//! work delay a lane: what a lane has to know comes by a ring of boxes.
//!
//! **Called by** `main`, and by tests that run several nodes in one process.
//!
//! ```text
//!  main            plan -> take sockets -> lanes (reserve, build, seal) -> registrar threads -> wait for a signal
//!  railhead-lane-N engine turn | wake clients | notices out | commands in | settings | sleep        (lane.rs)
//!  railhead-notice reads all lanes' returns: answers, notices, spare boxes                           (notices.rs)
//!  railhead-set    judges and prepares snapshots, pins lanes, collects acknowledgements              (settings.rs)
//!  railhead-client one per session: attach, register, open, release, and the end of all of it        (session.rs)
//!  railhead-admin  one per control process: hands out the segment, one holder at a time              (admin.rs)
//!  railhead-peer-N the channel to a peer: opens, plans, heartbeats                                    (peers.rs)
//!  railhead-dial-N data connections that lanes want                                                   (peers/data.rs)
//! ```
//!
//! Waiting is allowed to ordinary threads only, and in one direction: sessions and peers wait for lanes (through the
//! notices thread), the notices thread and the settings thread wait for nobody, and lanes only for their epoll set.

mod acceptor;
mod admin;
pub mod allocator;
mod clock;
mod copies;
mod endpoint;
mod error;
mod events;
mod grants;
mod lane;
pub mod log;
mod machine;
mod node;
mod notices;
mod peers;
mod places;
mod plan;
mod rdma;
mod registrar;
mod segment;
mod session;
mod settings;
#[cfg(test)]
mod stub;
mod tables;

pub use error::StartError;
pub use node::Node;
pub use plan::Plan;
