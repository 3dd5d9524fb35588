use super::*;
use crate::{Arena, ArenaConfig, Policy};

fn arena() -> Arena {
    Arena::reserve(ArenaConfig { bytes: 3 << 20, huge: Policy::Never, numa_node: None }).unwrap()
}

/// On a machine with one node the move goes nowhere; what it does with two is tested in a guest that has two.
#[test]
fn content_and_addresses_stay() {
    let arena = arena();
    let span = arena.span();
    span.write(12_345, b"as it was").unwrap();
    match arena.extent().move_to(0) {
        Ok(()) => assert!(arena.extent().placement().unwrap().all_on(0)),
        Err(MoveError::System { call, errno }) => {
            println!("SKIPPED: this process may not move memory: {call} {errno}");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let mut out = [0; 9];
    span.read(12_345, &mut out).unwrap();
    assert_eq!(&out, b"as it was");
}

#[test]
fn a_node_that_is_not_there_is_refused_and_nothing_moves() {
    let arena = arena();
    let before = arena.extent().placement().unwrap();
    assert_eq!(arena.extent().move_to(900), Err(MoveError::NoSuchNode { node: 900 }));
    assert_eq!(arena.extent().placement().unwrap(), before);
}

#[test]
fn a_slice_is_moved_with_its_whole_pages() {
    let table = vec![7u64; 5000];
    let extent = Extent::of_slice(&table);
    assert!(extent.len() >= 40_000 && extent.len().is_multiple_of(4096));
    if let Err(error) = extent.move_to(0) {
        println!("SKIPPED: this process may not move memory: {error}");
        return;
    }
    assert!(table.iter().all(|word| *word == 7));
}
