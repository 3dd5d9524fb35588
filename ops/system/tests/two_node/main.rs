//! Two real nodes over TCP, and one to itself.

#[path = "../support/mod.rs"]
mod support;

mod edges;
mod lanes;
mod notifications;
mod pressure;
mod refusals;
