use railhead_abi::frame::ACCESS_READ;
use railhead_core::port::Key;
use railhead_shm::{Access, Mapping, guard, memfd};

use super::*;

const HERE: ConnectionIndex = ConnectionIndex(0);
const THERE: ConnectionIndex = ConnectionIndex(1);
const BYTES: u64 = 64 << 10;
const EPOCH: u32 = 3;
const FROM: RegionIndex = RegionIndex(1);
const TO: RegionIndex = RegionIndex(2);

fn memory(fill: u8) -> OwnedSpan {
    let span = Mapping::anonymous(64 << 10).expect("memory").span();
    span.fill(0, BYTES, fill).expect("inside");
    span
}

fn fabric(slice_bytes: u32) -> (LocalFabric, OwnedSpan) {
    let config = LocalConfig {
        connections: 4,
        regions: 4,
        posts_max: 3,
        records_max: 2,
        write_bytes_max: 1 << 20,
        slice_bytes,
    };
    let mut fabric = LocalFabric::new(config);
    let to = memory(0);
    fabric.install(FROM, 1, memory(1), ACCESS_READ);
    fabric.install(TO, EPOCH, to.clone(), ACCESS_READ | ACCESS_WRITE);
    (fabric, to)
}

fn write(bytes: u32, post: u32) -> Write {
    let key = Key { index: TO.0, epoch: EPOCH };
    Write {
        from: Place { region: FROM, offset: 0 },
        bytes,
        to: RemotePlace { key, offset: 0 },
        slot: 40 + u16::try_from(post).expect("small"),
        post: PostId(post),
    }
}

fn record(tag: u64) -> RawRecord {
    let mut words = [0; 16];
    words[0] = 2 << 8;
    words[1] = tag;
    RawRecord { words }
}

fn poll(fabric: &mut LocalFabric) -> Vec<FabricEvent> {
    let mut events = [FabricEvent::Down { connection: HERE, cause: Code::Ok }; 8];
    let count = fabric.poll(0, &mut events);
    events[..count].to_vec()
}

const fn done(post: u32, status: Code) -> FabricEvent {
    FabricEvent::Done { connection: HERE, post: PostId(post), status }
}

const fn refused(post: u16, status: Code) -> FabricEvent {
    FabricEvent::Refused { connection: THERE, slot: 40 + post, status }
}

fn placed(span: &OwnedSpan) -> usize {
    let mut bytes = vec![0; span.len()];
    span.read(0, &mut bytes).expect("inside");
    bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())
}

#[test]
fn one_poll_moves_one_slice_and_records_follow() {
    let (mut fabric, to) = fabric(1000);
    fabric.write(HERE, &write(2500, 1)).expect("room");
    fabric.send(HERE, &record(5)).expect("room");
    for expected in [1000, 2000] {
        assert_eq!(poll(&mut fabric), []);
        assert_eq!(placed(&to), expected);
        assert!(fabric.is_busy());
    }
    let came = FabricEvent::Record { connection: THERE, record: record(5) };
    assert_eq!(poll(&mut fabric), [done(1, Code::Ok), came]);
    assert!(!fabric.is_busy());
}

#[test]
fn queues_have_the_room_they_say() {
    let (mut fabric, _) = fabric(1 << 20);
    for post in 0..2 {
        fabric.write(HERE, &write(1, post)).expect("room");
    }
    fabric.flush(HERE, PostId(2)).expect("room");
    assert_eq!(fabric.write(HERE, &write(1, 3)), Err(PostError::Full));
    assert_eq!(fabric.flush(HERE, PostId(3)), Err(PostError::Full));
    for tag in 0..2 {
        fabric.send(HERE, &record(tag)).expect("records have room of their own");
    }
    assert_eq!(fabric.send(HERE, &record(2)), Err(PostError::Full));
    assert_eq!(poll(&mut fabric).len(), 5);
    fabric.write(HERE, &write(1, 3)).expect("room again");
}

#[test]
fn withdrawn_key_stops_a_write_in_the_middle() {
    let (mut fabric, to) = fabric(1000);
    fabric.write(HERE, &write(5000, 1)).expect("room");
    assert_eq!(poll(&mut fabric), []);
    // The same memory under a new epoch: what was posted for the old key stays out.
    fabric.install(TO, EPOCH + 1, to.clone(), ACCESS_WRITE);
    assert_eq!(poll(&mut fabric), [refused(1, Code::RemoteRefused), done(1, Code::Ok)]);
    assert_eq!(placed(&to), 1000);
}

#[test]
fn replaced_source_is_not_mixed_up() {
    let (mut fabric, to) = fabric(1000);
    fabric.write(HERE, &write(5000, 1)).expect("room");
    assert_eq!(poll(&mut fabric), []);
    fabric.install(FROM, 1, memory(7), ACCESS_READ);
    assert_eq!(poll(&mut fabric), [done(1, Code::RegionLost)]);
    assert_eq!(placed(&to), 1000);
}

#[test]
fn lost_memory_is_reported_at_its_owners_end() {
    guard::install().expect("a handler");
    let lost = || {
        let file = memfd::create("lost", BYTES, memfd::Huge::No).expect("a memory file");
        let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).expect("mapped");
        let guarded = guard::protect(&mapping).expect("guarded");
        guarded.condemn().expect("replaced");
        guarded.span()
    };
    let (mut fabric, _) = fabric(1 << 20);
    let from = fabric.install(FROM, 1, lost(), ACCESS_READ).expect("what stood there");
    fabric.write(HERE, &write(100, 1)).expect("room");
    assert_eq!(poll(&mut fabric), [done(1, Code::RegionLost)]);
    fabric.install(FROM, 1, from, ACCESS_READ);
    fabric.install(TO, EPOCH, lost(), ACCESS_WRITE);
    fabric.write(HERE, &write(100, 2)).expect("room");
    assert_eq!(poll(&mut fabric), [refused(2, Code::RemoteRegionLost), done(2, Code::Ok)]);
}

/// The refusal and the end of one write come in two polls when each has room for one event.
#[test]
fn outcome_is_kept_while_events_are_full() {
    let (mut fabric, _) = fabric(1 << 20);
    let mut bad = write(100, 1);
    bad.to.key.epoch = EPOCH + 1;
    fabric.write(HERE, &bad).expect("room");
    let mut one = [FabricEvent::Down { connection: HERE, cause: Code::Ok }];
    assert_eq!(fabric.poll(0, &mut one), 1);
    assert_eq!(one[0], refused(1, Code::RemoteRefused));
    // A close in between changes nothing of what has happened.
    fabric.close(THERE);
    assert!(poll(&mut fabric).contains(&done(1, Code::Ok)));
}

#[test]
fn close_ends_the_pair_and_open_makes_it_new() {
    let (mut fabric, to) = fabric(1000);
    fabric.write(HERE, &write(5000, 1)).expect("room");
    fabric.send(HERE, &record(1)).expect("room");
    fabric.flush(HERE, PostId(2)).expect("room");
    assert_eq!(poll(&mut fabric), []);
    assert!(!fabric.open(HERE), "not while it is open");
    fabric.close(THERE);
    assert_eq!(fabric.send(THERE, &record(1)), Err(PostError::Down));
    assert!(!fabric.open(HERE), "not before both said Down");
    let down = |connection| FabricEvent::Down { connection, cause: Code::ConnectionReset };
    let mut said = poll(&mut fabric);
    said.sort_by_key(|event| matches!(event, FabricEvent::Down { connection: THERE, .. }));
    let ended = [done(1, Code::ConnectionReset), done(2, Code::ConnectionReset)];
    assert_eq!(said, [ended[0], ended[1], down(HERE), down(THERE)]);
    assert_eq!(placed(&to), 1000, "nothing lands any more");
    assert_eq!(fabric.write(HERE, &write(1, 3)), Err(PostError::Down));
    assert!(fabric.open(THERE));
    fabric.write(HERE, &write(10, 3)).expect("room");
    assert_eq!(poll(&mut fabric), [done(3, Code::Ok)]);
}

#[test]
fn a_long_write_leaves_other_pairs_their_turn() {
    let (mut fabric, _) = fabric(1000);
    fabric.write(HERE, &write(60_000, 1)).expect("room");
    fabric.write(ConnectionIndex(2), &write(10, 2)).expect("room");
    let polls = (1..).find(|_| {
        poll(&mut fabric)
            .iter()
            .any(|event| matches!(event, FabricEvent::Done { connection: ConnectionIndex(2), .. }))
    });
    assert!(polls.is_some_and(|polls| polls <= 4), "a short write waited for {polls:?} polls");
}
