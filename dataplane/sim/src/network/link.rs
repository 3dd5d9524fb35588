//! The state of one connection: two sides, each with what it posted and the other has not had in full.

use std::collections::{BTreeMap, VecDeque};

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{ConnectionIndex, Nanos, Place, PostId, Read, RemotePlace, Write};

use crate::memory::{Hold, SimMemory};

/// A part of a write or read with its own moments.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) read_at: Nanos,
    pub(super) place_at: Nanos,
    pub(super) data: Option<Vec<u8>>,
    /// Placed, or never to be.
    pub(super) settled: bool,
}

#[derive(Debug)]
pub(super) struct WriteOp {
    pub(super) write: Write,
    pub(super) source: SimMemory,
    pub(super) source_hold: Option<Hold>,
    pub(super) target_hold: Option<(SimMemory, Hold)>,
    pub(super) pieces: Vec<Piece>,
    pub(super) refused: Option<Code>,
    /// The source was taken away while it was read.
    pub(super) lost: bool,
}

#[derive(Debug)]
pub(super) struct ReadOp {
    pub(super) read: Read,
    /// The memory that is read into, with the epoch of its slot.
    pub(super) into: (SimMemory, u32),
    pub(super) into_hold: Option<Hold>,
    pub(super) source_hold: Option<(SimMemory, Hold)>,
    pub(super) pieces: Vec<Piece>,
    pub(super) refused: Option<Code>,
}

#[derive(Debug)]
pub(super) enum Op {
    Record(RawRecord),
    Write(WriteOp),
    Read(ReadOp),
    Flush { post: PostId, arrivals: u64 },
    Confirm { post: PostId, at: RemotePlace },
}

/// A post under way.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) op: Op,
    /// Its end was told to its own side; records have none.
    pub(super) done: bool,
    /// It arrived in full, or never will.
    pub(super) delivered: bool,
    /// It did not get through, and its end must not say that it did: it ends with the connection.
    pub(super) broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Takes posts.
    Up,
    /// Takes none; `Down` will come.
    Closing,
    /// `Down` is in the inbox or was polled.
    Down,
}

/// Bytes that the other side may write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub(super) to: Place,
    /// Of the memory that stood there.
    pub(super) epoch: u32,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) lane: usize,
    pub(super) connection: ConnectionIndex,
    pub(super) state: State,
    pub(super) posted: BTreeMap<u64, Posted>,
    pub(super) unkicked: Vec<u64>,
    /// Kicked and not arrived in full, in order, each with the earliest moment at which it may.
    pub(super) undelivered: VecDeque<(u64, Nanos)>,
    pub(super) deliver_last: Nanos,
    pub(super) done_last: Nanos,
    /// Writes and flushes whose end was not polled.
    pub(super) posts_open: usize,
    /// Records that have not reached the other side's inbox.
    pub(super) records_open: usize,
    /// Records in this side's inbox.
    pub(super) unpolled_records: usize,
    /// By slot: bytes that the other side may write.
    pub(super) windows: BTreeMap<u16, Opened>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) sides: [Side; 2],
    pub(super) cause: Option<Code>,
    next_op: u64,
}

impl Link {
    pub(super) fn new(ends: [(usize, ConnectionIndex); 2]) -> Self {
        let sides = ends.map(|(lane, connection)| Side {
            lane,
            connection,
            state: State::Up,
            posted: BTreeMap::new(),
            unkicked: Vec::new(),
            undelivered: VecDeque::new(),
            deliver_last: 0,
            done_last: 0,
            posts_open: 0,
            records_open: 0,
            unpolled_records: 0,
            windows: BTreeMap::new(),
        });
        Self { sides, cause: None, next_op: 0 }
    }

    /// Adds a post. On a link that is cut it goes nowhere, and ends when the side hears of the cut.
    pub(super) fn push(&mut self, side: usize, mut op: Op) {
        let id = self.next_op;
        self.next_op += 1;
        let dead = self.cause.is_some();
        let done = matches!(op, Op::Record(_));
        if dead {
            op.stop();
        }
        let side = &mut self.sides[side];
        side.posted.insert(id, Posted { op, done, delivered: dead, broken: dead });
        if !dead {
            side.unkicked.push(id);
        }
        side.sweep(id);
    }
}

impl Side {
    pub(super) fn write(&mut self, op: u64) -> Option<&mut WriteOp> {
        match self.posted.get_mut(&op).map(|posted| &mut posted.op) {
            Some(Op::Write(write)) => Some(write),
            _ => None,
        }
    }

    pub(super) fn read(&mut self, op: u64) -> Option<&mut ReadOp> {
        match self.posted.get_mut(&op).map(|posted| &mut posted.op) {
            Some(Op::Read(read)) => Some(read),
            _ => None,
        }
    }

    /// Forgets a post that has nothing more to come.
    pub(super) fn sweep(&mut self, op: u64) {
        if self.posted.get(&op).is_some_and(|posted| posted.done && posted.delivered) {
            self.posted.remove(&op);
        }
    }
}

impl Op {
    /// No more of it is read or placed. False if some of it was still to come.
    pub(super) fn stop(&mut self) -> bool {
        let pieces = match self {
            Op::Write(write) => {
                write.release_target();
                &mut write.pieces
            }
            Op::Read(read) => {
                read.release_source();
                &mut read.pieces
            }
            Op::Record(_) | Op::Flush { .. } => return true,
            Op::Confirm { .. } => return false,
        };
        let whole = pieces.iter().all(|piece| piece.settled);
        pieces.iter_mut().for_each(|piece| piece.settled = true);
        whole && !pieces.is_empty()
    }

    /// The name of a post that has an end.
    pub(super) const fn post(&self) -> Option<PostId> {
        match self {
            Op::Record(_) => None,
            Op::Write(write) => Some(write.write.post),
            Op::Read(read) => Some(read.read.post),
            Op::Flush { post, .. } | Op::Confirm { post, .. } => Some(*post),
        }
    }
}

impl ReadOp {
    pub(super) fn release_into(&mut self) {
        if let Some(hold) = self.into_hold.take() {
            self.into.0.release(hold);
        }
    }

    pub(super) fn release_source(&mut self) {
        if let Some((memory, hold)) = self.source_hold.take() {
            memory.release(hold);
        }
    }
}

impl WriteOp {
    /// No more of it is read or placed.
    pub(super) fn stop(&mut self) {
        for piece in &mut self.pieces {
            piece.settled = true;
        }
        self.release_target();
    }

    pub(super) fn release_source(&mut self) {
        if let Some(hold) = self.source_hold.take() {
            self.source.release(hold);
        }
    }

    pub(super) fn release_target(&mut self) {
        if let Some((memory, hold)) = self.target_hold.take() {
            memory.release(hold);
        }
    }
}
