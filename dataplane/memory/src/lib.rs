//! Where bytes wait: staging arenas on hugepages of one NUMA node, and shared regions. How an arena is
//! divided into blocks is the engine's (`railhead_core::pool::PoolShape`).
//!
//! **Owns** the reservation of memory before the seal and each step down from what was asked for: which pages, which
//! node, locked or not. **Never** touches memory on the hot path, and never hides a step down: every one is recorded with
//! its reason and error number, for the caller to publish as an event.
//!
//! **Called by** the daemon's main, registrar and settings threads, and by the client library (regions). Never on a lane:
//! populating is slow.

pub mod arena;
pub mod extent;
pub mod host_region;
pub mod pages;
mod step;

pub use arena::{Arena, ArenaConfig, ArenaError, Placement};
pub use extent::{Extent, MoveError};
pub use pages::Policy;
pub use step::{Backing, Reason, StepDown};
