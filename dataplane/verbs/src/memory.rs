//! Registered memory. Everything here is slow (tens of microseconds to milliseconds): registrar threads only.

use core::ptr::NonNull;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_shm::OwnedSpan;
use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    ibv_mr,
};

use crate::domain::Domain;
use crate::error::VerbsError;

/// What may be done with registered memory, and how. The NIC may always read it for its own posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemoryAccess {
    /// Own posts may write it: targets of reads, receive buffers.
    pub local_write: bool,
    /// Peers that hold the key may write it.
    pub remote_write: bool,
    /// Peers that hold the key may read it.
    pub remote_read: bool,
    /// Writes may be placed in any order before their completion: faster on some machines. Never for memory whose arrival
    /// is seen by looking at it. Dropped where library or kernel do not know it.
    pub relaxed_ordering: bool,
}

impl MemoryAccess {
    /// For a region that is granted with these rights ([`ACCESS_READ`], [`ACCESS_WRITE`]).
    ///
    /// What may be written may be read by the NIC: a confirm reads the last byte written. Whether a peer may read, its
    /// table says.
    #[must_use]
    pub const fn granting(access: u32, relaxed_ordering: bool) -> Self {
        let is_written = access & ACCESS_WRITE != 0;
        let is_read = access & ACCESS_READ != 0;
        Self {
            local_write: is_written,
            remote_write: is_written,
            remote_read: is_read || is_written,
            relaxed_ordering,
        }
    }

    fn flags(self) -> u32 {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        // A remote write needs the local one.
        flag(self.local_write || self.remote_write, IBV_ACCESS_LOCAL_WRITE)
            | flag(self.remote_write, IBV_ACCESS_REMOTE_WRITE)
            | flag(self.remote_read, IBV_ACCESS_REMOTE_READ)
            | flag(self.relaxed_ordering, IBV_ACCESS_RELAXED_ORDERING)
    }
}

/// A dma-buf to register: memory of another device, such as a GPU.
#[derive(Debug, Clone, Copy)]
pub struct DmaBuf<'a> {
    /// Its descriptor; may be closed after the registration, which holds a reference of its own.
    pub file: BorrowedFd<'a>,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Address that posts name the first byte by; its offset in the page must be that of `offset`.
    pub address: u64,
}

/// A registration. Deregistered when the last owner drops it: before that, every post that names it must have ended, or the
/// connection of that post fails.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<Domain>,
    mr: NonNull<ibv_mr>,
    address: u64,
    bytes: u64,
    /// The memory stays mapped as long as the NIC may reach it.
    _memory: Option<OwnedSpan>,
}

// SAFETY: a registration is a handle; libibverbs locks its calls; it ends only with the last owner.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers host memory. Its pages are pinned.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`] when too little may be pinned, else that of the call.
    pub fn register(
        domain: &Arc<Domain>,
        memory: &OwnedSpan,
        access: MemoryAccess,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = domain.device();
        let (address, bytes) = (memory.address(), memory.len());
        let start = core::ptr::with_exposed_provenance_mut(address);
        let flags = access.flags();
        // SAFETY: the domain is live; the memory stays mapped while the registration lives, since it holds an owner, and
        // no Rust reference exists to it (OwnedSpan), so that the NIC may write it.
        let mr = unsafe {
            match device.library.ibv_reg_mr_iova2 {
                Some(register) if access.relaxed_ordering => {
                    register(domain.as_ptr(), start, bytes, address as u64, flags)
                }
                _ => {
                    let flags = (flags & !IBV_ACCESS_RELAXED_ORDERING).cast_signed();
                    (device.library.ibv_reg_mr)(domain.as_ptr(), start, bytes, flags)
                }
            }
        };
        let mr = NonNull::new(mr).ok_or_else(|| refused("ibv_reg_mr", domain, bytes as u64))?;
        let _memory = Some(memory.clone());
        Ok(Arc::new(Self {
            domain: Arc::clone(domain),
            mr,
            address: address as u64,
            bytes: bytes as u64,
            _memory,
        }))
    }

    /// Registers a dma-buf. Whether it works is only known by trying: see [`dma_buf_works`].
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] where library, kernel or device cannot, else that of the call.
    pub fn register_dma_buf(
        domain: &Arc<Domain>,
        buffer: DmaBuf<'_>,
        access: MemoryAccess,
    ) -> Result<Arc<Self>, VerbsError> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let device = domain.device();
        let Some(register) = device.library.ibv_reg_dmabuf_mr else {
            return Err(VerbsError::returned(CALL, device.name(), libc::EOPNOTSUPP));
        };
        let DmaBuf { file, offset, bytes, address } = buffer;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let flags = access.flags().cast_signed();
        // SAFETY: the domain and the descriptor are live; the kernel checks the range and keeps the buffer alive.
        let mr = unsafe { register(domain.as_ptr(), offset, length, address, file.as_raw_fd(), flags) };
        let mr = NonNull::new(mr).ok_or_else(|| refused(CALL, domain, bytes))?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), mr, address, bytes, _memory: None }))
    }

    /// Address that posts name the first byte by.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Key of own posts.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        // SAFETY: a live registration; its keys never change.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// Key of peers.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// The domain that it is registered in.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the last owner: nobody names it any more. A refusal leaves a registration behind that the kernel takes
        // back when the device is closed; the memory is kept by the kernel's own pin.
        unsafe { (self.domain.device().library.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Whether this device registers dma-bufs at all: asks with no descriptor, so that "bad descriptor" means yes.
#[must_use]
pub fn dma_buf_works(domain: &Domain) -> bool {
    let Some(register) = domain.device().library.ibv_reg_dmabuf_mr else { return false };
    // SAFETY: a live domain; the kernel refuses the descriptor before it looks at anything else.
    let mr = unsafe { register(domain.as_ptr(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE.cast_signed()) };
    if let Some(mr) = NonNull::new(mr) {
        // SAFETY: made above, used by nothing.
        unsafe { (domain.device().library.ibv_dereg_mr)(mr.as_ptr()) };
        return true;
    }
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// The error of a registration that was refused; one that met the limit of pinned memory says so.
fn refused(call: &'static str, domain: &Domain, bytes: u64) -> VerbsError {
    let error = VerbsError::last(call, domain.device().name());
    let VerbsError::Call { error: ref cause, .. } = error else { return error };
    if cause.raw_os_error() != Some(libc::ENOMEM) {
        return error;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` can be written.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0 {
        return error;
    }
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return error;
    }
    VerbsError::Memlock { bytes, limit: format!("{} bytes", limit.rlim_cur) }
}
