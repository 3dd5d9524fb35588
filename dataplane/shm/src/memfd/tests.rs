use super::*;

#[test]
fn created_file_is_rounded_to_pages_and_sealed() {
    let file = create("test", 5000, Huge::No).unwrap();
    let facts = facts(&file).unwrap();
    assert_eq!(facts.bytes, 5000u64.next_multiple_of(base_page_bytes() as u64));
    assert_eq!(facts.page_bytes, base_page_bytes());
    assert!(!facts.hugetlb);
    require_seals(&file).unwrap();
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 1 << 20), Err(Errno::PERM));
    assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
}

#[test]
fn sizes_that_no_file_can_have_are_refused() {
    for bytes in [0, u64::MAX, i64::MAX as u64] {
        assert_eq!(create("test", bytes, Huge::No).unwrap_err(), MemfdError::Size { bytes });
    }
}

#[test]
fn each_missing_seal_is_named() {
    let unsealed = || rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = unsealed();
    assert_eq!(require_seals(&file), Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK and F_SEAL_GROW" }));
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    assert_eq!(require_seals(&file), Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK" }));
    let file = unsealed();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert_eq!(require_seals(&file), Err(MemfdError::Unsealed { missing: "F_SEAL_GROW" }));
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    assert_eq!(require_seals(&file), Ok(()));
}

#[test]
fn descriptors_that_are_not_memory_are_refused() {
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(require_seals(&reader), Err(MemfdError::NotMemory(_))));
    // An ordinary file: on tmpfs it has seals but not ours, elsewhere it has none.
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(require_seals(&file), Err(MemfdError::NotMemory(_) | MemfdError::Unsealed { .. })));
}

#[test]
fn populate_takes_every_page() {
    let file = create("test", 1 << 20, Huge::No).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
    populate(&file).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks * 512, 1 << 20);
}

#[test]
fn huge_file_reports_its_page() {
    // Creation takes no page, so this needs none to be free.
    match create("test", 1, Huge::Default2M) {
        Ok(file) => {
            let facts = facts(&file).unwrap();
            assert_eq!(facts, Facts { bytes: 2 << 20, page_bytes: HUGE_PAGE_BYTES, hugetlb: true });
            require_seals(&file).unwrap();
        }
        Err(error) => println!("SKIPPED: this kernel makes no hugetlb files: {error}"),
    }
}
