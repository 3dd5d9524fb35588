//! Control: REST over the settings, counters and records of one dataplane.
//!
//! **Owns** the settings cell of the dataplane's control segment and the settings file: validation, publication,
//! acknowledgement, history, rollback ([`writer`]); the peers file ([`peers`]); the link to the dataplane over its admin socket ([`link`]); the routes
//! ([`api`]) and the server ([`server`]).
//!
//! **Never** touches data, writes any other word of the segment, or is needed by a running lane: it can be killed and
//! started again at any time. It binds loopback addresses and Unix sockets only.
//!
//! **Called by** `railhead-control` on a tokio runtime; the link has a thread of its own, and whatever waits for the
//! dataplane does so on blocking threads. The command `railhead` is a client of the routes; of this library
//! it uses [`text`] only.
#![forbid(unsafe_code)]

pub mod api;
pub mod event;
pub mod history;
pub mod link;
pub mod patch;
pub mod peers;
pub mod problem;
pub mod segment;
pub mod server;
pub mod text;
pub mod transfer;
pub mod view;
pub mod writer;

pub use server::{Bound, Control, StartError};
