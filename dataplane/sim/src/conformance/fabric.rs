//! The statements of [`railhead_core::port::Fabric`], one test each. See [`crate::fabric_conformance!`].

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_core::port::{ConnectionIndex, Fabric, FabricEvent, Key, PostError, RemotePlace};

use super::driver::{DESTINATION, Driver, EPOCH};
use super::{End, FabricHarness, PAIRS};
use crate::Rng;

/// Makes a fresh harness.
type Make<'a, H> = &'a mut dyn FnMut() -> H;

/// More posts than any bounded queue takes.
const POSTS_ABSURD: usize = 1 << 20;

/// `posts_max` writes of the largest size and `records_max` records are taken before anything is polled.
pub fn capabilities_are_true<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    let capabilities = driver.capabilities;
    assert!(capabilities.write_bytes_max > 0 && capabilities.posts_max > 0 && capabilities.records_max > 0);
    let other = driver.harness.connection(End::Target, 0);
    assert_eq!(capabilities, driver.harness.fabric(End::Target).capabilities(other));
    for at in 0..usize::from(capabilities.posts_max) {
        let taken = driver.write(0, at % 1024, at % 60_000, 1);
        assert!(taken.is_ok(), "write {at} of {} was not taken: {taken:?}", capabilities.posts_max);
        // Two writes to one byte have no order: let only those of one lap be under way.
        if at % 60_000 == 59_999 {
            break;
        }
    }
    driver.settle();
    for end in End::BOTH {
        for at in 0..capabilities.records_max {
            let taken = driver.send(end, 1);
            assert!(taken.is_ok(), "record {at} of {} was not taken: {taken:?}", capabilities.records_max);
        }
    }
    driver.finish();

    let mut driver = Driver::new(make(), capabilities.write_bytes_max as usize);
    driver
        .write(0, 0, 0, capabilities.write_bytes_max as usize)
        .expect("a write of write_bytes_max is taken");
    driver.finish();
}

/// Every size and alignment arrives byte for byte, and nothing around it changes.
pub fn edges_arrive_whole<H: FabricHarness>(make: Make<'_, H>) {
    let max = Driver::new(make(), 64).write_bytes_max();
    let near = |at: usize| [at - 1, at, at + 1];
    let mut sizes = vec![1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129];
    for at in [4 << 10, 16 << 10, 128 << 10, 256 << 10, 1 << 20] {
        sizes.extend(near(at));
    }
    sizes.extend([max, max - 1]);
    sizes.retain(|bytes| *bytes >= 1 && *bytes <= max);
    for bytes in sizes {
        let mut driver = Driver::new(make(), bytes + 64);
        for (from, to) in [(0, 0), (1, 3), (5, 0), (0, 7), (17, 33)] {
            driver.write_waiting(0, from, to, bytes);
            driver.send_waiting(End::Initiator, 0);
            driver.settle();
        }
        driver.finish();
    }
}

/// After `Done` the source may be overwritten, and what arrives is what was there before.
pub fn source_is_free_after_done<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 256 << 10);
    let bytes = 8_000.min(driver.write_bytes_max());
    for round in 0..32 {
        let post = driver.write_waiting(0, 4096, round * bytes, bytes);
        driver.until("the write is done", |driver| driver.has_ended(post));
        driver.refill_source(4096, bytes);
    }
    driver.finish();
}

/// A record is seen only when all writes that were posted before it are in place.
pub fn records_come_after_writes<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 1 << 20);
    let max = driver.write_bytes_max();
    let mut rng = Rng::new(11);
    let mut to = 0;
    while to < (1 << 20) - 40_000 {
        let pair = rng.index(PAIRS);
        let bytes = usize::try_from(rng.between(1, 30_000)).expect("small").min(max);
        driver.write_waiting(pair, rng.index(1 << 19), to, bytes);
        to += bytes;
        if rng.chance(500_000) {
            driver.send_waiting(End::Initiator, pair);
        }
    }
    driver.finish();
}

/// Records of every length come whole, once and in order, both ways at once.
pub fn records_keep_their_order_and_words<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 4096);
    for _ in 0..2_000 {
        for pair in 0..PAIRS {
            for end in End::BOTH {
                driver.send_waiting(end, pair);
            }
        }
    }
    driver.finish();
    for pair in 0..PAIRS {
        assert_eq!(driver.records_seen(End::Target, pair), 2_001);
        assert_eq!(driver.records_seen(End::Initiator, pair), 2_000);
    }
}

/// Ways to name a place that the target must refuse, in memory of `bytes`.
pub(super) fn bad_places(bytes: u64) -> Vec<RemotePlace> {
    let good = Key { index: DESTINATION.0, epoch: EPOCH };
    let at = |key, offset| RemotePlace { key, offset };
    vec![
        at(Key { index: DESTINATION.0 + 1, epoch: EPOCH }, 0),
        at(Key { index: u32::MAX, epoch: EPOCH }, 0),
        at(Key { epoch: EPOCH + 1, ..good }, 0),
        at(Key { epoch: EPOCH - 1, ..good }, 0),
        at(Key { epoch: 0, ..good }, 0),
        at(good, bytes),
        at(good, bytes - 1),
        at(good, u64::MAX),
        at(good, u64::MAX - 1),
        at(good, 1 << 63),
        at(Key { index: READ_ONLY.0, epoch: EPOCH }, 0),
    ]
}

/// A region of the target that peers may not write.
pub(super) const READ_ONLY: railhead_core::port::RegionIndex = railhead_core::port::RegionIndex(18);

/// A bad key, epoch, range or right is refused with the initiator's slot; others' writes and records go on.
pub fn refused_writes_harm_nobody<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    if driver.capabilities.acknowledged {
        println!(
            "not run: where writes are acknowledged, acknowledged_writes_tell_how_they_ended looks at this"
        );
        return;
    }
    driver.harness.install(End::Target, READ_ONLY, EPOCH, 4096, ACCESS_READ);
    let mut slots = Vec::new();
    for (at, place) in bad_places(64 << 10).into_iter().enumerate() {
        let slot = u16::try_from(at).expect("few") + 100;
        driver.write_waiting(0, 0, at * 2000, 1000);
        driver.write_raw(0, 0, place, 2, slot).expect("room for a few writes");
        driver.write_waiting(0, 1000, at * 2000 + 1000, 1000);
        driver.write_waiting(1, 1000, 32_000 + at * 1000, 1000);
        slots.push(slot);
        driver.expect_success = false;
        driver.send_waiting(End::Initiator, 0);
        driver.settle();
        driver.expect_success = true;
    }
    driver.finish();
    let seen: Vec<u16> = driver.refused(0).iter().map(|(slot, _)| *slot).collect();
    assert_eq!(seen, slots, "each refused write is reported once, with its slot");
    assert!(
        driver
            .refused(0)
            .iter()
            .all(|(_, code)| matches!(code, Code::RemoteRefused | Code::RemoteRegionLost))
    );
    assert!(driver.refused(1).is_empty());
    let mut bytes = vec![0; 4096];
    driver.harness.read_bytes(End::Target, READ_ONLY, 0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "read-only memory was written");
}

/// The target hears of a refused write before it sees a record that was sent behind it.
pub fn refused_comes_before_later_records<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 4096);
    if driver.capabilities.acknowledged {
        println!("not run: where writes are acknowledged, a connection ends with a refused write");
        return;
    }
    driver.expect_success = false;
    let bad = RemotePlace { key: Key { index: DESTINATION.0, epoch: EPOCH + 1 }, offset: 0 };
    for round in 0..20 {
        driver.write_raw(0, 0, bad, 600, 7).expect("one write has room");
        driver.send_waiting(End::Initiator, 0);
        driver.until("the record came", |driver| driver.records_due(End::Target, 0) == 0);
        assert_eq!(driver.refused(0).len(), round + 1, "a record overtook the refusal of a write before it");
    }
    driver.finish();
}

/// Once the target has removed memory, nothing lands in it, whatever is on its way; the connection goes on.
pub fn removed_memory_is_left_alone<H: FabricHarness>(make: Make<'_, H>) {
    const SHORT_LIVED: railhead_core::port::RegionIndex = railhead_core::port::RegionIndex(19);
    let bytes = 64 << 10;
    for steps in 0..40 {
        let mut driver = Driver::new(make(), bytes);
        let size = (16 << 10).min(driver.write_bytes_max());
        driver.harness.install(End::Target, SHORT_LIVED, 9, bytes, ACCESS_WRITE);
        driver.expect_success = false;
        for at in 0..4 {
            let to = RemotePlace { key: Key { index: SHORT_LIVED.0, epoch: 9 }, offset: (at * size) as u64 };
            driver.write_raw(0, at * size, to, size, 3).expect("room for four writes");
        }
        driver.send_waiting(End::Initiator, 0);
        for _ in 0..steps {
            driver.step();
        }
        driver.harness.remove(End::Target, SHORT_LIVED);
        let (mut before, mut after) = (vec![0; bytes], vec![0; bytes]);
        driver.harness.read_bytes(End::Target, SHORT_LIVED, 0, &mut before);
        driver.settle();
        driver.harness.read_bytes(End::Target, SHORT_LIVED, 0, &mut after);
        assert!(before == after, "a write landed in memory that was removed");
        if driver.is_down(End::Initiator, 0) || driver.is_down(End::Target, 0) {
            // What was refused has broken the connection.
            assert!(driver.capabilities.acknowledged);
            until_both_down(&mut driver);
            driver.reconnect(0);
        }
        driver.write_waiting(0, 0, 100, size);
        driver.finish();
        assert!(driver.refused(0).len() <= 4);
    }
}

/// A queue says `Full` at some point, takes posts again after events, and loses and doubles nothing.
pub fn full_is_honoured<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    let mut posts = 0;
    while driver.outstanding(0) < POSTS_ABSURD {
        // All to one byte, of one byte: whichever comes last, it is the same.
        match driver.write(0, 0, 0, 1) {
            Ok(_) => posts += 1,
            Err(PostError::Full) => break,
            Err(PostError::Down) => panic!("the connection went down"),
        }
    }
    assert!(posts >= usize::from(driver.capabilities.posts_max), "Full after {posts} posts");
    assert!(posts < POSTS_ABSURD, "the queue of posts has no bound");
    driver.settle();
    let mut records = 0;
    while records < POSTS_ABSURD {
        match driver.send(End::Initiator, 1) {
            Ok(()) => records += 1,
            Err(PostError::Full) => break,
            Err(PostError::Down) => panic!("the connection went down"),
        }
    }
    assert!(records >= usize::from(driver.capabilities.records_max), "Full after {records} records");
    assert!(records < POSTS_ABSURD, "the queue of records has no bound");
    for at in 0..200 {
        driver.write_waiting(0, at, 1 + at * 300, 300);
        driver.send_waiting(End::Initiator, 1);
        driver.send_waiting(End::Target, 1);
    }
    driver.finish();
}

/// A poll into a slice of none gives none; into a slice of one, all comes in the end.
pub fn small_polls_lose_nothing<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    driver.slice = 1;
    let now = driver.harness.pass();
    for end in End::BOTH {
        let fabric = driver.harness.fabric(end);
        fabric.kick(now);
        assert_eq!(fabric.poll(now, &mut []), 0);
    }
    for at in 0..100 {
        driver.write_waiting(at % 2, at * 7, at * 600, 600);
        driver.send_waiting(End::Initiator, at % 2);
        driver.send_waiting(End::Target, at % 2);
        if at % 10 == 0 {
            let now = driver.harness.pass();
            assert_eq!(driver.harness.fabric(End::Target).poll(now, &mut []), 0);
        }
    }
    driver.finish();
}

/// Posts writes and records on connection 0 without waiting, and lets `steps` go by.
fn load<H: FabricHarness>(driver: &mut Driver<H>, steps: usize) {
    let bytes = 5_000.min(driver.write_bytes_max());
    for at in 0..12 {
        let _ = driver.write(0, at, at * 5_000, bytes);
        let _ = driver.send(End::Initiator, 0);
        let _ = driver.send(End::Target, 0);
        if at == 6 {
            for _ in 0..steps {
                driver.step();
            }
        }
    }
}

pub(super) fn until_both_down<H: FabricHarness>(driver: &mut Driver<H>) {
    driver.until("both ends are down", |driver| {
        driver.is_down(End::Initiator, 0) && driver.is_down(End::Target, 0)
    });
    // The driver panics if anything comes after Down.
    for _ in 0..200 {
        driver.step();
    }
}

fn assert_refuses_posts<H: FabricHarness>(driver: &mut Driver<H>) {
    assert_eq!(driver.write(0, 0, 0, 1).err(), Some(PostError::Down));
    for end in End::BOTH {
        assert_eq!(driver.send(end, 0), Err(PostError::Down));
    }
}

/// A cut connection ends every post, then says `Down` once at each end, then nothing.
pub fn down_comes_once_and_last<H: FabricHarness>(make: Make<'_, H>) {
    for steps in [0, 1, 2, 3, 5, 10, 30, 100] {
        let mut driver = Driver::new(make(), 64 << 10);
        driver.expect_success = false;
        load(&mut driver, steps);
        driver.harness.cut(0);
        until_both_down(&mut driver);
        assert_eq!(driver.outstanding(0), 0);
        assert_refuses_posts(&mut driver);
    }
}

/// After `Down` at the target its memory stays as it is; after `Down` at the initiator its source is not read.
pub fn nothing_lands_after_down<H: FabricHarness>(make: Make<'_, H>) {
    for steps in [0, 1, 2, 3, 5, 8, 20] {
        let mut driver = Driver::new(make(), 64 << 10);
        driver.expect_success = false;
        load(&mut driver, steps);
        driver.harness.cut(0);
        let mut at_down: Option<Vec<u8>> = None;
        let mut refilled = false;
        let secret = vec![0xa5; 64 << 10];
        for _ in 0..400_000 {
            if driver.is_down(End::Target, 0) && at_down.is_none() {
                at_down = Some(driver.destination());
            }
            if driver.is_down(End::Initiator, 0) && !refilled {
                driver.harness.write_bytes(End::Initiator, super::driver::SOURCE, 0, &secret);
                refilled = true;
            }
            if at_down.is_some() && refilled {
                break;
            }
            driver.step();
        }
        let at_down = at_down.expect("Down came at the target");
        assert!(refilled, "Down came at the initiator");
        for _ in 0..200 {
            driver.step();
        }
        assert!(driver.destination() == at_down, "a write landed after Down");
        let run = at_down.chunks(64).filter(|part| part.iter().all(|byte| *byte == 0xa5)).count();
        assert_eq!(run, 0, "the source was read after Down");
    }
}

/// `close` at either end ends both ends; a second one does nothing.
pub fn close_ends_both_sides<H: FabricHarness>(make: Make<'_, H>) {
    for end in End::BOTH {
        for steps in [0, 3, 50] {
            let mut driver = Driver::new(make(), 64 << 10);
            driver.expect_success = false;
            load(&mut driver, steps);
            let connection = driver.harness.connection(end, 0);
            driver.harness.fabric(end).close(connection);
            driver.harness.fabric(end).close(connection);
            until_both_down(&mut driver);
            assert_refuses_posts(&mut driver);
            driver.harness.fabric(end).close(connection);
            for _ in 0..50 {
                driver.step();
            }
            driver.write_waiting(1, 0, 63_000, 500);
            driver.send_waiting(End::Initiator, 1);
            driver.until("the other connection goes on", |driver| driver.records_due(End::Target, 1) == 0);
        }
    }
}

/// Closing or posting to a connection that never was does nothing.
pub fn close_of_nothing_is_nothing<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    let known: Vec<ConnectionIndex> = End::BOTH
        .iter()
        .flat_map(|end| (0..PAIRS).map(|pair| driver.harness.connection(*end, pair)).collect::<Vec<_>>())
        .collect();
    let unknown =
        (0..u16::MAX).rev().map(ConnectionIndex).find(|index| !known.contains(index)).expect("a free index");
    let record =
        railhead_abi::record::RawRecord { words: [0x100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };
    for end in End::BOTH {
        let fabric = driver.harness.fabric(end);
        fabric.close(unknown);
        assert_eq!(fabric.send(unknown, &record), Err(PostError::Down));
        let now = driver.harness.pass();
        let mut events = [FabricEvent::Down { connection: unknown, cause: Code::Ok }; 4];
        assert_eq!(driver.harness.fabric(end).poll(now, &mut events), 0, "{events:?}");
    }
    driver.write_waiting(0, 0, 0, 1000);
    driver.finish();
}

/// One connection's end does not touch the other.
pub fn connections_are_independent<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 128 << 10);
    driver.expect_success = false;
    load(&mut driver, 2);
    driver.harness.cut(0);
    driver.expect_success = false;
    let mut ours = Vec::new();
    for at in 0..50 {
        ours.push(driver.write_waiting(1, at, (64 << 10) + at * 1200, 1200));
        driver.send_waiting(End::Initiator, 1);
        driver.send_waiting(End::Target, 1);
    }
    until_both_down(&mut driver);
    driver.settle();
    assert!(!driver.is_down(End::Initiator, 1) && !driver.is_down(End::Target, 1));
    assert!(ours.into_iter().all(|post| driver.has_ended(post) && !driver.has_failed(post)));
    assert_eq!(driver.records_due(End::Target, 1) + driver.records_due(End::Initiator, 1), 0);
}

/// After `Down` at both ends the same index can carry a new connection, which has nothing of the old one.
pub fn connects_again<H: FabricHarness>(make: Make<'_, H>) {
    let mut driver = Driver::new(make(), 64 << 10);
    for round in 0..5 {
        driver.expect_success = false;
        load(&mut driver, round * 3);
        driver.harness.cut(0);
        until_both_down(&mut driver);
        driver.reconnect(0);
        driver.expect_success = true;
        for at in 0..10 {
            driver.write_waiting(0, at * 100, at * 6_000, 3_000);
            driver.send_waiting(End::Initiator, 0);
            driver.send_waiting(End::Target, 0);
        }
        driver.finish();
    }
}

/// A long random mix of writes, records and waits on both connections.
pub fn random_mix<H: FabricHarness>(make: Make<'_, H>) {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut driver = Driver::new(make(), 512 << 10);
        let max = driver.write_bytes_max();
        driver.slice = rng.index(32) + 1;
        let mut to = 0;
        while to < (512 << 10) - 20_000 {
            let pair = rng.index(PAIRS);
            match rng.below(5) {
                0 | 1 => {
                    let bytes = (rng.index(20_000) + 1).min(max);
                    driver.write_waiting(pair, rng.index(400_000), to, bytes);
                    to += bytes + rng.index(3);
                }
                2 => driver.send_waiting(End::Initiator, pair),
                3 => driver.send_waiting(End::Target, pair),
                _ => driver.step(),
            }
        }
        driver.finish();
    }
}
