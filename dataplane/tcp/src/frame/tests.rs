use railhead_abi::record::{Fin, RECORD_WORDS_MAX, RawRecord, Record};
use railhead_core::port::{Key, RemotePlace};

use super::*;

/// A small generator of our own: the tests of this crate share no library with the simulator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn any_record(random: &mut Random) -> RawRecord {
    let mut record = RawRecord { words: [0; RECORD_WORDS_MAX] };
    record.words[0] = random.next();
    let length = record.len();
    for word in &mut record.words[1..length] {
        *word = random.next();
    }
    record
}

fn any_write(random: &mut Random, more: bool) -> WriteItem {
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    let (index, epoch, slot) = (random.next() as u32, random.next() as u32, random.next() as u16);
    let bytes = 1 + u32::try_from(random.below(100_000)).expect("small");
    let to = RemotePlace { key: Key { index, epoch }, offset: random.next() };
    WriteItem { to, bytes, slot, more, fault: None }
}

/// A head with these items, and its header.
fn head_of(items: &[Item]) -> (Vec<u8>, Header) {
    let mut head = vec![0; HEAD_BYTES_MAX];
    let (mut used, mut payload) = (HEADER_BYTES, 0);
    for item in items {
        match item {
            Item::Write(write) => {
                put_write(&mut head[used..], write);
                used += WRITE_BYTES;
                payload += write.bytes;
            }
            Item::Record(record) => {
                put_record(&mut head[used..], record);
                used += record_bytes(record);
            }
        }
    }
    let header = Header {
        items: u16::try_from(items.len()).expect("few"),
        items_bytes: u32::try_from(used - HEADER_BYTES).expect("small"),
        payload_bytes: payload,
    };
    head[..HEADER_BYTES].copy_from_slice(&header.encode());
    (head, header)
}

fn read_back(head: &[u8], header: Header) -> Vec<Item> {
    let mut at = HEADER_BYTES / 8;
    let mut items = Vec::new();
    for _ in 0..header.items {
        items.push(item(head, at));
        at += extent(head, at).0;
    }
    items
}

#[test]
fn items_come_back_as_they_were_put() {
    let mut random = Random(7);
    for _ in 0..2_000 {
        let count = 1 + random.below(20);
        let items: Vec<Item> = (0..count)
            .map(|at| match random.below(2) {
                0 => Item::Write(any_write(&mut random, at + 1 == count)),
                _ => Item::Record(any_record(&mut random)),
            })
            .collect();
        let (head, header) = head_of(&items);
        assert_eq!(Header::decode(&head), Ok(header));
        assert_eq!(check(&head, header), Ok(()));
        assert_eq!(read_back(&head, header), items);
    }
}

#[test]
fn real_records_are_not_escaped() {
    let fin = Record::Fin(Fin::default()).encode();
    assert_eq!(record_bytes(&fin), 8 * Fin::WORDS);
    let own_kind = RawRecord { words: [0x180; RECORD_WORDS_MAX] };
    assert_eq!(
        record_bytes(&own_kind),
        8 * (own_kind.len() + 1),
        "a record must not be taken for an item of ours"
    );
}

#[test]
fn header_refuses_what_nobody_sends() {
    let good = Header { items: 1, items_bytes: 24, payload_bytes: 5 };
    assert_eq!(Header::decode(&good.encode()), Ok(good));
    let largest = u32::try_from(HEAD_BYTES_MAX - HEADER_BYTES).expect("small");
    for bad in [
        Header { items: 0, ..good },
        Header { items_bytes: 23, ..good },
        Header { items_bytes: largest + 8, ..good },
        Header { items_bytes: u32::MAX - 7, ..good },
        Header { payload_bytes: PAYLOAD_BYTES_MAX + 1, ..good },
    ] {
        assert_eq!(Header::decode(&bad.encode()), Err(Malformed), "{bad:?}");
    }
    for byte in [0, 1, 12, 15] {
        let mut bytes = good.encode();
        bytes[byte] ^= 1;
        assert_eq!(Header::decode(&bytes), Err(Malformed), "byte {byte}: magic or reserved");
    }
}

#[test]
fn check_refuses_what_does_not_add_up() {
    let write = |more| {
        let to = RemotePlace { key: Key { index: 1, epoch: 1 }, offset: 0 };
        Item::Write(WriteItem { to, bytes: 10, slot: 0, more, fault: None })
    };
    let (head, header) = head_of(&[write(false), write(false)]);
    let refused = |head: &[u8], header| assert_eq!(check(head, header), Err(Malformed));
    refused(&head, Header { payload_bytes: 21, ..header });
    refused(&head, Header { payload_bytes: 19, ..header });
    refused(&head, Header { items: 1, ..header });
    refused(&head, Header { items: 3, ..header });
    refused(&head, Header { items_bytes: 40, ..header });
    let (head, header) = head_of(&[write(true), write(false)]);
    refused(&head, header);
    let (mut head, header) = head_of(&[write(false)]);
    head[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0);
    refused(&head, Header { payload_bytes: 0, ..header });
    for kind in [KIND_WRITE | FAULT_REFUSED, KIND_WRITE | FAULT_LOST, KIND_PIECE | FAULT_LOST, 0x83, 0xff] {
        let (mut head, header) = head_of(&[write(false)]);
        head[HEADER_BYTES] = kind;
        refused(&head, header);
    }
}

/// Whatever comes: either it is refused, or every item can be read and the sums are right.
#[test]
fn damaged_heads_never_get_through_half() {
    let mut random = Random(99);
    let mut passed = 0;
    for _ in 0..20_000 {
        let count = 1 + random.below(6);
        let items: Vec<Item> = (0..count)
            .map(|_| match random.below(2) {
                0 => Item::Write(any_write(&mut random, false)),
                _ => Item::Record(any_record(&mut random)),
            })
            .collect();
        let (mut head, header) = head_of(&items);
        let used = HEADER_BYTES + header.items_bytes as usize;
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(used as u64)).expect("small");
            head[at] ^= 1 << random.below(8);
        }
        let Ok(header) = Header::decode(&head) else { continue };
        if check(&head, header).is_err() {
            continue;
        }
        passed += 1;
        let payload: u64 = read_back(&head, header)
            .iter()
            .map(|item| match item {
                Item::Write(write) => {
                    assert!(write.bytes > 0 && write.fault.is_none());
                    u64::from(write.bytes)
                }
                Item::Record(record) => {
                    assert!(record.words[record.len()..].iter().all(|word| *word == 0));
                    0
                }
            })
            .sum();
        assert_eq!(payload, u64::from(header.payload_bytes));
    }
    assert!(passed > 1_000, "most damage is in fields that are checked later: {passed}");
}

#[test]
fn first_fault_stays() {
    let to = RemotePlace { key: Key { index: 1, epoch: 1 }, offset: 0 };
    for more in [false, true] {
        let (mut head, _) = head_of(&[Item::Write(WriteItem { to, bytes: 10, slot: 9, more, fault: None })]);
        let at = HEADER_BYTES / 8;
        set_fault(&mut head, at, Fault::Lost);
        set_fault(&mut head, at, Fault::Refused);
        let expected = WriteItem { to, bytes: 10, slot: 9, more, fault: Some(Fault::Lost) };
        assert_eq!(item(&head, at), Item::Write(expected));
        assert_eq!(extent(&head, at), (WRITE_WORDS, true));
    }
}
