//! Lock-free structures over borrowed 64-bit words: every atomic access of the dataplane is in this crate.
//!
//! It owns the memory orderings, and nothing else: rings ([`spsc`]), the sleep handshake ([`bell`]), the right
//! to use what its owner may take back ([`claim`]), the settings cell ([`cell`]), the overwriting log ([`log`]), counters
//! ([`counters`]) and the word they are made of ([`sync`]).
//! It never allocates, blocks, makes a system call or trusts the other side: words that a peer may write are
//! validated on each read and refused with an error, never asserted on. Any thread of any process may call it; each
//! type says how many callers one piece of memory may have.
//!
//! All structures live in memory that is given to them (`M: Deref<Target = [Word]>`), and all-zero memory is a valid,
//! empty structure. A second producer on one ring would lose or tear items, and nothing else. Unsafe code is in `sync` alone.
//!
//! With `--cfg loom` the words are loom's, and `tests/loom.rs` explores the interleavings. Each ordering is a named
//! [`sync::Site`] that `RAILHEAD_MUTANT=name` weakens at run time; the models must then fail (`mutants.txt`).
#![no_std]
#![deny(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

pub mod bell;
pub mod cell;
pub mod claim;
pub mod counters;
mod error;
pub mod log;
pub mod spsc;
#[allow(unsafe_code, reason = "items are copied into and out of slots at full width; see `copy_in`")]
pub mod sync;

pub use bell::Bell;
pub use cell::{CellReader, CellWriter, cell_words};
pub use claim::Claim;
pub use counters::Counters;
pub use error::{Busy, Corrupt, Full, LayoutError, PublishError};
pub use log::{Entry, LogReader, LogWriter, log_words};
pub use spsc::{Consumer, Producer, RING_HEADER_WORDS, ring_words};
pub use sync::Word;

/// Zeroed memory for the tests of this crate.
#[cfg(all(test, not(loom)))]
fn zeroed(words: usize) -> std::vec::Vec<Word> {
    core::iter::repeat_with(|| Word::new(0)).take(words).collect()
}
