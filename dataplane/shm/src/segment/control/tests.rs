use super::*;
use railhead_ring::Entry;

fn made() -> ControlSegment {
    ControlSegment::create(ControlHeader { lanes: 2, incarnation: 77, ..ControlHeader::default() }).unwrap()
}

#[test]
fn header_is_seen_by_control() {
    let segment = made();
    let view = ControlView::open(segment.as_fd()).unwrap();
    assert_eq!(view.header, segment.header);
    assert_eq!((view.header.incarnation, view.lanes.len(), view.peers.len()), (77, 2, PEERS_MAX));
}

#[test]
fn settings_go_one_way_and_the_rest_the_other() {
    let mut segment = made();
    let mut view = ControlView::open(&segment.file).unwrap();
    let mut snapshot = [0; SETTINGS_WORDS];
    assert_eq!(segment.settings.generation(), 0);
    snapshot[3] = 9;
    view.settings.publish(1, &snapshot).unwrap();
    let mut seen = [0; SETTINGS_WORDS];
    assert_eq!(segment.settings.read(&mut seen, 1), Ok(1));
    assert_eq!(seen, snapshot);
    assert_eq!(view.current.generation(), 1);

    segment.prepared[0].store_release(1);
    segment.peers[5][16].store_release(2);
    segment.lanes[1].status[0].store_release(1);
    segment.lanes[1].counters.add(4, 6);
    segment.lanes[1].flight.append(&[1; Flight::WORDS]);
    segment.lanes[0].events.append(&[2; EventEntry::WORDS]);
    segment.events.append(&[3; EventEntry::WORDS]);

    assert_eq!(view.prepared[0].load_acquire(), 1);
    assert_eq!(view.peers[5][16].load_acquire(), 2);
    assert_eq!(view.lanes[1].status[0].load_acquire(), 1);
    assert_eq!(view.lanes[1].counters.get(4), 6);
    assert_eq!(view.lanes[0].counters.get(4), 0);
    assert_eq!(view.lanes[1].flight.read(0), Entry::Found([1; Flight::WORDS]));
    assert_eq!(view.lanes[0].events.read(0), Entry::Found([2; EventEntry::WORDS]));
    assert_eq!(view.events.read(0), Entry::Found([3; EventEntry::WORDS]));
}

/// Every structure of the segment, as the words that it covers.
#[test]
fn structures_do_not_overlap() {
    let segment = made();
    let mapping = segment.prepared.mapping().clone();
    let base = mapping.address();
    let mut ranges = vec![(0, railhead_abi::segment::HEADER_WORDS, "header")];
    let mut add = |words: &Words, name| {
        let first = (words.as_ptr().addr() - base) / 8;
        ranges.push((first, first + words.len(), name));
    };
    add(&segment.settings.into_memory(), "settings");
    add(&segment.prepared, "prepared");
    segment.peers.iter().for_each(|peer| add(peer, "peer"));
    add(&segment.events.into_memory(), "registrar events");
    for lane in segment.lanes {
        add(&lane.status, "status");
        add(&lane.counters.into_memory(), "counters");
        add(&lane.flight.into_memory(), "flight");
        add(&lane.events.into_memory(), "events");
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?}");
    }
    assert!(ranges.last().unwrap().1 <= mapping.len() / 8);
}

/// A view of a segment whose header word `index` was changed.
fn opened_with(index: usize, value: u64) -> Result<ControlView, SegmentError> {
    let segment = made();
    let words = segment.prepared.mapping().words(0, 64).unwrap();
    words[index].store_release(value);
    ControlView::open(&segment.file)
}

#[test]
fn impossible_headers_are_refused() {
    assert!(matches!(opened_with(0, 1), Err(SegmentError::Magic { found: 1 })));
    let version = u64::from(ABI_VERSION) + 1;
    assert!(matches!(opened_with(1, version | 2 << 32), Err(SegmentError::Version { .. })));
    let lanes = |lanes: u64| opened_with(1, u64::from(ABI_VERSION) | lanes << 32);
    assert!(matches!(lanes(0), Err(SegmentError::Shape { what: "lanes", found: 0, .. })));
    assert!(matches!(lanes(u32::MAX.into()), Err(SegmentError::Shape { .. })));
    assert!(matches!(lanes(3), Err(SegmentError::Words { .. })));
    assert!(matches!(opened_with(2, 64), Err(SegmentError::Words { found: 64, .. })));
}

#[test]
fn short_and_foreign_files_are_refused() {
    let file = memfd::create("test", 8, Huge::No).unwrap();
    assert!(matches!(ControlView::open(&file), Err(SegmentError::Magic { found: 0 })));
    let header = ControlHeader {
        magic: CONTROL_MAGIC,
        abi_version: ABI_VERSION,
        lanes: 1,
        segment_words: ControlShape { lanes: 1 }.words() as u64,
        ..ControlHeader::default()
    };
    let words = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, 64).unwrap();
    store(&words, &header.encode());
    assert!(matches!(ControlView::open(&file), Err(SegmentError::CutOff(_))));
    let none = ControlHeader::default();
    assert!(matches!(ControlSegment::create(none), Err(SegmentError::Shape { what: "lanes", .. })));
}
