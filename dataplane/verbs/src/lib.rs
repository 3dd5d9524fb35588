//! The fabric over RDMA: reliable connected queue pairs of libibverbs, which is opened at run time.
//!
//! **Owns** devices, registrations, queue pairs, and the tables that turn the engine's places and keys into addresses and
//! NIC keys. [`VerbsFabric`] belongs to one lane and is called on its thread only. Everything slow is of registrar threads
//! and hands finished things to the lane: [`Nic`], [`Rail`], [`Endpoint`], [`MemoryRegion`], [`RegistrationCache`],
//! [`Flusher`]; the [`Closer`] ends queue pairs when a lane wishes it.
//!
//! **Never** links libibverbs, polls payload for arrival, or trusts a peer's messages. Peers that hold the cluster key are
//! trusted with the memory of their protection domain; what a key, a range or a right of theirs does not permit is refused
//! here before it reaches their NIC.
//!
//! ```text
//! start:     Library::open -> Nic::open(config) -> Closer::start -> Rail::new(nic, closer, connections, sizes), per lane
//!            VerbsFabric::new(config, rails); MemoryRegion::register(nic.domain(), arena, MemoryAccess::granting(..));
//!            fabric.install(ARENA, RegionEntry::of_host(..))
//! regions:   RegistrationCache::get(key, || MemoryRegion::register(..)) -> Lease, or nothing: then the region is staged;
//!            lane: fabric.install(region, entry); when the engine says that it is drained: remove, then drop the lease
//! connect:   rail.prepare(connection) -> endpoint; exchange endpoint.info() (words for a frame) and the arena's
//!            RemoteMemory over the authenticated channel; endpoint.connect(peer's info) -> Ready
//!            lane: fabric.attach(ready, AttachInfo { peer, rail, arena }), then the engine's connection_up
//! handles:   lane: fabric.install_remote(peer, key index, RemoteMemory) when a remote handle opens, remove_remote first
//!            when it closes or is revoked; the target deregisters after the holders' drain
//! end:       after Down: fabric.fault(connection) says why, fabric.take_retired(connection) is for a registrar to drop
//! watch:     nic.wait_event(timeout) -> Event; on a change of addresses or port: nic.refresh()
//! GPUs:      MemoryRegion::register_dma_buf; fabric.set_flusher(rail, Flusher::new(rail), targets), flush_needed
//! ```

mod bits;
mod cache;
mod closer;
mod completion_queue;
mod connection;
mod counters;
mod device;
mod domain;
mod error;
mod events;
mod fabric;
mod fault;
mod flush;
mod gid;
mod identity;
mod mailbox;
mod memory;
mod message;
mod nic;
mod port;
mod post;
mod queue_pair;
mod rail;
mod ring;
mod tables;
mod tell;
mod topology;

pub use cache::{CacheCounters, CacheKey, Lease, PinBudget, Pinned, RegistrationCache};
pub use closer::Closer;
pub use completion_queue::CompletionQueue;
pub use counters::RailCounters;
pub use device::{Device, DeviceEntry, DeviceLimits, PortState, list};
pub use domain::{Domain, LaneDomain};
pub use error::VerbsError;
pub use events::Event;
pub use fabric::{AttachError, AttachInfo, VerbsConfig, VerbsFabric};
pub use fault::Fault;
pub use flush::{FLUSH_TARGETS_MAX, FlushTarget, Flusher};
pub use gid::{Gid, GidEntry, GidKind, candidates, choose, table};
pub use memory::{DmaBuf, MemoryAccess, MemoryRegion, dma_buf_works};
pub use nic::{Nic, NicConfig};
pub use queue_pair::{Patience, QueuePair};
pub use rail::{ConnectionFacts, ConnectionSizes, Endpoint, EndpointInfo, INFO_WORDS, Rail, Ready};
pub use rdma_core_sys::{Library, LoadError};
pub use tables::{RAILS_MAX, REMOTE_MEMORY_WORDS, RegionEntry, RemoteMemory};
pub use topology::{Distance, Site};
