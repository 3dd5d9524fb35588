use super::*;

const SHAPE: SessionShape = SessionShape { lanes: 2, ports: 3, entries: 4 };

#[test]
fn submissions_completions_events_and_signals_cross() {
    let mut segment = SessionSegment::create(SHAPE, 5).unwrap();
    let mut view = SessionView::open(&segment.file).unwrap();
    assert_eq!((view.header.incarnation, view.shape), (5, SHAPE));
    assert_eq!((view.ports.len(), view.events.len(), view.signals.len()), (3, 2, SIGNALS));
    assert_eq!([0, 1, 2].map(|port| view.ports[port].lane), [0, 1, 0]);
    for port in 0..3 {
        let value = port as u64 + 10;
        view.ports[port].submissions.push_publish(&[value; Submission::WORDS]).unwrap();
        assert_eq!(segment.ports[port].submissions.pop(), Ok(Some([value; Submission::WORDS])));
        segment.ports[port].completions.push_publish(&[value; Completion::WORDS]).unwrap();
        assert_eq!(view.ports[port].completions.pop(), Ok(Some([value; Completion::WORDS])));
    }
    for lane in 0..2 {
        segment.events[lane].push_publish(&[lane as u64; SessionEvent::WORDS]).unwrap();
        assert_eq!(view.events[lane].pop(), Ok(Some([lane as u64; SessionEvent::WORDS])));
    }
    segment.signals[7].fetch_add_release(2);
    assert_eq!(view.signals[7].load_acquire(), 2);
}

#[test]
fn each_bell_wakes_its_sleeper_once() {
    let segment = SessionSegment::create(SHAPE, 5).unwrap();
    let view = SessionView::open(&segment.file).unwrap();
    view.ports[2].bell.prepare();
    assert_eq!([0, 1, 2].map(|port| segment.ports[port].bell.take()), [false, false, true]);
    view.event_bell.prepare();
    assert_eq!(view.event_word[0].load_relaxed(), 1);
    let taken = segment.event_bells.iter().filter(|bell| bell.take()).count();
    assert_eq!(taken, 1, "all lanes share the client's one bell");
}

#[test]
fn structures_do_not_overlap() {
    let segment = SessionSegment::create(SHAPE, 5).unwrap();
    let mapping = segment.signals.mapping().clone();
    let mut ranges = vec![(0, railhead_abi::segment::HEADER_WORDS, "header")];
    let mut add = |words: &Words, name| {
        let first = (words.as_ptr().addr() - mapping.address()) / 8;
        ranges.push((first, first + words.len(), name));
    };
    add(&segment.signals, "signals");
    add(&segment.event_bells.into_iter().next().unwrap().into_memory(), "event bell");
    segment.events.into_iter().for_each(|ring| add(&ring.into_memory(), "events"));
    for port in segment.ports {
        add(&port.bell.into_memory(), "bell");
        add(&port.submissions.into_memory(), "submissions");
        add(&port.completions.into_memory(), "completions");
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?}");
    }
    assert!(ranges.last().unwrap().1 <= SHAPE.words());
}

#[test]
fn hostile_client_cannot_reach_beyond_its_rings() {
    // The client owns every word of the memory; whatever it stores, the lane gets an error or an item.
    let mut segment = SessionSegment::create(SHAPE, 5).unwrap();
    let words = segment.signals.mapping().words(0, SHAPE.words()).unwrap();
    for value in [u64::MAX, 1 << 63, 5, 0xdead_beef] {
        words.iter().for_each(|word| word.store_release(value));
        for port in &mut segment.ports {
            for _ in 0..10 {
                let _ = port.submissions.pop();
                port.submissions.release();
                let _ = port.completions.push_publish(&[1; Completion::WORDS]);
            }
            let _ = port.bell.take();
        }
        for ring in &mut segment.events {
            let _ = ring.push_publish(&[1; SessionEvent::WORDS]);
        }
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let refused = |shape| match SessionSegment::create(shape, 0) {
        Err(SegmentError::Shape { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(SessionShape { lanes: 0, ..SHAPE }), "lanes");
    assert_eq!(refused(SessionShape { lanes: LANES_MAX + 1, ..SHAPE }), "lanes");
    assert_eq!(refused(SessionShape { ports: 0, ..SHAPE }), "ports");
    assert_eq!(refused(SessionShape { ports: 2 * PORTS_PER_LANE_MAX + 1, ..SHAPE }), "ports");
    assert_eq!(refused(SessionShape { entries: 0, ..SHAPE }), "entries");
    assert_eq!(refused(SessionShape { entries: 3, ..SHAPE }), "entries (a power of two)");
    assert_eq!(refused(SessionShape { entries: 2 * PORT_ENTRIES_MAX, ..SHAPE }), "entries");
}

#[test]
fn impossible_headers_are_refused() {
    let opened_with = |index: usize, value: u64| {
        let segment = SessionSegment::create(SHAPE, 5).unwrap();
        segment.signals.mapping().words(0, 64).unwrap()[index].store_release(value);
        SessionView::open(&segment.file).map(drop)
    };
    assert!(matches!(opened_with(0, 0), Err(SegmentError::Magic { found: 0 })));
    assert!(matches!(opened_with(1, 2 << 32), Err(SegmentError::Version { found: 0 })));
    assert!(matches!(opened_with(2, u64::MAX), Err(SegmentError::Words { .. })));
    assert!(matches!(opened_with(4, u64::MAX), Err(SegmentError::Shape { what: "ports", .. })));
    assert!(matches!(opened_with(4, 4 | 4 << 32), Err(SegmentError::Words { .. })));
}
