//! The ports: what the engine asks of a fabric and of a copy engine. Adapters implement them.
//!
//! Shaped like reliable-connected queue pairs, so that NICs fit as they are and sockets emulate them.
//! Everything is posted and ends later: a post returns at once, its end is an event of a later
//! `poll`. No call blocks, and none moves more than the slice that the adapter was configured with.
//! The engine names local memory by [`Place`] and remote memory by [`Key`]; adapters hold the tables
//! that turn those into addresses and NIC keys, and fill them outside of these traits. Once an
//! adapter has given a memory back, it reads and writes nothing there.

use railhead_abi::Code;
use railhead_abi::record::RawRecord;

/// A moment on the monotonic clock, in nanoseconds. The engine never reads a clock; callers pass `now`.
pub type Nanos = u64;

/// A slot of the lane's table of local memories. Slot 0 is the lane's staging arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RegionIndex(pub u32);

impl RegionIndex {
    /// The lane's staging arena.
    pub const ARENA: RegionIndex = RegionIndex(0);
}

/// A place in local memory. The engine has checked that the bytes named with it lie inside the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which memory.
    pub region: RegionIndex,
    /// First byte in it.
    pub offset: u64,
}

/// Names memory at the other end of a connection; the epoch tells a reused slot apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Key {
    /// The region's slot at the target; 0 is the target lane's staging arena.
    pub index: u32,
    /// The slot's generation at the target; for the arena the pool's epoch.
    pub epoch: u32,
}

/// A place in memory at the other end of a connection. The target's adapter checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePlace {
    /// Which memory.
    pub key: Key,
    /// First byte in it.
    pub offset: u64,
}

/// A slot of the lane's table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ConnectionIndex(pub u16);

/// The engine's name for posted work; given back when the work is done, then free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostId(pub u32);

/// A post was not taken; nothing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError {
    /// The queue has no room: try again after events have come. Not an error.
    Full,
    /// The connection is down or closing; `Down` was or will be polled.
    Down,
}

/// A write to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Source. It may be reused once the post is done.
    pub from: Place,
    /// Bytes, from 1 to [`Capabilities::write_bytes_max`].
    pub bytes: u32,
    /// Destination.
    pub to: RemotePlace,
    /// The transfer's slot on this connection, so that the target can say which transfer a refused write was of.
    pub slot: u16,
    /// Given back in [`FabricEvent::Done`].
    pub post: PostId,
}

/// A read to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Destination. It is written from the post to its end.
    pub into: Place,
    /// Bytes, from 1 to [`Capabilities::write_bytes_max`].
    pub bytes: u32,
    /// Source.
    pub from: RemotePlace,
    /// Given back in [`FabricEvent::Done`].
    pub post: PostId,
}

/// What a fabric can do on one connection. The conformance tests hold every fabric to what it says here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Most bytes of one write or read.
    pub write_bytes_max: u32,
    /// Posts (everything but records) that one connection takes before it says `Full`, at least this many.
    pub posts_max: u16,
    /// Records that one connection takes before it says `Full`, at least this many.
    pub records_max: u16,
    /// What came in, by inbound writes or own reads, can be seen by every reader of the memory only after a flush.
    pub flush_needed: bool,
    /// [`Fabric::read`] works: the other end's memory can be read without its help.
    pub reads: bool,
    /// The end of a write means that the other end's device has placed it, and a write that could not be placed ends with
    /// an error. Else it only means that the source may be reused.
    pub acknowledged: bool,
    /// [`Fabric::open_window`] lets the other end write what no grant lets it write. Where this is not set, only keys
    /// that the other end holds say what it may write.
    pub windows: bool,
}

impl Capabilities {
    /// Nothing: no connection of it can come up.
    pub const NONE: Self = Self {
        write_bytes_max: 0,
        posts_max: 0,
        records_max: 0,
        flush_needed: false,
        reads: false,
        acknowledged: false,
        windows: false,
    };
}

/// What a fabric says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricEvent {
    /// Posted work ended: the source of a write may be reused, what was read stands in its place, what came before a flush
    /// or a confirm is visible.
    Done {
        /// Where it was posted.
        connection: ConnectionIndex,
        /// Which.
        post: PostId,
        /// [`Code::Ok`], or why it failed; what failed may still have carried any bytes to its destination. A read is
        /// refused with [`Code::RemoteRefused`] or [`Code::RemoteRegionLost`].
        status: Code,
    },
    /// A record arrived. All writes that the other end posted before it on this connection have been placed.
    Record {
        /// Where.
        connection: ConnectionIndex,
        /// The words as they came; not validated.
        record: RawRecord,
    },
    /// An inbound write was refused or its memory was lost: nothing of it was placed outside its range. Comes before the
    /// records that were sent after the write. Not where writes are [`Capabilities::acknowledged`]: there the end of the
    /// write says so, its connection ends with it, and no record that was sent behind it arrives.
    Refused {
        /// Where.
        connection: ConnectionIndex,
        /// The initiator's slot, as it came; not validated.
        slot: u16,
        /// [`Code::RemoteRefused`] or [`Code::RemoteRegionLost`].
        status: Code,
    },
    /// The connection has ended. Comes once; before it, every posted work of the connection has ended with an event.
    /// After it nothing of this connection reads or writes local memory.
    Down {
        /// Which.
        connection: ConnectionIndex,
        /// The first cause.
        cause: Code,
    },
}

/// Moves bytes and records over connections, in order within each.
pub trait Fabric {
    /// What it can do on a connection that is up.
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities;

    /// Posts a record behind everything posted before on this connection.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError>;

    /// Posts a write.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError>;

    /// Posts a read of the other end's memory. It sees the writes posted before it on this connection; what is posted
    /// behind it does not wait for it. Only called where [`Capabilities::reads`] is set.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError>;

    /// Posts a flush: when done, what *arrived* on this connection before, writes of the other end and own reads that
    /// have ended, is visible to all readers. Only called where [`Capabilities::flush_needed`] is set.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError>;

    /// Posts a confirm: when done, all writes posted before on this connection are visible at the other end to all
    /// readers. `at` is the last byte written. Only called where [`Capabilities::acknowledged`] is set.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError>;

    /// Lets the other end write these local bytes with writes of `slot`, whatever grants say, until
    /// [`Fabric::close_window`] or the end of the connection. A slot has one window; opening another replaces it. Only
    /// called where [`Capabilities::windows`] is set.
    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64);

    /// Takes a window back: what still comes for it is refused. Nothing if there is none.
    fn close_window(&mut self, connection: ConnectionIndex, slot: u16);

    /// Starts to end a connection; `Down` follows in bounded time. Closing one that is closed does nothing.
    fn close(&mut self, connection: ConnectionIndex);

    /// Hands everything posted since the last kick to the device.
    fn kick(&mut self, now: Nanos);

    /// Makes bounded progress and fills `events` from the front; returns how many.
    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize;
}

/// A copy to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Source.
    pub from: Place,
    /// Destination; never overlaps the source.
    pub to: Place,
    /// Bytes, at least 1.
    pub bytes: u32,
    /// Given back in [`CopyDone`].
    pub post: PostId,
}

/// A copy ended; its destination can be read by everyone, NICs included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyDone {
    /// Which.
    pub post: PostId,
    /// [`Code::Ok`], [`Code::RegionLost`] or [`Code::DeviceError`].
    pub status: Code,
}

/// The copy engine has no room: try again after copies have ended. Not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFull;

/// Copies between local memories. Copies may end in any order.
pub trait CopyEngine {
    /// Posts a copy.
    ///
    /// # Errors
    /// [`CopyFull`]; nothing was posted.
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull>;

    /// Hands everything posted since the last kick to the device.
    fn kick(&mut self, now: Nanos);

    /// Makes bounded progress and fills `done` from the front; returns how many.
    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize;

    /// Whether a copy is under way whose end this engine can only see by polling: the lane must not sleep.
    fn is_busy(&self) -> bool;
}

/// Two fabrics as one: connections below the split belong to the first.
#[derive(Debug)]
pub struct Both<A, B> {
    /// Takes connections below the split.
    pub first: A,
    /// Takes the others.
    pub second: B,
    split: ConnectionIndex,
    second_first: bool,
}

impl<A: Fabric, B: Fabric> Both<A, B> {
    /// Composes two fabrics; `split` is the first connection of `second`. Neither renumbers connections.
    pub const fn new(first: A, second: B, split: ConnectionIndex) -> Self {
        Self { first, second, split, second_first: false }
    }
}

impl<A: Fabric, B: Fabric> Fabric for Both<A, B> {
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities {
        if connection < self.split {
            self.first.capabilities(connection)
        } else {
            self.second.capabilities(connection)
        }
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        if connection < self.split {
            self.first.send(connection, record)
        } else {
            self.second.send(connection, record)
        }
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        if connection < self.split {
            self.first.write(connection, write)
        } else {
            self.second.write(connection, write)
        }
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        if connection < self.split {
            self.first.read(connection, read)
        } else {
            self.second.read(connection, read)
        }
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        if connection < self.split {
            self.first.flush(connection, post)
        } else {
            self.second.flush(connection, post)
        }
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        if connection < self.split {
            self.first.confirm(connection, at, post)
        } else {
            self.second.confirm(connection, at, post)
        }
    }

    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64) {
        if connection < self.split {
            self.first.open_window(connection, slot, to, bytes);
        } else {
            self.second.open_window(connection, slot, to, bytes);
        }
    }

    fn close_window(&mut self, connection: ConnectionIndex, slot: u16) {
        if connection < self.split {
            self.first.close_window(connection, slot);
        } else {
            self.second.close_window(connection, slot);
        }
    }

    fn close(&mut self, connection: ConnectionIndex) {
        if connection < self.split { self.first.close(connection) } else { self.second.close(connection) }
    }

    fn kick(&mut self, now: Nanos) {
        self.first.kick(now);
        self.second.kick(now);
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        // Turn about, so that neither fills the slice for ever.
        self.second_first = !self.second_first;
        if self.second_first {
            let count = self.second.poll(now, events);
            count + self.first.poll(now, &mut events[count..])
        } else {
            let count = self.first.poll(now, events);
            count + self.second.poll(now, &mut events[count..])
        }
    }
}

/// A fabric that may not be there: without it, none of its connections can be used, and nothing ever happens.
impl<F: Fabric> Fabric for Option<F> {
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities {
        self.as_ref().map_or(Capabilities::NONE, |fabric| fabric.capabilities(connection))
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        self.as_mut().map_or(Err(PostError::Down), |fabric| fabric.send(connection, record))
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        self.as_mut().map_or(Err(PostError::Down), |fabric| fabric.write(connection, write))
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        self.as_mut().map_or(Err(PostError::Down), |fabric| fabric.read(connection, read))
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        self.as_mut().map_or(Err(PostError::Down), |fabric| fabric.flush(connection, post))
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        self.as_mut().map_or(Err(PostError::Down), |fabric| fabric.confirm(connection, at, post))
    }

    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64) {
        if let Some(fabric) = self {
            fabric.open_window(connection, slot, to, bytes);
        }
    }

    fn close_window(&mut self, connection: ConnectionIndex, slot: u16) {
        if let Some(fabric) = self {
            fabric.close_window(connection, slot);
        }
    }

    fn close(&mut self, connection: ConnectionIndex) {
        if let Some(fabric) = self {
            fabric.close(connection);
        }
    }

    fn kick(&mut self, now: Nanos) {
        if let Some(fabric) = self {
            fabric.kick(now);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        self.as_mut().map_or(0, |fabric| fabric.poll(now, events))
    }
}
