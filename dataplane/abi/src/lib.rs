//! What Railhead's processes and nodes share: submissions and completions, records, frames, settings,
//! segments, codes. It owns no memory and touches no device; anyone may call it, on any thread.
//!
//! Everything is arrays of 64-bit words (see [`words`]), so nothing here depends on a compiler's
//! layout, and all of it is `no_std` without unsafe code. A change of any layout raises
//! [`ABI_VERSION`]; a gate compares the table of [`layout::write_table`] with the committed one.
#![no_std]
#![forbid(unsafe_code)]

pub mod codes;
pub mod frame;
pub mod layout;
pub mod observe;
pub mod record;
pub mod segment;
pub mod settings;
pub mod submission;
pub mod words;

pub use codes::Code;
pub use submission::Reason;

/// Version of everything that processes on one node share.
pub const ABI_VERSION: u32 = 1;
/// Version of what nodes share: another major version is refused.
pub const PROTOCOL_MAJOR: u16 = 1;
/// Minor version: the lower of two nodes is spoken.
pub const PROTOCOL_MINOR: u16 = 0;
