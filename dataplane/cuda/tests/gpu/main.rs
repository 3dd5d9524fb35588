//! What only a GPU can show. Ignored without being asked for, so that a run without a GPU says what it did not run;
//! `ops/gpu` runs them all on a machine that has one.

mod common;
mod conformance;
mod fabric;
mod memory;
mod order;
mod processes;
mod resident;
