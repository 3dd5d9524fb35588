//! The receiving half of a connection: bytes become frames, payload goes to its place, records become events.
//!
//! Where the other side writes, payload is never copied: one call scatters a frame's payload straight to its places and
//! ends with the first bytes of the next frame, which never reach into payload. A steady stream takes one call per frame
//! whose head is short, and two where it is long. Where only records come, one call fills a scratch block with many frames.

use core::ops::Range;
use std::os::fd::BorrowedFd;

use railhead_abi::Code;
use railhead_core::port::{ConnectionIndex, FabricEvent, RegionIndex};

use crate::frame::{
    self, Fault, HEAD_BYTES_MAX, HEAD_BYTES_MIN, HEADER_BYTES, Header, Item, Malformed, WriteItem,
};
use crate::regions::Writer;
use crate::shared::Shared;
use crate::socket::{self, Moved};
use crate::windows::Windows;

/// Bytes of the scratch block.
const SCRATCH_BYTES: usize = 64 << 10;
/// Calls per visit: a head, its payload, and what the kernel had not yet put together.
const CALLS_MAX: u32 = 4;

/// Events being handed out by one poll.
pub(crate) struct Events<'a> {
    slice: &'a mut [FabricEvent],
    count: usize,
}

impl<'a> Events<'a> {
    pub(crate) const fn new(slice: &'a mut [FabricEvent]) -> Self {
        Self { slice, count: 0 }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.count == self.slice.len()
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn push(&mut self, event: FabricEvent) {
        self.slice[self.count] = event;
        self.count += 1;
    }
}

/// Who receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receiver<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) connection: ConnectionIndex,
    pub(crate) peer: u8,
}

/// State of the receiving half. All memory is allocated once.
#[derive(Debug)]
pub(crate) struct Inbound {
    scratch: Box<[u8]>,
    /// Bytes of the scratch block that were received and not used.
    fresh: Range<usize>,
    head: Box<[u8]>,
    /// Bytes of the head that are there.
    head_filled: usize,
    /// Bytes of the head that are needed: the smallest head, until the header is known.
    head_bytes: usize,
    /// The head is whole and was checked; what follows is payload.
    in_frame: bool,
    /// Word past the last item.
    items_end: usize,
    /// Word of the WRITE item being placed, or `items_end`.
    place: usize,
    /// Bytes of it that are placed.
    placed: u32,
    /// Payload of the frame that is not placed.
    payload_left: usize,
    /// Word of the next item to tell of; never past `place`.
    tell: usize,
    /// The other side writes here: nothing may be read past a head into payload.
    takes_writes: bool,
    /// An earlier piece of the write being placed failed, so the rest of it is dropped too.
    write_fault: Option<Fault>,
    /// What the other side may write although nothing was granted to it.
    pub(crate) windows: Windows,
    /// There may be bytes in the socket.
    pub(crate) readable: bool,
    /// The kernel said that the other side has ended: read until the end is found.
    pub(crate) ending: bool,
    /// The next call takes one piece only: to learn which one is gone.
    single: bool,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH_BYTES].into(),
            fresh: 0..0,
            head: vec![0; HEAD_BYTES_MAX].into(),
            head_filled: 0,
            head_bytes: HEAD_BYTES_MIN,
            in_frame: false,
            items_end: 0,
            place: 0,
            placed: 0,
            payload_left: 0,
            tell: 0,
            takes_writes: true,
            write_fault: None,
            windows: Windows::new(),
            readable: true,
            ending: false,
            single: false,
        }
    }

    /// Forgets everything, for a new connection.
    pub(crate) fn reset(&mut self, takes_writes: bool) {
        self.fresh = 0..0;
        self.start_head();
        self.takes_writes = takes_writes;
        self.write_fault = None;
        self.windows.clear();
        (self.readable, self.ending, self.single) = (true, false, false);
    }

    fn start_head(&mut self) {
        self.in_frame = false;
        self.head_filled = 0;
        self.head_bytes = HEAD_BYTES_MIN;
    }

    /// Whether a visit could make progress.
    pub(crate) fn wants_visit(&self) -> bool {
        self.readable || !self.fresh.is_empty() || (self.in_frame && self.tell < self.place)
    }

    /// Makes bounded progress: at most [`CALLS_MAX`] calls and about `slice_bytes` bytes. Says why if the connection
    /// has ended.
    pub(crate) fn visit(
        &mut self,
        to: Receiver<'_>,
        shared: &mut Shared,
        events: &mut Events<'_>,
    ) -> Result<(), Code> {
        let mut calls = 0;
        let mut budget = shared.slice_bytes as usize;
        loop {
            self.use_fresh(to, shared, events).map_err(|Malformed| Code::ProtocolViolation)?;
            let full = self.in_frame && self.payload_left == 0;
            if full || !self.readable || calls == CALLS_MAX || budget == 0 {
                return Ok(());
            }
            calls += 1;
            let bytes = self.receive(to, shared)?;
            budget = budget.saturating_sub(bytes);
        }
    }

    /// Uses what is in the scratch block, until it is empty or events have no room.
    fn use_fresh(
        &mut self,
        to: Receiver<'_>,
        shared: &mut Shared,
        events: &mut Events<'_>,
    ) -> Result<(), Malformed> {
        loop {
            if self.in_frame {
                self.place_fresh(to.peer, shared);
                if !self.tell(to.connection, shared, events) {
                    return Ok(());
                }
                self.start_head();
            }
            if self.fresh.is_empty() {
                return Ok(());
            }
            self.fill_head(shared)?;
        }
    }

    /// Takes head bytes from the scratch block; begins the frame when the head is whole.
    fn fill_head(&mut self, shared: &mut Shared) -> Result<(), Malformed> {
        while self.head_filled < self.head_bytes {
            let count = self.fresh.len().min(self.head_bytes - self.head_filled);
            if count == 0 {
                return Ok(());
            }
            let from = self.fresh.start;
            self.head[self.head_filled..self.head_filled + count]
                .copy_from_slice(&self.scratch[from..from + count]);
            self.fresh.start += count;
            self.head_filled += count;
            if self.head_filled == HEAD_BYTES_MIN {
                self.head_bytes = Header::decode(&self.head)?.head_bytes();
            }
        }
        let header = Header::decode(&self.head)?;
        frame::check(&self.head, header)?;
        shared.counters.frames_received += 1;
        self.in_frame = true;
        self.items_end = (HEADER_BYTES + header.items_bytes as usize) / 8;
        self.tell = HEADER_BYTES / 8;
        self.payload_left = header.payload_bytes as usize;
        self.begin_write(HEADER_BYTES / 8);
        Ok(())
    }

    /// Makes the first WRITE item from word `at` on the one being placed.
    fn begin_write(&mut self, mut at: usize) {
        self.placed = 0;
        while at < self.items_end {
            let (words, is_write) = frame::extent(&self.head, at);
            if is_write {
                if let Some(fault) = self.write_fault {
                    frame::set_fault(&mut self.head, at, fault);
                }
                break;
            }
            at += words;
        }
        self.place = at;
    }

    /// Copies payload from the scratch block to its places.
    fn place_fresh(&mut self, peer: u8, shared: &mut Shared) {
        while self.payload_left > 0 && !self.fresh.is_empty() {
            let item = frame::write_item(&self.head, self.place);
            #[expect(clippy::cast_possible_truncation, reason = "at most the scratch block's size")]
            let fresh = self.fresh.len() as u32;
            let count = fresh.min(item.bytes - self.placed);
            let from = self.fresh.start;
            let until = from + count as usize;
            if item.fault.is_none() {
                let piece = self.placed..self.placed + count;
                match shared.regions.target_span(item.to, item.bytes, piece, self.writer(&item, peer)) {
                    Some(span) => {
                        span.copy_from_slice(&self.scratch[from..until]);
                    }
                    None => frame::set_fault(&mut self.head, self.place, Fault::Refused),
                }
            }
            self.fresh.start = until;
            shared.counters.bytes_copied += u64::from(count);
            self.advance(count as usize, shared);
        }
    }

    fn writer(&self, item: &WriteItem, peer: u8) -> Writer {
        Writer { peer, window: self.windows.get(item.slot) }
    }

    /// Counts payload as placed, and settles the writes that are whole by that.
    fn advance(&mut self, bytes: usize, shared: &mut Shared) {
        self.payload_left -= bytes;
        let mut rest = bytes;
        while rest > 0 {
            let item = frame::write_item(&self.head, self.place);
            let left = (item.bytes - self.placed) as usize;
            if rest < left {
                #[expect(clippy::cast_possible_truncation, reason = "less than `left`")]
                let part = rest as u32;
                self.placed += part;
                return;
            }
            rest -= left;
            self.end_write(&item, shared);
        }
    }

    /// The last byte of the write being placed is there.
    fn end_write(&mut self, item: &WriteItem, shared: &mut Shared) {
        let mut fault = item.fault;
        // After the last byte: a page lost meanwhile was replaced, and this is the only sign of it.
        if fault.is_none() && shared.regions.is_target_lost(item.to) {
            fault = Some(Fault::Lost);
            frame::set_fault(&mut self.head, self.place, Fault::Lost);
        }
        self.write_fault = if item.more { fault } else { None };
        let (words, _) = frame::extent(&self.head, self.place);
        self.begin_write(self.place + words);
    }

    /// Tells of the items whose writes, and all writes before, are placed. True when the frame is finished.
    fn tell(&mut self, connection: ConnectionIndex, shared: &mut Shared, events: &mut Events<'_>) -> bool {
        while self.tell < self.place {
            if events.is_full() {
                return false;
            }
            match frame::item(&self.head, self.tell) {
                Item::Record(record) => events.push(FabricEvent::Record { connection, record }),
                // A write is refused as a whole: its last piece tells.
                Item::Write(WriteItem { fault: Some(fault), more: false, slot, .. }) => {
                    let status = match fault {
                        Fault::Refused => Code::RemoteRefused,
                        Fault::Lost => Code::RemoteRegionLost,
                    };
                    shared.counters.refused += 1;
                    events.push(FabricEvent::Refused { connection, slot, status });
                }
                Item::Write(_) => {}
            }
            self.tell += frame::extent(&self.head, self.tell).0;
        }
        self.tell == self.items_end
    }

    /// One receive call. Only called with an empty scratch block. Returns the bytes that came.
    fn receive(&mut self, to: Receiver<'_>, shared: &mut Shared) -> Result<usize, Code> {
        debug_assert!(self.fresh.is_empty());
        shared.pieces.clear();
        let mut straight = 0;
        if self.in_frame {
            straight = self.gather(to.peer, shared);
        }
        if straight == self.payload_left && !self.single || !self.in_frame {
            let ahead = self.read_ahead();
            shared.pieces.push_target(&mut self.scratch[..ahead]);
        }
        let asked = shared.pieces.bytes();
        shared.counters.receives += 1;
        match socket::receive(to.socket, &mut shared.pieces) {
            Moved::Bytes(bytes) => {
                shared.counters.bytes_received += bytes as u64;
                // A short call means an empty socket: the kernel tells when more has come. But not if the end came with
                // the bytes: that is told once, and the end itself is still to be read.
                self.readable = bytes == asked || self.ending || self.single;
                self.single = false;
                let placed = bytes.min(straight);
                if placed > 0 {
                    self.advance(placed, shared);
                }
                self.fresh = 0..bytes - placed;
                Ok(bytes)
            }
            Moved::Again => {
                shared.counters.receives_again += 1;
                self.readable = false;
                Ok(0)
            }
            Moved::Retry => Ok(0),
            Moved::Fault => {
                self.fault(shared);
                Ok(0)
            }
            Moved::End | Moved::Broken => Err(Code::ConnectionReset),
        }
    }

    /// Bytes to read past the payload.
    fn read_ahead(&self) -> usize {
        match (self.takes_writes, self.in_frame) {
            (false, _) => SCRATCH_BYTES,
            // No head is shorter, so this ends before the next payload begins.
            (true, true) => HEAD_BYTES_MIN,
            (true, false) => self.head_bytes - self.head_filled,
        }
    }

    /// Collects the places of the frame's payload, a slice of it at most; returns how many bytes.
    fn gather(&mut self, peer: u8, shared: &mut Shared) -> usize {
        let limit = shared.slice_bytes as usize;
        let (mut at, mut done) = (self.place, self.placed);
        let mut total = 0;
        // One piece stays free for what is read ahead.
        while at < self.items_end && total < limit && shared.pieces.count() + 1 < socket::PIECES_MAX {
            let (words, is_write) = frame::extent(&self.head, at);
            if !is_write {
                at += words;
                continue;
            }
            let item = frame::write_item(&self.head, at);
            #[expect(clippy::cast_possible_truncation, reason = "at most the item's bytes")]
            let wanted = (limit - total).min((item.bytes - done) as usize) as u32;
            let taken = self.gather_write(at, &item, done, wanted, peer, shared);
            total += taken as usize;
            done += taken;
            if done == item.bytes {
                (at, done) = (at + words, 0);
            }
            if self.single {
                break;
            }
        }
        total
    }

    /// Adds at most `wanted` bytes of one write from its byte `done` on; returns how many.
    fn gather_write(
        &mut self,
        at: usize,
        item: &WriteItem,
        done: u32,
        wanted: u32,
        peer: u8,
        shared: &mut Shared,
    ) -> u32 {
        if item.fault.is_none() {
            let writer = self.writer(item, peer);
            let span = shared.regions.target_span(item.to, item.bytes, done..done + wanted, writer);
            if let Some(span) = span.filter(|_| !shared.regions.is_target_lost(item.to)) {
                shared.pieces.push_span(span);
                return wanted;
            }
            let fault = if span.is_some() { Fault::Lost } else { Fault::Refused };
            frame::set_fault(&mut self.head, at, fault);
        }
        let count = shared.discard.len().min(wanted as usize);
        shared.pieces.push_target(&mut shared.discard[..count]);
        #[expect(clippy::cast_possible_truncation, reason = "at most `wanted`")]
        let count = count as u32;
        count
    }

    /// A call met memory that was taken away, in whichever piece: the next one takes a single piece. If that one fails,
    /// its region is given up, and its payload is dropped.
    fn fault(&mut self, shared: &mut Shared) {
        shared.counters.faults += 1;
        if !self.single {
            self.single = true;
            return;
        }
        self.single = false;
        let item = frame::write_item(&self.head, self.place);
        shared.regions.condemn(RegionIndex(item.to.key.index));
        frame::set_fault(&mut self.head, self.place, Fault::Lost);
    }
}
