//! What travels in a send: one head of eight bytes, and behind it a record or nothing.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind |
//! | 1 | words of the record, 0 to 16 |
//! | 2, 3 | receives given back: how many the sender of this has posted anew |
//! | 4 to 7 | zero |

use railhead_abi::record::{RECORD_WORDS_MAX, RawRecord};

/// Largest message in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 + 8 * RECORD_WORDS_MAX;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record of the engine.
    Record = 1,
    /// Nothing but receives given back.
    Credit = 2,
    /// The other end ends the connection.
    Bye = 3,
}

/// A message without its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) words: u8,
    pub(crate) returned: u16,
}

impl Head {
    pub(crate) fn encode(self) -> [u8; 8] {
        let [low, high] = self.returned.to_le_bytes();
        [self.kind as u8, self.words, low, high, 0, 0, 0, 0]
    }

    /// Understands a head and checks that `bytes` is the length of its message.
    pub(crate) fn decode(head: [u8; 8], bytes: usize) -> Option<Self> {
        let [kind, words, low, high, 0, 0, 0, 0] = head else { return None };
        let kind = match kind {
            1 => Kind::Record,
            2 => Kind::Credit,
            3 => Kind::Bye,
            _ => return None,
        };
        let fits = usize::from(words) <= RECORD_WORDS_MAX && bytes == 8 + 8 * usize::from(words);
        let is_whole = fits && (kind == Kind::Record) == (words > 0);
        is_whole.then_some(Self { kind, words, returned: u16::from_le_bytes([low, high]) })
    }
}

/// The words of a record as they travel.
pub(crate) fn encode_record(record: &RawRecord, into: &mut [u8; MESSAGE_BYTES_MAX]) -> u8 {
    let words = record.len();
    for (word, bytes) in record.words[..words].iter().zip(into[8..].chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    u8::try_from(words).unwrap_or(0)
}

/// The record of a message with so many words.
pub(crate) fn decode_record(words: u8, from: &[u8; MESSAGE_BYTES_MAX]) -> RawRecord {
    let mut record = RawRecord { words: [0; RECORD_WORDS_MAX] };
    for (word, bytes) in record.words.iter_mut().zip(from[8..].chunks_exact(8)).take(words.into()) {
        let mut value = [0; 8];
        value.copy_from_slice(bytes);
        *word = u64::from_le_bytes(value);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        for kind in [Kind::Record, Kind::Credit, Kind::Bye] {
            let words = if kind == Kind::Record { 16 } else { 0 };
            let head = Head { kind, words, returned: 0x1234 };
            assert_eq!(Head::decode(head.encode(), 8 + 8 * usize::from(words)), Some(head));
        }
    }

    #[test]
    fn whatever_is_not_a_message_is_refused() {
        let good = Head { kind: Kind::Record, words: 2, returned: 0 }.encode();
        for (head, bytes) in [
            (good, 23),
            (good, 25),
            (good, 8),
            (Head { kind: Kind::Record, words: 0, returned: 0 }.encode(), 8),
            (Head { kind: Kind::Record, words: 17, returned: 0 }.encode(), 144),
            (Head { kind: Kind::Credit, words: 1, returned: 0 }.encode(), 16),
            ([0, 0, 0, 0, 0, 0, 0, 0], 8),
            ([4, 0, 0, 0, 0, 0, 0, 0], 8),
            ([2, 0, 0, 0, 0, 0, 0, 1], 8),
        ] {
            assert_eq!(Head::decode(head, bytes), None, "{head:?} of {bytes} bytes");
        }
    }

    #[test]
    fn records_come_back() {
        let mut record = RawRecord { words: [0; RECORD_WORDS_MAX] };
        record.words[0] = 3 << 8 | 7;
        record.words[1..3].copy_from_slice(&[u64::MAX, 42]);
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let words = encode_record(&record, &mut bytes);
        assert_eq!((words, decode_record(words, &bytes)), (3, record));
    }
}
