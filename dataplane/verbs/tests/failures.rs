//! Connections that end: every status, in every state, with the first error as the cause; and peers that misbehave.

mod common;

use common::{Harness, Setup, stand_in};
use railhead_abi::Code;
use railhead_core::port::{Fabric, FabricEvent, PostId};
use railhead_sim::conformance::{End, FabricHarness};
use railhead_verbs::AttachInfo;

/// Statuses of the header with the code of each.
const STATUSES: [(u32, Code); 8] = [
    (2, Code::DeviceError),
    (4, Code::RegionLost),
    (9, Code::RemoteRefused),
    (10, Code::RemoteRefused),
    (11, Code::DeviceError),
    (12, Code::ConnectionReset),
    (13, Code::ProtocolViolation),
    (19, Code::DeviceError),
];

fn both_down(said: &[Vec<FabricEvent>; 2]) -> bool {
    said.iter().all(|said| common::down(said).is_some())
}

/// Lets one request fail among others: those before it went well, it has its own code, those behind it are reset.
#[test]
fn the_first_error_is_the_cause_and_what_is_flushed_follows() {
    for (status, code) in STATUSES {
        for failing in [0, 1, 5, 11] {
            let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
            stand_in::fail(harness.pairs[0].as_ref().unwrap()[0].number(), failing, status);
            for post in 0..12 {
                harness.write(post, u64::from(post) * 1000, 1000).unwrap();
            }
            let said = harness.until("this end is down", |said| common::down(&said[0]).is_some());
            for post in 0..12 {
                let expected = match post.cmp(&failing) {
                    std::cmp::Ordering::Less => Code::Ok,
                    std::cmp::Ordering::Equal => code,
                    std::cmp::Ordering::Greater => Code::ConnectionReset,
                };
                assert_eq!(common::status(&said[0], post), Some(expected), "post {post}, status {status}");
            }
            assert_eq!(common::down(&said[0]), Some(code));
            assert!(matches!(said[0].last(), Some(FabricEvent::Down { .. })));
        }
    }
}

/// A record fails, a read fails, a confirm fails: the connection ends, whatever it was.
#[test]
fn any_request_may_fail() {
    for failing in 0..4 {
        let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
        stand_in::fail(harness.pairs[0].as_ref().unwrap()[0].number(), failing, 12);
        harness.send(End::Initiator, 1).unwrap();
        harness.read(1, 0, 5000).unwrap();
        harness.write(2, 8000, 5000).unwrap();
        let near = harness.near();
        harness.fabric(End::Initiator).confirm(near, Harness::place(12_999), PostId(3)).unwrap();
        let said = harness.until("this end is down", |said| common::down(&said[0]).is_some());
        let ended: Vec<bool> = (1..4).map(|post| common::status(&said[0], post) == Some(Code::Ok)).collect();
        assert_eq!(ended, (1..4).map(|post| post < failing).collect::<Vec<_>>(), "{failing}");
        assert_eq!(common::down(&said[0]), Some(Code::ConnectionReset));
    }
}

/// The other connection of the same lane and NIC goes on.
#[test]
fn one_connections_error_is_its_own() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    stand_in::fail(harness.pairs[1].as_ref().unwrap()[0].number(), 0, 10);
    let other = harness.connection(End::Initiator, 1);
    let mut record = railhead_abi::record::RawRecord { words: [0; 16] };
    record.words[0] = 1 << 8;
    harness.fabric(End::Initiator).send(other, &record).unwrap();
    for post in 0..40 {
        harness.write(post, u64::from(post) * 1000, 1000).unwrap();
    }
    let said = harness.until("one is down, and all writes of the other have ended", |said| {
        common::down(&said[0]).is_some() && common::status(&said[0], 39).is_some()
    });
    assert!((0..40).all(|post| common::status(&said[0], post) == Some(Code::Ok)));
}

/// What comes before an end is attached is kept for it.
#[test]
fn an_end_may_be_attached_late() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    harness.cut(0);
    harness.until("both are down", both_down);
    for end in End::BOTH {
        let connection = harness.connection(end, 0);
        drop(harness.fabric(end).take_retired(connection));
    }
    let (near, far) = (harness.prepare(End::Initiator, 0), harness.prepare(End::Target, 0));
    let (near_info, far_info) = (near.info(), far.info());
    let far = far.connect(&near_info).unwrap();
    harness.attach(End::Initiator, near, &far_info);
    for tag in 0..20 {
        harness.write(u32::try_from(tag).unwrap(), tag * 100, 100).unwrap();
        harness.send(End::Initiator, tag).unwrap();
    }
    // The target's lane takes the completions before it knows the connection.
    let said = harness.until("all writes have ended", |said| common::status(&said[0], 19).is_some());
    assert!(said[1].is_empty(), "{said:?}");
    let info = AttachInfo { peer: common::PEER[1], rail: 0, arena: railhead_verbs::RemoteMemory::default() };
    harness.fabric(End::Target).attach(far, info).unwrap();
    let said = harness.until("all records came", |said| common::tags(&said[1]).len() == 20);
    assert_eq!(common::tags(&said[1]), (0..20).collect::<Vec<_>>());
}

/// A farewell tells the other end, and what was sent before it still arrives.
#[test]
fn a_farewell_comes_last() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 1 << 20);
    for tag in 0..30 {
        harness.send(End::Initiator, tag).unwrap();
    }
    harness.write(1, 0, 100_000).unwrap();
    let near = harness.near();
    harness.fabric(End::Initiator).close(near);
    assert!(harness.send(End::Initiator, 99).is_err());
    let said = harness.until("both are down", both_down);
    assert_eq!(common::tags(&said[1]), (0..30).collect::<Vec<_>>());
    assert_eq!(common::status(&said[0], 1), Some(Code::Ok));
    let mut bytes = [vec![0; 100_000], vec![0; 100_000]];
    harness.read_bytes(End::Initiator, common::SOURCE, 0, &mut bytes[0]);
    harness.read_bytes(End::Target, common::TARGET, 0, &mut bytes[1]);
    assert!(bytes[0] == bytes[1]);
}

/// A connection cannot be attached where one is, nor where none belongs.
#[test]
fn attachments_that_cannot_be_are_refused_and_given_back() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    let info = AttachInfo { peer: 3, rail: 0, arena: railhead_verbs::RemoteMemory::default() };
    let attach = |harness: &mut Harness, connection, rail| {
        let near = harness.nodes[0].rail.prepare(connection).unwrap();
        let far = harness.prepare(End::Target, 1);
        let ready = near.connect(&far.info()).unwrap();
        harness.nodes[0]
            .fabric
            .attach(ready, AttachInfo { rail, ..info })
            .map(drop)
            .map_err(|error| error.reason)
    };
    let taken = harness.near();
    assert_eq!(attach(&mut harness, taken, 0), Err("the connection before it has not ended"));
    let unknown = railhead_core::port::ConnectionIndex(99);
    assert_eq!(attach(&mut harness, unknown, 0), Err("not a connection of this fabric"));
    let free = railhead_core::port::ConnectionIndex(common::FIRST[0] + 1);
    assert_eq!(attach(&mut harness, free, 1), Err("no such rail"));
    assert_eq!(attach(&mut harness, free, 0), Ok(()));
}

/// What a peer says of its end is looked at before it is used.
#[test]
fn a_peer_that_cannot_be_is_refused() {
    let harness = Harness::new(&Setup::stand_in());
    let good = harness.prepare(End::Target, 0).info();
    let refused = |info| {
        let near = harness.prepare(End::Initiator, 0);
        near.connect(&info).map(drop).unwrap_err().to_string()
    };
    for (info, why) in [
        (
            railhead_verbs::EndpointInfo { is_ethernet: false, ..good },
            "one end is RoCE, the other InfiniBand",
        ),
        (railhead_verbs::EndpointInfo { receives: 3, ..good }, "a size is out of range"),
        (railhead_verbs::EndpointInfo { mtu_bytes: 255, ..good }, "a size is out of range"),
        (railhead_verbs::EndpointInfo { gid: railhead_verbs::Gid::default(), ..good }, "it has no address"),
    ] {
        assert_eq!(refused(info), format!("the peer's end does not fit: {why}"));
    }
    let small = harness.prepare(End::Initiator, 0);
    let facts =
        small.connect(&railhead_verbs::EndpointInfo { mtu_bytes: 1500, reads_served: 3, ..good }).unwrap();
    assert_eq!((facts.facts().mtu_bytes, facts.facts().reads_made), (1024, 3), "the smaller of both");
}

/// More connections than the completion queue has room for are refused when they are made, so it never overruns.
#[test]
fn completions_have_room_before_a_queue_pair_is_made() {
    let harness = Harness::new(&Setup::stand_in());
    let connection = railhead_core::port::ConnectionIndex(common::FIRST[0] + 1);
    let mut held = Vec::new();
    let error = loop {
        match harness.nodes[0].rail.prepare(connection) {
            Ok(endpoint) => held.push(endpoint),
            Err(error) => break error.to_string(),
        }
        assert!(held.len() < 10, "the rail has room for four, and a little more for flushes");
    };
    assert!(error.starts_with("completions of a lane's queue pairs:"), "{error}");
    held.pop();
    assert!(harness.nodes[0].rail.prepare(connection).is_ok(), "what is given back can be had again");
}

/// A lane that wants to sleep is woken by the descriptor, and never sleeps over what has come.
#[test]
fn a_lane_can_sleep() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    harness.until("all is still", |_| true);
    for round in 0..20 {
        let mut steps = 0;
        while !harness.nodes[1].fabric.prepare_sleep() {
            let mut events = [FabricEvent::Down { connection: harness.near(), cause: Code::Ok }; 8];
            let now = harness.pass();
            harness.nodes[1].fabric.kick(now);
            harness.nodes[1].fabric.poll(now, &mut events);
            steps += 1;
            assert!(steps < 1000, "the lane never comes to rest");
        }
        harness.send(End::Initiator, round).unwrap();
        let now = harness.pass();
        harness.nodes[0].fabric.kick(now);
        // Only the sender polls: its NIC makes the record arrive.
        let is_readable = |harness: &Harness| {
            use std::os::fd::AsRawFd as _;
            let fd = harness.nodes[1].fabric.descriptors().next().unwrap().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which can be written.
            unsafe { libc::poll(&mut poll, 1, 0) == 1 }
        };
        assert!(!is_readable(&harness), "round {round}: woken by nothing");
        let mut events = [FabricEvent::Down { connection: harness.near(), cause: Code::Ok }; 8];
        let mut polls = 0;
        while !is_readable(&harness) {
            let now = harness.pass();
            harness.nodes[0].fabric.poll(now, &mut events);
            polls += 1;
            assert!(polls < 1000, "round {round}: the sleeper is not woken");
        }
        let now = harness.pass();
        assert_eq!(harness.nodes[1].fabric.poll(now, &mut events), 1, "round {round}");
    }
}

/// The installed library, where the kernel may or may not have RDMA.
#[test]
fn a_machine_without_rdma_says_so() {
    let library = match railhead_verbs::Library::open(None) {
        Ok(library) => library,
        Err(error) => {
            println!("NOT RUN: a_machine_without_rdma_says_so: {error}");
            return;
        }
    };
    match railhead_verbs::list(library) {
        Ok(devices) => println!("devices of this machine: {devices:?}"),
        Err(error) => assert!(error.to_string().starts_with("this kernel has no RDMA devices"), "{error}"),
    }
    let config = railhead_verbs::NicConfig { device: "nowhere0".into(), ..Default::default() };
    assert!(railhead_verbs::Nic::open(library, config).is_err());
}

/// Completions of an end that was given up before its lane had it are not taken for those of the next.
#[test]
fn completions_of_before_mean_nothing() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    harness.cut(0);
    harness.until("both are down", both_down);
    for end in End::BOTH {
        let connection = harness.connection(end, 0);
        drop(harness.fabric(end).take_retired(connection));
    }
    let (near, far) = (harness.prepare(End::Initiator, 0), harness.prepare(End::Target, 0));
    let (near_info, far_info) = (near.info(), far.info());
    let far = far.connect(&near_info).unwrap();
    let near = harness.attach(End::Initiator, near, &far_info);
    for tag in 0..5 {
        harness.send(End::Initiator, tag).unwrap();
    }
    // Only the sender runs: what arrives stays in the target's completion queue.
    let mut said = Vec::new();
    let step_near = |harness: &mut Harness, said: &mut Vec<FabricEvent>| {
        let mut events = [FabricEvent::Down { connection: harness.near(), cause: Code::Ok }; 8];
        let now = harness.pass();
        harness.nodes[0].fabric.kick(now);
        let count = harness.nodes[0].fabric.poll(now, &mut events);
        said.extend_from_slice(&events[..count]);
    };
    (0..200).for_each(|_| step_near(&mut harness, &mut said));
    drop(far);
    near.fail().unwrap();
    let start = std::time::Instant::now();
    while common::down(&said).is_none() {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{said:?}");
        step_near(&mut harness, &mut said);
    }
    harness.connect(0);
    harness.send(End::Initiator, 77).unwrap();
    let said = harness.until("the record came", |said| !common::tags(&said[1]).is_empty());
    assert_eq!((common::tags(&said[1]), common::down(&said[1])), (vec![77], None));
    // All of its receives are still there.
    for tag in 0..400 {
        while harness.send(End::Initiator, tag).is_err() {
            harness.step(&mut [Vec::new(), Vec::new()]);
        }
    }
}

/// What a peer may only write can be confirmed all the same.
#[test]
fn writes_can_be_confirmed_where_reads_are_not_granted() {
    let mut harness = Harness::with_memory(&Setup::stand_in(), 4096);
    harness.install(End::Target, common::TARGET, common::EPOCH, 4096, railhead_abi::frame::ACCESS_WRITE);
    harness.write(1, 0, 4096).unwrap();
    let near = harness.near();
    harness.fabric(End::Initiator).confirm(near, Harness::place(4095), PostId(2)).unwrap();
    assert_eq!(harness.status_of(2), Code::Ok);
    harness.read(3, 0, 100).unwrap();
    assert_eq!(harness.status_of(3), Code::RemoteRefused);
}
