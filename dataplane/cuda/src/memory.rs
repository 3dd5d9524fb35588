//! Memory of GPUs that the dataplane may copy from and to: its own allocations, and what clients share.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType as HandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::pointer::{MemoryKind, Pointer};

/// Every allocation is a multiple of this and aligned to it. GPU pages are 64 KiB and a NIC's key exposes whole pages, so
/// two owners must never share one.
pub const ALLOCATION_BYTES: u64 = 2 << 20;

/// Why there is no such memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No bytes.
    #[error("memory of 0 bytes")]
    Empty,
    /// The range leaves the allocation that was shared.
    #[error("{bytes} bytes from {offset} on leave the {limit} bytes that are shared")]
    Range {
        /// Where the range would start.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// What there is.
        limit: u64,
    },
    /// The memory is managed by the driver, so it moves: it is never shared with the dataplane.
    #[error("managed memory cannot be shared: allocate it with cudaMalloc or cuMemCreate")]
    Managed,
    /// What was shared is memory of another GPU or of the host.
    #[error("the memory is not of this GPU")]
    Elsewhere,
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// A file descriptor could not be had.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Memory of one GPU, mapped into this process. Clones share it; the last one unmaps it, and frees it if it was allocated
/// here (slow; not on lanes).
///
/// What was handed to a client is never handed to another: the owner of a lease drops the memory, and the next lease is a
/// new allocation, because a mapping that a client holds cannot be recalled.
#[derive(Clone)]
pub struct DeviceMemory {
    inner: Arc<Inner>,
}

struct Inner {
    gpu: Gpu,
    address: u64,
    bytes: u64,
    origin: Origin,
}

/// What has to be undone.
#[derive(Debug)]
enum Origin {
    /// A mapping of a handle, of this process or imported; in a reserved range of its own.
    Mapped { handle: c_ulonglong },
    /// A CUDA IPC mapping: where it starts, which is at or below the range that was shared.
    Ipc { mapping: u64 },
}

impl DeviceMemory {
    /// Allocates at least `bytes`, readable and writable by its own GPU and by `peers`. It can be shared with
    /// [`DeviceMemory::share`], and registered with NICs where the GPU can do that.
    ///
    /// # Errors
    /// [`MemoryError`]; with nothing allocated.
    pub fn allocate(gpu: &Gpu, bytes: u64, peers: &[Gpu]) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        gpu.make_current()?;
        let properties = properties(gpu);
        let unit = granularity(gpu, &properties)?.max(ALLOCATION_BYTES);
        let bytes = bytes.checked_next_multiple_of(unit).ok_or(MemoryError::Range {
            offset: 0,
            bytes,
            limit: gpu.device().bytes,
        })?;
        let mut handle = 0;
        // SAFETY: the driver reads the properties, which outlive the call, and stores one number.
        let status =
            unsafe { (gpu.api().memory_create)(&raw mut handle, bytes as usize, &raw const properties, 0) };
        gpu.api().check("cuMemCreate", status)?;
        Self::map(gpu, handle, bytes, peers)
    }

    /// Maps memory that another process (or this one) shared as a file descriptor: see [`DeviceMemory::share`], or a
    /// client's own `cuMemExportToShareableHandle`. `bytes` is the size of that allocation, a multiple of 2 MiB. The
    /// descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`MemoryError`]; the driver refuses a size that is not the allocation's.
    pub fn import(gpu: &Gpu, file: BorrowedFd<'_>, bytes: u64, peers: &[Gpu]) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        if !bytes.is_multiple_of(ALLOCATION_BYTES) {
            return Err(MemoryError::Range {
                offset: 0,
                bytes,
                limit: bytes / ALLOCATION_BYTES * ALLOCATION_BYTES,
            });
        }
        gpu.make_current()?;
        let mut handle = 0;
        // The driver takes the number of the descriptor in the place of a pointer.
        let number = core::ptr::without_provenance_mut::<c_void>(file.as_raw_fd().cast_unsigned() as usize);
        let kind = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        // SAFETY: an open descriptor, whose content the driver checks; it stores one number.
        let status = unsafe { (gpu.api().memory_import)(&raw mut handle, number, kind) };
        gpu.api().check("cuMemImportFromShareableHandle", status)?;
        Self::map(gpu, handle, bytes, peers)
    }

    /// Takes over `handle`, whatever happens.
    fn map(gpu: &Gpu, handle: c_ulonglong, bytes: u64, peers: &[Gpu]) -> Result<Self, MemoryError> {
        let api = gpu.api();
        let size = bytes as usize;
        let mut address = 0;
        let result = (|| {
            // SAFETY: the driver chooses the address and stores it.
            let status =
                unsafe { (api.address_reserve)(&raw mut address, size, ALLOCATION_BYTES as usize, 0, 0) };
            api.check("cuMemAddressReserve", status)?;
            // SAFETY: a range that was just reserved, and a handle that this function owns.
            let status = unsafe { (api.memory_map)(address, size, 0, handle, 0) };
            api.check("cuMemMap", status)
        })();
        if let Err(error) = result {
            if address != 0 {
                // SAFETY: reserved above, and nothing is mapped there.
                let _ = unsafe { (api.address_free)(address, size) };
            }
            // SAFETY: owned by this function, and mapped nowhere.
            let _ = unsafe { (api.memory_release)(handle) };
            return Err(error.into());
        }
        // From here on dropping undoes everything.
        let origin = Origin::Mapped { handle };
        let memory = Self { inner: Arc::new(Inner { gpu: gpu.clone(), address, bytes, origin }) };
        let access: Vec<CUmemAccessDesc> = core::iter::once(gpu)
            .chain(peers)
            .map(|gpu| CUmemAccessDesc {
                location: location(gpu),
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: the range was mapped just now; the driver reads as many descriptions as there are.
        let status = unsafe { (api.memory_access)(address, size, access.as_ptr(), access.len()) };
        api.check("cuMemSetAccess", status)?;
        Ok(memory)
    }

    /// Opens memory that *another* process shared by CUDA IPC (`cudaIpcGetMemHandle`: memory of `cudaMalloc` only). The
    /// handle names a whole allocation; the memory is `bytes` from `offset` in it. The other process must keep the
    /// allocation until this value is gone.
    ///
    /// # Errors
    /// [`MemoryError`]; the driver refuses handles of this process itself.
    pub fn open_ipc(gpu: &Gpu, handle: [u8; 64], offset: u64, bytes: u64) -> Result<Self, MemoryError> {
        const LAZY_PEER_ACCESS: c_uint = 1;
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        gpu.make_current()?;
        let mut mapping = 0;
        let handle = CUipcMemHandle { reserved: handle.map(u8::cast_signed) };
        // SAFETY: the driver checks the handle and stores one address.
        let status = unsafe { (gpu.api().ipc_open)(&raw mut mapping, handle, LAZY_PEER_ACCESS) };
        gpu.api().check("cuIpcOpenMemHandle", status)?;
        // From here on dropping closes the mapping.
        let origin = Origin::Ipc { mapping };
        let address = mapping.wrapping_add(offset);
        let memory = Self { inner: Arc::new(Inner { gpu: gpu.clone(), address, bytes, origin }) };
        let found = Pointer::describe(gpu, mapping)?;
        let limit = found.allocation.map_or(0, |(start, size)| start + size - mapping);
        if offset.checked_add(bytes).is_none_or(|end| end > limit) {
            return Err(MemoryError::Range { offset, bytes, limit });
        }
        match found.kind {
            MemoryKind::Device { ordinal } if ordinal == gpu.device().ordinal => Ok(memory),
            MemoryKind::Managed => Err(MemoryError::Managed),
            _ => Err(MemoryError::Elsewhere),
        }
    }

    /// A file descriptor by which another process maps this memory, all of it. That mapping cannot be recalled.
    ///
    /// # Errors
    /// [`MemoryError`]; IPC mappings cannot be shared further.
    pub fn share(&self) -> Result<OwnedFd, MemoryError> {
        let Origin::Mapped { handle } = self.inner.origin else { return Err(MemoryError::Elsewhere) };
        let mut number: c_int = -1;
        let kind = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        let api = self.inner.gpu.api();
        // SAFETY: a handle that lives as long as `self`; for this kind of handle the driver stores one `int`.
        let status = unsafe { (api.memory_export)((&raw mut number).cast(), handle, kind, 0) };
        api.check("cuMemExportToShareableHandle", status)?;
        // SAFETY: a fresh descriptor that nobody else owns.
        unsafe { take_file(number) }
    }

    /// A dma-buf of `bytes` from `offset` on, for registering with NICs, and where in it the range starts: dma-bufs have
    /// whole pages of the host. Exactly the range is asked for and not the allocation around it, which for memory of
    /// several mappings is only one of them.
    ///
    /// # Errors
    /// [`MemoryError`]; `CUDA_ERROR_NOT_SUPPORTED` where driver or device lack it.
    pub fn export_dma_buf(&self, offset: u64, bytes: u64) -> Result<DmaBuf, MemoryError> {
        self.check_range(offset, bytes)?;
        export_dma_buf(&self.inner.gpu, self.inner.address + offset, bytes)
    }

    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), MemoryError> {
        let limit = self.inner.bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= limit && bytes > 0 => Ok(()),
            _ => Err(MemoryError::Range { offset, bytes, limit }),
        }
    }

    /// The GPU that it is of.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// Its first byte, in the address space that GPU and host share.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Bytes; at least what was asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.bytes
    }

    /// Always false: empty memory is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// A dma-buf of GPU memory.
#[derive(Debug)]
pub struct DmaBuf {
    /// The file. A NIC's registration holds its own reference: close it afterwards.
    pub file: OwnedFd,
    /// Where the range starts in it: less than a page of the host.
    pub offset: u64,
}

/// Exports `bytes` at `address`, which may be memory of a client's own allocator: what [`DeviceMemory::export_dma_buf`] is
/// for the dataplane's memory. The caller keeps the memory meanwhile.
///
/// # Errors
/// [`MemoryError`].
pub fn export_dma_buf(gpu: &Gpu, address: u64, bytes: u64) -> Result<DmaBuf, MemoryError> {
    const DMA_BUF: c_uint = 1;
    const UNSUPPORTED: i32 = 801;
    let call = "cuMemGetHandleForAddressRange";
    gpu.make_current()?;
    let Some(export) = gpu.api().range_handle else {
        return Err(CudaError { call, number: UNSUPPORTED, name: "CUDA_ERROR_NOT_SUPPORTED" }.into());
    };
    let page = page_bytes();
    let start = address / page * page;
    let offset = address - start;
    let size = (offset + bytes).next_multiple_of(page);
    let mut number: c_int = -1;
    // No flags: the mapping over PCIe is for GPUs that also have another way to the host, and refused elsewhere.
    // SAFETY: the driver checks the range; for this kind it stores one `int`.
    let status = unsafe { export((&raw mut number).cast(), start, size as usize, DMA_BUF, 0) };
    gpu.api().check(call, status)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(DmaBuf { file: unsafe { take_file(number) }?, offset })
}

/// Owns a descriptor that the driver made, and keeps it from processes that are started later, which the driver does not
/// promise.
///
/// # Safety
/// The descriptor is open and nobody else owns it.
unsafe fn take_file(number: c_int) -> Result<OwnedFd, MemoryError> {
    // SAFETY: as the caller vouches.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: the descriptor is open; setting the flag touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        return Err(MemoryError::System { call: "fcntl(F_SETFD)", errno });
    }
    Ok(file)
}

/// Bytes of the host's pages.
fn page_bytes() -> u64 {
    // SAFETY: sysconf only reads a constant of the machine.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(1)
}

fn location(gpu: &Gpu) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.ordinal() }
}

fn properties(gpu: &Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if gpu.device().shared_handles {
            HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            HandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: location(gpu),
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(gpu.device().rdma_of_mapped),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity(gpu: &Gpu, properties: &CUmemAllocationProp) -> Result<u64, CudaError> {
    const RECOMMENDED: c_uint = 1;
    let mut bytes = 0;
    // SAFETY: the driver reads the properties and stores one size.
    let status = unsafe { (gpu.api().memory_granularity)(&raw mut bytes, properties, RECOMMENDED) };
    gpu.api().check("cuMemGetAllocationGranularity", status)?;
    Ok(bytes as u64)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let api = self.gpu.api();
        let size = self.bytes as usize;
        // An error (a lost GPU) leaves nothing to do: the driver frees the rest with the process.
        match self.origin {
            Origin::Mapped { handle } => {
                // SAFETY: mapped, reserved and owned since `map`, undone once and in the reverse order. Whoever posts
                // copies keeps a clone until they have ended, so none is under way.
                unsafe {
                    let _ = (api.memory_unmap)(self.address, size);
                    let _ = (api.address_free)(self.address, size);
                    let _ = (api.memory_release)(handle);
                }
            }
            Origin::Ipc { mapping } => {
                if self.gpu.make_current().is_ok() {
                    // SAFETY: opened once in `open_ipc`; as above, nothing uses it any more.
                    let _ = unsafe { (api.ipc_close)(mapping) };
                }
            }
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No address: it would help only an attacker who reads logs.
        formatter
            .debug_struct("DeviceMemory")
            .field("gpu", &self.inner.gpu)
            .field("bytes", &self.inner.bytes)
            .field("origin", &self.inner.origin)
            .finish_non_exhaustive()
    }
}
