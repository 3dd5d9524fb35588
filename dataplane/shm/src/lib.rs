//! Memory that several processes share, and the few system calls around it.
//!
//! **Owns** the step from a file descriptor to memory: sealed memfds, mappings, the one cast from mapped bytes to
//! [`Word`]s, spans over bytes that another process may write, the SIGBUS guard, in-process handoff of boxes, futex and
//! eventfd calls, and descriptor passing over Unix sockets.
//!
//! **Never** interprets what it carries (layouts are `railhead-abi`'s, orderings are `railhead-ring`'s), never names a
//! file in a shared-memory directory, and never forms a byte slice over memory that somebody else can write.
//!
//! **Called by** the daemon, the client library, control and the adapters. Mapping, unmapping, sockets and segments are
//! for registrar threads; [`Words`], [`Span`], [`handoff`], [`futex::wake`] and [`eventfd::ring`] are lane-safe: bounded,
//! non-blocking and without allocation.

pub mod eventfd;
pub mod futex;
pub mod guard;
pub mod handoff;
pub mod mapping;
pub mod memfd;
pub mod segment;
pub mod socket;
pub mod span;

pub use mapping::{Access, MapError, Mapping, ReadWords, Words};
pub use railhead_ring::sync::Word;
pub use span::{OutOfRange, OwnedSpan, Span};

// Offsets travel as u64 and are used as usize; both are the same 64 bits on every supported machine.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());
