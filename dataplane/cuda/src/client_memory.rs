//! Memory as applications have it: of `cudaMalloc`, one allocation that its process frees when it likes.

use cudarc::driver::sys::CUipcMemHandle;

use crate::error::CudaError;
use crate::gpu::Gpu;

/// An allocation of `cuMemAlloc`, which is what `cudaMalloc` makes. The dataplane has none of its own: it imports them by
/// [`crate::DeviceMemory::open_ipc`]. For clients, tests and measurements.
#[derive(Debug)]
pub struct ClientMemory {
    gpu: Gpu,
    address: u64,
    bytes: u64,
}

impl ClientMemory {
    /// Allocates.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn allocate(gpu: &Gpu, bytes: u64) -> Result<Self, CudaError> {
        gpu.make_current()?;
        let mut address = 0;
        // SAFETY: the driver allocates and stores one address; freed once, in `drop`.
        let status = unsafe { (gpu.api().memory_allocate)(&raw mut address, bytes as usize) };
        gpu.api().check("cuMemAlloc", status)?;
        Ok(Self { gpu: gpu.clone(), address, bytes })
    }

    /// A handle by which *other* processes open the whole allocation. It stays with this one: free it only when they have
    /// closed it.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn ipc_handle(&self) -> Result<[u8; 64], CudaError> {
        self.gpu.make_current()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: memory of `cuMemAlloc` that lives as long as `self`; the driver stores 64 bytes.
        let status = unsafe { (self.gpu.api().ipc_get)(&raw mut handle, self.address) };
        self.gpu.api().check("cuIpcGetMemHandle", status)?;
        Ok(handle.reserved.map(i8::cast_unsigned))
    }

    /// First byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        // SAFETY: allocated in `allocate`, freed once; the driver waits for the device's work first.
        let _ = unsafe { (self.gpu.api().memory_free)(self.address) };
    }
}
