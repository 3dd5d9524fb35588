//! The statements of [`railhead_core::port::Fabric`] about reads, confirms and windows, one test each. See
//! [`crate::fabric_conformance!`].

use railhead_abi::Code;
use railhead_abi::frame::ACCESS_READ;
use railhead_core::port::{Fabric, Key, Place, PostError, RegionIndex, RemotePlace};

use super::driver::{DESTINATION, Driver, EPOCH};
use super::fabric::{READ_ONLY, bad_places, until_both_down};
use super::{End, FabricHarness};
use crate::Rng;

/// Makes a fresh harness.
type Make<'a, H> = &'a mut dyn FnMut() -> H;

/// A region of the target that peers may write, and not read.
const WRITE_ONLY: RegionIndex = RegionIndex(20);

/// A driver, if its fabric can do what a test is about.
fn driver<H: FabricHarness>(
    make: Make<'_, H>,
    bytes: usize,
    what: &str,
    can: impl Fn(&Driver<H>) -> bool,
) -> Option<Driver<H>> {
    let driver = Driver::new(make(), bytes);
    if can(&driver) {
        return Some(driver);
    }
    println!("not run: this fabric has no {what}");
    None
}

fn with_reads<H: FabricHarness>(make: Make<'_, H>, bytes: usize) -> Option<Driver<H>> {
    driver(make, bytes, "reads", |driver| driver.capabilities.reads)
}

/// Every size and alignment arrives byte for byte, and nothing around it changes.
pub fn reads_arrive_whole<H: FabricHarness>(make: Make<'_, H>) {
    let Some(probe) = with_reads(make, 64) else { return };
    let max = probe.write_bytes_max();
    drop(probe);
    let mut sizes = vec![1, 2, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65_535, 65_536, 131_073, max - 1, max];
    sizes.retain(|bytes| *bytes >= 1 && *bytes <= max);
    for bytes in sizes {
        let Some(mut driver) = with_reads(make, bytes + 64) else { return };
        for (from, into) in [(0, 0), (1, 3), (5, 0), (0, 7), (17, 33)] {
            driver.make_sink(bytes + 64);
            driver.read_whole(0, from, into, bytes);
            let seen = driver.sink(bytes + 64);
            let model = driver.model()[from..from + bytes].to_vec();
            assert!(seen[into..into + bytes] == model, "{bytes} bytes from {from} into {into}");
            assert!(seen[..into].iter().chain(&seen[into + bytes..]).all(|byte| *byte == 0));
        }
        driver.send_waiting(End::Initiator, 0);
        driver.settle();
    }
}

/// A read that is posted behind a write sees it, whatever else is under way.
pub fn reads_see_the_writes_before_them<H: FabricHarness>(make: Make<'_, H>) {
    let Some(mut driver) = with_reads(make, 256 << 10) else { return };
    let bytes = 6_000.min(driver.write_bytes_max());
    driver.make_sink(256 << 10);
    for round in 0..20 {
        let at = round * bytes;
        let key = Key { index: DESTINATION.0, epoch: EPOCH };
        driver.send_waiting(End::Initiator, 0);
        driver.write_waiting(0, round * 3, at, bytes);
        let from = RemotePlace { key, offset: at as u64 };
        let read = driver.read(0, from, at, bytes).expect("a read has room");
        driver.until("the read has ended", |driver| driver.has_ended(read));
        assert_eq!(driver.status(read), Code::Ok);
        driver.flush_here(0);
        let seen = driver.sink(256 << 10);
        assert!(seen[at..at + bytes] == driver.model()[at..at + bytes], "round {round}");
    }
    driver.finish();
}

/// A bad key, epoch, range or right ends the read with a code, and perhaps its connection; nothing else comes to harm.
pub fn bad_reads_are_refused<H: FabricHarness>(make: Make<'_, H>) {
    let Some(mut driver) = with_reads(make, 64 << 10) else { return };
    driver.harness.install(End::Target, READ_ONLY, EPOCH, 4096, ACCESS_READ);
    driver.harness.install(End::Target, WRITE_ONLY, EPOCH, 4096, railhead_abi::frame::ACCESS_WRITE);
    driver.make_sink(64 << 10);
    let mut places = bad_places(64 << 10);
    places.retain(|place| place.key.index != READ_ONLY.0);
    places.push(RemotePlace { key: Key { index: WRITE_ONLY.0, epoch: EPOCH }, offset: 0 });
    for (at, place) in places.into_iter().enumerate() {
        driver.expect_success = false;
        let read = driver.read(0, place, 100, 2).expect("room for a read");
        driver.until("the read has ended", |driver| driver.has_ended(read));
        let status = driver.status(read);
        assert!(matches!(status, Code::RemoteRefused | Code::RemoteRegionLost), "{place:?}: {status:?}");
        driver.settle();
        if driver.is_down(End::Initiator, 0) || driver.is_down(End::Target, 0) {
            until_both_down(&mut driver);
            driver.reconnect(0);
        }
        driver.expect_success = true;
        let good = Key { index: READ_ONLY.0, epoch: EPOCH };
        let read = driver.read(0, RemotePlace { key: good, offset: 0 }, 200, 64).expect("room for a read");
        driver.until("the read has ended", |driver| driver.has_ended(read));
        driver.write_waiting(1, 1000, 32_000 + at * 1000, 1000);
    }
    driver.finish();
    let sink = driver.sink(64 << 10);
    assert!(sink[..100].iter().chain(&sink[102..]).all(|byte| *byte == 0), "a refused read left its range");
}

/// Reads under way when a connection is cut end before `Down`, and nothing lands after it; nor is anything read from the
/// other end after its own `Down`.
pub fn reads_end_with_their_connection<H: FabricHarness>(make: Make<'_, H>) {
    for steps in [0, 1, 2, 3, 5, 8, 20] {
        let Some(mut driver) = with_reads(make, 64 << 10) else { return };
        driver.expect_success = false;
        driver.make_sink(64 << 10);
        let bytes = 5_000.min(driver.write_bytes_max());
        let key = Key { index: DESTINATION.0, epoch: EPOCH };
        let mut posts = Vec::new();
        for at in 0..12 {
            let from = RemotePlace { key, offset: at * 5_000 };
            let into = usize::try_from(at).unwrap_or(0) * 5_000;
            posts.extend(driver.read(0, from, into, bytes).ok().map(|post| (post, into)));
            if at == 6 {
                (0..steps).for_each(|_| driver.step());
            }
        }
        driver.harness.cut(0);
        driver.until("this end is down", |driver| driver.is_down(End::Initiator, 0));
        let at_down = driver.sink(64 << 10);
        until_both_down(&mut driver);
        assert!(driver.sink(64 << 10) == at_down, "a read landed after Down");
        for (post, into) in posts {
            // What said that it went well is there, whatever came after it; where a flush is needed it may be lost.
            if driver.status(post) == Code::Ok && !driver.capabilities.flush_needed {
                assert!(at_down[into..into + bytes] == driver.model()[into..into + bytes], "{post:?}");
            }
        }
        let from = RemotePlace { key, offset: 0 };
        assert_eq!(driver.read(0, from, 0, 1).err(), Some(PostError::Down));
    }
}

/// Where writes are acknowledged, a write that was refused ends with the reason, its connection ends with it, and no
/// record that was sent behind it arrives.
pub fn acknowledged_writes_tell_how_they_ended<H: FabricHarness>(make: Make<'_, H>) {
    for (at, _) in bad_places(64 << 10).iter().enumerate() {
        let can = |driver: &Driver<H>| driver.capabilities.acknowledged;
        let Some(mut driver) = driver(make, 64 << 10, "acknowledged writes", can) else { return };
        driver.harness.install(End::Target, READ_ONLY, EPOCH, 4096, ACCESS_READ);
        let place = bad_places(64 << 10)[at];
        driver.write_waiting(0, 0, 0, 1000);
        driver.send_waiting(End::Initiator, 0);
        driver.settle();
        let seen = driver.records_seen(End::Target, 0);
        driver.expect_success = false;
        let bad = driver.write_raw(0, 0, place, 2, 7).expect("room for a write");
        let _ = driver.send(End::Initiator, 0);
        until_both_down(&mut driver);
        assert_eq!(driver.status(bad), Code::RemoteRefused, "{place:?}");
        assert!(driver.refused(0).is_empty(), "{place:?}: the other end was told");
        assert_eq!(driver.records_seen(End::Target, 0), seen, "{place:?}: a record passed a refused write");
        let mut bytes = vec![0; 4096];
        driver.harness.read_bytes(End::Target, READ_ONLY, 0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "read-only memory was written");
    }
}

/// When a confirm has ended, the writes posted before it can be seen, with no flush at the other end.
pub fn confirms_make_visible<H: FabricHarness>(make: Make<'_, H>) {
    let can = |driver: &Driver<H>| driver.capabilities.acknowledged;
    let Some(mut driver) = driver(make, 256 << 10, "acknowledged writes", can) else { return };
    let bytes = 5_000.min(driver.write_bytes_max());
    for round in 0..20 {
        let to = round * 3 * bytes / 2;
        for part in 0..3 {
            driver.write_waiting(0, round * 100, to + part * bytes / 2, bytes / 2);
        }
        let confirm = driver.confirm(0, to + 3 * (bytes / 2) - 1).expect("a confirm has room");
        driver.until("the confirm has ended", |driver| driver.has_ended(confirm));
        assert_eq!(driver.status(confirm), Code::Ok);
        let (seen, end) = (driver.destination(), to + 3 * (bytes / 2));
        assert!(seen[to..end] == driver.model()[to..end], "round {round}: confirmed, and not to be seen");
    }
    driver.finish();
}

/// A window lets writes of its slot into its bytes, and nothing else, until it is closed.
pub fn windows_let_their_slot_write<H: FabricHarness>(make: Make<'_, H>) {
    const CLOSED: RegionIndex = RegionIndex(21);
    let can = |driver: &Driver<H>| driver.capabilities.windows && !driver.capabilities.acknowledged;
    let Some(mut driver) = driver(make, 4096, "windows without acknowledged writes", can) else { return };
    driver.expect_success = false;
    driver.harness.install(End::Target, CLOSED, EPOCH, 4096, 0);
    let key = Key { index: CLOSED.0, epoch: EPOCH };
    let there = driver.harness.connection(End::Target, 0);
    let at = |offset| RemotePlace { key, offset };
    let open = |driver: &mut Driver<H>, slot, offset, bytes| {
        let to = Place { region: CLOSED, offset };
        driver.harness.fabric(End::Target).open_window(there, slot, to, bytes);
    };
    open(&mut driver, 7, 1000, 500);
    let mut refused = 0;
    let mut rng = Rng::new(3);
    let other = Key { epoch: EPOCH + 1, ..key };
    let mut cases = vec![
        (7, at(1000), 500, true),
        (7, at(1000), 1, true),
        (7, at(1499), 1, true),
        (7, at(1499), 2, false),
        (7, at(999), 2, false),
        (7, at(1500), 1, false),
        (8, at(1000), 10, false),
        (7, RemotePlace { key: other, offset: 1000 }, 10, false),
    ];
    for _ in 0..40 {
        let (offset, bytes) = (rng.below(3000), rng.between(1, 700));
        let is_inside = offset >= 1000 && offset + bytes <= 1500;
        cases.push((7, at(offset), usize::try_from(bytes).unwrap_or(1), is_inside));
    }
    let mut check = |driver: &mut Driver<H>, (slot, to, bytes, may): (u16, RemotePlace, usize, bool)| {
        let mut before = vec![0; 4096];
        driver.harness.read_bytes(End::Target, CLOSED, 0, &mut before);
        driver.refill_source(0, 700);
        driver.write_raw(0, 0, to, bytes, slot).expect("room for a write");
        driver.send_waiting(End::Initiator, 0);
        driver.until("the record came", |driver| driver.records_due(End::Target, 0) == 0);
        driver.settle();
        refused += usize::from(!may);
        assert_eq!(driver.refused(0).len(), refused, "{slot} {to:?} {bytes}");
        let mut after = vec![0; 4096];
        driver.harness.read_bytes(End::Target, CLOSED, 0, &mut after);
        assert_eq!(before != after, may, "{slot} {to:?} {bytes}");
        let first = usize::try_from(to.offset).unwrap_or(0);
        before[first..first + bytes].copy_from_slice(&after[first..first + bytes]);
        assert!(before == after, "{slot} {to:?} {bytes}: another byte changed");
    };
    for case in cases {
        check(&mut driver, case);
    }
    // Another window takes the place of the first; closed, it lets nothing in; the other connection never had one.
    open(&mut driver, 7, 2000, 100);
    check(&mut driver, (7, at(1000), 10, false));
    check(&mut driver, (7, at(2000), 100, true));
    driver.harness.fabric(End::Target).close_window(there, 7);
    driver.harness.fabric(End::Target).close_window(there, 7);
    check(&mut driver, (7, at(2000), 100, false));
    open(&mut driver, 7, 2000, 100);
    // New memory in the slot is not what the window was opened for.
    driver.harness.install(End::Target, CLOSED, EPOCH + 2, 4096, 0);
    let to = RemotePlace { key: Key { epoch: EPOCH + 2, ..key }, offset: 2000 };
    check(&mut driver, (7, to, 100, false));
}
