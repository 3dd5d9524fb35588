// Words need a running model under loom: see tests/loom.rs.
#![cfg(not(loom))]

use proptest::prelude::*;

use super::*;
use crate::zeroed;

fn ends<const W: usize>(memory: &[Word], entries: usize) -> (LogWriter<&[Word], W>, LogReader<&[Word], W>) {
    (LogWriter::new(memory, entries).unwrap(), LogReader::new(memory, entries).unwrap())
}

#[test]
fn keeps_the_last_entries() {
    let memory = zeroed(log_words(2, 2));
    let (mut writer, reader) = ends::<2>(&memory, 2);
    assert_eq!((reader.next_position(), reader.oldest_position()), (0, 0));
    assert_eq!(reader.read(0), Entry::NotYet);
    for position in 0..3 {
        assert_eq!(writer.append(&[position, !position]), position);
    }
    assert_eq!((reader.next_position(), reader.oldest_position(), writer.next_position()), (3, 1, 3));
    assert_eq!(reader.read(0), Entry::Overwritten);
    assert_eq!(reader.read(1), Entry::Found([1, !1]));
    assert_eq!(reader.read(2), Entry::Found([2, !2]));
    assert_eq!(reader.read(3), Entry::NotYet);
    for position in [u64::MAX / 2 - 1, u64::MAX / 2, u64::MAX] {
        assert_eq!(reader.read(position), Entry::NotYet);
    }
}

#[test]
fn an_entry_being_written_is_neither_old_nor_new() {
    let memory = zeroed(log_words(2, 1));
    let (mut writer, reader) = ends::<1>(&memory, 2);
    for position in 0..4 {
        writer.append(&[position]);
    }
    // What a writer leaves that dies in the middle of position 4, in the place of position 2.
    memory[LOG_HEADER_WORDS].store_relaxed(9);
    assert_eq!(reader.read(2), Entry::Overwritten);
    assert_eq!(reader.read(4), Entry::NotYet);
    let (mut writer, _) = ends::<1>(&memory, 2);
    assert_eq!(writer.append(&[40]), 4);
    assert_eq!(reader.read(4), Entry::Found([40]));
}

#[test]
fn a_complete_entry_is_never_written_twice() {
    let memory = zeroed(log_words(4, 1));
    let (mut writer, reader) = ends::<1>(&memory, 4);
    writer.append(&[0]);
    writer.append(&[1]);
    // What a writer leaves that dies between completing position 1 and counting it.
    memory[NEXT].store_relaxed(1);
    let (mut writer, _) = ends::<1>(&memory, 4);
    assert_eq!(reader.next_position(), 2);
    assert_eq!(writer.append(&[2]), 2);
    assert_eq!(reader.read(1), Entry::Found([1]));
}

#[test]
fn a_refused_layout_says_why() {
    let memory = zeroed(log_words(4, 1));
    assert_eq!(LogWriter::<_, 1>::new(&memory[..], 3).unwrap_err(), LayoutError::Capacity { capacity: 3 });
    assert_eq!(LogReader::<_, 1>::new(&memory[..], 0).unwrap_err(), LayoutError::Capacity { capacity: 0 });
    let too_short =
        LayoutError::TooShort { needed_words: LOG_HEADER_WORDS + 12, given_words: LOG_HEADER_WORDS + 8 };
    assert_eq!(LogWriter::<_, 2>::new(&memory[..], 4).unwrap_err(), too_short);
    assert_eq!(LogReader::<_, 2>::new(&memory[..], 4).unwrap_err(), too_short);
    let one_short = LayoutError::TooShort { needed_words: memory.len(), given_words: memory.len() - 1 };
    assert_eq!(LogReader::<_, 1>::new(&memory[1..], 4).unwrap_err(), one_short);
    memory[LOG_HEADER_WORDS].store_relaxed(3);
    assert_eq!(LogWriter::<_, 1>::new(&memory[..], 4).unwrap_err(), LayoutError::Indices);
    memory[NEXT].store_relaxed(u64::MAX);
    assert_eq!(LogWriter::<_, 1>::new(&memory[..], 4).unwrap_err(), LayoutError::Indices);
}

proptest! {
    #[test]
    fn behaves_as_a_list_with_a_short_memory(
        entries_log2 in 0_u32..4,
        appended in prop::collection::vec((any::<u64>(), any::<bool>()), 0..60),
    ) {
        let entries = 1_usize << entries_log2;
        let memory = zeroed(log_words(entries, 2));
        let (mut writer, reader) = ends::<2>(&memory, entries);
        for (position, (value, replace_writer)) in appended.iter().enumerate() {
            if *replace_writer {
                writer = LogWriter::new(&memory[..], entries).unwrap();
            }
            prop_assert_eq!(writer.append(&[*value, !*value]), position as u64);
            let next = position + 1;
            prop_assert_eq!(reader.next_position(), next as u64);
            prop_assert_eq!(reader.oldest_position(), next.saturating_sub(entries) as u64);
            for (asked, (value, _)) in appended.iter().enumerate() {
                let expected = if asked >= next {
                    Entry::NotYet
                } else if asked + entries < next {
                    Entry::Overwritten
                } else {
                    Entry::Found([*value, !*value])
                };
                prop_assert_eq!(reader.read(asked as u64), expected);
            }
        }
    }

    #[test]
    fn no_content_makes_a_reader_or_writer_panic(content in any::<[u64; 8]>(), position in any::<u64>()) {
        let memory = zeroed(log_words(4, 1));
        memory[NEXT].store_relaxed(content[0] >> (content[1] % 64));
        for (word, value) in memory[LOG_HEADER_WORDS..].iter().zip(content) {
            word.store_relaxed(value);
        }
        let reader = LogReader::<_, 1>::new(&memory[..], 4).unwrap();
        let _ = (reader.read(position), reader.oldest_position());
        if let Ok(mut writer) = LogWriter::<_, 1>::new(&memory[..], 4) {
            writer.append(&[1]);
        }
    }
}
