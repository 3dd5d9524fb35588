//! How little the NIC is asked for: work requests, completions and doorbells, counted by the stand-in.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::stand_in::{self, Counters, Option as Set};
use common::{EPOCH, Harness, SOURCE, Setup, TARGET};
use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_core::port::{Fabric, PostId, RegionIndex};
use railhead_sim::conformance::{End, FabricHarness};
use railhead_verbs::{MemoryAccess, MemoryRegion};

/// The stand-in counts for the whole process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const INLINE: u32 = 1 << 3;
const WRITE: u32 = 0;
const SEND: u32 = 2;
const READ: u32 = 4;

fn difference(before: Counters) -> Counters {
    let now = stand_in::counters();
    Counters {
        doorbells: now.doorbells - before.doorbells,
        sends: now.sends - before.sends,
        signalled: now.signalled - before.signalled,
        inline_sends: now.inline_sends - before.inline_sends,
        completions: now.completions - before.completions,
        receives: now.receives - before.receives,
        ..now
    }
}

fn asked(counters: Counters) -> (u64, u64, u64) {
    (counters.sends, counters.doorbells, counters.signalled)
}

#[test]
fn a_write_alone_is_one_request_one_doorbell_one_completion() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    for (post, bytes) in [(1, 1), (2, 4096), (3, 1 << 20)] {
        let before = stand_in::counters();
        harness.write(post, 0, bytes).unwrap();
        assert_eq!(harness.status_of(post), Code::Ok);
        let after = difference(before);
        assert_eq!(asked(after), (1, 1, 1), "{bytes} bytes");
        assert_eq!(after.completions, 1);
    }
}

#[test]
fn writes_and_the_record_behind_them_are_one_doorbell_and_one_completion() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    let before = stand_in::counters();
    for post in 0..16 {
        harness.write(post, u64::from(post) * 65_536, 65_536).unwrap();
    }
    harness.send(End::Initiator, 1).unwrap();
    harness.until("all has come", |said| common::status(&said[0], 15).is_some() && !said[1].is_empty());
    let after = difference(before);
    assert_eq!(asked(after), (17, 1, 1));
    assert_eq!(after.completions, 2, "one here, and the record there");
}

#[test]
fn a_write_with_its_confirm_asks_for_one_completion_and_none_of_the_peers() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    let before = stand_in::counters();
    harness.write(1, 0, 1 << 20).unwrap();
    let near = harness.near();
    let at = Harness::place((1 << 20) - 1);
    harness.fabric(End::Initiator).confirm(near, at, PostId(2)).unwrap();
    assert_eq!(harness.status_of(2), Code::Ok);
    let after = difference(before);
    assert_eq!(asked(after), (2, 1, 1));
    assert_eq!(after.completions, 1, "the peer's NIC says nothing to its processor");
}

#[test]
fn a_read_is_one_request() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    let mark = stand_in::mark();
    let before = stand_in::counters();
    harness.read(1, 0, 1 << 20).unwrap();
    assert_eq!(harness.status_of(1), Code::Ok);
    assert_eq!(asked(difference(before)), (1, 1, 1));
    assert_eq!(stand_in::since(mark)[0].opcode, READ);
}

#[test]
fn records_alone_ask_for_few_completions_and_never_starve() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    let before = stand_in::counters();
    let mut sent = 0;
    let mut said = [Vec::new(), Vec::new()];
    while sent < 10_000 {
        while harness.send(End::Initiator, sent).is_ok() {
            sent += 1;
        }
        harness.step(&mut said);
    }
    harness.until("the last has come", |more| {
        common::tags(&said[1]).into_iter().chain(common::tags(&more[1])).max() == Some(sent - 1)
    });
    let after = difference(before);
    let credits = harness.nodes[1].fabric.counters(0).credits_sent;
    assert_eq!(after.sends, sent + credits);
    assert!(after.signalled <= sent / 24 + 1 + credits, "{after:?}");
    assert!(credits <= sent / 25 + 1, "{credits} messages gave receives back");
    assert_eq!((after.starved, after.overruns, after.receiver_not_ready), (0, 0, 0));
}

#[test]
fn direct_means_the_regions_own_bytes() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    let mark = stand_in::mark();
    for post in 0..64 {
        harness.write(post, u64::from(post) * 16_384 + 3, 8_000 + post).unwrap();
    }
    harness.until("all have ended", |said| common::status(&said[0], 63).is_some());
    let within = |span: &railhead_shm::OwnedSpan, address: u64, bytes: u32| {
        let start = span.address() as u64;
        address >= start && address + u64::from(bytes) <= start + span.len() as u64
    };
    let sent = stand_in::since(mark);
    assert_eq!(sent.len(), 64);
    for one in sent {
        assert_eq!(one.opcode, WRITE);
        assert!(within(harness.span(End::Initiator, SOURCE), one.local, one.bytes), "{one:?}");
        assert!(within(harness.span(End::Target, TARGET), one.remote, one.bytes), "{one:?}");
    }
}

#[test]
fn small_payload_of_host_memory_travels_in_the_request_up_to_the_devices_limit() {
    let _alone = alone();
    for (limit, inline, not) in [(256, 136, 137), (64, 64, 65), (0, 0, 1)] {
        stand_in::set(Set::InlineMax, limit);
        let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
        stand_in::set(Set::InlineMax, 256);
        let mark = stand_in::mark();
        if inline > 0 {
            harness.write(1, 0, inline).unwrap();
            assert_eq!(harness.status_of(1), Code::Ok);
        }
        harness.write(2, 100, not).unwrap();
        assert_eq!(harness.status_of(2), Code::Ok);
        harness.send(End::Initiator, 9).unwrap();
        harness.until("the record came", |said| common::tags(&said[1]) == [9]);
        let sent = stand_in::since(mark);
        let flags =
            |opcode| sent.iter().filter(move |one| one.opcode == opcode).map(|one| one.flags & INLINE != 0);
        let expected: &[bool] = if inline > 0 { &[true, false] } else { &[false] };
        assert!(flags(WRITE).eq(expected.iter().copied()), "limit {limit}: {sent:?}");
        assert!(flags(SEND).eq([limit >= 24]), "limit {limit}: {sent:?}");
    }
}

#[test]
fn flushes_that_wait_share_a_read() {
    let _alone = alone();
    let setup = Setup { flush_needed: true, ..Setup::stand_in() };
    let mut harness = Harness::with_memory(&setup, 4096);
    let far = harness.connection(End::Target, 0);
    let before = stand_in::counters();
    for post in 0..40 {
        harness.fabric(End::Target).flush(far, PostId(post)).unwrap();
    }
    let said = harness.until("all have ended", |said| common::status(&said[1], 39).is_some());
    assert!((0..40).all(|post| common::status(&said[1], post) == Some(Code::Ok)));
    assert_eq!(asked(difference(before)), (1, 1, 1));
    assert_eq!(harness.nodes[1].fabric.counters(0).flush_reads, 1);
    // One that is asked for later is read for anew.
    harness.fabric(End::Target).flush(far, PostId(50)).unwrap();
    harness.until("it has ended", |said| common::status(&said[1], 50).is_some());
    assert_eq!(harness.nodes[1].fabric.counters(0).flush_reads, 2);
}

#[test]
fn nothing_is_left_behind() {
    let _alone = alone();
    let before = stand_in::counters();
    for _ in 0..30 {
        let setup = Setup { flush_needed: true, ..Setup::stand_in() };
        let mut harness = Harness::with_memory(&setup, 4096);
        for post in 0..20 {
            harness.write(post, 0, 100).unwrap();
        }
        harness.cut(0);
        harness.until("both are down", |said| said.iter().all(|said| common::down(said).is_some()));
        harness.connect(0);
    }
    let after = stand_in::counters();
    let living = |counters: Counters| {
        [
            counters.queue_pairs,
            counters.regions,
            counters.completion_queues,
            counters.domains,
            counters.contexts,
        ]
    };
    assert_eq!(living(before), living(after));
    assert_eq!(after.overruns, before.overruns);
}

#[test]
fn a_dma_buf_is_registered_where_that_works_and_its_reason_is_seen_where_not() {
    use std::os::fd::AsFd as _;
    let _alone = alone();
    let harness = Harness::new(&Setup::stand_in());
    let domain = harness.nodes[0].nic.domain();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let buffer = railhead_verbs::DmaBuf { file: file.as_fd(), offset: 4096, bytes: 8192, address: 0x10000 };
    let access = MemoryAccess { remote_write: true, ..MemoryAccess::default() };
    assert!(railhead_verbs::dma_buf_works(domain));
    let registration = MemoryRegion::register_dma_buf(domain, buffer, access).unwrap();
    assert_eq!((registration.address(), registration.bytes()), (0x10000, 8192));
    let off_page = railhead_verbs::DmaBuf { address: 0x10010, ..buffer };
    assert!(MemoryRegion::register_dma_buf(domain, off_page, access).is_err(), "another offset in the page");
    stand_in::set(Set::HasDmaBuf, 0);
    let (works, refused) =
        (railhead_verbs::dma_buf_works(domain), MemoryRegion::register_dma_buf(domain, buffer, access));
    stand_in::set(Set::HasDmaBuf, 1);
    assert!(!works && refused.unwrap_err().is_unsupported());
}

#[test]
fn a_provider_without_thread_domains_serves_too() {
    let _alone = alone();
    stand_in::set(Set::HasThreadDomains, 0);
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    stand_in::set(Set::HasThreadDomains, 1);
    assert!(!harness.nodes[0].rail.is_threaded());
    harness.write(1, 0, 4096).unwrap();
    assert_eq!(harness.status_of(1), Code::Ok);
    assert!(Harness::new(&Setup::stand_in()).nodes[0].rail.is_threaded());
}

#[test]
fn a_port_that_is_down_is_said_and_so_is_a_device_that_is_not_there() {
    let _alone = alone();
    let open = |device: &str| {
        let config =
            railhead_verbs::NicConfig { device: device.into(), ..railhead_verbs::NicConfig::default() };
        railhead_verbs::Nic::open(stand_in::library(), config)
    };
    stand_in::set(Set::PortIsDown, 1);
    let down = open("stand-in0").unwrap_err().to_string();
    stand_in::set(Set::PortIsDown, 0);
    assert_eq!(down, "port 1 of stand-in0 is down; bring its link up");
    let unknown = open("mlx5_7").unwrap_err().to_string();
    assert_eq!(unknown, "no RDMA device mlx5_7; there are: stand-in0, stand-in1");
    let nic = open("stand-in1").unwrap();
    assert_eq!(nic.gid().gid.to_string(), "10.0.0.2", "the second version, with an IPv4 address");
    assert_eq!((nic.gid().index, nic.mtu_bytes()), (2, 4096));
}

/// Records that went well before the end say nothing by themselves: the end does not wait for them.
#[test]
fn an_end_with_silent_records_behind_it_comes_at_once() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    let before = stand_in::counters();
    for tag in 0..5 {
        harness.send(End::Target, tag).unwrap();
    }
    harness.until("the records came", |said| common::tags(&said[0]).len() == 5);
    assert_eq!(difference(before).signalled, 0);
    let near = harness.near();
    harness.fabric(End::Initiator).close(near);
    harness.until("both are down", |said| said.iter().all(|said| common::down(said).is_some()));
    assert_eq!(stand_in::counters().queue_pairs, before.queue_pairs, "none had to be destroyed");
}

/// What a device gives nothing back for is destroyed, and then ends.
#[test]
fn a_device_that_gives_nothing_back_does_not_hold_a_connection() {
    let _alone = alone();
    for silent in [1, 2] {
        gives_nothing_back(silent);
    }
}

fn gives_nothing_back(silent: u64) {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    stand_in::set(Set::Silent, silent);
    for post in 0..8 {
        harness.write(post, 0, 4096).expect("taken");
    }
    harness.cut(0);
    // Nobody is told, so somebody else has to end it.
    for end in End::BOTH {
        let connection = harness.connection(end, 0);
        harness.fabric(end).close(connection);
    }
    let before = (std::time::Instant::now(), stand_in::counters().queue_pairs);
    let said = harness.until("both are down", |said| said.iter().all(|said| common::down(said).is_some()));
    stand_in::set(Set::Silent, 0);
    assert!(before.0.elapsed() > std::time::Duration::from_millis(900), "it was given its time");
    assert_eq!(stand_in::counters().queue_pairs, before.1 - 2, "only then nothing lands any more");
    assert!((0..8).all(|post| common::status(&said[0], post).is_some()));
    harness.connect(0);
    harness.write(20, 0, 4096).expect("taken");
    assert_eq!(harness.status_of(20), Code::Ok);
}

/// Which queue a NIC flushes first is its own affair.
#[test]
fn the_cause_is_the_error_and_not_what_was_flushed_before_it() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    stand_in::set(Set::FlushesFirst, 1);
    stand_in::fail(harness.pairs[0].as_ref().unwrap()[0].number(), 0, 10);
    harness.write(1, 0, 100).unwrap();
    let said = harness.until("this end is down", |said| common::down(&said[0]).is_some());
    stand_in::set(Set::FlushesFirst, 0);
    assert_eq!(common::status(&said[0], 1), Some(Code::RemoteRefused));
    assert_eq!(common::down(&said[0]), Some(Code::RemoteRefused));
    let near = harness.near();
    assert_eq!(harness.nodes[0].fabric.fault(near).unwrap().status, 10);
}

/// A peer that sends what is no message ends its connection, and nothing of it is believed.
#[test]
fn a_peer_that_breaks_the_protocol_is_dropped() {
    let _alone = alone();
    let mut ended = 0;
    for tag in 0..40 {
        let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
        stand_in::set(Set::Corrupts, 1);
        harness.send(End::Initiator, tag).unwrap();
        let mut said = [Vec::new(), Vec::new()];
        while said[1].is_empty() {
            harness.step(&mut said);
        }
        stand_in::set(Set::Corrupts, 0);
        // One bit in eight bytes: the count of receives given back is the one thing that any value may be too large for.
        assert!(common::tags(&said[1]).is_empty(), "{said:?}");
        ended += usize::from(common::down(&said[1]) == Some(Code::ProtocolViolation));
    }
    assert_eq!(ended, 40);
}

/// Other memory in the slot hands over first what waits for a kick, too.
#[test]
fn memory_may_be_replaced_before_the_kick() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    let (mut old, mut seen) = ([0; 100], [0; 100]);
    harness.read_bytes(End::Initiator, SOURCE, 0, &mut old);
    // Small enough to be read by the processor, from memory that is unmapped before the kick.
    harness.write(1, 0, 100).unwrap();
    harness.install(End::Initiator, SOURCE, 2, 4096, 0);
    assert_eq!(harness.status_of(1), Code::Ok);
    harness.read_bytes(End::Target, TARGET, 0, &mut seen);
    assert_eq!(old, seen);
}

/// Removing memory hands over first what waits for a kick.
#[test]
fn memory_may_go_before_the_kick() {
    let _alone = alone();
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    harness.write(1, 0, 100).unwrap();
    assert!(harness.fabric(End::Initiator).remove(SOURCE).is_some());
    // Unmapped: a kick that reads it would be a fault.
    harness.unmap(End::Initiator, SOURCE);
    assert_eq!(harness.status_of(1), Code::Ok);
    // What is posted for it afterwards ends here, and with it the connection: nothing passes it.
    harness.write(2, 0, 100).unwrap();
    let said = harness.until("both are down", |said| said.iter().all(|said| common::down(said).is_some()));
    assert_eq!(common::status(&said[0], 2), Some(Code::RegionLost));
    assert_eq!(common::down(&said[0]), Some(Code::RegionLost));
    let other = RegionIndex(30);
    harness.install(End::Target, other, EPOCH, 4096, ACCESS_WRITE);
}
