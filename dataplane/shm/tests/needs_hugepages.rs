//! The SIGBUS guard against what a sealed file still allows: holes punched into hugetlb memory whose pages are then
//! taken by somebody else. In a process of its own, since it takes all free hugepages for a moment.

use std::os::fd::AsFd;

use railhead_shm::memfd::{self, Huge};
use railhead_shm::{Access, Mapping, guard};
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Takes free hugepages one by one until there are none left; each is given back when its owner is dropped.
struct Page(*mut libc::c_void);

impl Page {
    fn take() -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping replaces nothing.
        let start =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), 2 << 20, protection, flags) }.ok()?;
        let page = Self(start);
        // SAFETY: the mapping is this page's own.
        unsafe { rustix::mm::madvise(start, 2 << 20, rustix::mm::Advice::LinuxPopulateWrite) }.ok()?;
        Some(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `take` with this length and used by nobody else.
        let unmapped = unsafe { rustix::mm::munmap(self.0, 2 << 20) };
        assert_eq!(unmapped, Ok(()));
    }
}

#[test]
fn needs_hugepages_hole_punched_under_a_guarded_region_is_survived() {
    guard::install().unwrap();
    let file = memfd::create("client", 4 << 20, Huge::Default2M).unwrap();
    let mapping = match Mapping::of_sealed(&file, Access::ReadWrite) {
        Ok(mapping) => mapping,
        Err(error) => {
            println!("SKIPPED: two free hugepages are needed: {error}");
            return;
        }
    };
    mapping.populate().unwrap();
    let guarded = guard::protect(&mapping).unwrap();
    let span = guarded.span();
    span.fill(0, 4 << 20, 7).unwrap();

    // The client frees one page of its region, which no seal forbids, and all free pages go elsewhere.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file.as_fd(), hole, 2 << 20, 2 << 20).unwrap();
    let taken: Vec<Page> = std::iter::from_fn(Page::take).collect();
    assert!(!taken.is_empty(), "the punched page at least was free");

    let mut out = [1; 64];
    span.read(0, &mut out).unwrap();
    assert_eq!(out, [7; 64]);
    assert!(!span.poisoned());
    span.read(3 << 20, &mut out).unwrap();
    drop(taken);
    assert_eq!(out, [0; 64]);
    assert!(span.poisoned());
    // Both are whole mappings of hugepages replaced by ordinary memory: unmapping must still work.
    span.write(0, b"nowhere").unwrap();
}
