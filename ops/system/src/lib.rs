//! Whole processes under test: nodes (a dataplane and a control each), what the kernel says of them, and their REST.
//!
//! **Owns** every process that it starts: dropping a [`Node`] stops its processes, and one that does not stop in time is
//! killed by its id. Their logs are shown when the test fails.
//!
//! **Never** looks inside a process: only sockets, REST and `/proc`.
//!
//! **Called by** tests. One [`Cluster`] lives at a time in a process, because lanes want cores of their own.

mod cluster;
mod files;
pub mod guest;
mod node;
mod process;
pub mod procfs;
mod rest;
pub mod trace;
mod wait;

pub use cluster::Cluster;
pub use files::{Exclusive, Folder, binary, free_port, write_key};
pub use node::{Node, NodeConfig, Peer};
pub use process::{Ended, Process, run};
pub use rest::{Answer, Rest};
pub use wait::{until, within};
