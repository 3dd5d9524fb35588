use super::*;
use crate::memfd::{self, Huge};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

/// A file of a hostile client: mapped without its seals being looked at, so that it can be truncated below.
fn hostile(bytes: u64) -> (OwnedFd, Arc<Guarded>) {
    install().unwrap();
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).unwrap();
    let guarded = protect(&mapping).unwrap();
    (file, guarded)
}

#[test]
fn truncated_memory_reads_as_zeroes_and_is_poisoned() {
    let (file, guarded) = hostile(64 << 10);
    let span = guarded.span();
    span.fill(0, 64 << 10, 0xab).unwrap();
    assert!(!guarded.poisoned());
    ftruncate(&file, 4096).unwrap();
    let mut out = [0xff; 64];
    span.read(0, &mut out).unwrap();
    assert_eq!(out, [0xab; 64], "the part that is left is still there");
    assert!(!span.poisoned());
    let losses = losses();

    span.read(32 << 10, &mut out).unwrap();
    assert_eq!(out, [0; 64]);
    assert!(span.poisoned());
    // Other tests of this process lose memory, too.
    assert!(super::losses() > losses, "whoever watches sees it");
    span.read(0, &mut out).unwrap();
    assert_eq!(out, [0; 64], "the whole range is given up, not a page of it");
    span.write(60 << 10, b"goes nowhere").unwrap();
}

#[test]
fn checksum_and_copy_over_lost_memory_end() {
    let (file, guarded) = hostile(64 << 10);
    let span = guarded.span();
    span.fill(0, 64 << 10, 1).unwrap();
    ftruncate(&file, 0).unwrap();
    let zeroes = vec![0; 64 << 10];
    let mut expected = crate::span::Crc32c::new();
    expected.update(&zeroes);
    assert_eq!(span.crc32c(0, 64 << 10).unwrap(), expected.value());
    assert!(guarded.poisoned());
}

#[test]
fn only_the_touched_mapping_is_lost() {
    let (file, lost) = hostile(8192);
    let (_other_file, other) = hostile(8192);
    other.span().write(0, b"mine").unwrap();
    ftruncate(&file, 0).unwrap();
    lost.span().fill(0, 1, 1).unwrap();
    assert!(lost.poisoned());
    assert!(!other.poisoned());
    let mut out = [0; 4];
    other.span().read(0, &mut out).unwrap();
    assert_eq!(&out, b"mine");
}

#[test]
fn fault_on_several_threads_at_once_is_survived() {
    for _ in 0..20 {
        let (file, guarded) = hostile(256 << 10);
        ftruncate(&file, 0).unwrap();
        let touch = |guarded: Arc<Guarded>, offset: u64| {
            let mut out = [1; 16];
            guarded.span().read(offset, &mut out).unwrap();
            assert_eq!(out, [0; 16]);
            assert!(guarded.poisoned());
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let guarded = Arc::clone(&guarded);
                scope.spawn(move || touch(guarded, thread * (64 << 10)));
            }
        });
    }
}

#[test]
fn system_call_on_lost_memory_answers_efault_and_condemn_gives_it_up() {
    let (file, guarded) = hostile(8192);
    ftruncate(&file, 0).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    let span = guarded.span();
    // SAFETY: `span` lives to the end of the test.
    let iovec = unsafe { span.span() }.iovec();
    let write = || {
        use std::os::fd::AsRawFd;
        // SAFETY: one valid iovec over mapped memory; the kernel checks each page of it.
        let count = unsafe { libc::writev(writer.as_raw_fd(), &raw const iovec, 1) };
        if count < 0 { Err(io::Error::last_os_error().raw_os_error()) } else { Ok(count) }
    };
    assert_eq!(write(), Err(Some(libc::EFAULT)));
    assert!(!guarded.poisoned(), "the kernel sends no signal for its own accesses");
    guarded.condemn().unwrap();
    assert!(guarded.poisoned());
    assert_eq!(write(), Ok(8192));
    guarded.condemn().unwrap();
}

#[test]
fn entry_is_free_again_after_drop_and_its_poison_is_gone() {
    for _ in 0..GUARDS_MAX + 10 {
        // More often than there are entries, so that a leak of one would end in Full.
        let mapping = Mapping::anonymous(4096).unwrap();
        install().unwrap();
        let guarded = protect(&mapping).unwrap();
        assert!(!guarded.poisoned());
        guarded.condemn().unwrap();
        assert!(guarded.poisoned());
    }
}

#[test]
fn read_only_mappings_are_refused() {
    install().unwrap();
    let file = memfd::create("test", 4096, Huge::No).unwrap();
    let mapping = Mapping::of_sealed(&file, Access::Read).unwrap();
    assert!(matches!(protect(&mapping), Err(GuardError::Map(MapError::ReadOnly))));
}

#[test]
fn covers_only_the_range_and_only_while_live() {
    let entry =
        Entry { state: Word::new(FREE), start: Word::new(0), end: Word::new(0), poison: Word::new(0) };
    assert_eq!(entry.covers(0x1000), None);
    assert!(entry.claim(0x1000, 0x3000));
    assert!(!entry.claim(0x1000, 0x3000), "taken");
    assert_eq!(entry.covers(0xfff), None);
    assert_eq!(entry.covers(0x1000), Some((0x1000, 0x3000)));
    assert_eq!(entry.covers(0x2fff), Some((0x1000, 0x3000)));
    assert_eq!(entry.covers(0x3000), None);
    entry.free();
    assert_eq!(entry.covers(0x1000), None);
    assert!(entry.claim(0x5000, 0x6000));
    assert_eq!(entry.covers(0x1000), None);
}
