//! A GPU in use: its primary context, retained.

use core::ffi::c_uint;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice};

use crate::api::Api;
use crate::device::{self, Device};
use crate::driver::Driver;
use crate::error::CudaError;

/// A GPU whose primary context this process holds. Clones share it; the last one gives it back (slow; not on lanes).
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    device: Device,
    handle: CUdevice,
    context: CUcontext,
}

// SAFETY: the driver's handles may be used from every thread (CUDA Driver API, "Difference between the driver and
// runtime APIs": contexts can be current to several threads); the rest is plain data.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Inner {}

impl Gpu {
    /// Takes a GPU into use. Slow (some 100 ms the first time).
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn open(driver: &Driver, ordinal: u32) -> Result<Self, CudaError> {
        let device = Device::read(driver, ordinal)?;
        let handle = device::handle(driver, ordinal)?;
        let mut context = core::ptr::null_mut();
        // SAFETY: a handle of this driver; it stores one pointer. The context is released once, by `Inner::drop`.
        let status = unsafe { (driver.api.context_retain)(&raw mut context, handle) };
        driver.api.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(Self { inner: Arc::new(Inner { driver: driver.clone(), device, handle, context }) })
    }

    /// What is known of it.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Makes its context current to the calling thread: what most calls of the driver ask for. Cheap.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained while `self` lives.
        let status = unsafe { (self.api().context_set)(self.inner.context) };
        self.api().check("cuCtxSetCurrent", status)
    }

    /// Whether this GPU can reach the other's memory without the host (over NVLink or PCIe).
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn can_reach(&self, other: &Gpu) -> Result<bool, CudaError> {
        let mut answer = 0;
        // SAFETY: two handles of this driver; it stores one integer.
        let status = unsafe {
            (self.api().device_can_access_peer)(&raw mut answer, self.inner.handle, other.inner.handle)
        };
        self.api().check("cuDeviceCanAccessPeer", status)?;
        Ok(answer != 0)
    }

    /// Lets copies and kernels of this GPU reach memory of the other that was not allocated here: imported memory, and
    /// `cuMemAlloc`. (Memory of [`crate::DeviceMemory`] names its peers itself.) Repeating it does nothing.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn reach(&self, other: &Gpu) -> Result<(), CudaError> {
        const ALREADY: i32 = 704;
        self.make_current()?;
        // SAFETY: the other's context is retained while `other` lives; 0 is the only flag there is.
        let status = unsafe { (self.api().context_enable_peer)(other.inner.context, 0 as c_uint) };
        if status == ALREADY { Ok(()) } else { self.api().check("cuCtxEnablePeerAccess", status) }
    }

    /// Makes what NICs have written to this GPU's memory, and told the end of, visible to all its kernels: what
    /// [`Device::running_kernels_see_writes`] says is not needed everywhere. Only where [`Device::flush_by_host`]. Waits for
    /// some microseconds.
    ///
    /// # Errors
    /// [`CudaError`]; error 801 where the driver lacks the call.
    pub fn flush_writes(&self) -> Result<(), CudaError> {
        const CURRENT_CONTEXT: c_uint = 0;
        const TO_OWNER: c_uint = 100;
        let call = "cuFlushGPUDirectRDMAWrites";
        let Some(flush) = self.api().flush_writes else {
            return Err(CudaError { call, number: 801, name: "CUDA_ERROR_NOT_SUPPORTED" });
        };
        self.make_current()?;
        // SAFETY: a fence of the device whose context is current; it takes no memory.
        let status = unsafe { flush(CURRENT_CONTEXT, TO_OWNER) };
        self.api().check(call, status)
    }

    pub(crate) fn api(&self) -> &Api {
        &self.inner.driver.api
    }

    pub(crate) fn context(&self) -> CUcontext {
        self.inner.context
    }

    pub(crate) fn ordinal(&self) -> i32 {
        i32::try_from(self.inner.device.ordinal).unwrap_or(i32::MAX)
    }
}

impl PartialEq for Gpu {
    /// The same device of this machine.
    fn eq(&self, other: &Self) -> bool {
        self.inner.handle == other.inner.handle
    }
}

impl Eq for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.inner.device;
        formatter.debug_struct("Gpu").field("ordinal", &device.ordinal).field("name", &device.name).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`, released once here. What was made in the context holds a clone of the `Gpu`,
        // so none of it is left. An error (a lost GPU) leaves nothing to do.
        let _ = unsafe { (self.driver.api.context_release)(self.handle) };
    }
}
