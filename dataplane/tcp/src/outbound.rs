//! The sending half of a connection: posts become frames, frames become gathered calls.
//!
//! Three queues follow each other: what was posted; the pieces (heads and payload) of frames that were made; the posts
//! that ended and wait to be told. A frame is made only when the pieces do not fill a call, so while the socket is full
//! posts gather, and the next frame carries many of them.

use core::ops::Range;

use railhead_abi::Code;
use railhead_abi::record::{RECORD_WORDS_MAX, RawRecord};
use railhead_core::port::{PostError, PostId, RemotePlace, Write};

use crate::frame::{self, HEAD_BYTES_MAX, HEADER_BYTES, Header, WRITE_BYTES, WriteItem};
use crate::regions::Source;
use crate::ring::Ring;
use crate::shared::Shared;
use crate::socket::Moved;

/// Pieces of frames that were made and not sent.
const PIECES: usize = 512;
/// Bytes for the heads of these frames.
const HEADS_BYTES: usize = 4 * HEAD_BYTES_MAX;

/// What was posted, in order.
#[derive(Debug, Clone, Copy)]
enum Posted {
    Write(PostedWrite),
    Flush(PostId),
    /// The next record of the ring of records.
    Record,
}

#[derive(Debug, Clone, Copy)]
struct PostedWrite {
    from: Source,
    to: RemotePlace,
    bytes: u32,
    slot: u16,
    post: PostId,
}

/// A run of bytes of a frame.
#[derive(Debug, Clone, Copy)]
struct Piece {
    from: From,
    bytes: u32,
    /// The post that ends when this piece is sent.
    ends: Option<PostId>,
}

#[derive(Debug, Clone, Copy)]
enum From {
    /// The ring of heads, from this byte on.
    Head(usize),
    /// A region; the place is that of the piece's first byte.
    Region(Source),
    /// Nothing: the piece only carries the end of a post.
    Nothing,
}

/// Queues of the sending half. All memory is allocated once.
#[derive(Debug)]
pub(crate) struct Outbound {
    posted: Ring<Posted>,
    records: Ring<RawRecord>,
    pieces: Ring<Piece>,
    /// Ring of heads: each head is contiguous.
    heads: Box<[u8]>,
    /// Where the next head goes.
    heads_end: usize,
    /// Where the first unsent head is.
    heads_start: usize,
    ended: Ring<(PostId, Code)>,
    posts_max: u16,
    records_max: u16,
    /// Posts taken whose end was not told yet.
    posts: u16,
    /// Bytes of the write at the front of `posted` that are in frames.
    framed: u32,
    /// Bytes of the first piece that are sent.
    sent: u32,
    /// Bytes of all pieces that are not sent.
    unsent: usize,
    /// The socket is full; cleared when the kernel says that it can be written.
    pub(crate) blocked: bool,
    /// The next call sends one piece only: to learn which one is gone.
    single: bool,
}

impl Outbound {
    pub(crate) fn new(posts_max: u16, records_max: u16) -> Self {
        let (posts, records) = (usize::from(posts_max), usize::from(records_max));
        let no_record = RawRecord { words: [0; RECORD_WORDS_MAX] };
        Self {
            posted: Ring::new(posts + records, Posted::Record),
            records: Ring::new(records, no_record),
            pieces: Ring::new(PIECES, Piece { from: From::Nothing, bytes: 0, ends: None }),
            heads: vec![0; HEADS_BYTES].into(),
            heads_end: 0,
            heads_start: 0,
            ended: Ring::new(posts, (PostId(0), Code::Ok)),
            posts_max,
            records_max,
            posts: 0,
            framed: 0,
            sent: 0,
            unsent: 0,
            blocked: false,
            single: false,
        }
    }

    /// Forgets everything, for a new connection.
    pub(crate) fn reset(&mut self) {
        self.posted.clear();
        self.records.clear();
        self.pieces.clear();
        self.ended.clear();
        (self.heads_start, self.heads_end) = (0, 0);
        (self.posts, self.framed, self.sent, self.unsent) = (0, 0, 0, 0);
        (self.blocked, self.single) = (false, false);
    }

    pub(crate) fn post_record(&mut self, record: &RawRecord) -> Result<(), PostError> {
        if self.records.len() == usize::from(self.records_max) {
            return Err(PostError::Full);
        }
        self.records.push(*record);
        self.posted.push(Posted::Record);
        Ok(())
    }

    pub(crate) fn post_write(&mut self, write: &Write, from: Source) -> Result<(), PostError> {
        let Write { bytes, to, slot, post, .. } = *write;
        self.post(Posted::Write(PostedWrite { from, to, bytes, slot, post }))
    }

    pub(crate) fn post_flush(&mut self, post: PostId) -> Result<(), PostError> {
        self.post(Posted::Flush(post))
    }

    fn post(&mut self, posted: Posted) -> Result<(), PostError> {
        if self.posts == self.posts_max {
            return Err(PostError::Full);
        }
        self.posts += 1;
        self.posted.push(posted);
        Ok(())
    }

    /// Whether a send call could make progress.
    pub(crate) fn wants_send(&self) -> bool {
        !self.blocked && (!self.pieces.is_empty() || !self.posted.is_empty())
    }

    /// Whether ends wait to be told.
    pub(crate) const fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The next post that ended.
    pub(crate) fn next_ended(&mut self) -> Option<(PostId, Code)> {
        let ended = self.ended.pop()?;
        self.posts -= 1;
        Some(ended)
    }

    /// The connection is gone: the next post that ends by that.
    pub(crate) fn next_reset(&mut self) -> Option<(PostId, Code)> {
        if let Some(ended) = self.next_ended() {
            return Some(ended);
        }
        while let Some(piece) = self.pieces.pop() {
            if let Some(post) = piece.ends {
                return Some((post, Code::ConnectionReset));
            }
        }
        while let Some(posted) = self.posted.pop() {
            if let Posted::Write(PostedWrite { post, .. }) | Posted::Flush(post) = posted {
                return Some((post, Code::ConnectionReset));
            }
        }
        None
    }

    /// Room for a head of the largest size, if there is any.
    fn head_room(&mut self) -> Option<Range<usize>> {
        if self.pieces.is_empty() {
            (self.heads_start, self.heads_end) = (0, 0);
        }
        // The ring is never filled up: equal ends mean empty.
        let wrapped = self.heads_end < self.heads_start;
        let limit = if wrapped { self.heads_start } else { self.heads.len() };
        if limit - self.heads_end > HEAD_BYTES_MAX {
            return Some(self.heads_end..self.heads_end + HEAD_BYTES_MAX);
        }
        (!wrapped && self.heads_start > HEAD_BYTES_MAX).then_some(0..HEAD_BYTES_MAX)
    }

    /// Makes frames of what was posted until a call's worth is waiting.
    fn fill(&mut self, shared: &mut Shared) {
        while self.unsent < shared.coalesce_bytes as usize && !self.posted.is_empty() {
            // A frame takes at least the pieces of its head and of one write.
            if self.pieces.len() + 2 > PIECES {
                return;
            }
            let Some(room) = self.head_room() else { return };
            self.make_frame(room, shared.slice_bytes);
            shared.counters.frames_sent += 1;
        }
    }

    /// Makes one frame, with its head in `room`.
    fn make_frame(&mut self, room: Range<usize>, slice_bytes: u32) {
        let head_at = room.start;
        let head_piece = self.pieces.len();
        self.pieces.push(Piece { from: From::Head(head_at), bytes: 0, ends: None });
        let (mut used, mut items, mut payload) = (HEADER_BYTES, 0u16, 0u32);
        while let Some(posted) = self.posted.first().copied() {
            match posted {
                Posted::Record => {
                    let Some(record) = self.records.first() else { break };
                    let bytes = frame::record_bytes(record);
                    if used + bytes > HEAD_BYTES_MAX {
                        break;
                    }
                    frame::put_record(&mut self.heads[head_at + used..], record);
                    self.records.pop();
                    used += bytes;
                }
                Posted::Flush(post) => {
                    // Not on the wire: what arrived before is visible at once here.
                    if self.pieces.is_full() {
                        break;
                    }
                    self.pieces.push(Piece { from: From::Nothing, bytes: 0, ends: Some(post) });
                    self.posted.pop();
                    continue;
                }
                Posted::Write(write) => {
                    let rest = write.bytes - self.framed;
                    let free = slice_bytes - payload;
                    // Only a write that no frame could hold is cut, and it begins in a frame of its own.
                    let fits = rest <= free || payload == 0;
                    if !fits || used + WRITE_BYTES > HEAD_BYTES_MAX || self.pieces.is_full() {
                        break;
                    }
                    let bytes = rest.min(free);
                    self.put_write(head_at + used, &write, bytes);
                    used += WRITE_BYTES;
                    payload += bytes;
                    items += 1;
                    if bytes < rest {
                        break;
                    }
                    self.posted.pop();
                    continue;
                }
            }
            items += 1;
            self.posted.pop();
        }
        self.finish_frame(head_at..head_at + used, head_piece, items, payload);
    }

    /// Adds the item and the piece for the next `bytes` of the write at the front.
    fn put_write(&mut self, at: usize, write: &PostedWrite, bytes: u32) {
        let more = self.framed + bytes < write.bytes;
        let skip = u64::from(self.framed);
        let to = RemotePlace { offset: write.to.offset.wrapping_add(skip), ..write.to };
        frame::put_write(
            &mut self.heads[at..],
            &WriteItem { to, bytes, slot: write.slot, more, fault: None },
        );
        let from = write.from.skip(skip);
        self.pieces.push(Piece { from: From::Region(from), bytes, ends: (!more).then_some(write.post) });
        self.framed = if more { self.framed + bytes } else { 0 };
    }

    /// Writes the header, pads the head and counts the frame's bytes.
    fn finish_frame(&mut self, used: Range<usize>, head_piece: usize, items: u16, payload: u32) {
        if items == 0 {
            // Only flushes: no frame goes out, and their ends follow the pieces before.
            if let Some(piece) = self.pieces.get_mut(head_piece) {
                piece.from = From::Nothing;
            }
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most HEAD_BYTES_MAX")]
        let items_bytes = (used.len() - HEADER_BYTES) as u32;
        let header = Header { items, items_bytes, payload_bytes: payload };
        let head_bytes = header.head_bytes();
        self.heads[used.start..used.start + HEADER_BYTES].copy_from_slice(&header.encode());
        self.heads[used.end..used.start + head_bytes].fill(0);
        self.heads_end = used.start + head_bytes;
        if let Some(piece) = self.pieces.get_mut(head_piece) {
            #[expect(clippy::cast_possible_truncation, reason = "at most HEAD_BYTES_MAX")]
            let bytes = head_bytes as u32;
            piece.bytes = bytes;
        }
        self.unsent += head_bytes + payload as usize;
    }

    /// Collects the front of the pieces for one call. The limit is that of payload: a call never ends shortly before a
    /// frame does only because the frame has a head.
    fn gather(&self, shared: &mut Shared) {
        shared.pieces.clear();
        let mut free = shared.coalesce_bytes;
        let mut skip = self.sent;
        for index in 0..self.pieces.len() {
            let Some(piece) = self.pieces.get(index) else { break };
            let mut rest = piece.bytes - skip;
            let mut done = skip;
            skip = 0;
            while rest > 0 {
                let is_payload = matches!(piece.from, From::Region(_));
                if shared.pieces.is_full() || is_payload && free == 0 {
                    return;
                }
                let wanted = if is_payload { rest.min(free) } else { rest };
                let taken = Self::gather_piece(&self.heads, shared, piece, done, wanted);
                if is_payload {
                    free -= taken;
                }
                done += taken;
                rest -= taken;
                if self.single {
                    return;
                }
            }
        }
    }

    /// Adds at most `wanted` bytes of a piece from its byte `done` on; returns how many.
    fn gather_piece(heads: &[u8], shared: &mut Shared, piece: &Piece, done: u32, wanted: u32) -> u32 {
        match piece.from {
            From::Head(at) => {
                let at = at + done as usize;
                shared.pieces.push_source(&heads[at..at + wanted as usize]);
                wanted
            }
            From::Region(source) => {
                let source = source.skip(u64::from(done));
                if let Some(span) = shared.regions.source_span(source, wanted) {
                    shared.pieces.push_span(span);
                    return wanted;
                }
                // The source is gone. The frame is finished all the same, so that others' data can follow.
                let zeroes = &shared.zeroes[..shared.zeroes.len().min(wanted as usize)];
                shared.pieces.push_source(zeroes);
                #[expect(clippy::cast_possible_truncation, reason = "at most `wanted`")]
                let bytes = zeroes.len() as u32;
                bytes
            }
            From::Nothing => 0,
        }
    }

    /// One send call at most, with the frames that it takes made first. Returns how it went; `None` if nothing waits.
    pub(crate) fn send(&mut self, socket: std::os::fd::BorrowedFd<'_>, shared: &mut Shared) -> Option<Moved> {
        self.fill(shared);
        self.settle(0, shared);
        self.gather(shared);
        if shared.pieces.count() == 0 {
            return None;
        }
        let asked = shared.pieces.bytes();
        shared.counters.sends += 1;
        let moved = crate::socket::send(socket, &mut shared.pieces);
        match moved {
            Moved::Bytes(bytes) => {
                shared.counters.bytes_sent += bytes as u64;
                // A short call means a full socket: the kernel tells when there is room.
                self.blocked = bytes < asked && !self.single;
                self.single = false;
                self.settle(bytes, shared);
            }
            Moved::Again => {
                shared.counters.sends_again += 1;
                self.blocked = true;
            }
            Moved::Fault => self.fault(shared),
            Moved::Retry | Moved::End | Moved::Broken => {}
        }
        Some(moved)
    }

    /// Counts `bytes` as sent, and ends the posts whose last piece that was.
    fn settle(&mut self, bytes: usize, shared: &Shared) {
        self.unsent -= bytes;
        let mut rest = bytes;
        while let Some(piece) = self.pieces.first() {
            let left = (piece.bytes - self.sent) as usize;
            if rest < left {
                #[expect(clippy::cast_possible_truncation, reason = "less than `left`")]
                let part = rest as u32;
                self.sent += part;
                return;
            }
            rest -= left;
            self.sent = 0;
            if let From::Head(at) = piece.from {
                self.heads_start = at + piece.bytes as usize;
            }
            if let Some(post) = piece.ends {
                let lost = match piece.from {
                    // After the last byte: what was lost meanwhile was replaced by zeroes.
                    From::Region(source) => shared.regions.is_source_lost(source, piece.bytes),
                    _ => false,
                };
                self.ended.push((post, if lost { Code::RegionLost } else { Code::Ok }));
            }
            self.pieces.pop();
        }
    }

    /// A call met memory that was taken away, in whichever piece: the next one sends a single piece. If that one fails,
    /// its region is given up, and the piece is sent from zeroes.
    fn fault(&mut self, shared: &mut Shared) {
        shared.counters.faults += 1;
        if !self.single {
            self.single = true;
            return;
        }
        self.single = false;
        if let Some(Piece { from: From::Region(source), .. }) = self.pieces.first() {
            shared.regions.condemn(source.place.region);
        }
    }
}
