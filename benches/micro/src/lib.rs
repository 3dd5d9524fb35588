//! Micro-benchmarks of what a lane does per item and per turn; all code is in `benches/`.
//!
//! Run `cargo bench -p railhead-micro`. The figures compare within one run on one machine, never across machines.
#![forbid(unsafe_code)]
