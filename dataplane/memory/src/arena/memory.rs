//! The system calls under an arena, and the ownership of its address range.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::fs;
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{ArenaError, Placement};
use crate::pages::Hugepages;
use crate::step::Reason;

/// Every arena starts at a multiple of this, so that blocks up to it are aligned in memory as in the arena.
const ALIGNMENT: usize = 2 << 20;

/// `MPOL_MF_MOVE` of `<linux/mempolicy.h>`: move pages that only this process has mapped.
const MOVE: i32 = 1 << 1;
/// How many pages are asked about in one call.
const QUERY_PAGES: usize = 512;

/// An owned range of private memory.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// What hugepage-rs was asked for; `None` for memory mapped here.
    hugepages: Option<Layout>,
}

// SAFETY: the range is owned by this value alone and tied to no thread.
unsafe impl Send for Memory {}
// SAFETY: shared references give only the address and system calls on the range, which may come from any thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserved hugepages of the default size, `pages` being what the kernel said of them. They are promised, not yet
    /// taken.
    pub(crate) fn hugetlb(bytes: usize, pages: Hugepages) -> Result<Self, i32> {
        // hugepage-rs panics where the kernel has no hugepage size; the caller has just read one.
        let page_bytes = usize::try_from(pages.page_bytes).map_err(|_| libc::EINVAL)?;
        let bytes = bytes.checked_next_multiple_of(page_bytes).ok_or(libc::ENOMEM)?;
        let layout = Layout::from_size_align(bytes, ALIGNMENT.min(page_bytes)).map_err(|_| libc::EINVAL)?;
        // SAFETY: the layout has a non-zero size, and its alignment is at most the page's.
        let start = unsafe { hugepage_rs::alloc(layout) };
        match NonNull::new(start) {
            Some(start) => Ok(Self { start, bytes, hugepages: Some(layout) }),
            None => Err(last_errno()),
        }
    }

    /// Anonymous memory in multiples of `page_bytes`, aligned to it and to [`ALIGNMENT`].
    pub(crate) fn anonymous(bytes: usize, page_bytes: usize) -> Result<Self, ArenaError> {
        let alignment = ALIGNMENT.max(page_bytes);
        let size_error = ArenaError::Size { bytes: bytes as u64 };
        let bytes = bytes.checked_next_multiple_of(page_bytes).ok_or(size_error)?;
        let room = bytes.checked_add(alignment).ok_or(size_error)?;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags)
        }
        .map_err(|errno| ArenaError::System { call: "mmap", errno: errno.raw_os_error() })?;
        let head = mapped.addr().next_multiple_of(alignment) - mapped.addr();
        let start = mapped.cast::<u8>().wrapping_add(head);
        trim(mapped.cast(), head);
        trim(start.wrapping_add(bytes), alignment - head);
        let start = NonNull::new(start).expect("the kernel maps nothing at zero");
        Ok(Self { start, bytes, hugepages: None })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Takes all pages, so that a shortage is an error here and not a SIGBUS at first use.
    pub(crate) fn populate(&self) -> Result<(), i32> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Asks for transparent hugepages, or for none.
    pub(crate) fn ask_huge(&self, wanted: bool) -> Result<(), i32> {
        self.advise(if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage })
    }

    fn advise(&self, advice: Advice) -> Result<(), i32> {
        // SAFETY: the range is owned by this value, and none of the advices used here changes content or validity.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) }
            .map_err(rustix::io::Errno::raw_os_error)
    }

    /// Keeps the range from being swapped out.
    pub(crate) fn lock(&self) -> Result<(), i32> {
        // SAFETY: the range is owned by this value; locking changes neither content nor validity.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.bytes) }
            .map_err(rustix::io::Errno::raw_os_error)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.hugepages {
            // SAFETY: allocated by hugepage_rs with this layout, and freed once, here, by the only owner.
            Some(layout) => unsafe { hugepage_rs::dealloc(self.start.as_ptr(), layout) },
            None => trim(self.start.as_ptr(), self.bytes),
        }
    }
}

/// Unmaps a part of what [`Memory::anonymous`] mapped. An error would mean a bug here: the range is ours and of whole
/// pages.
fn trim(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: called only for whole pages of a mapping of this module that nobody uses (any more).
        let unmapped = unsafe { rustix::mm::munmap(start.cast(), bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Why a lock was refused, as far as the limits tell.
pub(crate) fn lock_reason(bytes: usize) -> Reason {
    let bytes = bytes as u64;
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        // The limit counts all locked memory of the process, so it may be the cause even if it is above `bytes`; but
        // without any limit it cannot be.
        Some(limit_bytes) => Reason::MemlockLimit { limit_bytes, bytes },
        None => Reason::Unlocked,
    }
}

/// Whether the machine has this node with memory on it. True where the kernel does not say.
pub(crate) fn node_exists(node: u32) -> bool {
    match fs::read_to_string("/sys/devices/system/node/has_memory") {
        Ok(list) => list_contains(list.trim(), node),
        Err(_) => true,
    }
}

/// Whether a list such as `0-1,4` names a number.
fn list_contains(list: &str, number: u32) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&number))
    })
}

/// Words of a node mask: 1,024 nodes, the most that any kernel is built for.
const MASK_WORDS: usize = 16;

/// Binds whole pages to a node, before they are taken.
pub(crate) fn bind(start: usize, bytes: usize, node: u32) -> Result<(), i32> {
    let mut mask = [0u64; MASK_WORDS];
    let word = mask.get_mut(node as usize / 64).ok_or(libc::EINVAL)?;
    *word = 1 << (node % 64);
    // The kernel reads one bit less than it is told.
    let bits = MASK_WORDS * 64 + 1;
    // SAFETY: mbind checks the range and only sets where its future pages come from; `mask` has the bits it may read.
    let result =
        unsafe { libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_BIND, mask.as_ptr(), bits, 0) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Asks where every page of a range lies.
pub(crate) fn placement(start: usize, bytes: usize, page_bytes: usize) -> Result<Placement, ArenaError> {
    let mut placement = Placement::default();
    let pages: Vec<usize> = (0..bytes.div_ceil(page_bytes)).map(|at| start + at * page_bytes).collect();
    let status = where_they_are(&pages).map_err(|errno| ArenaError::System { call: "move_pages", errno })?;
    for node in status {
        match u32::try_from(node) {
            Ok(node) => placement.count(node),
            Err(_) => placement.absent += 1,
        }
    }
    Ok(placement)
}

/// The node of each page, or minus an error number for one that lies nowhere.
pub(crate) fn where_they_are(pages: &[usize]) -> Result<Vec<i32>, i32> {
    call_move_pages(pages, None)
}

/// Moves each page to the node beside it. Answers where each lies afterwards, or minus an error number.
pub(crate) fn move_pages(pages: &[usize], nodes: &[i32]) -> Result<Vec<i32>, i32> {
    assert_eq!(pages.len(), nodes.len(), "one node for each page");
    call_move_pages(pages, Some(nodes))
}

fn call_move_pages(pages: &[usize], nodes: Option<&[i32]>) -> Result<Vec<i32>, i32> {
    // What the kernel does not get to, because it stopped at a page that cannot be moved.
    let mut status = vec![-libc::EAGAIN; pages.len()];
    for (at, addresses) in pages.chunks(QUERY_PAGES).enumerate() {
        let first = at * QUERY_PAGES;
        let to = nodes.map_or(core::ptr::null(), |nodes| nodes[first..].as_ptr());
        let results = status[first..].as_mut_ptr();
        let flags = if nodes.is_some() { MOVE } else { 0 };
        // SAFETY: the call reads `addresses.len()` addresses, which it checks, and as many nodes if there are any, and
        // writes as many results; moving changes neither content nor validity of memory.
        let result = unsafe {
            libc::syscall(libc::SYS_move_pages, 0, addresses.len(), addresses.as_ptr(), to, results, flags)
        };
        // More than zero is the number of pages that could not be moved; the results say which.
        if result < 0 {
            return Err(last_errno());
        }
    }
    Ok(status)
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_lists() {
        assert!(list_contains("0", 0));
        assert!(list_contains("0-1,4", 1));
        assert!(list_contains("0-1,4", 4));
        assert!(!list_contains("0-1,4", 3));
        assert!(!list_contains("", 0));
    }

    #[test]
    fn anonymous_memory_is_aligned_and_exact() {
        let memory = Memory::anonymous(5000, 4096).unwrap();
        assert_eq!(memory.len(), 8192);
        assert_eq!(memory.start().addr().get() % ALIGNMENT, 0);
        memory.populate().unwrap();
    }

    #[test]
    fn dropped_memory_is_unmapped() {
        let memory = Memory::anonymous(8192, 4096).unwrap();
        let start = memory.start().addr().get();
        drop(memory);
        let mut vector = [0u8; 2];
        // SAFETY: mincore checks the range and writes one byte per page.
        let result = unsafe {
            libc::mincore(core::ptr::with_exposed_provenance_mut(start), 8192, vector.as_mut_ptr())
        };
        assert_eq!((result, last_errno()), (-1, libc::ENOMEM));
    }

    #[test]
    fn impossible_nodes_are_refused_by_bind() {
        let memory = Memory::anonymous(4096, 4096).unwrap();
        let start = memory.start().addr().get();
        assert_eq!(bind(start, 4096, 5000), Err(libc::EINVAL));
    }
}
