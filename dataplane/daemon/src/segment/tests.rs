use super::*;

#[test]
fn parts_do_not_overlap_and_fill_the_segment() {
    let segment = ControlSegment::create(&ControlHeader { lanes: 2, ..ControlHeader::default() }).unwrap();
    let mut parts = vec![segment.settings(), segment.prepared(), segment.registrar_events()];
    parts.extend((0..railhead_abi::segment::PEERS_MAX).map(|peer| segment.peer(peer)));
    for lane in 0..2 {
        let lane = segment.lane(lane);
        parts.extend([lane.status, lane.counters, lane.flight, lane.events]);
    }
    for part in &parts {
        for word in part.iter() {
            assert_eq!(word.load_relaxed(), 0, "a word in two parts, or in the header");
            word.store_relaxed(1);
        }
    }
    let header = segment.header();
    assert_eq!(
        (header.magic, header.lanes, header.segment_words),
        (CONTROL_MAGIC, 2, ControlShape { lanes: 2 }.words() as u64)
    );
}

#[test]
fn refusal_is_decodable() {
    let segment = ControlSegment::create(&ControlHeader { lanes: 1, ..ControlHeader::default() }).unwrap();
    let words = segment.prepared();
    write_prepared(&words, 4);
    write_refused(&words, 5, Code::SettingCoreAbsent, 66);
    let mut read = [0; Prepared::WORDS];
    for (value, word) in read.iter_mut().zip(words.iter()) {
        *value = word.load_acquire();
    }
    let prepared = Prepared::decode(&read);
    assert_eq!((prepared.prepared_generation, prepared.refused_generation), (4, 5));
    assert_eq!((prepared.refusal_code, prepared.refusal_word), (Code::SettingCoreAbsent.number(), 66));
}

#[test]
fn clients_cannot_write_the_lanes_page() {
    let page = LanesPage::create().unwrap();
    page.lane(3)[0].store_relaxed(1);
    assert!(Mapping::of_sealed(page.file(), Access::ReadWrite).is_err(), "mapped writable");
    assert!(Mapping::of_sealed(page.file(), Access::Read).is_ok(), "seals are there, and reading is allowed");
    assert!(rustix::io::write(page.file(), &[1]).is_err(), "written as a file");
}
