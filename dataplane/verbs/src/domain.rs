//! Protection domains: which registrations and queue pairs may meet.

use core::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::{ibv_alloc_parent_domain, ibv_alloc_td, ibv_dealloc_td, ibv_pd, ibv_td};

use crate::device::Device;
use crate::error::VerbsError;

/// A protection domain of a device: memory registered in it can be named by queue pairs made in it, and by no others.
#[derive(Debug)]
pub struct Domain {
    device: Arc<Device>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: libibverbs allows calls on one domain from several threads; it is freed only by the last owner's drop.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new domain.
    ///
    /// # Errors
    /// That of `ibv_alloc_pd`.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: a live context.
        let pd = unsafe { (device.library.ibv_alloc_pd)(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| VerbsError::last("ibv_alloc_pd", device.name()))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    /// The device that it is of.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) const fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: registrations, queue pairs and lane domains hold an owner, so none is left.
        unsafe { (self.device.library.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// A domain as one lane uses it: where the provider has thread domains, its queue pairs need no locks.
#[derive(Debug)]
pub struct LaneDomain {
    domain: Arc<Domain>,
    thread: Option<(NonNull<ibv_td>, NonNull<ibv_pd>)>,
}

// SAFETY: as for Domain; that only one thread posts on what is made in it is for the queue pairs to say.
unsafe impl Send for LaneDomain {}
// SAFETY: as above.
unsafe impl Sync for LaneDomain {}

impl LaneDomain {
    /// For one lane. A provider without thread domains is no error.
    #[must_use]
    pub fn new(domain: &Arc<Domain>) -> Arc<Self> {
        let context = domain.device.context.as_ptr();
        // SAFETY: a live context.
        let thread = NonNull::new(unsafe { ibv_alloc_td(context) }).and_then(|td| {
            // SAFETY: domain and thread domain are of this context.
            match NonNull::new(unsafe { ibv_alloc_parent_domain(context, domain.as_ptr(), td.as_ptr()) }) {
                Some(pd) => Some((td, pd)),
                None => {
                    // SAFETY: made above, used by nothing.
                    unsafe { ibv_dealloc_td(td.as_ptr()) };
                    None
                }
            }
        });
        Arc::new(Self { domain: Arc::clone(domain), thread })
    }

    /// The domain that it stands for.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Whether the provider gave a thread domain.
    #[must_use]
    pub const fn is_threaded(&self) -> bool {
        self.thread.is_some()
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.thread.map_or(self.domain.as_ptr(), |(_, pd)| pd.as_ptr())
    }
}

impl Drop for LaneDomain {
    fn drop(&mut self) {
        if let Some((td, pd)) = self.thread {
            // SAFETY: the queue pairs made in it hold an owner, so none is left; a parent domain goes before its parts.
            unsafe {
                (self.domain.device.library.ibv_dealloc_pd)(pd.as_ptr());
                ibv_dealloc_td(td.as_ptr());
            }
        }
    }
}
