//! The lanes' page: which lanes sleep. The dataplane writes it, clients can only read it.

use core::fmt;
use core::ptr::NonNull;
use std::io;
use std::os::fd::AsFd;

use railhead_abi::segment::{LANES_PAGE_WORDS, LINE_WORDS};
use railhead_shm::memfd;
use railhead_shm::{MapError, Word};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::SessionError;

const PAGE_BYTES: usize = LANES_PAGE_WORDS * size_of::<Word>();

/// The page, mapped read-only. Mapped here and not by shm, whose words are always writable.
pub(crate) struct LanesPage {
    first: NonNull<Word>,
}

// SAFETY: the page is only loaded from, through atomics, and unmapped when the last owner drops it.
unsafe impl Send for LanesPage {}
// SAFETY: as above.
unsafe impl Sync for LanesPage {}

impl LanesPage {
    /// Maps the page that came with the welcome.
    pub(crate) fn map(file: impl AsFd) -> Result<Self, SessionError> {
        let refused = |source| SessionError::Map { what: "the lanes' page", source };
        memfd::require_seals(&file).map_err(|error| refused(error.into()))?;
        let facts = memfd::facts(&file).map_err(|error| refused(error.into()))?;
        if facts.bytes < PAGE_BYTES as u64 || facts.hugetlb {
            return Err(SessionError::Answer { what: "the lanes' page has the wrong size" });
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), PAGE_BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        let start = start.map_err(|errno| refused(MapError::Map(io::Error::from(errno))))?;
        let first = NonNull::new(start.cast()).expect("a mapping never starts at zero");
        Ok(Self { first })
    }

    /// Whether `lane` sleeps and has to be rung. Only after publishing and a sequentially consistent fence.
    ///
    /// # Panics
    /// If `lane` is above the most lanes that a dataplane can have.
    #[inline]
    pub(crate) fn is_asleep(&self, lane: usize) -> bool {
        let at = lane * LINE_WORDS;
        assert!(at < LANES_PAGE_WORDS, "attach checked the number of lanes");
        // SAFETY: the mapping has PAGE_BYTES bytes from its page-aligned start, is sealed against shrinking and lives as
        // long as `self`; `at` was just checked. Word is an atomic for which every bit pattern is valid and which other
        // processes may change; it is only loaded, which read-only memory allows.
        unsafe { self.first.add(at).as_ref() }.load_relaxed() != 0
    }
}

impl Drop for LanesPage {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` made; no reference into it outlives a call of `is_asleep`.
        let unmapped = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}

impl fmt::Debug for LanesPage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LanesPage").finish_non_exhaustive()
    }
}
