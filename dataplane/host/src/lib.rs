//! The CPU as a copy engine, and the local fabric: transfers whose peer is this node itself.
//!
//! **Owns** two fixed tables of memories (one per adapter), the queues of posted copies, writes and records, and the work
//! of a lane's copy thread. All of it is allocated at construction; afterwards nothing here allocates or locks, and the only
//! system calls are those by which the copy thread sleeps and is woken.
//!
//! **Never** decides where bytes go, keeps an address across calls (each slice looks its memory up again, so memory can
//! be removed at any moment), or forms a slice over memory that a client can write.
//!
//! **Called by** one lane, on its thread, but for [`CopyThread::run`], which has one of its own. Every `poll` moves at most
//! `slice_bytes`; longer work is resumed by the next.

mod copier;
mod local;
mod regions;

pub use copier::{CopierConfig, CopyThread, Helper, HostCopier, copy_thread};
pub use local::{LocalConfig, LocalFabric};
