//! Simulated devices: memory, a network of fabrics, copy engines and a clock, all driven by one seed, with decorators
//! that inject faults, conformance tests for every backend, and worlds that run whole engines over them.
//!
//! It owns no real device and never reads a clock. It is single-threaded: everything of one simulation belongs to the
//! thread that made it. Tests and the adapters' tests use it.
#![forbid(unsafe_code)]

mod clock;
pub mod conformance;
mod copier;
mod faulty;
mod latency;
mod memory;
mod network;
mod rng;
pub mod world;

pub use clock::SimClock;
pub use copier::{CopierConfig, SimCopier};
pub use faulty::{FaultPlan, FaultSwitch, Faulty};
pub use latency::Latency;
pub use memory::{Hold, Installed, SimMemory, SimRegions, Use, Window};
pub use network::{LaneId, Network, NetworkConfig, SimFabric};
pub use rng::Rng;
