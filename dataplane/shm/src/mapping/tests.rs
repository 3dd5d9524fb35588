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
