use std::sync::Arc;

use railhead_abi::segment::{ControlHeader, Prepared};
use railhead_abi::settings::{LANE_CORE_WORD, Setting};
use railhead_ring::Word;

use super::*;
use crate::segment::LanesPage;
use crate::stub;

/// A settings desk over stub lanes that acknowledge nothing by themselves.
struct Fixture {
    desk: SettingsDesk,
    writer: CellWriter<Words>,
    segment: ControlSegment,
    prepared: PreparedCell,
    published: Arc<Mutex<Vec<u64>>>,
    stop: Arc<Word>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

fn fixture() -> Fixture {
    let segment = ControlSegment::create(&ControlHeader { lanes: 2, ..ControlHeader::default() }).unwrap();
    let page = LanesPage::create().unwrap();
    let (stop, hold) = (Arc::new(Word::new(0)), Arc::new(Word::new(0)));
    let stub::StubLanes { lanes, threads, .. } = stub::lanes(2, &page, &stop, &hold);
    let allowed = Cores::allowed().unwrap();
    let limits = Limits { large_block_bytes: 256 << 10, lanes: 2, cores: allowed.0, numa_nodes: 1 };
    let start = StartSettings { settings: Settings::default(), generation: 3, ignored: None };
    let prepared = PreparedCell::create(&start).unwrap();
    let tid = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    for lane in 0..2 {
        segment.lane(lane).status[word_of::<LaneStatus>("tid")].store_release(tid);
    }
    let published = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&published);
    let parts = DeskParts {
        limits,
        allowed,
        copy_cores: None,
        segment: &segment,
        prepared: &prepared,
        current: Arc::new(Current::new(start.settings, start.generation)),
        lanes,
        places: crate::places::Places::new(Vec::new()),
        events: Arc::new(EventLog::new(segment.registrar_events())),
        publish: Box::new(move |plan| telling.lock().unwrap().push(plan.generation())),
    };
    let desk = SettingsDesk::start(parts, &start).unwrap();
    let writer = CellWriter::new(segment.settings()).unwrap();
    Fixture { desk, writer, segment, prepared, published, stop, threads }
}

impl Fixture {
    fn answer(&self) -> Prepared {
        let words = self.segment.prepared();
        Prepared::decode(&core::array::from_fn(|at| words[at].load_acquire()))
    }

    /// What lanes would apply now.
    fn prepared(&self) -> (u64, Settings) {
        let mut settings = Settings::default();
        let generation = self.prepared.reader().read(&mut settings.words, 1).unwrap();
        (generation, settings)
    }

    fn publish(&mut self, generation: u64, change: impl FnOnce(&mut Settings)) {
        let mut settings = Settings::default();
        change(&mut settings);
        self.writer.publish(generation, &settings.words).unwrap();
        self.desk.look();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.store_release(1);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn start_settings_are_there_for_control_and_for_lanes() {
    let fixture = fixture();
    assert_eq!(fixture.answer().prepared_generation, 3);
    assert_eq!(fixture.writer.generation(), 3, "control goes on from here");
    assert_eq!(fixture.prepared(), (3, Settings::default()));
}

#[test]
fn valid_snapshot_is_prepared_and_told_to_peers() {
    let mut fixture = fixture();
    fixture.publish(4, |settings| settings.set(Setting::ChunkBytes, 65536));
    assert_eq!(fixture.answer().prepared_generation, 4);
    let (generation, settings) = fixture.prepared();
    assert_eq!((generation, settings.get(Setting::ChunkBytes)), (4, 65536));
    assert_eq!(*fixture.published.lock().unwrap(), [4]);
    assert_eq!(fixture.desk.current.plans().generation(), 4);
    fixture.desk.look();
    assert_eq!(*fixture.published.lock().unwrap(), [4], "looked at once");
}

#[test]
fn refused_snapshot_reaches_no_lane_and_says_why() {
    let mut fixture = fixture();
    let absent = (0..1024).rev().find(|core| !fixture.desk.allowed.has(*core)).unwrap();
    let mut settings = [Settings::default(); 4];
    settings[0].set(Setting::SendMode, 9);
    settings[1].set(Setting::ChunkBytes, 512 << 10);
    settings[2].set_lane_core(1, Some(absent));
    settings[3].set_lane_core(2, Some(0));
    let refusals = [
        (Code::SettingRange, Setting::SendMode as usize),
        (Code::SettingBlockBytes, Setting::ChunkBytes as usize),
        (Code::SettingCoreAbsent, LANE_CORE_WORD + 1),
        (Code::SettingLaneAbsent, LANE_CORE_WORD + 2),
    ];
    for (generation, (bad, (code, word))) in (4..).zip(settings.into_iter().zip(refusals)) {
        fixture.publish(generation, |settings| *settings = bad);
        let answer = fixture.answer();
        assert_eq!((answer.prepared_generation, answer.refused_generation), (3, generation));
        assert_eq!((answer.refusal_code, answer.refusal_word as usize), (code.number(), word));
        assert_eq!(fixture.prepared().0, 3);
    }
    assert!(fixture.published.lock().unwrap().is_empty());
    fixture.publish(8, |_| {});
    assert_eq!(fixture.answer().prepared_generation, 8, "a refusal is not for ever");
}

#[test]
fn pins_are_carried_out_on_the_lanes_thread_and_undone() {
    let mut fixture = fixture();
    let allowed = fixture.desk.allowed;
    let core = (0..1024).find(|core| allowed.has(*core)).unwrap();
    // The stub's thread ids are this test's own thread.
    fixture.publish(4, |settings| settings.set_lane_core(0, Some(core)));
    assert_eq!(Cores::allowed().unwrap().count(), 1);
    let status = fixture.segment.lane(0).status;
    let read = |field: &'static str| match field {
        "wanted" => status[word_of::<LaneStatus>("core_wanted")].load_acquire(),
        _ => status[word_of::<LaneStatus>("core_pinned")].load_acquire(),
    };
    assert_eq!((read("wanted"), read("pinned")), (core + 1, core + 1));
    fixture.publish(5, |settings| settings.set_lane_core(0, None));
    assert_eq!(Cores::allowed().unwrap(), allowed);
    assert_eq!((read("wanted"), read("pinned")), (0, 0));
}

#[test]
fn failed_pin_is_no_refusal() {
    let mut fixture = fixture();
    let core = (0..1024).find(|core| fixture.desk.allowed.has(*core)).unwrap();
    // A thread that does not exist cannot be pinned.
    fixture.segment.lane(1).status[word_of::<LaneStatus>("tid")].store_release(u64::from(u32::MAX >> 1));
    fixture.publish(4, |settings| settings.set_lane_core(1, Some(core)));
    assert_eq!(fixture.answer().prepared_generation, 4);
    let status = fixture.segment.lane(1).status;
    assert_eq!(status[word_of::<LaneStatus>("core_wanted")].load_acquire(), core + 1);
    assert_eq!(status[word_of::<LaneStatus>("core_pinned")].load_acquire(), 0);
}

#[test]
fn settings_are_settled_only_when_every_lane_has_acknowledged() {
    let mut fixture = fixture();
    fixture.publish(4, |_| {});
    let acknowledged = word_of::<LaneStatus>("acknowledged");
    fixture.segment.lane(0).status[acknowledged].store_release(4);
    fixture.desk.settle();
    assert!(fixture.desk.owed.is_some());
    fixture.segment.lane(1).status[acknowledged].store_release(4);
    fixture.desk.settle();
    assert!(fixture.desk.owed.is_none());
}

#[test]
fn a_writer_that_died_within_the_cell_does_not_hold_up_the_next() {
    let mut fixture = fixture();
    // As a writer leaves it that dies while it writes generation 4.
    fixture.segment.settings()[0].store_release(7);
    fixture.desk.look();
    assert_eq!(fixture.answer().prepared_generation, 3);
    let mut next = CellWriter::new(fixture.segment.settings()).unwrap();
    next.publish(4, &Settings::default().words).unwrap();
    fixture.desk.look();
    assert_eq!(fixture.answer().prepared_generation, 4);
}
