//! Bad input: one clear error that names the field or the cause and the remedy, before anything starts or changes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod files;
mod peers;
mod requests;
