//! Mappings, and the one cast from mapped bytes to words.

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use railhead_ring::sync::Word;
use rustix::fs::SealFlags;
use rustix::mm::Advice;

use crate::memfd::{self, Huge, MemfdError};
use crate::span::{OutOfRange, OwnedSpan};

#[cfg(test)]
mod tests;

/// Whether a mapping may be written through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store would be a fault.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// Why memory could not be mapped, or a part of it not handed out.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file is not acceptable.
    #[error(transparent)]
    Memfd(#[from] MemfdError),
    /// The file has no bytes.
    #[error("nothing to map: the file is empty")]
    Empty,
    /// A region must start at a page of its file.
    #[error("offset {offset} is not a multiple of the file's page of {page_bytes} bytes")]
    OffPage {
        /// The refused offset in bytes.
        offset: u64,
        /// Bytes of a page of the file.
        page_bytes: u64,
    },
    /// The kernel refused the mapping.
    #[error("mmap: {0}")]
    Map(#[source] io::Error),
    /// The part does not lie inside the mapping.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Words must start at a multiple of 8 bytes.
    #[error("offset {offset} is not a multiple of 8 bytes")]
    Misaligned {
        /// The refused offset in bytes.
        offset: usize,
    },
    /// Words and guarded memory must be writable.
    #[error("mapping is read-only")]
    ReadOnly,
}

/// Mapped memory, unmapped when its last owner drops it. Never drop the last owner on a lane: unmapping is slow.
pub struct Mapping {
    raw: MmapRaw,
    page_bytes: usize,
    access: Access,
}

impl Mapping {
    /// Maps a whole memory file that can neither shrink nor grow any more (checked).
    ///
    /// # Errors
    /// [`MapError::Memfd`] when a seal is missing, [`MapError::Empty`], [`MapError::Map`] (`ENOMEM` also means too few
    /// free hugepages).
    pub fn of_sealed(file: impl AsFd, access: Access) -> Result<Arc<Self>, MapError> {
        memfd::require_seals(&file)?;
        Self::of_unsealed(file, access)
    }

    /// Maps `bytes` bytes from `offset` on of a sealed memory file, rounded up to its page: a client's region.
    ///
    /// # Errors
    /// As [`Self::of_sealed`]; [`MapError::OffPage`] when `offset` is not at a page, [`MapError::Range`] when the bytes do
    /// not all lie in the file.
    pub fn of_sealed_part(
        file: impl AsFd,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<Self>, MapError> {
        memfd::require_seals(&file)?;
        let facts = memfd::facts(&file)?;
        let page_bytes = facts.page_bytes as u64;
        if !offset.is_multiple_of(page_bytes) {
            return Err(MapError::OffPage { offset, page_bytes });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > facts.bytes) {
            return Err(OutOfRange { offset, bytes, limit: facts.bytes }.into());
        }
        Self::map(file.as_fd(), offset, bytes, facts.page_bytes, access)
    }

    /// Maps a whole memory file without looking at its seals: for files that no other process holds. Elsewhere use
    /// [`Self::of_sealed`], or whoever holds the file can end this process by truncating it.
    ///
    /// # Errors
    /// As [`Self::of_sealed`], less the seals.
    pub fn of_unsealed(file: impl AsFd, access: Access) -> Result<Arc<Self>, MapError> {
        let facts = memfd::facts(&file)?;
        Self::map(file.as_fd(), 0, facts.bytes, facts.page_bytes, access)
    }

    /// Makes a memory file that nobody can write but through the returned mapping: whoever gets the file can only map it
    /// for reading (`F_SEAL_FUTURE_WRITE`), whatever the descriptor's or the user's rights.
    ///
    /// # Errors
    /// [`MapError::Memfd`], [`MapError::Map`].
    pub fn sole_writer(name: &str, bytes: u64) -> Result<(OwnedFd, Arc<Self>), MapError> {
        let file = memfd::create_unsealed(name, bytes, Huge::No)?;
        let mapping = Self::of_unsealed(&file, Access::ReadWrite)?;
        memfd::seal(&file, SealFlags::FUTURE_WRITE)?;
        Ok((file, mapping))
    }

    fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        page_bytes: usize,
        access: Access,
    ) -> Result<Arc<Self>, MapError> {
        if bytes == 0 {
            return Err(MapError::Empty);
        }
        // Rounded up to the page: with a shorter length munmap fails on hugetlb and the mapping would leak silently.
        let rounded = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| bytes.checked_next_multiple_of(page_bytes))
            .ok_or(MapError::Memfd(MemfdError::Size { bytes }))?;
        let mut options = MmapOptions::new();
        options.offset(offset).len(rounded);
        let raw = match access {
            Access::Read => options.map_raw_read_only(&file),
            Access::ReadWrite => options.map_raw(&file),
        }
        .map_err(MapError::Map)?;
        Ok(Arc::new(Self { raw, page_bytes, access }))
    }

    /// Maps zeroed private memory of at least `bytes`, rounded up to ordinary pages.
    ///
    /// # Errors
    /// [`MapError::Empty`] for no bytes, [`MapError::Map`] when the kernel refuses.
    pub fn anonymous(bytes: usize) -> Result<Arc<Self>, MapError> {
        let page_bytes = memfd::base_page_bytes();
        let rounded = bytes
            .checked_next_multiple_of(page_bytes)
            .ok_or(MapError::Memfd(MemfdError::Size { bytes: bytes as u64 }))?;
        if rounded == 0 {
            return Err(MapError::Empty);
        }
        let raw = MmapMut::map_anon(rounded).map_err(MapError::Map)?.into();
        Ok(Arc::new(Self { raw, page_bytes, access: Access::ReadWrite }))
    }

    /// Faults all pages in now, for writing where the mapping allows it. Slow; not for lanes.
    ///
    /// # Errors
    /// The error of `madvise(2)`: `EFAULT` or `ENOMEM` where a page cannot be had.
    pub fn populate(&self) -> io::Result<()> {
        let advice = match self.access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range is exactly this live mapping; populating changes neither its content nor its validity.
        unsafe { rustix::mm::madvise(self.raw.as_mut_ptr().cast(), self.raw.len(), advice) }?;
        Ok(())
    }

    /// Length in bytes: a multiple of [`Self::page_bytes`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Always false: empty mappings are refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of one page of the file behind it.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Whether it may be written through.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Where it starts in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.raw.as_mut_ptr().addr()
    }

    /// The first byte. Only this crate turns it into something usable.
    pub(crate) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.raw.as_mut_ptr()).expect("a mapping never starts at zero")
    }

    /// `count` words from byte `offset` on, keeping the mapping alive.
    ///
    /// # Errors
    /// [`MapError::Misaligned`], [`MapError::Range`], or [`MapError::ReadOnly`]: words can be stored to.
    pub fn words(self: &Arc<Self>, offset: usize, count: usize) -> Result<Words, MapError> {
        if self.access == Access::Read {
            return Err(MapError::ReadOnly);
        }
        self.words_unchecked(offset, count)
    }

    /// Checks all but whether the words may be stored to.
    fn words_unchecked(self: &Arc<Self>, offset: usize, count: usize) -> Result<Words, MapError> {
        if !offset.is_multiple_of(align_of::<Word>()) {
            return Err(MapError::Misaligned { offset });
        }
        let bytes = count.checked_mul(size_of::<Word>());
        let inside = bytes.and_then(|bytes| offset.checked_add(bytes)).is_some_and(|end| end <= self.len());
        if !inside {
            let bytes = bytes.unwrap_or(usize::MAX) as u64;
            return Err(OutOfRange { offset: offset as u64, bytes, limit: self.len() as u64 }.into());
        }
        // SAFETY: offset <= len was just checked, so the result stays inside (or one past) the mapping.
        let first = unsafe { self.start().add(offset) }.cast::<Word>();
        Ok(Words { first, count, mapping: Arc::clone(self) })
    }

    /// `count` words from byte `offset` on, for loading only: of any mapping, also of a read-only one.
    ///
    /// # Errors
    /// [`MapError::Misaligned`], [`MapError::Range`].
    pub fn read_words(self: &Arc<Self>, offset: usize, count: usize) -> Result<ReadWords, MapError> {
        Ok(ReadWords { words: self.words_unchecked(offset, count)? })
    }

    /// All bytes as a span that keeps the mapping alive.
    ///
    /// # Panics
    /// For a read-only mapping: spans are writable.
    #[must_use]
    pub fn span(self: &Arc<Self>) -> OwnedSpan {
        OwnedSpan::of_mapping(self)
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Mapping")
            .field("bytes", &self.len())
            .field("page_bytes", &self.page_bytes)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// A part of a mapping seen as words, keeping the mapping alive. Clones see the same words.
#[derive(Clone)]
pub struct Words {
    first: NonNull<Word>,
    count: usize,
    mapping: Arc<Mapping>,
}

impl Words {
    /// `count` of these words from word `first` on.
    ///
    /// # Errors
    /// [`OutOfRange`], in words, when they do not all lie in here.
    pub fn part(&self, first: usize, count: usize) -> Result<Self, OutOfRange> {
        if first.checked_add(count).is_none_or(|end| end > self.count) {
            return Err(OutOfRange { offset: first as u64, bytes: count as u64, limit: self.count as u64 });
        }
        // SAFETY: first <= self.count was just checked, so the result stays inside (or one past) these words.
        let start = unsafe { self.first.add(first) };
        Ok(Self { first: start, count, mapping: Arc::clone(&self.mapping) })
    }

    /// The mapping that these words lie in.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

// SAFETY: Words only gives out `&[Word]`, and Word is an atomic; the mapping is owned by a Send + Sync Arc.
unsafe impl Send for Words {}
// SAFETY: as above: shared access is through atomics only.
unsafe impl Sync for Words {}

impl Deref for Words {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        // SAFETY: `first` is aligned (checked against the page-aligned mapping), `count` words from it lie inside the
        // mapping, which `self.mapping` keeps alive and writable. Word is repr(transparent) over AtomicU64, for which all
        // bit patterns are valid and concurrent change by other processes is allowed.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Words").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Words that this process only loads, as on a page that the dataplane alone may write. Clones see the same words.
#[derive(Debug, Clone)]
pub struct ReadWords {
    // Never given out: a store through it would be a fault where the mapping is read-only.
    words: Words,
}

impl ReadWords {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Loads a word with no order against others. `None` past the end.
    #[inline]
    #[must_use]
    pub fn load_relaxed(&self, index: usize) -> Option<u64> {
        self.words.get(index).map(Word::load_relaxed)
    }

    /// Loads a word; what was stored before its release store is visible afterwards. `None` past the end.
    #[inline]
    #[must_use]
    pub fn load_acquire(&self, index: usize) -> Option<u64> {
        self.words.get(index).map(Word::load_acquire)
    }
}
