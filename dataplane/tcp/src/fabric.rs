//! The fabric: its connections, whose turn it is, and what the lane asks of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Nanos, Place, PostError, PostId, Read, RegionIndex,
    RemotePlace, Write,
};
use railhead_shm::OwnedSpan;

use crate::busy::Busy;
use crate::inbound::{Events, Inbound, Receiver};
use crate::outbound::Outbound;
use crate::regions::RegionEntry;
use crate::shared::{Shared, TcpCounters};
use crate::socket::{self, Moved, ReadySet};

/// The kernel is asked which sockets are ready at least this often, even while others keep the lane busy.
const LOOK_NS: Nanos = 5_000;
/// And after at most this many polls, for callers whose time stands still.
const LOOK_POLLS: u32 = 8;

/// Sizes of a [`TcpFabric`], fixed for its life except for slice and coalesced bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConfig {
    /// The first connection that is this fabric's, see [`railhead_core::port::Both`].
    pub first: ConnectionIndex,
    /// Connections from `first` on. Each takes about 200 KiB, touched as it is used.
    pub connections: u16,
    /// Slots of the table of memories; slot 0 is the lane's staging arena.
    pub regions: u32,
    /// Writes that one connection takes.
    pub posts_max: u16,
    /// Records that one connection takes.
    pub records_max: u16,
    /// Most bytes of one write.
    pub write_bytes_max: u32,
    /// The most payload of a frame, and the most that one receive call takes; see [`TcpFabric::set_slice`].
    pub slice_bytes: u32,
    /// The most that one send call takes.
    pub coalesce_bytes: u32,
    /// Size of each socket's send buffer, as for `SO_SNDBUF`. 0 leaves it to the kernel, which is the default: a size set
    /// here is capped at `wmem_max` (208 KiB on many systems), and turns the kernel's own tuning up to `tcp_wmem` off.
    pub send_buffer_bytes: u32,
    /// Size of each socket's receive buffer, as for `SO_RCVBUF`; 0 leaves it to the kernel, for the same reason.
    pub receive_buffer_bytes: u32,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            first: ConnectionIndex(0),
            connections: 64,
            regions: 1024,
            posts_max: 256,
            records_max: 256,
            write_bytes_max: 64 << 20,
            slice_bytes: 128 << 10,
            coalesce_bytes: 256 << 10,
            send_buffer_bytes: 0,
            receive_buffer_bytes: 0,
        }
    }
}

/// What a connection is attached with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachInfo {
    /// The peer at the other end, 0 to 63: its bit in [`RegionEntry::peers`].
    pub peer: u8,
    /// The other side writes here: its payload goes straight to its place, never through a block of ours. Where it sends
    /// records only, more of them are read at once.
    pub takes_writes: bool,
}

/// A socket that was not attached, given back.
#[derive(Debug, thiserror::Error)]
#[error("connection cannot be attached: {error}")]
pub struct AttachError {
    /// The socket.
    pub socket: OwnedFd,
    /// Why.
    #[source]
    pub error: io::Error,
}

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    /// The socket is closed; posts end with events, then `Down` is said, then it is free.
    Closing(Code),
}

#[derive(Debug)]
struct Connection {
    state: State,
    socket: Option<OwnedFd>,
    peer: u8,
    outbound: Outbound,
    inbound: Inbound,
    /// Sending failed: what has come is still read, up to the end that must follow.
    is_cut: bool,
}

impl Connection {
    /// Whether a visit could make progress.
    fn wants_visit(&self) -> bool {
        match self.state {
            State::Free => false,
            State::Closing(_) => true,
            State::Open => {
                self.inbound.wants_visit()
                    || self.outbound.has_ended()
                    || (!self.is_cut && self.outbound.wants_send())
            }
        }
    }

    /// Closes the socket: from here on nothing is read into memory or sent out of it.
    fn end(&mut self, cause: Code, ready: &ReadySet) {
        if self.state == State::Open {
            self.state = State::Closing(cause);
            if let Some(socket) = self.socket.take() {
                ready.end(socket);
            }
        }
    }
}

/// Reliable, ordered connections over non-blocking stream sockets.
///
/// Connections are served in turn; each visit makes at most one send call of `coalesce_bytes` and receives about
/// `slice_bytes`, and one poll ends after about `slice_bytes` in all. Which sockets are ready is learnt from an epoll set
/// of the fabric's own, so idle connections cost nothing. The lane may sleep on that set ([`AsFd`]) while
/// [`TcpFabric::may_sleep`].
/// Made anywhere, then moved to its lane's thread.
#[derive(Debug)]
pub struct TcpFabric {
    config: TcpConfig,
    shared: Shared,
    connections: Box<[Connection]>,
    ready: ReadySet,
    busy: Busy,
    /// Connection that the next poll begins with.
    turn: usize,
    looked_at: Nanos,
    polls_since_look: u32,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<TcpFabric>();
};

impl TcpFabric {
    /// A fabric without connections and memory. Allocates all that it ever needs.
    ///
    /// # Errors
    /// The error of `epoll_create1(2)`.
    ///
    /// # Panics
    /// If a size that must be at least 1 is 0.
    pub fn new(config: TcpConfig) -> io::Result<Self> {
        let sizes = [u32::from(config.posts_max), u32::from(config.records_max), config.write_bytes_max];
        assert!(sizes.iter().all(|size| *size > 0), "a fabric moves something");
        let mut fabric = Self {
            shared: Shared::new(config.regions, 1, 1),
            connections: (0..config.connections).map(|_| Connection::new(&config)).collect(),
            ready: ReadySet::new()?,
            busy: Busy::new(usize::from(config.connections)),
            turn: 0,
            looked_at: 0,
            polls_since_look: LOOK_POLLS,
            config,
        };
        fabric.set_slice(config.slice_bytes, config.coalesce_bytes);
        Ok(fabric)
    }

    /// Puts memory into a slot: a source for writes, and under the key (`region`, epoch) a destination for peers that may
    /// write it. Gives back what stood there. Takes effect at once.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(&mut self, region: RegionIndex, entry: RegionEntry) -> Option<OwnedSpan> {
        self.shared.regions.install(region, entry)
    }

    /// Takes memory out of a slot, at any time: when this returns nothing touches it any more. Writes from it are
    /// finished from zeroes and end with [`Code::RegionLost`]; writes to it are refused.
    pub fn remove(&mut self, region: RegionIndex) -> Option<OwnedSpan> {
        self.shared.regions.remove(region)
    }

    /// Sets which peers may write the memory of this key. False if the key names nothing.
    pub fn set_peers(&mut self, region: RegionIndex, epoch: u32, peers: u64) -> bool {
        self.shared.regions.set_peers(region, epoch, peers)
    }

    /// Sets the most bytes of a receive call (and of a frame's payload), and of a send call. Values are brought into
    /// 4 KiB to 16 MiB; `coalesce_bytes` is at least `slice_bytes`.
    pub fn set_slice(&mut self, slice_bytes: u32, coalesce_bytes: u32) {
        let slice_bytes = slice_bytes.clamp(4096, crate::frame::PAYLOAD_BYTES_MAX);
        self.shared.slice_bytes = slice_bytes;
        self.shared.coalesce_bytes = coalesce_bytes.clamp(slice_bytes, crate::frame::PAYLOAD_BYTES_MAX);
    }

    /// Gives a connection its socket: a stream to the same connection of the other side, with nothing of a frame read or
    /// written yet. Six system calls; no allocation.
    ///
    /// # Errors
    /// [`AttachError`] with the socket: the connection is not this fabric's or has not said `Down`, the peer is above 63,
    /// or the socket cannot be made non-blocking.
    pub fn attach(
        &mut self,
        connection: ConnectionIndex,
        socket: OwnedFd,
        info: AttachInfo,
    ) -> Result<(), AttachError> {
        let refuse = |socket, error| Err(AttachError { socket, error });
        let at = self.index(connection).filter(|at| self.connections[*at].state == State::Free);
        let Some(at) = at.filter(|_| info.peer < 64) else {
            return refuse(socket, io::ErrorKind::InvalidInput.into());
        };
        let TcpConfig { send_buffer_bytes, receive_buffer_bytes, .. } = self.config;
        let prepared = socket::prepare(socket.as_fd(), send_buffer_bytes, receive_buffer_bytes);
        if let Err(error) = prepared.and_then(|()| self.ready.add(socket.as_fd(), at as u64)) {
            return refuse(socket, error);
        }
        let slot = &mut self.connections[at];
        slot.outbound.reset();
        slot.inbound.reset(info.takes_writes);
        slot.peer = info.peer;
        slot.is_cut = false;
        slot.socket = Some(socket);
        slot.state = State::Open;
        self.busy.set(at, true);
        Ok(())
    }

    /// Whether no connection has anything to do until its socket is ready: the lane may wait on [`AsFd`].
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.busy.is_empty()
    }

    /// What was done since construction.
    #[must_use]
    pub const fn counters(&self) -> TcpCounters {
        self.shared.counters
    }

    fn index(&self, connection: ConnectionIndex) -> Option<usize> {
        let at = usize::from(connection.0.checked_sub(self.config.first.0)?);
        (at < self.connections.len()).then_some(at)
    }

    fn name(&self, at: usize) -> ConnectionIndex {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most u16::MAX connections")]
        ConnectionIndex(self.config.first.0 + at as u16)
    }

    /// The open connection to post on.
    fn open(&mut self, connection: ConnectionIndex) -> Result<(usize, &mut Connection), PostError> {
        let at = self.index(connection).ok_or(PostError::Down)?;
        let slot = &mut self.connections[at];
        if slot.state == State::Open && !slot.is_cut { Ok((at, slot)) } else { Err(PostError::Down) }
    }

    /// Learns which sockets are ready.
    fn look(&mut self, now: Nanos) {
        self.looked_at = now;
        self.polls_since_look = 0;
        self.shared.counters.looks += 1;
        let (connections, busy) = (&mut self.connections, &mut self.busy);
        self.ready.look(|readiness| {
            let Ok(at) = usize::try_from(readiness.token) else { return };
            let Some(connection) = connections.get_mut(at) else { return };
            connection.inbound.readable |= readiness.readable;
            connection.inbound.ending |= readiness.ended;
            if readiness.writable {
                connection.outbound.blocked = false;
            }
            busy.set(at, connection.wants_visit());
        });
    }

    /// Makes at most one send call on a connection. Returns the bytes that it moved.
    fn send_on(&mut self, at: usize) -> usize {
        let connection = &mut self.connections[at];
        let Some(socket) = connection.socket.as_ref().filter(|_| !connection.is_cut) else { return 0 };
        if !connection.outbound.wants_send() {
            return 0;
        }
        match connection.outbound.send(socket.as_fd(), &mut self.shared) {
            Some(Moved::Bytes(bytes)) => bytes,
            Some(Moved::Broken | Moved::End) => {
                // What the other side said before it went may still be in the socket, answers among it.
                connection.is_cut = true;
                connection.inbound.readable = true;
                connection.inbound.ending = true;
                0
            }
            _ => 0,
        }
    }

    /// Serves a connection: ends of posts, what came, what is to be sent. Returns the bytes that it moved.
    fn visit(&mut self, at: usize, events: &mut Events<'_>) -> u64 {
        let name = self.name(at);
        let before = self.shared.counters;
        if self.connections[at].state == State::Open {
            self.tell_ended(at, events);
            let connection = &mut self.connections[at];
            if let Some(socket) = &connection.socket {
                let receiver = Receiver { socket: socket.as_fd(), connection: name, peer: connection.peer };
                match connection.inbound.visit(receiver, &mut self.shared, events) {
                    Err(cause) => connection.end(cause, &self.ready),
                    // Nothing more to read after sending failed: the end was all that could come.
                    Ok(()) if connection.is_cut && !connection.inbound.wants_visit() => {
                        connection.end(Code::ConnectionReset, &self.ready);
                    }
                    Ok(()) => {}
                }
            }
            self.send_on(at);
            self.tell_ended(at, events);
        }
        if let State::Closing(cause) = self.connections[at].state {
            self.drain(at, cause, events);
        }
        self.busy.set(at, self.connections[at].wants_visit());
        let after = self.shared.counters;
        after.bytes_sent - before.bytes_sent + after.bytes_received - before.bytes_received
    }

    fn tell_ended(&mut self, at: usize, events: &mut Events<'_>) {
        let connection = self.name(at);
        let outbound = &mut self.connections[at].outbound;
        while !events.is_full() {
            let Some((post, status)) = outbound.next_ended() else { return };
            events.push(FabricEvent::Done { connection, post, status });
        }
    }

    /// Ends what was posted on a closing connection, then says `Down`.
    fn drain(&mut self, at: usize, cause: Code, events: &mut Events<'_>) {
        let connection = self.name(at);
        let slot = &mut self.connections[at];
        while !events.is_full() {
            let Some((post, status)) = slot.outbound.next_reset() else {
                slot.state = State::Free;
                events.push(FabricEvent::Down { connection, cause });
                return;
            };
            events.push(FabricEvent::Done { connection, post, status });
        }
    }
}

impl Connection {
    fn new(config: &TcpConfig) -> Self {
        Self {
            state: State::Free,
            socket: None,
            peer: 0,
            outbound: Outbound::new(config.posts_max, config.records_max),
            inbound: Inbound::new(),
            is_cut: false,
        }
    }
}

/// The descriptor to wait on while [`TcpFabric::may_sleep`]: readable when a socket has changed.
impl AsFd for TcpFabric {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Fabric for TcpFabric {
    fn capabilities(&self, _connection: ConnectionIndex) -> Capabilities {
        Capabilities {
            write_bytes_max: self.config.write_bytes_max,
            posts_max: self.config.posts_max,
            records_max: self.config.records_max,
            flush_needed: false,
            reads: false,
            acknowledged: false,
            windows: true,
        }
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        let (at, slot) = self.open(connection)?;
        slot.outbound.post_record(record)?;
        self.busy.set(at, self.connections[at].wants_visit());
        Ok(())
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        debug_assert!(
            write.bytes > 0 && write.bytes <= self.config.write_bytes_max,
            "the engine keeps to capabilities"
        );
        let from = self.shared.regions.source(write.from);
        let (at, slot) = self.open(connection)?;
        slot.outbound.post_write(write, from)?;
        self.busy.set(at, self.connections[at].wants_visit());
        Ok(())
    }

    /// Not possible here: a socket's other end moves nothing by itself.
    fn read(&mut self, _: ConnectionIndex, _: &Read) -> Result<(), PostError> {
        debug_assert!(false, "there are no reads on sockets");
        Err(PostError::Down)
    }

    /// Not needed here; done when its turn comes.
    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        let (at, slot) = self.open(connection)?;
        slot.outbound.post_flush(post)?;
        self.busy.set(at, self.connections[at].wants_visit());
        Ok(())
    }

    /// Not possible here: the end of a write only says that its source was read.
    fn confirm(&mut self, _: ConnectionIndex, _: RemotePlace, _: PostId) -> Result<(), PostError> {
        debug_assert!(false, "writes on sockets are not acknowledged");
        Err(PostError::Down)
    }

    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64) {
        if let Some(at) = self.index(connection) {
            let to = self.shared.regions.source(to);
            self.connections[at].inbound.windows.open(slot, to, bytes);
        }
    }

    fn close_window(&mut self, connection: ConnectionIndex, slot: u16) {
        if let Some(at) = self.index(connection) {
            self.connections[at].inbound.windows.close(slot);
        }
    }

    fn close(&mut self, connection: ConnectionIndex) {
        if let Some(at) = self.index(connection) {
            self.connections[at].end(Code::ConnectionReset, &self.ready);
            self.busy.set(at, self.connections[at].wants_visit());
        }
    }

    fn kick(&mut self, _now: Nanos) {
        let mut budget = self.shared.coalesce_bytes as usize;
        let mut from = 0;
        while let Some(at) = self.busy.next(from) {
            budget = budget.saturating_sub(self.send_on(at));
            self.busy.set(at, self.connections[at].wants_visit());
            if budget == 0 {
                break;
            }
            from = at + 1;
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        if events.is_empty() {
            return 0;
        }
        self.polls_since_look += 1;
        let is_late = now.wrapping_sub(self.looked_at) >= LOOK_NS || self.polls_since_look >= LOOK_POLLS;
        if is_late || self.busy.is_empty() {
            self.look(now);
        }
        let mut events = Events::new(events);
        let mut budget = u64::from(self.shared.slice_bytes);
        let start = self.turn;
        // Once round: from the connection whose turn it is to the last, then from the first up to it.
        let (mut from, mut wrapped) = (start, false);
        while budget > 0 && !events.is_full() {
            match self.busy.next(from).filter(|at| !wrapped || *at < start) {
                Some(at) => {
                    budget = budget.saturating_sub(self.visit(at, &mut events));
                    (from, self.turn) = (at + 1, at + 1);
                }
                None if wrapped => break,
                None => (from, wrapped) = (0, true),
            }
        }
        if self.turn >= self.connections.len() {
            self.turn = 0;
        }
        events.count()
    }
}
