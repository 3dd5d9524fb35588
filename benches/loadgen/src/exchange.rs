//! What `push` or `sweep` and `serve` tell each other, as words in regions, each announced by an event.
//!
//! The serving program registers one region of slots. A sender writes a [`Join`] into a slot of its choosing, with the
//! join's nonce as the event's value: if two senders hit the same slot, the one overwritten does not match and is not
//! answered. The serving program then makes a data region for this sender alone:
//!
//! ```text
//! [payload, rounded up to a page][command area][reply area]
//! ```
//!
//! The sender writes payload and commands there; answers are written from the reply area into the reply region that
//! the join named. One command at a time; its sequence number is the event's value both ways.

use railhead_abi::frame::{Name, Text, name_words};
use railhead_client::{OutOfRange, Region};

/// First word of every message.
const MAGIC: u64 = u64::from_le_bytes(*b"RHBENCH1");
/// Words of a message's fixed part.
pub(crate) const HEAD_WORDS: usize = 64;
/// Bytes of a message's fixed part; a payload follows.
pub(crate) const HEAD_BYTES: u64 = 8 * HEAD_WORDS as u64;
/// Joins that can wait to be read.
pub(crate) const SLOTS: u64 = 256;

/// Payload, commands and answers of one sender lie at the same offsets at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Areas {
    /// Bytes that transfers may use.
    pub(crate) payload_bytes: u64,
    /// Longest command.
    pub(crate) command_bytes: u64,
    /// Longest answer.
    pub(crate) reply_bytes: u64,
}

impl Areas {
    pub(crate) const fn command_at(&self) -> u64 {
        self.payload_bytes.next_multiple_of(4096)
    }

    pub(crate) const fn reply_at(&self) -> u64 {
        self.command_at() + self.command_bytes.next_multiple_of(4096)
    }

    pub(crate) const fn total_bytes(&self) -> u64 {
        self.reply_at() + self.reply_bytes.next_multiple_of(4096)
    }

    /// Whether a sender may ask for this: nothing overflows, and a message fits each area.
    pub(crate) const fn is_within(&self, most: u64) -> bool {
        self.payload_bytes <= most
            && self.command_bytes <= most
            && self.reply_bytes <= most
            && self.command_bytes >= HEAD_BYTES
            && self.reply_bytes >= HEAD_BYTES
            && most < 1 << 60
            && self.total_bytes() <= most
    }
}

/// A sender's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) nonce: u64,
    pub(crate) areas: Areas,
    /// The sender's node.
    pub(crate) node: String,
    /// The sender's session.
    pub(crate) session: String,
    /// The region for answers.
    pub(crate) reply: String,
}

impl Join {
    pub(crate) fn encode(&self) -> Vec<u64> {
        let mut words = vec![0; HEAD_WORDS];
        words[..5].copy_from_slice(&[
            MAGIC,
            self.nonce,
            self.areas.payload_bytes,
            self.areas.command_bytes,
            self.areas.reply_bytes,
        ]);
        for (at, name) in [(8, &self.node), (16, &self.session), (24, &self.reply)] {
            words[at..at + 8].copy_from_slice(&name_words(name));
        }
        words
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        if words.len() < HEAD_WORDS || words[0] != MAGIC {
            return None;
        }
        let name = |at: usize| Text::of(&words[at..at + 8]).as_str().to_owned();
        Some(Self {
            nonce: words[1],
            areas: Areas { payload_bytes: words[2], command_bytes: words[3], reply_bytes: words[4] },
            node: name(8),
            session: name(16),
            reply: name(24),
        })
    }
}

/// What the serving program shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Fill the first `bytes` of the payload with `byte`.
    Poison { bytes: u64, byte: u8 },
    /// Answer with the SHA-256 of `count` ranges; they follow as pairs of offset and bytes.
    Digest { count: u64 },
    /// Compare with the pattern; the last iteration of each slot follows.
    Verify(crate::pattern::Spec),
    /// Poison the payload, then fill the slots with the pattern and with this stamp: to be read.
    Fill(crate::pattern::Spec),
    /// Forget this sender.
    Leave,
}

impl Command {
    pub(crate) fn encode(&self, sequence: u64) -> Vec<u64> {
        let mut words = vec![0; HEAD_WORDS];
        let figures: &[u64] = match self {
            Self::Poison { bytes, byte } => &[1, *bytes, u64::from(*byte)],
            Self::Digest { count } => &[2, *count],
            Self::Verify(spec) => &[3, spec.bytes, spec.slots, spec.seed, u64::from(spec.poison)],
            Self::Leave => &[4],
            Self::Fill(spec) => &[5, spec.bytes, spec.slots, spec.seed, u64::from(spec.poison)],
        };
        words[0] = MAGIC;
        words[1] = sequence;
        words[2..2 + figures.len()].copy_from_slice(figures);
        words
    }

    /// The command and its sequence number.
    pub(crate) fn decode(words: &[u64]) -> Option<(Self, u64)> {
        if words.len() < HEAD_WORDS || words[0] != MAGIC {
            return None;
        }
        let byte = |word: u64| u8::try_from(word).ok();
        let spec = || {
            let (bytes, slots, seed) = (words[3], words[4], words[5]);
            Some(crate::pattern::Spec { bytes, slots, seed, poison: byte(words[6])? })
        };
        let command = match words[2] {
            1 => Self::Poison { bytes: words[3], byte: byte(words[4])? },
            2 => Self::Digest { count: words[3] },
            3 => Self::Verify(spec()?),
            4 => Self::Leave,
            5 => Self::Fill(spec()?),
            _ => return None,
        };
        Some((command, words[1]))
    }
}

/// What the serving program answers; digests may follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Of the command, or the nonce of the join.
    pub(crate) sequence: u64,
    /// Not done; the text says why.
    pub(crate) refused: bool,
    /// For a join: the data region. For the rest: empty.
    pub(crate) region: String,
    /// For people.
    pub(crate) text: String,
    /// Bytes that follow.
    pub(crate) payload_bytes: u64,
    /// For verify: the bytes checked and the bytes wrong.
    pub(crate) figures: [u64; 2],
}

impl Reply {
    pub(crate) fn done(sequence: u64) -> Self {
        let (region, text) = (String::new(), String::new());
        Self { sequence, refused: false, region, text, payload_bytes: 0, figures: [0; 2] }
    }

    pub(crate) fn refused(sequence: u64, text: impl Into<String>) -> Self {
        Self { refused: true, text: text.into(), ..Self::done(sequence) }
    }

    pub(crate) fn encode(&self) -> Vec<u64> {
        let mut words = vec![0; HEAD_WORDS];
        words[..6].copy_from_slice(&[
            MAGIC,
            self.sequence,
            u64::from(self.refused),
            self.payload_bytes,
            self.figures[0],
            self.figures[1],
        ]);
        let region: Name = name_words(&self.region);
        words[8..16].copy_from_slice(&region);
        let text: [u64; 24] = railhead_abi::frame::text_words(&self.text);
        words[16..40].copy_from_slice(&text);
        words
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        if words.len() < HEAD_WORDS || words[0] != MAGIC {
            return None;
        }
        Some(Self {
            sequence: words[1],
            refused: words[2] != 0,
            payload_bytes: words[3],
            figures: [words[4], words[5]],
            region: Text::of(&words[8..16]).as_str().to_owned(),
            text: Text::of(&words[16..40]).as_str().to_owned(),
        })
    }
}

/// Copies words into a region.
pub(crate) fn write_words(region: &Region, offset: u64, words: &[u64]) -> Result<(), OutOfRange> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    region.copy_in(offset, &bytes)
}

/// Copies words out of a region, once.
pub(crate) fn read_words(region: &Region, offset: u64, count: usize) -> Result<Vec<u64>, OutOfRange> {
    let mut bytes = vec![0; 8 * count];
    region.copy_out(offset, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Spec;

    #[test]
    fn messages_read_back_as_they_were_written() {
        let join = Join {
            nonce: 77,
            areas: Areas { payload_bytes: 5000, command_bytes: 600, reply_bytes: 700 },
            node: "a".to_owned(),
            session: "n".repeat(63),
            reply: "r-1".to_owned(),
        };
        assert_eq!(Join::decode(&join.encode()), Some(join));
        let spec = Spec { bytes: 9, slots: 8, seed: 7, poison: 6 };
        let commands = [
            Command::Poison { bytes: 1 << 40, byte: 0xa5 },
            Command::Digest { count: 3 },
            Command::Verify(spec),
            Command::Fill(spec),
            Command::Leave,
        ];
        for command in commands {
            assert_eq!(Command::decode(&command.encode(5)), Some((command, 5)));
        }
        let reply = Reply {
            payload_bytes: 64,
            figures: [1, 2],
            region: "d-1".to_owned(),
            ..Reply::refused(9, "too large")
        };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }

    #[test]
    fn what_is_no_message_is_not_understood() {
        let zeroes = vec![0; HEAD_WORDS];
        assert_eq!(
            (Join::decode(&zeroes), Command::decode(&zeroes), Reply::decode(&zeroes)),
            (None, None, None)
        );
        let mut words = Command::Leave.encode(1);
        words[2] = 99;
        assert_eq!(Command::decode(&words), None);
        assert_eq!(Command::decode(&words[..10]), None);
    }

    #[test]
    fn areas_do_not_overlap_and_are_bounded() {
        let areas = Areas { payload_bytes: 5000, command_bytes: 600, reply_bytes: 4097 };
        assert_eq!((areas.command_at(), areas.reply_at(), areas.total_bytes()), (8192, 12_288, 20_480));
        assert!(areas.is_within(20_480));
        assert!(!areas.is_within(20_479));
        assert!(!Areas { payload_bytes: u64::MAX, ..areas }.is_within(1 << 40));
        assert!(!Areas { command_bytes: 8, ..areas }.is_within(1 << 40));
    }
}
