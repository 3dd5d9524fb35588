//! What the tests of whole nodes share: sessions, patterns, single transfers. Each test binary uses some of it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::{Duration, Instant};

use railhead_abi::Reason;
use railhead_client::{
    ACCESS_READ, AttachOptions, Class, Code, Completion, Leg, Pages, Port, Read, Region, RegionHandle,
    RegionOptions, Remote, Session, SessionError, Write, outcome,
};
use railhead_system::{Node, until, within};

/// Longer than any single transfer of these tests takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// What a destination holds before a transfer.
pub(crate) const POISON: u8 = 0xA5;
/// Bytes on either side of a destination that must not change.
pub(crate) const GUARD_BYTES: u64 = 8192;

/// The four routes: send leg, receive leg.
pub(crate) const ROUTES: [(Leg, Leg); 4] = [
    (Leg::STAGED, Leg::STAGED),
    (Leg::STAGED, Leg::DIRECT),
    (Leg::DIRECT, Leg::STAGED),
    (Leg::DIRECT, Leg::DIRECT),
];

/// Attaches to a node, with 256 entries a port.
#[track_caller]
pub(crate) fn attach(node: &Node, name: &str, ports: u32) -> Session {
    attach_with(node, name, ports, 0)
}

/// Attaches to a node.
#[track_caller]
pub(crate) fn attach_with(node: &Node, name: &str, ports: u32, entries: u32) -> Session {
    let options = AttachOptions { name, ports, entries, timeout: LIMIT };
    Session::attach(node.session_socket(), &options).unwrap_or_else(|error| panic!("attach {name}: {error}"))
}

/// A region on ordinary pages that everybody may open.
#[track_caller]
pub(crate) fn region(session: &Session, name: &str, bytes: u64) -> Region {
    let grant = if name.is_empty() { "" } else { "*" };
    let options = RegionOptions { bytes, name, grant, pages: Pages::BASE, ..RegionOptions::default() };
    session.create_region(&options).unwrap_or_else(|error| panic!("region {name}: {error}"))
}

/// Opens a remote region, waiting until its node is connected and has it.
#[track_caller]
pub(crate) fn open(session: &Session, node: &str, name: &str) -> Remote {
    open_within(session, node, name, LIMIT)
}

/// As [`open`], for a node that may take long to come.
#[track_caller]
pub(crate) fn open_within(session: &Session, node: &str, name: &str, limit: Duration) -> Remote {
    let what = format!("opening {node}/{name}");
    until(&what, limit, || match session.open(node, name) {
        Ok(remote) => Some(remote),
        Err(error) if matches!(error.code(), Code::PeerNotConnected | Code::RegionUnknown) => None,
        Err(error) => panic!("{what}: {error}"),
    })
}

/// A region that is good for one thing only, open to everybody if it has a name.
#[track_caller]
pub(crate) fn region_for(session: &Session, name: &str, bytes: u64, access: u32) -> Region {
    let grant = if name.is_empty() { "" } else { "*" };
    let pages = Pages::BASE;
    session.create_region(&RegionOptions { bytes, name, grant, access, pages }).unwrap()
}

/// Opens a remote region for reading, waiting until its node is connected and has it.
#[track_caller]
pub(crate) fn open_to_read(session: &Session, node: &str, name: &str) -> Remote {
    until("opening for reading", LIMIT, || match session.open_for(node, name, ACCESS_READ) {
        Ok(remote) => Some(remote),
        Err(error) if matches!(error.code(), Code::PeerNotConnected | Code::RegionUnknown) => None,
        Err(error) => panic!("{node}/{name}: {error}"),
    })
}

/// A read from the beginning of a remote region to the beginning of a local one.
pub(crate) fn read_of(cookie: u64, into: RegionHandle, from: &Remote, bytes: u64) -> Read {
    Read { cookie, local: into, remote: from.handle(), bytes, ..Read::default() }
}

/// The code that a session call was refused with.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, SessionError>) -> Code {
    result.expect_err("should be refused").code()
}

/// Submits one write on an idle port and waits for its completion.
#[track_caller]
pub(crate) fn transfer(port: &mut Port, write: &Write) -> Completion {
    port.submit(write).expect("an idle port has room");
    one(port)
}

/// As [`transfer`], which must succeed by the route asked for.
#[track_caller]
pub(crate) fn transfer_ok(port: &mut Port, write: &Write) -> Completion {
    let completion = transfer(port, write);
    assert_ok(&completion, write);
    completion
}

/// A completion of success that says what the write asked for.
#[track_caller]
pub(crate) fn assert_ok(completion: &Completion, write: &Write) {
    if let Err(failure) = outcome(completion) {
        panic!("{write:?}: {failure}");
    }
    assert_eq!((completion.cookie, completion.bytes), (write.cookie, write.bytes), "{write:?}");
    assert!(completion.ticket != 0 && completion.generation > 0, "{completion:?}");
    for (asked, took, reason) in [
        (write.send_leg, completion.send_leg, completion.send_reason),
        (write.receive_leg, completion.receive_leg, completion.receive_reason),
    ] {
        if write.bytes > 0 && asked != Leg::AUTO {
            assert_eq!(Leg(took), asked, "{write:?}: {completion:?}");
            assert_eq!(Reason::from_number(reason), Some(Reason::Override), "{completion:?}");
        }
    }
}

/// The one completion that is due.
#[track_caller]
pub(crate) fn one(port: &mut Port) -> Completion {
    one_within(port, LIMIT)
}

/// As [`one`], for a transfer that takes long.
#[track_caller]
pub(crate) fn one_within(port: &mut Port, limit: Duration) -> Completion {
    let mut completions = [Completion::default(); 2];
    let start = Instant::now();
    loop {
        assert!(port.wait(limit), "no completion within {limit:?}");
        match port.poll(&mut completions) {
            0 if start.elapsed() < limit => {}
            0 => panic!("woken again and again without a completion"),
            1 => return completions[0],
            _ => panic!("more than one completion: {completions:?}"),
        }
    }
}

/// All completions of what is in flight.
#[track_caller]
pub(crate) fn drain(port: &mut Port, limit: Duration) -> Vec<Completion> {
    let mut all = Vec::new();
    let mut some = [Completion::default(); 64];
    let start = Instant::now();
    while port.in_flight() > 0 {
        let rest = limit.saturating_sub(start.elapsed());
        assert!(!rest.is_zero(), "{} transfers still open after {limit:?}", port.in_flight());
        port.wait(rest);
        let count = port.poll(&mut some);
        all.extend_from_slice(&some[..count]);
    }
    all
}

/// A write from the beginning of a region to the beginning of a remote one.
pub(crate) fn write(cookie: u64, local: &Region, remote: &Remote, bytes: u64) -> Write {
    Write {
        cookie,
        local: local.handle(),
        remote: remote.handle(),
        bytes,
        class: Class::BULK,
        ..Write::default()
    }
}

/// The bytes that transfer number `seed` moves: each depends on its place and on the transfer.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 8);
    let mut at = 0;
    while out.len() < bytes {
        out.extend_from_slice(&mix(seed, at).to_le_bytes());
        at += 1;
    }
    out.truncate(bytes);
    out
}

/// SplitMix64 of both.
pub(crate) fn mix(seed: u64, at: u64) -> u64 {
    let mut word =
        seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Bytes of a region.
#[track_caller]
pub(crate) fn read(region: &Region, offset: u64, bytes: u64) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(bytes).expect("fits")];
    region.copy_out(offset, &mut out).expect("in range");
    out
}

/// Panics at the first byte that differs.
#[track_caller]
pub(crate) fn assert_bytes(found: &[u8], expected: &[u8], what: &str) {
    if found != expected {
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let at = at.unwrap_or(found.len().min(expected.len()));
        let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
        panic!(
            "{what}: {wrong} of {} bytes differ, the first at {at}: {:?} instead of {:?}",
            expected.len(),
            found.get(at),
            expected.get(at)
        );
    }
}

/// Poisons a destination and the guard bytes around it.
pub(crate) fn poison(region: &Region, offset: u64, bytes: u64) {
    let (first, count) = guarded(region, offset, bytes);
    region.fill(first, count, POISON).expect("in range");
}

/// Checks a destination and that the guard bytes around it are as [`poison`] left them.
#[track_caller]
pub(crate) fn assert_landed(region: &Region, offset: u64, expected: &[u8], what: &str) {
    let (first, count) = guarded(region, offset, expected.len() as u64);
    let found = read(region, first, count);
    let before = usize::try_from(offset - first).expect("fits");
    let (left, rest) = found.split_at(before);
    let (landed, right) = rest.split_at(expected.len());
    assert_bytes(landed, expected, what);
    for guard in [left, right] {
        assert!(guard.iter().all(|byte| *byte == POISON), "{what}: bytes outside the destination changed");
    }
}

fn guarded(region: &Region, offset: u64, bytes: u64) -> (u64, u64) {
    let first = offset.saturating_sub(GUARD_BYTES);
    let end = (offset + bytes + GUARD_BYTES).min(region.bytes());
    (first, end - first)
}

/// The lanes of `/v1/lanes`.
#[track_caller]
pub(crate) fn lanes(node: &Node) -> Vec<serde_json::Value> {
    let answer = node.rest().get("/v1/lanes").expect(200);
    answer.json["lanes"].as_array().cloned().unwrap_or_else(|| panic!("no lanes: {}", answer.text))
}

/// The thread ids of a node's lanes.
#[track_caller]
pub(crate) fn lane_tids(node: &Node) -> Vec<u64> {
    lanes(node).iter().map(|lane| lane["tid"].as_u64().unwrap_or_else(|| panic!("no tid: {lane}"))).collect()
}

/// Small receive blocks that an idle connection's sender may hold as credits; both classes of the node itself and of each
/// peer lane have one.
const STANDING_CREDITS_MAX: u64 = 16;

/// Waits until every block of a node is home, and fails otherwise. `peer_lanes`: those that may hold standing credits.
#[track_caller]
pub(crate) fn assert_blocks_home(node: &Node, peer_lanes: u64) {
    let mut last = String::new();
    let home = within(Duration::from_secs(10), || {
        let answer = node.rest().get("/v1/pools").expect(200);
        last.clone_from(&answer.text);
        let pools = answer.json["pools"].as_array().cloned().unwrap_or_default();
        let kinds: Vec<_> = pools.iter().filter_map(|pool| pool["blocks"].as_array()).flatten().collect();
        let all = kinds.len() == 4 * pools.len()
            && !pools.is_empty()
            && kinds.iter().all(|kind| is_home(kind, peer_lanes));
        all.then_some(())
    });
    assert!(home.is_some(), "blocks of {} are not home: {last}", node.config.name);
}

fn is_home(kind: &serde_json::Value, peer_lanes: u64) -> bool {
    let (Some(all), Some(free)) = (kind["blocks"].as_u64(), kind["free"].as_u64()) else { return false };
    let standing = if kind["class"] == "small" && kind["leg"] == "receive" {
        2 * (1 + peer_lanes) * STANDING_CREDITS_MAX
    } else {
        0
    };
    free <= all && free + standing >= all
}
