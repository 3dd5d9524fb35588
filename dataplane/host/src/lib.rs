//! The CPU as a copy engine, and the local fabric: transfers whose peer is this node itself.
//!
//! **Owns** two fixed tables of memories (one per adapter) and the queues of posted copies, writes and records. All of
//! it is allocated at construction; afterwards nothing here allocates, blocks, locks or makes a system call.
//!
//! **Never** decides where bytes go, keeps an address across calls (each slice looks its memory up again, so memory can
//! be removed at any moment), or forms a slice over memory that a client can write.
//!
//! **Called by** one lane, on its thread. Every `poll` moves at most `slice_bytes`; longer work is resumed by the next.

mod copier;
mod local;
mod regions;

pub use copier::{CopierConfig, HostCopier};
pub use local::{LocalConfig, LocalFabric};
