//! Many connections at once, with everything changing underneath; and what traffic costs in system calls.

mod common;

use std::os::unix::net::UnixStream;

use common::*;
use railhead_abi::Code;
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_sim::Rng;
use railhead_tcp::{AttachInfo, TcpConfig, TcpFabric};

const CONNECTIONS: usize = 70;
const REGION_BYTES: usize = 96 << 10;

/// Both ends of many connections, a region of its own for each direction, and what each region must hold in the end.
struct Mesh {
    fabrics: [TcpFabric; 2],
    spans: [Vec<railhead_shm::OwnedSpan>; 2],
    model: [Vec<Vec<u8>>; 2],
    sources: [Vec<u8>; 2],
    filled: [Vec<usize>; 2],
    tags: [Vec<u64>; 2],
    seen: [Vec<u64>; 2],
    posted: u32,
    done: u32,
}

impl Mesh {
    fn new() -> Self {
        let config = TcpConfig {
            connections: u16::try_from(CONNECTIONS).expect("few"),
            regions: u32::try_from(CONNECTIONS + 1).expect("few"),
            slice_bytes: 10_000,
            coalesce_bytes: 20_000,
            ..small()
        };
        let mut mesh = Self {
            fabrics: [fabric(config), fabric(config)],
            spans: [Vec::new(), Vec::new()],
            model: [Vec::new(), Vec::new()],
            sources: [pattern(REGION_BYTES, 0), pattern(REGION_BYTES, 1)],
            filled: [vec![0; CONNECTIONS], vec![0; CONNECTIONS]],
            tags: [vec![0; CONNECTIONS], vec![0; CONNECTIONS]],
            seen: [vec![0; CONNECTIONS], vec![0; CONNECTIONS]],
            posted: 0,
            done: 0,
        };
        for at in 0..u16::try_from(CONNECTIONS).expect("few") {
            let wire = UnixStream::pair().expect("a wire");
            let peer = u8::try_from(at % 64).expect("small");
            for (end, socket) in [(0, wire.0), (1, wire.1)] {
                let connection = ConnectionIndex(at);
                // Writes go both ways, and come where they are not expected too.
                let info = AttachInfo { peer, takes_writes: at % 3 > 0 };
                mesh.fabrics[end].attach(connection, socket.into(), info).expect("attached");
                let span = memory(REGION_BYTES);
                let right = railhead_tcp::RegionEntry { peers: 1 << peer, ..entry(&span) };
                mesh.fabrics[end].install(RegionIndex(u32::from(at) + 1), right);
                mesh.spans[end].push(span);
                mesh.model[end].push(vec![0; REGION_BYTES]);
            }
        }
        for end in 0..2 {
            let span = memory(REGION_BYTES);
            span.write(0, &mesh.sources[end]).expect("inside");
            mesh.fabrics[end].install(RegionIndex::ARENA, entry(&span));
            mesh.spans[end].push(span);
        }
        mesh
    }

    /// A write of random length from a random place to the next free bytes at the other end, and sometimes a record.
    fn post(&mut self, rng: &mut Rng) {
        let (end, at) = (rng.index(2), rng.index(CONNECTIONS));
        let to = self.filled[end][at];
        let longest = if rng.chance(500_000) { 300 } else { 40_000 };
        let bytes = (1 + rng.index(longest)).min(REGION_BYTES - to);
        let connection = ConnectionIndex(u16::try_from(at).expect("few"));
        let from = rng.index(REGION_BYTES - bytes);
        let write = Write {
            from: Place { region: RegionIndex::ARENA, offset: from as u64 },
            bytes: u32::try_from(bytes).expect("small"),
            to: RemotePlace {
                key: Key { index: u32::from(connection.0) + 1, epoch: EPOCH },
                offset: to as u64,
            },
            slot: 0,
            post: PostId(self.posted),
        };
        if bytes > 0 && self.fabrics[end].write(connection, &write).is_ok() {
            self.posted += 1;
            self.filled[end][at] += bytes;
            self.model[1 - end][at][to..to + bytes].copy_from_slice(&self.sources[end][from..from + bytes]);
        }
        if rng.chance(300_000) && self.fabrics[end].send(connection, &record(self.tags[end][at])).is_ok() {
            self.tags[end][at] += 1;
        }
    }

    fn poll(&mut self, end: usize, slice: usize) {
        let mut events = [NOTHING; 64];
        self.fabrics[end].kick(0);
        let count = self.fabrics[end].poll(0, &mut events[..slice]);
        for event in &events[..count] {
            match event {
                FabricEvent::Done { status, .. } => {
                    assert_eq!(*status, Code::Ok);
                    self.done += 1;
                }
                FabricEvent::Record { connection, record } => {
                    let seen = &mut self.seen[end][usize::from(connection.0)];
                    assert_eq!(record.words[1], *seen, "records of {connection:?} are out of order");
                    *seen += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.done == self.posted
            && (0..2).all(|end| self.seen[end] == self.tags[1 - end])
            && self.fabrics.iter().all(TcpFabric::may_sleep)
    }
}

#[test]
fn many_connections_keep_their_bytes_apart() {
    let mut rng = Rng::new(41);
    let mut mesh = Mesh::new();
    for round in 0..6_000 {
        mesh.post(&mut rng);
        if rng.chance(600_000) {
            let slice = 1 + rng.index(64);
            mesh.poll(rng.index(2), slice);
        }
        if round % 500 == 0 {
            let slice = 4096 + u32::try_from(rng.index(60_000)).expect("small");
            mesh.fabrics[rng.index(2)].set_slice(slice, slice * 2);
        }
    }
    for _ in 0..2_000_000 {
        if mesh.is_quiet() {
            break;
        }
        mesh.poll(0, 64);
        mesh.poll(1, 64);
    }
    // A last look: nothing is left in the sockets.
    for end in 0..2 {
        for at in 0..CONNECTIONS {
            let connection = ConnectionIndex(u16::try_from(at).expect("few"));
            mesh.fabrics[end].send(connection, &record(mesh.tags[end][at])).expect("room");
            mesh.tags[end][at] += 1;
        }
    }
    for _ in 0..2_000_000 {
        if mesh.is_quiet() {
            break;
        }
        mesh.poll(0, 64);
        mesh.poll(1, 64);
    }
    assert!(mesh.is_quiet(), "{} of {} writes ended", mesh.done, mesh.posted);
    for end in 0..2 {
        for at in 0..CONNECTIONS {
            assert!(contents(&mesh.spans[end][at]) == mesh.model[end][at], "end {end}, connection {at}");
        }
    }
}

/// One frame, one call on each side, and no copy.
#[test]
fn large_frames_take_one_call_each() {
    let mut two = Two::new(small(), small());
    let (source, target) = (memory(64 << 10), memory(64 << 10));
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target));
    let round = |two: &mut Two, tag| {
        two.near.write(WIRE, &write(1, 48 << 10, 0, 1)).expect("room");
        two.near.send(WIRE, &record(tag)).expect("room");
        two.until("the record came", |two| has_record(&two.said_far, tag));
    };
    round(&mut two, 1);
    round(&mut two, 2);
    let (near, far) = (two.near.counters(), two.far.counters());
    for tag in 3..103 {
        round(&mut two, tag);
    }
    let (near_after, far_after) = (two.near.counters(), two.far.counters());
    assert_eq!(near_after.sends - near.sends, 100);
    assert_eq!(near_after.frames_sent - near.frames_sent, 100);
    // The head that ends one frame's call is only there when the next frame came in time: here it never is.
    assert!(far_after.receives - far.receives <= 200, "{} calls", far_after.receives - far.receives);
    assert_eq!(far_after.bytes_copied, far.bytes_copied, "payload was copied");
}

/// Many small posts leave in one call, and arrive in few.
#[test]
fn small_posts_share_calls() {
    let mut two = Two::new(small(), small());
    let (source, target) = (memory(64 << 10), memory(64 << 10));
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target));
    for post in 0..32 {
        two.near.write(WIRE, &write(1, 1000, 0, post)).expect("room");
        two.near.send(WIRE, &record(u64::from(post))).expect("room");
    }
    two.until("the last record came", |two| has_record(&two.said_far, 31));
    assert_eq!((two.near.counters().sends, two.near.counters().frames_sent), (1, 1));
    assert!(two.far.counters().receives <= 3, "{:?}", two.far.counters());
}

/// Only a write that no frame could hold is cut, and it begins in a frame of its own.
#[test]
fn writes_are_cut_only_where_they_must() {
    let source = memory(64 << 10);
    let bytes = wire_bytes(|fabric| {
        fabric.set_slice(4096, 64 << 10);
        fabric.install(RegionIndex(1), entry(&source));
        for (post, bytes) in [(0, 3000), (1, 3000), (2, 1000), (3, 9000), (4, 5)] {
            fabric.write(WIRE, &write(1, bytes, 0, post)).expect("room");
        }
    });
    let mut payloads = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((head, after)) = rest.split_first_chunk::<128>() {
        let payload = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        payloads.push(payload);
        rest = &after[payload as usize..];
    }
    assert_eq!(payloads, [3000, 4000, 4096, 4096, 9000 - 2 * 4096 + 5]);
}

/// While the socket is full nothing is tried: the kernel tells when there is room.
#[test]
fn full_sockets_are_left_alone() {
    let mut two = Two::new(small(), small());
    let source = memory(8 << 20);
    two.near.install(RegionIndex(1), entry(&source));
    two.near.write(WIRE, &write(1, 8 << 20, 0, 1)).expect("room");
    for _ in 0..100 {
        poll(&mut two.near, &mut two.said_near);
    }
    let before = two.near.counters();
    for _ in 0..100 {
        poll(&mut two.near, &mut two.said_near);
    }
    assert_eq!(two.near.counters().sends, before.sends);
    assert_eq!(before.sends_again, 0, "calls in vain");
    assert!(two.near.may_sleep());
}

/// With nothing to do a poll makes one system call, however many connections there are, and the lane may sleep.
#[test]
fn idle_connections_cost_nothing() {
    let mut mesh = Mesh::new();
    for _ in 0..10 {
        mesh.poll(0, 64);
    }
    assert!(mesh.fabrics[0].may_sleep());
    let before = mesh.fabrics[0].counters();
    for _ in 0..100 {
        mesh.poll(0, 64);
    }
    let after = mesh.fabrics[0].counters();
    assert_eq!(after.looks - before.looks, 100);
    assert_eq!((after.receives, after.sends), (before.receives, before.sends));
}

/// While the lane sleeps, the fabric's descriptor tells when something has come.
#[test]
fn the_descriptor_wakes_a_sleeping_lane() {
    use std::os::fd::AsFd;

    let is_readable = |fabric: &TcpFabric| {
        let fd = fabric.as_fd();
        let mut set = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut set, Some(&now)).expect("polled") == 1
    };
    let mut two = Two::new(small(), small());
    two.until("both may sleep", |two| two.near.may_sleep() && two.far.may_sleep());
    for _ in 0..20 {
        two.step();
    }
    assert!(!is_readable(&two.far));
    two.near.send(WIRE, &record(1)).expect("room");
    assert!(!two.near.may_sleep(), "a post waits for its kick");
    two.near.kick(0);
    assert!(two.near.may_sleep());
    assert!(is_readable(&two.far));
    poll(&mut two.far, &mut two.said_far);
    assert!(has_record(&two.said_far, 1));
}

/// A connection with an endless stream leaves the others their turn.
#[test]
fn a_busy_connection_starves_nobody() {
    let mut two = Two::new(small(), small());
    let (source, target) = (memory(1 << 20), memory(1 << 20));
    let quiet = ConnectionIndex(1);
    let wire = UnixStream::pair().expect("a wire");
    two.near.attach(quiet, wire.0.into(), AttachInfo { peer: 1, takes_writes: true }).expect("attached");
    two.far.attach(quiet, wire.1.into(), AttachInfo { peer: 1, takes_writes: true }).expect("attached");
    two.near.install(RegionIndex(1), entry(&source));
    two.far.install(RegionIndex(1), entry(&target));
    // Less than what always waits on the wire: the stream alone would use up every poll.
    two.far.set_slice(4096, 4096);
    let mut came = 0;
    for step in 0..2_000 {
        while two.near.write(WIRE, &write(1, 1 << 20, 0, 0)).is_ok() {}
        if step % 100 == 0 {
            two.near.send(quiet, &record(step)).expect("room");
        }
        two.step();
        if step % 100 == 30 {
            assert!(has_record(&two.said_far, step - 30), "30 polls were not enough for a record");
            came += 1;
        }
        two.said_near.clear();
        two.said_far.retain(|event| matches!(event, FabricEvent::Record { .. }));
    }
    assert_eq!(came, 20);
}
