//! Two real nodes over TCP, and one to itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod copies;
mod edges;
mod lanes;
mod notifications;
mod pressure;
mod reads;
mod refusals;
