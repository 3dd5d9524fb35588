//! CUDA devices: GPU memory, copy engines, the resident copy kernel, and words that order streams with the dataplane.
//!
//! **Owns** everything that the driver is asked for: whether there is one ([`Driver`]), what its GPUs can do ([`Device`]),
//! memory of GPUs ([`DeviceMemory`]) and host memory that they reach ([`PinnedMemory`]).
//!
//! **Never** links the driver: it is opened at run time, and a machine without one gets a reason ([`Absent`]) and runs on.
//!
//! **Called by** registrar and start-up threads for everything that is slow (memory, registration, streams, modules: the
//! driver holds one lock per process meanwhile).

mod api;
pub mod device;
pub mod driver;
mod error;
mod gpu;
pub mod host;
pub mod memory;
pub mod pointer;
mod stream;

pub use device::{Device, WritesOrdering};
pub use driver::{Absent, Driver};
pub use error::CudaError;
pub use gpu::Gpu;
pub use host::{Pieces, PinnedMemory, PinnedWords};
pub use memory::{DeviceMemory, DmaBuf, MemoryError};
pub use pointer::{MemoryKind, Pointer};
pub use stream::Stream;
