//! CUDA devices: GPU memory, copy engines, the resident copy kernel, and words that order streams with the dataplane.
//!
//! **Owns** everything that the driver is asked for: whether there is one ([`Driver`]), what its GPUs can do ([`Device`]),
//! memory of GPUs ([`DeviceMemory`]) and host memory that they reach ([`PinnedMemory`]).
//!
//! **Never** links the driver: it is opened at run time, and a machine without one gets a reason ([`Absent`]) and runs on.
//!
//! **Called by** registrar and start-up threads for everything that is slow (memory, registration, streams, modules: the
//! driver holds one lock per process meanwhile), and by lanes through [`CudaCopier`], which after construction allocates
//! nothing, takes no lock of ours, and makes a bounded number of driver calls a turn.
//!
//! A lane's copies, from slow to fast: a registrar opens a [`Gpu`], allocates or imports [`DeviceMemory`], registers the
//! staging arena as [`PinnedMemory`], makes [`StreamQueues`] and gives it all to the lane; the lane installs memories in
//! its [`CudaCopier`] and composes it with the host's copy engine by [`BothCopiers`]. Memory that is removed comes back by
//! [`CudaCopier::take_removed`] and is dropped by a registrar.
//!
//! ```no_run
//! use railhead_core::port::{CopyEngine, RegionIndex};
//! use railhead_cuda::*;
//!
//! # fn start(host: impl CopyEngine, arena: railhead_shm::OwnedSpan) -> Result<(), Box<dyn std::error::Error>> {
//! // On a start-up thread. An `Absent` is an event, and the node runs on: `BothCopiers::new(host, None, regions)`.
//! let driver = Driver::open()?;
//! let count = driver.device_count()?;
//! let gpus = (0..count).map(|ordinal| Gpu::open(&driver, ordinal)).collect::<Result<Vec<_>, _>>()?;
//! let arena = PinnedMemory::register(&gpus[0], arena, Pieces::Whole, || {})?;
//! let memory = DeviceMemory::allocate(&gpus[0], 64 << 20, &gpus[1..])?;
//! let config = CopierConfig::default();
//! let copier = CudaCopier::new(config, StreamQueues::new(&gpus, 3)?);
//! let mut copier = BothCopiers::new(host, Some(copier), config.regions);
//!
//! // On the lane, for each memory.
//! let region = RegionIndex(1);
//! copier.set_of_gpu(region, true);
//! let part = CopyMemory::Device { memory, gpu: 0, offset: 0, bytes: 64 << 20 };
//! let gpus = copier.gpus.as_mut().expect("made above");
//! gpus.install(RegionIndex::ARENA, CopyMemory::Host(arena)).expect("room");
//! gpus.install(region, part).expect("room");
//! # Ok(())
//! # }
//! ```

mod api;
mod both;
mod checksum;
mod client_memory;
mod copier;
pub mod device;
pub mod driver;
mod error;
mod fabric;
mod gpu;
pub mod host;
mod kernels;
pub mod memory;
pub mod pointer;
pub mod queues;
pub mod resident;
#[cfg(test)]
mod stand_in;
mod stream;
mod streams;

pub use both::BothCopiers;
pub use checksum::{Checksum, checksum, pattern};
pub use client_memory::ClientMemory;
pub use copier::{CopierConfig, CudaCopier, GpuLost, KernelLimits, QUEUES_MAX};
pub use device::{Device, WritesOrdering};
pub use driver::{Absent, Driver};
pub use error::CudaError;
pub use fabric::{CopyFabric, FabricConfig};
pub use gpu::Gpu;
pub use host::{Pieces, PinnedMemory, PinnedWords};
pub use kernels::Verifier;
pub use memory::{DeviceMemory, DmaBuf, MemoryError};
pub use pointer::{MemoryKind, Pointer};
pub use resident::{Permission, Resident, ResidentConfig, ResidentOff};
pub use stream::{Event, Stream};
pub use streams::{CopyMemory, StreamQueues};
