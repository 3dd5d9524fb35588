//! Spans: bytes that another process may write at any moment.
//!
//! A `&[u8]` promises that nobody changes the bytes, a `&mut [u8]` that nobody else looks at them; memory shared with a
//! client keeps neither promise. So no slice over it is ever formed: bytes are copied in and out by pointer, digested
//! through a private buffer, or handed to the kernel as an iovec.

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use crate::guard::Guarded;
use crate::mapping::{Access, Mapping};

mod crc;
#[cfg(test)]
mod tests;

pub use crc::Crc32c;

/// Bytes digested per step through a private buffer: in the first-level cache, and long enough to be fast.
const BOUNCE_BYTES: usize = 2048;

/// A part that does not lie inside the whole. The unit is that of the call: bytes for spans and mappings, words for words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} from {offset} on do not lie within {limit}")]
pub struct OutOfRange {
    /// Where the part would start.
    pub offset: u64,
    /// How long it would be.
    pub bytes: u64,
    /// The length of the whole.
    pub limit: u64,
}

/// An address and a length of memory that may change at any time. `Copy` and without an owner: see [`Span::new`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Span is an address; what makes its use sound on any thread is the contract of `Span::new`, which speaks of
// the memory and not of a thread.
unsafe impl Send for Span {}
// SAFETY: as above; all methods take the span by value.
unsafe impl Sync for Span {}

impl Default for Span {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Span {
    /// No bytes.
    pub const EMPTY: Self = Self { start: NonNull::dangling(), bytes: 0 };

    /// A span over `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// For as long as this span or a copy or part of it is used:
    /// - the bytes stay mapped, readable and writable (whoever installs a span in a table keeps its owner until it is
    ///   taken out and nothing in flight uses it: see [`OwnedSpan`]);
    /// - no Rust reference to any of the bytes exists, except `&[Word]`;
    /// - threads of this process that may touch the same bytes at once are none, or don't mind torn bytes.
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Address of the first byte in this process.
    #[inline]
    #[must_use]
    pub fn address(self) -> usize {
        self.start.addr().get()
    }

    /// The first byte, for a driver or a system call. Dereferencing it falls under the contract of [`Self::new`].
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes as an element of a gathered system call. Only for calls of `libc` that take raw iovecs.
    #[inline]
    #[must_use]
    pub const fn iovec(self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: self.bytes }
    }

    /// `bytes` of these bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`] when they do not all lie in here, also where the end would overflow.
    #[inline]
    pub fn sub(self, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        let limit = self.bytes as u64;
        match offset.checked_add(bytes) {
            Some(end) if end <= limit => {
                // Both fit: they are at most `limit`, which is a usize.
                let (offset, bytes) = (offset as usize, bytes as usize);
                // SAFETY: offset <= self.bytes, so the result stays inside (or one past) this span.
                let start = unsafe { self.start.add(offset) };
                Ok(Self { start, bytes })
            }
            _ => Err(OutOfRange { offset, bytes, limit }),
        }
    }

    /// Copies as many bytes as both spans have to `target` and returns how many. They may overlap.
    #[inline]
    pub fn copy_to(self, target: Self) -> usize {
        let count = self.bytes.min(target.bytes);
        // SAFETY: both ranges are mapped, readable and writable for `count` bytes (Span::new); `copy` allows overlap.
        unsafe { core::ptr::copy(self.as_ptr(), target.as_ptr(), count) };
        count
    }

    /// Copies as many bytes as both have from `source` into this span and returns how many.
    #[inline]
    pub fn copy_from_slice(self, source: &[u8]) -> usize {
        let count = self.bytes.min(source.len());
        // SAFETY: `source` is readable and this span writable for `count` bytes; they don't overlap, since no Rust
        // reference exists into a span's bytes (Span::new).
        unsafe { core::ptr::copy_nonoverlapping(source.as_ptr(), self.as_ptr(), count) };
        count
    }

    /// Copies as many bytes as both have from this span into `target` and returns how many.
    #[inline]
    pub fn copy_to_slice(self, target: &mut [u8]) -> usize {
        let count = self.bytes.min(target.len());
        // SAFETY: as in copy_from_slice, with the directions exchanged.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr(), target.as_mut_ptr(), count) };
        count
    }

    /// Sets all bytes to `value`.
    #[inline]
    pub fn fill(self, value: u8) {
        // SAFETY: the span is mapped and writable for its length (Span::new).
        unsafe { core::ptr::write_bytes(self.as_ptr(), value, self.bytes) };
    }

    /// CRC-32C (Castagnoli) of the bytes as they are read, each once, through a private buffer.
    #[must_use]
    pub fn crc32c(self) -> u32 {
        let mut crc = Crc32c::new();
        self.digest(&mut crc);
        crc.value()
    }

    /// Goes on with a running checksum: for bytes that lie in several places.
    pub fn digest(self, crc: &mut Crc32c) {
        let mut bounce = [0; BOUNCE_BYTES];
        let mut rest = self;
        while !rest.is_empty() {
            let count = rest.copy_to_slice(&mut bounce);
            crc.update(&bounce[..count]);
            // SAFETY: count <= rest.bytes, so the result stays inside (or one past) the span.
            let start = unsafe { rest.start.add(count) };
            rest = Self { start, bytes: rest.bytes - count };
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No address: it would help only an attacker who reads logs.
        write!(formatter, "Span({} bytes)", self.bytes)
    }
}

/// A span together with what keeps its memory alive (and, for a client's memory, its SIGBUS guard).
///
/// Adapters keep bare [`Span`]s in fixed tables; whoever installs one keeps the `OwnedSpan` until the span has been taken
/// out again and nothing in flight uses it. The last clone must not be dropped on a lane: it unmaps.
#[derive(Clone)]
pub struct OwnedSpan {
    span: Span,
    owner: Owner,
}

#[derive(Clone)]
enum Owner {
    Memory { _keep: Arc<dyn Any + Send + Sync> },
    Guarded(Arc<Guarded>),
}

impl OwnedSpan {
    /// A span over memory that lives as long as `owner`.
    ///
    /// # Safety
    /// The contract of [`Span::new`], for as long as `owner` lives.
    #[must_use]
    pub unsafe fn from_owner(start: NonNull<u8>, bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the caller vouches for the bytes while `owner` lives, and it lives as long as this value.
        let span = unsafe { Span::new(start, bytes) };
        Self { span, owner: Owner::Memory { _keep: owner } }
    }

    pub(crate) fn of_mapping(mapping: &Arc<Mapping>) -> Self {
        assert_eq!(
            mapping.access(),
            Access::ReadWrite,
            "spans are writable; copy from read-only mappings elsewhere"
        );
        // SAFETY: the mapping covers exactly these bytes while it lives; this crate forms only `&[Word]` over it.
        unsafe {
            Self::from_owner(
                mapping.start(),
                mapping.len(),
                Arc::clone(mapping) as Arc<dyn Any + Send + Sync>,
            )
        }
    }

    pub(crate) fn of_guarded(guarded: &Arc<Guarded>) -> Self {
        let mapping = guarded.mapping();
        // SAFETY: the mapping covers exactly these bytes while it lives; a lost page is replaced, never unmapped.
        let span = unsafe { Span::new(mapping.start(), mapping.len()) };
        Self { span, owner: Owner::Guarded(Arc::clone(guarded)) }
    }

    /// The bare span.
    ///
    /// # Safety
    /// The caller keeps this value (or a clone) for as long as the returned span, or a copy or part of it, is used.
    #[inline]
    #[must_use]
    pub const unsafe fn span(&self) -> Span {
        self.span
    }

    /// A part of these bytes, keeping the same memory alive.
    ///
    /// # Errors
    /// [`OutOfRange`] when it does not all lie in here.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        Ok(Self { span: self.span.sub(offset, bytes)?, owner: self.owner.clone() })
    }

    /// The guard of a client's memory.
    #[must_use]
    pub fn guard(&self) -> Option<&Arc<Guarded>> {
        match &self.owner {
            Owner::Guarded(guarded) => Some(guarded),
            Owner::Memory { .. } => None,
        }
    }

    /// Whether the memory was lost and replaced (see [`crate::guard`]): what was copied out of it is not its content.
    #[inline]
    #[must_use]
    pub fn poisoned(&self) -> bool {
        self.guard().is_some_and(|guarded| guarded.poisoned())
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Address of the first byte in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// Copies bytes from `offset` on into `target`.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing copied.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfRange> {
        self.span.sub(offset, target.len() as u64)?.copy_to_slice(target);
        Ok(())
    }

    /// Copies `source` to `offset` and on.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing copied.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), OutOfRange> {
        self.span.sub(offset, source.len() as u64)?.copy_from_slice(source);
        Ok(())
    }

    /// Sets `bytes` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing changed.
    pub fn fill(&self, offset: u64, bytes: u64, value: u8) -> Result<(), OutOfRange> {
        self.span.sub(offset, bytes)?.fill(value);
        Ok(())
    }

    /// CRC-32C of `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn crc32c(&self, offset: u64, bytes: u64) -> Result<u32, OutOfRange> {
        Ok(self.span.sub(offset, bytes)?.crc32c())
    }
}

impl fmt::Debug for OwnedSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwnedSpan").field("span", &self.span).finish_non_exhaustive()
    }
}
