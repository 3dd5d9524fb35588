// Words need a running model under loom: see tests/loom.rs.
#![cfg(not(loom))]

use std::vec;

use proptest::prelude::*;

use super::*;
use crate::zeroed;

fn ends(memory: &[Word]) -> (CellWriter<&[Word]>, CellReader<&[Word]>) {
    (CellWriter::new(memory).unwrap(), CellReader::new(memory).unwrap())
}

#[test]
fn an_unused_cell_has_generation_zero_and_leaves_the_copy_alone() {
    let memory = zeroed(cell_words(2));
    let (writer, reader) = ends(&memory);
    let mut copy = [7, 8];
    assert_eq!(reader.read(&mut copy, 1), Ok(0));
    assert_eq!((copy, reader.generation(), writer.generation()), ([7, 8], 0, 0));
}

#[test]
fn a_publication_replaces_the_whole() {
    let memory = zeroed(cell_words(3));
    let (mut writer, reader) = ends(&memory);
    let mut copy = [0; 3];
    for generation in [1, 2, 40] {
        writer.publish(generation, &[generation, 10 * generation, !generation]).unwrap();
        assert_eq!(reader.generation(), generation);
        assert_eq!(reader.read(&mut copy, 1), Ok(generation));
        assert_eq!(copy, [generation, 10 * generation, !generation]);
    }
    let mut start = [0; 2];
    assert_eq!(reader.read(&mut start, 1), Ok(40));
    assert_eq!(start, [40, 400]);
}

#[test]
fn a_generation_that_does_not_follow_is_refused_and_changes_nothing() {
    let memory = zeroed(cell_words(1));
    let (mut writer, reader) = ends(&memory);
    writer.publish(5, &[50]).unwrap();
    for generation in [0, 4, 5, 1 << 63, u64::MAX] {
        let refused = Err(PublishError::Generation { current: 5 });
        assert_eq!(writer.publish(generation, &[99]), refused, "generation {generation}");
    }
    let refused = Err(PublishError::Length { needed_words: 1, given_words: 2 });
    assert_eq!(writer.publish(6, &[1, 2]), refused);
    let mut copy = [0];
    assert_eq!((reader.read(&mut copy, 1), copy), (Ok(5), [50]));
    // The last generation that a sequence can count.
    writer.publish((1 << 63) - 1, &[60]).unwrap();
    assert_eq!((reader.read(&mut copy, 1), copy), (Ok((1 << 63) - 1), [60]));
}

#[test]
fn a_cell_left_half_written_is_busy_until_the_next_writer_publishes() {
    let memory = zeroed(cell_words(2));
    let (mut writer, reader) = ends(&memory);
    writer.publish(1, &[1, 1]).unwrap();
    // What a writer leaves that dies in the middle of generation 2.
    memory[SEQUENCE].store_relaxed(3);
    memory[PAYLOAD].store_relaxed(2);
    let mut copy = [0; 2];
    assert_eq!(reader.read(&mut copy, 10), Err(Busy));
    assert_eq!(reader.generation(), 1);
    let (mut writer, _) = ends(&memory);
    assert_eq!(writer.generation(), 1);
    writer.publish(2, &[2, 2]).unwrap();
    assert_eq!((reader.read(&mut copy, 1), copy), (Ok(2), [2, 2]));
}

#[test]
fn no_tries_and_no_memory() {
    let memory = zeroed(cell_words(1));
    let (mut writer, reader) = ends(&memory);
    writer.publish(1, &[1]).unwrap();
    assert_eq!(reader.read(&mut [0], 0), Err(Busy));
    let refused = LayoutError::TooShort { needed_words: 1, given_words: 0 };
    assert_eq!(CellWriter::new(&memory[..0]).unwrap_err(), refused);
    assert_eq!(CellReader::new(&memory[..0]).unwrap_err(), refused);
}

#[test]
#[should_panic(expected = "out of range")]
fn a_copy_longer_than_the_cell_is_a_bug_of_the_caller() {
    let memory = zeroed(cell_words(1));
    let _ = CellReader::new(&memory[..]).unwrap().read(&mut [0; 2], 1);
}

proptest! {
    #[test]
    fn holds_the_last_accepted_publication(
        publications in prop::collection::vec((0_u64..30, any::<[u64; 2]>(), any::<bool>()), 0..40),
    ) {
        let memory = zeroed(cell_words(2));
        let (mut writer, reader) = ends(&memory);
        let mut held = (0, [0; 2]);
        for (generation, payload, die_first) in publications {
            let accepted = generation > held.0;
            if die_first && accepted {
                memory[SEQUENCE].store_relaxed(2 * generation - 1);
                memory[PAYLOAD].store_relaxed(u64::MAX);
                prop_assert_eq!(reader.read(&mut [0; 2], 2), Err(Busy));
                writer = CellWriter::new(&memory[..]).unwrap();
            }
            prop_assert_eq!(writer.publish(generation, &payload).is_ok(), accepted);
            if accepted {
                held = (generation, payload);
            }
            let mut copy = vec![0; 2];
            prop_assert_eq!(reader.read(&mut copy, 1), Ok(held.0));
            prop_assert_eq!(copy, held.1);
        }
    }
}
