use super::*;
use crate::mapping::Mapping;

fn memory(bytes: usize) -> OwnedSpan {
    Mapping::anonymous(bytes).unwrap().span()
}

/// SAFETY for the tests: each keeps its `OwnedSpan` to its end.
fn bare(owned: &OwnedSpan) -> Span {
    // SAFETY: see above.
    unsafe { owned.span() }
}

#[test]
fn parts_are_bounded_and_overflow_is_refused() {
    let owned = memory(4096);
    let span = bare(&owned);
    assert_eq!(span.len(), 4096);
    assert_eq!(span.sub(4096, 0).unwrap().len(), 0);
    let part = span.sub(100, 50).unwrap();
    assert_eq!((part.address() - span.address(), part.len()), (100, 50));
    for (offset, bytes) in
        [(4096, 1), (0, 4097), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 63, 1 << 63)]
    {
        assert_eq!(span.sub(offset, bytes), Err(OutOfRange { offset, bytes, limit: 4096 }));
        assert!(owned.part(offset, bytes).is_err());
    }
    assert!(part.sub(0, 51).is_err(), "a part is bounded by itself, not by the whole");
}

#[test]
fn bytes_go_in_across_and_out() {
    let (from, to) = (memory(4096), memory(4096));
    from.write(10, b"tensor").unwrap();
    let count = bare(&from).sub(10, 6).unwrap().copy_to(bare(&to).sub(90, 100).unwrap());
    assert_eq!(count, 6);
    let mut out = [0xff; 8];
    to.read(90, &mut out).unwrap();
    assert_eq!(&out, b"tensor\0\0");
    assert_eq!(bare(&to).sub(90, 3).unwrap().copy_to_slice(&mut out), 3);
    assert_eq!(bare(&to).sub(90, 3).unwrap().copy_from_slice(b"longer"), 3);
    to.read(90, &mut out).unwrap();
    assert_eq!(&out, b"lonsor\0\0");
}

#[test]
fn overlapping_copy_moves() {
    let owned = memory(4096);
    owned.write(0, b"abcdef").unwrap();
    bare(&owned).sub(0, 6).unwrap().copy_to(bare(&owned).sub(2, 6).unwrap());
    let mut out = [0; 8];
    owned.read(0, &mut out).unwrap();
    assert_eq!(&out, b"ababcdef");
}

#[test]
fn fill_stays_inside() {
    let owned = memory(4096);
    owned.fill(5, 3, 7).unwrap();
    let mut out = [0; 9];
    owned.read(0, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 0, 7, 7, 7, 0]);
    assert!(owned.fill(4095, 2, 1).is_err());
    assert!(owned.read(4090, &mut out).is_err());
    assert!(owned.write(4090, &out).is_err());
}

#[test]
fn checksum_is_that_of_the_bytes_at_lengths_around_the_bounce_buffer() {
    let bytes: Vec<u8> = (0..3 * BOUNCE_BYTES).map(|index| (index % 251) as u8).collect();
    let owned = memory(bytes.len());
    owned.write(0, &bytes).unwrap();
    for count in [0, 1, 7, BOUNCE_BYTES - 1, BOUNCE_BYTES, BOUNCE_BYTES + 1, 3 * BOUNCE_BYTES] {
        let mut expected = Crc32c::new();
        expected.update(&bytes[..count]);
        assert_eq!(owned.crc32c(0, count as u64).unwrap(), expected.value());
    }
}

#[test]
fn iovec_names_the_same_bytes() {
    let owned = memory(4096);
    let part = bare(&owned).sub(8, 16).unwrap();
    let iovec = part.iovec();
    assert_eq!((iovec.iov_base.addr(), iovec.iov_len), (part.address(), 16));
}

#[test]
fn part_keeps_the_memory_alive() {
    let part = memory(4096).part(16, 16).unwrap();
    part.write(0, b"still mapped").unwrap();
    assert!(!part.poisoned());
    assert!(part.guard().is_none());
}

#[test]
fn debug_text_has_no_address() {
    let owned = memory(4096);
    assert_eq!(format!("{:?}", bare(&owned)), "Span(4096 bytes)");
}
