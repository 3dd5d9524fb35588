//! The frame on the wire: a head with items, then the payload of its writes in the order of the items.
//!
//! ```text
//! header 16 B: magic u16, items u16, items_bytes u32 | payload_bytes u32, reserved u32
//! items:       WRITE, or a record as it is; whole words, little-endian
//! padding:     the head is at least HEAD_BYTES_MIN long
//! payload:     the bytes of all WRITE items
//! ```
//! Everything that comes from the other node is checked here before it is used; what it names (keys, ranges) is checked
//! when it is placed.

use railhead_abi::record::{RECORD_WORDS_MAX, RawRecord};
use railhead_core::port::{Key, RemotePlace};

/// Every head is at least this long, so that one read of this many bytes always holds the header.
pub(crate) const HEAD_BYTES_MIN: usize = 128;
/// No head is longer.
pub(crate) const HEAD_BYTES_MAX: usize = 8192;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 16;
/// No payload is longer: the largest `slice_bytes` that a node can be set to.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 16 << 20;
/// Words of a WRITE item.
pub(crate) const WRITE_WORDS: usize = 3;
/// Bytes of a WRITE item.
pub(crate) const WRITE_BYTES: usize = 8 * WRITE_WORDS;

/// First two bytes of a frame: `RF`.
const MAGIC: u16 = u16::from_le_bytes(*b"RF");

/// Kinds from here on are this adapter's; below are kinds of records.
const KIND_OWN: u8 = 0x80;
/// The last or only piece of a write.
const KIND_WRITE: u8 = 0x80;
/// A record whose word 0 could be taken for an item of ours: the record follows this word.
const KIND_ESCAPED: u8 = 0x81;
/// A piece of a write of which more follows, in the next WRITE item of this connection. Always the last of its frame.
const KIND_PIECE: u8 = 0x82;
/// Added to the kind of a WRITE item that was refused; never on the wire.
const FAULT_REFUSED: u8 = 0x10;
/// Added to the kind of a WRITE item whose memory was lost; never on the wire.
const FAULT_LOST: u8 = 0x20;

/// The other side sent what no Railhead of this version sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The first 16 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) items: u16,
    pub(crate) items_bytes: u32,
    pub(crate) payload_bytes: u32,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.items.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.items_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(head: &[u8]) -> Result<Self, Malformed> {
        let (first, second) = (word(head, 0), word(head, 1));
        #[expect(clippy::cast_possible_truncation, reason = "these bits are the fields")]
        let (magic, items, items_bytes) = (first as u16, (first >> 16) as u16, (first >> 32) as u32);
        // The upper half of the second word is reserved: a set bit fails the conversion.
        let payload_bytes = u32::try_from(second).map_err(|_| Malformed)?;
        let sound = magic == MAGIC
            && items > 0
            && items_bytes.is_multiple_of(8)
            && items_bytes as usize <= HEAD_BYTES_MAX - HEADER_BYTES
            && payload_bytes <= PAYLOAD_BYTES_MAX;
        if sound { Ok(Self { items, items_bytes, payload_bytes }) } else { Err(Malformed) }
    }

    /// Bytes of the whole head, padding included.
    pub(crate) const fn head_bytes(self) -> usize {
        head_bytes(HEADER_BYTES + self.items_bytes as usize)
    }
}

/// Bytes of a head whose header and items take `used`.
pub(crate) const fn head_bytes(used: usize) -> usize {
    if used < HEAD_BYTES_MIN { HEAD_BYTES_MIN } else { used }
}

/// Word `at` of a head.
fn word(head: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[8 * at..8 * at + 8]);
    u64::from_le_bytes(bytes)
}

/// Why nothing of a write may be placed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its key, range or right did not hold.
    Refused,
    /// The memory was taken away while it was written.
    Lost,
}

/// A WRITE item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteItem {
    pub(crate) to: RemotePlace,
    pub(crate) bytes: u32,
    pub(crate) slot: u16,
    /// More of the same write follows in the next WRITE item; then this is the last item of its frame.
    pub(crate) more: bool,
    pub(crate) fault: Option<Fault>,
}

/// An item as it stands in a head that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    Write(WriteItem),
    Record(RawRecord),
}

/// Puts a WRITE item at the front of `head`, which has room for [`WRITE_BYTES`].
pub(crate) fn put_write(head: &mut [u8], item: &WriteItem) {
    let kind = u64::from(if item.more { KIND_PIECE } else { KIND_WRITE });
    let first = kind | (WRITE_WORDS as u64) << 8 | u64::from(item.slot) << 16 | u64::from(item.bytes) << 32;
    let key = u64::from(item.to.key.index) | u64::from(item.to.key.epoch) << 32;
    head[0..8].copy_from_slice(&first.to_le_bytes());
    head[8..16].copy_from_slice(&key.to_le_bytes());
    head[16..24].copy_from_slice(&item.to.offset.to_le_bytes());
}

/// Whether a record's word 0 tells its length truly and its kind is no kind of ours.
fn is_plain(record: &RawRecord) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "these bits are the fields")]
    let (kind, words) = (record.words[0] as u8, (record.words[0] >> 8) as u8);
    kind < KIND_OWN && usize::from(words) == record.len()
}

/// Bytes that a record takes as an item.
pub(crate) fn record_bytes(record: &RawRecord) -> usize {
    8 * (record.len() + usize::from(!is_plain(record)))
}

/// Puts a record at the front of `head`, which has room for [`record_bytes`].
pub(crate) fn put_record(head: &mut [u8], record: &RawRecord) {
    let length = record.len();
    let mut at = 0;
    if !is_plain(record) {
        let escape = u64::from(KIND_ESCAPED) | (length as u64 + 1) << 8;
        head[0..8].copy_from_slice(&escape.to_le_bytes());
        at = 8;
    }
    for (chunk, word) in head[at..].chunks_exact_mut(8).zip(&record.words[..length]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// Kind and words of the item at word `at`.
fn kind_and_words(head: &[u8], at: usize) -> (u8, usize) {
    (head[8 * at], usize::from(head[8 * at + 1]))
}

/// Checks all items of a head against its header. After this [`item`] can be called for each of them.
pub(crate) fn check(head: &[u8], header: Header) -> Result<(), Malformed> {
    let end = (HEADER_BYTES + header.items_bytes as usize) / 8;
    let mut at = HEADER_BYTES / 8;
    let mut payload = 0u64;
    for _ in 0..header.items {
        if at >= end {
            return Err(Malformed);
        }
        let (kind, words) = kind_and_words(head, at);
        let sound = match kind {
            KIND_WRITE | KIND_PIECE => words == WRITE_WORDS,
            KIND_ESCAPED => (2..=RECORD_WORDS_MAX + 1).contains(&words),
            kind => kind < KIND_OWN && (1..=RECORD_WORDS_MAX).contains(&words),
        };
        if !sound || words > end - at {
            return Err(Malformed);
        }
        if matches!(kind, KIND_WRITE | KIND_PIECE) {
            let bytes = word(head, at) >> 32;
            if bytes == 0 {
                return Err(Malformed);
            }
            payload += bytes;
        }
        at += words;
        if kind == KIND_PIECE && at != end {
            return Err(Malformed);
        }
    }
    if at == end && payload == u64::from(header.payload_bytes) { Ok(()) } else { Err(Malformed) }
}

/// Words of the item at word `at` of a checked head, and whether it is a WRITE.
pub(crate) fn extent(head: &[u8], at: usize) -> (usize, bool) {
    let (kind, words) = kind_and_words(head, at);
    (words, kind >= KIND_OWN && kind != KIND_ESCAPED)
}

/// The WRITE item at word `at` of a checked head.
pub(crate) fn write_item(head: &[u8], at: usize) -> WriteItem {
    let (first, key) = (word(head, at), word(head, at + 1));
    #[expect(clippy::cast_possible_truncation, reason = "these bits are the fields")]
    let (kind, slot) = (first as u8, (first >> 16) as u16);
    #[expect(clippy::cast_possible_truncation, reason = "these bits are the fields")]
    let (bytes, index, epoch) = ((first >> 32) as u32, key as u32, (key >> 32) as u32);
    let fault = match kind & (FAULT_REFUSED | FAULT_LOST) {
        0 => None,
        FAULT_REFUSED => Some(Fault::Refused),
        _ => Some(Fault::Lost),
    };
    let more = kind & KIND_PIECE == KIND_PIECE;
    WriteItem {
        to: RemotePlace { key: Key { index, epoch }, offset: word(head, at + 2) },
        bytes,
        slot,
        more,
        fault,
    }
}

/// Remembers in the head itself that the WRITE item at word `at` failed; the first fault stays.
pub(crate) fn set_fault(head: &mut [u8], at: usize, fault: Fault) {
    let kind = &mut head[8 * at];
    if *kind & (FAULT_REFUSED | FAULT_LOST) == 0 {
        *kind |= match fault {
            Fault::Refused => FAULT_REFUSED,
            Fault::Lost => FAULT_LOST,
        };
    }
}

/// The item at word `at` of a checked head.
pub(crate) fn item(head: &[u8], at: usize) -> Item {
    let (kind, words) = kind_and_words(head, at);
    if kind >= KIND_OWN && kind != KIND_ESCAPED {
        return Item::Write(write_item(head, at));
    }
    let skipped = usize::from(kind == KIND_ESCAPED);
    let mut record = RawRecord { words: [0; RECORD_WORDS_MAX] };
    for (to, from) in record.words.iter_mut().zip(at + skipped..at + words) {
        *to = word(head, from);
    }
    // An escaped record may claim fewer words than came.
    let length = record.len();
    record.words[length..].fill(0);
    Item::Record(record)
}

#[cfg(test)]
mod tests;
