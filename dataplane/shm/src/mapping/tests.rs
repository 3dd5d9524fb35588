use super::*;
use crate::memfd::Huge;

#[test]
fn two_mappings_of_a_file_see_the_same_words() {
    let file = memfd::create("test", 4096, Huge::No).unwrap();
    let ours = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(8, 4).unwrap();
    let theirs = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, 8).unwrap();
    drop(file);
    ours[0].store_release(7);
    assert_eq!(theirs[1].load_acquire(), 7);
    assert_ne!(ours.mapping().address(), theirs.mapping().address());
}

#[test]
fn words_outlive_the_mapping_handle_and_cross_threads() {
    let words = Mapping::anonymous(1).unwrap().words(0, 2).unwrap();
    let clone = words.clone();
    std::thread::spawn(move || clone[1].store_release(9)).join().unwrap();
    assert_eq!(words[1].load_acquire(), 9);
}

#[test]
fn words_outside_or_misaligned_are_refused() {
    let mapping = Mapping::anonymous(4096).unwrap();
    assert_eq!(mapping.words(0, 512).unwrap().len(), 512);
    assert_eq!(mapping.words(4096, 0).unwrap().len(), 0);
    assert!(matches!(mapping.words(0, 513), Err(MapError::Range(_))));
    assert!(matches!(mapping.words(4096, 1), Err(MapError::Range(_))));
    assert!(matches!(mapping.words(8, usize::MAX), Err(MapError::Range(_))));
    assert!(matches!(mapping.words(8, usize::MAX / 8), Err(MapError::Range(_))));
    assert!(matches!(mapping.words(usize::MAX - 7, 1), Err(MapError::Range(_))));
    assert!(matches!(mapping.words(4, 1), Err(MapError::Misaligned { offset: 4 })));
}

#[test]
fn parts_of_words_are_bounded() {
    let words = Mapping::anonymous(4096).unwrap().words(0, 16).unwrap();
    let part = words.part(4, 4).unwrap();
    words[5].store_release(3);
    assert_eq!(part[1].load_acquire(), 3);
    assert_eq!(part.len(), 4);
    assert!(part.part(4, 0).is_ok());
    assert!(part.part(4, 1).is_err());
    assert!(part.part(1, usize::MAX).is_err());
}

#[test]
fn read_only_mapping_gives_no_words() {
    let file = memfd::create("test", 4096, Huge::No).unwrap();
    let mapping = Mapping::of_sealed(&file, Access::Read).unwrap();
    assert_eq!(mapping.access(), Access::Read);
    assert!(matches!(mapping.words(0, 1), Err(MapError::ReadOnly)));
    mapping.populate().unwrap();
}

#[test]
fn unsealed_and_empty_files_are_refused() {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(
        Mapping::of_sealed(&file, Access::ReadWrite),
        Err(MapError::Memfd(MemfdError::Unsealed { .. }))
    ));
    assert!(matches!(Mapping::of_unsealed(&file, Access::ReadWrite), Err(MapError::Empty)));
    assert!(matches!(Mapping::anonymous(0), Err(MapError::Empty)));
    assert!(Mapping::anonymous(usize::MAX).is_err());
}

#[test]
fn file_of_an_odd_length_is_mapped_to_its_page() {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, 5000).unwrap();
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).unwrap();
    assert_eq!(mapping.len() % mapping.page_bytes(), 0);
    assert!(mapping.len() >= 5000);
    mapping.populate().unwrap();
}

#[test]
fn part_of_a_file_starts_where_it_was_asked_to() {
    let page = memfd::base_page_bytes() as u64;
    let file = memfd::create("test", 4 * page, Huge::No).unwrap();
    let whole = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().span();
    whole.write(2 * page, b"region").unwrap();
    let part = Mapping::of_sealed_part(&file, 2 * page, page + 1, Access::ReadWrite).unwrap();
    assert_eq!(part.len() as u64, 2 * page, "rounded up to its page");
    let mut out = [0; 6];
    part.span().read(0, &mut out).unwrap();
    assert_eq!(&out, b"region");
}

#[test]
fn parts_off_page_or_outside_the_file_are_refused() {
    let page = memfd::base_page_bytes() as u64;
    let file = memfd::create("test", 4 * page, Huge::No).unwrap();
    let part = |offset, bytes| Mapping::of_sealed_part(&file, offset, bytes, Access::ReadWrite).map(drop);
    assert!(matches!(part(8, page), Err(MapError::OffPage { offset: 8, .. })));
    assert!(matches!(part(0, 0), Err(MapError::Empty)));
    assert!(matches!(part(4 * page, 1), Err(MapError::Range(_))));
    assert!(matches!(part(page, 3 * page + 1), Err(MapError::Range(_))));
    assert!(matches!(part(page, u64::MAX), Err(MapError::Range(_))));
    assert!(part(3 * page, page).is_ok());
}

#[test]
fn sole_writer_file_can_only_be_read_by_others() {
    let (file, mapping) = Mapping::sole_writer("test", 64).unwrap();
    memfd::require_seals(&file).unwrap();
    let words = mapping.words(0, 8).unwrap();
    assert!(matches!(Mapping::of_sealed(&file, Access::ReadWrite), Err(MapError::Map(_))));
    assert!(rustix::io::write(&file, &[1]).is_err());
    let theirs = Mapping::of_sealed(&file, Access::Read).unwrap().read_words(0, 8).unwrap();
    words[3].store_release(5);
    assert_eq!(
        (theirs.load_acquire(3), theirs.load_relaxed(3), theirs.load_relaxed(8)),
        (Some(5), Some(5), None)
    );
    assert_eq!((theirs.len(), theirs.is_empty()), (8, false));
}
