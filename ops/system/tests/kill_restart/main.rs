//! Each process killed with SIGKILL in turn, under load, and started again: every accepted submission completes exactly
//! once, nobody else notices, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod control;
mod dataplanes;
mod load;
