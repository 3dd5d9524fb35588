//! Host memory that copy engines and kernels reach: staging arenas and clients' regions, registered; and words of our own.

use core::ffi::{c_uint, c_void};
use core::ops::Deref;
use core::ptr::NonNull;
use std::fmt;
use std::sync::Arc;

use railhead_ring::Word;
use railhead_shm::OwnedSpan;

use crate::error::CudaError;
use crate::gpu::Gpu;

/// Usable by the contexts of all GPUs, and seen at an address by their kernels.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

/// How memory is registered. The driver holds one lock per process while it pins and maps, and copies that a lane posts
/// wait for it: 256 MiB at once stall a lane for some 50 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// In one call: before lanes run.
    Whole,
    /// In calls of this many bytes, a multiple of the page: while lanes run. Between two calls the driver is free.
    Of(u64),
}

/// The size of a piece that a lane can bear to wait for.
pub const PIECE_BYTES: u64 = 2 << 20;

/// Host memory that is registered with the driver until the last clone is gone (slow; not on lanes).
#[derive(Clone)]
pub struct PinnedMemory {
    inner: Arc<Inner>,
}

struct Inner {
    gpu: Gpu,
    span: OwnedSpan,
    /// The length of a piece; the last may be shorter. A copy must not cross two.
    piece_bytes: u64,
    /// Bytes that are registered, from the start: all, except while a registration fails half-way.
    registered: u64,
    /// Where kernels and streams see it, where that is one range.
    device_address: Option<u64>,
}

impl PinnedMemory {
    /// Registers memory for all GPUs. `between` is called between two pieces: the place for a pause.
    ///
    /// # Errors
    /// [`CudaError`], with nothing registered: memory that is registered already, or a limit of locked memory.
    pub fn register(
        gpu: &Gpu,
        span: OwnedSpan,
        pieces: Pieces,
        mut between: impl FnMut(),
    ) -> Result<Self, CudaError> {
        gpu.make_current()?;
        let bytes = span.len() as u64;
        let piece_bytes = match pieces {
            Pieces::Whole => bytes,
            Pieces::Of(piece_bytes) => piece_bytes,
        }
        .max(1);
        let mut inner = Inner { gpu: gpu.clone(), span, piece_bytes, registered: 0, device_address: None };
        while inner.registered < bytes {
            if inner.registered > 0 {
                between();
            }
            inner.register_next(bytes)?;
        }
        inner.device_address = inner.find_device_address();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The memory.
    #[must_use]
    pub fn span(&self) -> &OwnedSpan {
        &self.inner.span
    }

    /// First byte, as this process and its copy engines see it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.inner.span.address() as u64
    }

    /// First byte as kernels and streams see it; `None` where the pieces do not lie in one range there.
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        self.inner.device_address
    }

    /// No copy may cross a multiple of this.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        self.inner.piece_bytes
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.span.len() as u64
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.span.is_empty()
    }
}

impl Inner {
    fn at(&self, offset: u64) -> *mut c_void {
        // SAFETY: the span lives in `self`, and the pointer is only given to the driver.
        let start = unsafe { self.span.span() }.as_ptr();
        start.wrapping_add(offset as usize).cast()
    }

    fn register_next(&mut self, bytes: u64) -> Result<(), CudaError> {
        let count = self.piece_bytes.min(bytes - self.registered);
        let start = self.at(self.registered);
        // SAFETY: the range is mapped while `self.span` lives, and unregistered before that is dropped (fields are dropped
        // after `Drop::drop`). The driver pins pages; it forms no references.
        let status = unsafe { (self.gpu.api().host_register)(start, count as usize, PORTABLE_AND_MAPPED) };
        self.gpu.api().check("cuMemHostRegister", status)?;
        self.registered += count;
        Ok(())
    }

    /// `None` if the pieces do not follow one another there, or if the driver does not say.
    fn find_device_address(&self) -> Option<u64> {
        let mut first = None;
        let mut offset = 0;
        while offset < self.registered {
            let mut address = 0;
            // SAFETY: registered memory; the driver stores one address. 0 is the only flag there is.
            let status =
                unsafe { (self.gpu.api().host_device_pointer)(&raw mut address, self.at(offset), 0) };
            let expected = *first.get_or_insert(address) + offset;
            if status != 0 || address != expected {
                return None;
            }
            offset += self.piece_bytes;
        }
        first
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        let mut offset = 0;
        while offset < self.registered {
            // SAFETY: registered by `register_next` at this address, undone once. Whoever posts copies keeps a clone
            // until they have ended. An error (a lost GPU) leaves nothing to do.
            let _ = unsafe { (self.gpu.api().host_unregister)(self.at(offset)) };
            offset += self.piece_bytes;
        }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PinnedMemory")
            .field("span", &self.inner.span)
            .field("piece_bytes", &self.inner.piece_bytes)
            .finish_non_exhaustive()
    }
}

/// Words of page-locked host memory that streams and kernels write and this process reads, or the other way about.
pub struct PinnedWords {
    gpu: Gpu,
    first: NonNull<Word>,
    count: usize,
    device_address: u64,
}

// SAFETY: page-locked memory of the process, owned by this value; `Word` may be used by any thread.
unsafe impl Send for PinnedWords {}
// SAFETY: as above.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    /// `count` words of zeroes. Slow; not on lanes.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Gpu, count: usize) -> Result<Self, CudaError> {
        gpu.make_current()?;
        let bytes = count.max(1) * size_of::<Word>();
        let mut start = core::ptr::null_mut();
        // SAFETY: the driver allocates and stores one pointer; freed once, in `drop`.
        let status = unsafe { (gpu.api().host_allocate)(&raw mut start, bytes, PORTABLE_AND_MAPPED) };
        gpu.api().check("cuMemHostAlloc", status)?;
        let first = NonNull::new(start.cast::<Word>()).expect("the driver gives memory");
        // SAFETY: fresh memory of this many bytes that nobody else knows of.
        unsafe { first.cast::<u8>().write_bytes(0, bytes) };
        let mut words = Self { gpu: gpu.clone(), first, count, device_address: 0 };
        // SAFETY: memory of `cuMemHostAlloc`; the driver stores one address.
        let status = unsafe { (gpu.api().host_device_pointer)(&raw mut words.device_address, start, 0) };
        gpu.api().check("cuMemHostGetDevicePointer", status)?;
        Ok(words)
    }

    /// Where streams and kernels see word `index`.
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn device_address(&self, index: usize) -> u64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        self.device_address + (index * size_of::<Word>()) as u64
    }
}

impl Deref for PinnedWords {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        // SAFETY: `count` words of memory that lives as long as `self`, aligned to the page. A Word is an atomic of eight
        // bytes: any content is valid, and a device may change it.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        // SAFETY: allocated in `new`, freed once. Who posted writes to these words has seen their end before (see the
        // users' `Drop`).
        let _ = unsafe { (self.gpu.api().host_free)(self.first.as_ptr().cast()) };
    }
}

impl fmt::Debug for PinnedWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PinnedWords").field("count", &self.count).finish_non_exhaustive()
    }
}
