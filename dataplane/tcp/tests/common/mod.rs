//! Two fabrics on one wire, and a fabric on a wire whose other end is raw.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_tcp::{AttachInfo, RegionEntry, TcpConfig, TcpFabric};

pub(crate) const WIRE: ConnectionIndex = ConnectionIndex(0);
pub(crate) const EPOCH: u32 = 3;
pub(crate) const NOTHING: FabricEvent = FabricEvent::Down { connection: WIRE, cause: Code::Ok };
/// No test waits longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn small() -> TcpConfig {
    TcpConfig {
        connections: 4,
        regions: 8,
        posts_max: 32,
        records_max: 32,
        send_buffer_bytes: 0,
        receive_buffer_bytes: 0,
        ..TcpConfig::default()
    }
}

pub(crate) fn fabric(config: TcpConfig) -> TcpFabric {
    TcpFabric::new(config).expect("a fabric")
}

pub(crate) fn memory(bytes: usize) -> OwnedSpan {
    Mapping::anonymous(bytes).expect("memory").span()
}

pub(crate) fn entry(span: &OwnedSpan) -> RegionEntry {
    RegionEntry { span: span.clone(), epoch: EPOCH, access: ACCESS_READ | ACCESS_WRITE, peers: 1 }
}

pub(crate) fn contents(span: &OwnedSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read(0, &mut bytes).expect("inside");
    bytes
}

pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}

pub(crate) fn record(tag: u64) -> RawRecord {
    let mut words = [0; 16];
    words[0] = 3 | 2 << 8;
    words[1] = tag;
    RawRecord { words }
}

pub(crate) fn write(region: u32, bytes: u32, slot: u16, post: u32) -> Write {
    Write {
        from: Place { region: RegionIndex(region), offset: 0 },
        bytes,
        to: RemotePlace { key: Key { index: region, epoch: EPOCH }, offset: 0 },
        slot,
        post: PostId(post),
    }
}

pub(crate) fn attach(fabric: &mut TcpFabric, socket: impl Into<OwnedFd>) {
    fabric.attach(WIRE, socket.into(), AttachInfo { peer: 0, takes_writes: true }).expect("attached");
}

/// Polls a fabric once and appends what it says.
pub(crate) fn poll(fabric: &mut TcpFabric, said: &mut Vec<FabricEvent>) {
    let mut events = [NOTHING; 16];
    fabric.kick(0);
    let count = fabric.poll(0, &mut events);
    said.extend_from_slice(&events[..count]);
}

/// Two fabrics over one wire, and all that they have said.
pub(crate) struct Two {
    pub(crate) near: TcpFabric,
    pub(crate) far: TcpFabric,
    pub(crate) said_near: Vec<FabricEvent>,
    pub(crate) said_far: Vec<FabricEvent>,
}

impl Two {
    pub(crate) fn new(near: TcpConfig, far: TcpConfig) -> Self {
        Self::expecting(near, far, true)
    }

    /// With ends that do or do not expect writes.
    pub(crate) fn expecting(near: TcpConfig, far: TcpConfig, takes_writes: bool) -> Self {
        let (one, other) = UnixStream::pair().expect("a wire");
        let mut two =
            Self { near: fabric(near), far: fabric(far), said_near: Vec::new(), said_far: Vec::new() };
        for (fabric, socket) in [(&mut two.near, one), (&mut two.far, other)] {
            fabric.attach(WIRE, socket.into(), AttachInfo { peer: 0, takes_writes }).expect("attached");
        }
        two
    }

    pub(crate) fn step(&mut self) {
        poll(&mut self.near, &mut self.said_near);
        poll(&mut self.far, &mut self.said_far);
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain until {what}: {:?} {:?}",
                self.said_near,
                self.said_far
            );
            self.step();
        }
    }
}

/// Polls until the fabric has said something that `done` likes.
pub(crate) fn until(
    fabric: &mut TcpFabric,
    said: &mut Vec<FabricEvent>,
    mut done: impl FnMut(&[FabricEvent]) -> bool,
) {
    let start = Instant::now();
    while !done(said) {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {said:?}");
        poll(fabric, said);
    }
}

pub(crate) fn is_down(said: &[FabricEvent]) -> bool {
    said.iter().any(|event| matches!(event, FabricEvent::Down { .. }))
}

pub(crate) fn has_record(said: &[FabricEvent], tag: u64) -> bool {
    said.iter().any(|event| matches!(event, FabricEvent::Record { record, .. } if record.words[1] == tag))
}

pub(crate) fn status_of(said: &[FabricEvent], wanted: u32) -> Option<Code> {
    said.iter().find_map(|event| match event {
        FabricEvent::Done { post, status, .. } if post.0 == wanted => Some(*status),
        _ => None,
    })
}

/// A fabric whose other end is a plain socket.
pub(crate) fn raw(config: TcpConfig) -> (TcpFabric, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a wire");
    let mut fabric = fabric(config);
    attach(&mut fabric, near);
    far.set_read_timeout(Some(PATIENCE)).expect("set");
    far.set_write_timeout(Some(PATIENCE)).expect("set");
    (fabric, far)
}

/// What `posts` look like on the wire.
pub(crate) fn wire_bytes(posts: impl FnOnce(&mut TcpFabric)) -> Vec<u8> {
    let (mut fabric, mut wire) = raw(small());
    posts(&mut fabric);
    let mut said = Vec::new();
    for _ in 0..4 {
        poll(&mut fabric, &mut said);
    }
    drop(fabric);
    let mut bytes = Vec::new();
    wire.read_to_end(&mut bytes).expect("read");
    bytes
}

/// Writes as much as the socket takes.
pub(crate) fn feed(wire: &mut UnixStream, bytes: &[u8]) {
    wire.write_all(bytes).expect("fed");
}
