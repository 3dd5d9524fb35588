//! The initiator's side of a transfer: chunks, their copies and writes, FIN.

use super::schedule::Visit;
use super::{Engine, POST_CHUNK_COPY};
use crate::list::List;
use crate::pool::Quota;
use crate::port::{Copy, CopyEngine, Fabric, Nanos, Place, PostId, RegionIndex};
use crate::tables::{ChunkEntry, ChunkPhase, ConnectionPhase, GRANTS_MAX, Kind, Leg, Phase, Transfer};
use core::ops::Deref;
use railhead_abi::observe::{Counter, EventCode};
use railhead_abi::record::{Demand, Fin, Record, SLOTS_MAX};
use railhead_abi::submission::{LEG_DIRECT, LEG_STAGED};
use railhead_abi::{Code, Reason};
use railhead_ring::Word;

/// How long a small staged transfer waits for a standing credit before it asks for a block of its own.
const SMALL_WAIT: Nanos = 200_000;

/// Which leg of a transfer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// For a send block of ours.
    Send,
    /// For a block of the peer.
    Receive,
    /// For something that another route would need, too.
    Other,
}

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Does the next thing for a running transfer: a chunk, or FIN.
    pub(super) fn visit(&mut self, index: u32, now: Nanos) -> Visit {
        let transfer = &self.transfers[index as usize];
        let at = usize::from(transfer.connection.0);
        if self.connections[at].phase != ConnectionPhase::Up {
            return Visit::Blocked;
        }
        if !Self::has_slot(transfer) && !self.take_slot(index) {
            return Visit::Blocked;
        }
        if self.transfers[index as usize].chunks_unposted > 0 {
            self.post_ready(self.transfers[index as usize].connection, now);
        }
        let transfer = &self.transfers[index as usize];
        if transfer.kind == Kind::Ask {
            return self.ask(index, now);
        }
        if transfer.withdraws && !self.send_withdrawal(index) {
            return Visit::Blocked;
        }
        let transfer = &self.transfers[index as usize];
        if transfer.next_offset == transfer.submission.bytes {
            return self.finish_posting(index, now);
        }
        let is_fetch = transfer.kind == Kind::Fetch;
        match if is_fetch { self.make_fetch(index, now) } else { self.make_chunk(index, now) } {
            Ok(bytes) => {
                self.end_wait(index);
                // A small transfer is whole in one visit.
                let transfer = &self.transfers[index as usize];
                if transfer.next_offset == transfer.submission.bytes {
                    self.finish_posting(index, now);
                }
                Visit::Made(bytes)
            }
            Err(waits) => self.wait(index, waits, now),
        }
    }

    /// All chunks are made: what ends the transfer goes behind them, if it may.
    fn finish_posting(&mut self, index: u32, now: Nanos) -> Visit {
        let transfer = &self.transfers[index as usize];
        if transfer.kind == Kind::Fetch {
            return self.finish_fetch(index, now);
        }
        if !Self::may_finish(transfer) {
            return Visit::Blocked;
        }
        if self.is_untold(transfer) { self.seal_writes(index, now) } else { self.send_fin(index, now) }
    }

    /// Whether FIN may follow: everything is posted, and where the target will be notified of data that comes straight
    /// from a region, everything was read from it, so that nobody is told of what a lost source could not give. Who asked
    /// for a read is told by FIN.
    const fn may_finish(transfer: &Transfer) -> bool {
        let tells = transfer.submission.notify != 0 || matches!(transfer.kind, Kind::Serve);
        let is_read = transfer.send.staged || !tells || transfer.chunks_open == 0;
        transfer.chunks_unposted == 0 && is_read
    }

    /// Tells the target that the blocks it granted are not wanted; false if it has to be told later.
    fn send_withdrawal(&mut self, index: u32) -> bool {
        let transfer = &self.transfers[index as usize];
        let demand = Demand { slot: transfer.slot, ..Demand::default() };
        let is_sent = self.send_record(transfer.connection, &Record::Demand(demand));
        self.transfers[index as usize].withdraws = !is_sent;
        is_sent
    }

    /// The last quarter of the slots is for sessions that hold few of them: one whose transfers all wait for a slow
    /// receiver must not shut the connection for the others.
    fn may_take_slot(&self, index: u32) -> bool {
        let transfer = &self.transfers[index as usize];
        let connection = &self.connections[usize::from(transfer.connection.0)];
        let free: u32 = connection.slots_free.iter().map(|word| word.count_ones()).sum();
        let slots = connection.info.slots;
        if free > u32::from(slots) / 4 {
            return true;
        }
        let held = (0..slots)
            .filter_map(|slot| self.holder(transfer.connection, slot))
            .filter(|holder| self.transfers[*holder as usize].session == transfer.session)
            .count();
        held < usize::from(slots / 8).max(1)
    }

    fn take_slot(&mut self, index: u32) -> bool {
        if !self.may_take_slot(index) {
            return false;
        }
        let transfer = &mut self.transfers[index as usize];
        let at = usize::from(transfer.connection.0);
        let Some(slot) = self.connections[at].take_slot() else { return false };
        transfer.slot = slot;
        self.connections[at].sequence += 1;
        transfer.sequence = self.connections[at].sequence;
        self.slots[at * usize::from(SLOTS_MAX) + usize::from(slot)] = index;
        self.fix_chunk_bytes(index);
        self.note_own_read(index);
        true
    }

    /// Settles the size of a transfer's chunks: the same for all of them, whatever the settings become.
    pub(super) fn fix_chunk_bytes(&mut self, index: u32) {
        let transfer = &mut self.transfers[index as usize];
        let connection = &self.connections[usize::from(transfer.connection.0)];
        let info = &connection.info;
        let mut bytes = self.active.chunk_bytes.min(u64::from(connection.capabilities.write_bytes_max));
        let is_fetch = transfer.kind == Kind::Fetch;
        if if is_fetch { transfer.receive.staged } else { transfer.send.staged } {
            bytes = bytes
                .min(self.config.pool.block_bytes(Self::send_quota(self.config.pool.small_bytes, transfer)));
        }
        if transfer.receive.staged && !is_fetch {
            let small = transfer.submission.bytes <= info.small_bytes;
            bytes = bytes.min(if small { info.small_bytes } else { info.large_bytes });
        }
        transfer.chunk_bytes = bytes.max(1);
    }

    const fn send_quota(small_bytes: u64, transfer: &Transfer) -> Quota {
        if transfer.submission.bytes <= small_bytes { Quota::SmallSend } else { Quota::LargeSend }
    }

    /// Nothing could be done: after a while under pressure, a leg whose mode is auto goes direct.
    fn wait(&mut self, index: u32, waits: Waits, now: Nanos) -> Visit {
        let transfer = &mut self.transfers[index as usize];
        if transfer.waiting_since == 0 {
            transfer.waiting_since = now.max(1);
            self.wake_wait(index, now.saturating_add(self.active.pressure_wait));
            return Visit::Blocked;
        }
        // While blocks come and go it is only a queue; pressure is when nobody gets one.
        let is_large = transfer.submission.bytes > self.config.pool.small_bytes;
        let (leg, given_at) = match waits {
            Waits::Send => (Self::own_leg(transfer), self.block_given_at[usize::from(is_large)]),
            Waits::Receive => {
                let connection = &self.connections[usize::from(transfer.connection.0)];
                let is_large = transfer.submission.bytes > connection.info.small_bytes;
                let [small, large] = connection.credit_given_at;
                // A small transfer takes what comes first.
                (&mut transfer.receive, if is_large { large } else { small.max(large) })
            }
            Waits::Other => return Visit::Blocked,
        };
        let is_free = leg.is_free;
        let due = transfer.waiting_since.max(given_at).saturating_add(self.active.pressure_wait);
        if is_free && now < due {
            self.wake_wait(index, due);
            return Visit::Blocked;
        }
        let transfer = &mut self.transfers[index as usize];
        // A transfer keeps its route from the first chunk on.
        if !is_free || transfer.chunks_total > 0 {
            return Visit::Blocked;
        }
        let leg = if waits == Waits::Send { Self::own_leg(transfer) } else { &mut transfer.receive };
        leg.staged = false;
        leg.is_free = false;
        leg.reason = Reason::Pressure;
        // What the peer has granted would be missing to others until FIN.
        if waits == Waits::Receive {
            transfer.withdraws = transfer.demanded;
            transfer.grant_count = 0;
        }
        let bytes = transfer.submission.bytes;
        self.end_wait(index);
        self.observe.add(Counter::Pressure, 1);
        self.event(EventCode::RoutePressure, Code::Ok, self.ticket(index), bytes, now);
        Visit::Made(0)
    }

    /// The leg that a block of ours is for.
    const fn own_leg(transfer: &mut Transfer) -> &mut Leg {
        if matches!(transfer.kind, Kind::Fetch) { &mut transfer.receive } else { &mut transfer.send }
    }

    /// A lane that sleeps meanwhile looks again at this moment, or before.
    fn wake_wait(&mut self, index: u32, at: Nanos) {
        let transfer = &mut self.transfers[index as usize];
        transfer.wait_until = transfer.wait_until.min(at);
        self.arm(at);
    }

    pub(super) fn end_wait(&mut self, index: u32) {
        let transfer = &mut self.transfers[index as usize];
        transfer.waiting_since = 0;
        transfer.wait_until = Nanos::MAX;
    }

    /// Makes the next chunk of a transfer and sets it on its way.
    fn make_chunk(&mut self, index: u32, now: Nanos) -> Result<u64, Waits> {
        self.check_room(index, now)?;
        let transfer = &self.transfers[index as usize];
        let connection = transfer.connection;
        let is_small =
            transfer.submission.bytes <= self.connections[usize::from(connection.0)].info.small_bytes;
        let (send_staged, receive_staged) = (transfer.send.staged, transfer.receive.staged);
        if receive_staged && !self.has_credit(index, is_small, now) {
            self.observe.add(Counter::CreditWaits, 1);
            return Err(Waits::Receive);
        }
        let block = if send_staged { Some(self.take_block(index, now).ok_or(Waits::Send)?) } else { None };
        let Some(chunk) = self.chunks_free.pop_front(self.chunk_links) else { return Err(Waits::Other) };
        let is_standing = is_small && self.connections[usize::from(connection.0)].small_credit_count > 0;
        let transfer = &self.transfers[index as usize];
        let offset = transfer.next_offset;
        let bytes = transfer.chunk_bytes.min(transfer.submission.bytes - offset);
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Some(block) = block
            && !self.copy_out(index, chunk, block, offset, length)
        {
            self.put_block(index, block);
            self.chunks_free.push_front(self.chunk_links, chunk);
            return Err(Waits::Other);
        }
        self.chunks[chunk as usize] = ChunkEntry {
            phase: if block.is_some() { ChunkPhase::Copying } else { ChunkPhase::Ready },
            transfer: index,
            offset,
            bytes: length,
            copied_from: now,
            block,
            page: if receive_staged { self.take_credit(index, is_standing) } else { None },
            page_is_small: is_standing,
            is_done: false,
            is_dropped: false,
        };
        let transfer = &mut self.transfers[index as usize];
        transfer.next_offset += bytes;
        transfer.chunks_open += 1;
        transfer.chunks_unposted += 1;
        transfer.chunks_total += 1;
        self.observe.add(Counter::Chunks, 1);
        if block.is_none() {
            self.connections[usize::from(connection.0)].ready.push_back(self.chunk_links, chunk);
            self.post_ready(connection, now);
        }
        Ok(bytes)
    }

    /// Whether the transfer may have another chunk, and its connection takes one.
    pub(super) fn check_room(&mut self, index: u32, now: Nanos) -> Result<(), Waits> {
        let transfer = &self.transfers[index as usize];
        let connection = transfer.connection;
        if transfer.chunks_open >= self.active.depth || self.chunks_free.is_empty() {
            return Err(Waits::Other);
        }
        // What is ready goes first; a connection that takes no more gets no more chunks.
        if !self.connections[usize::from(connection.0)].ready.is_empty() {
            self.post_ready(connection, now);
            if !self.connections[usize::from(connection.0)].ready.is_empty() {
                return Err(Waits::Other);
            }
        }
        Ok(())
    }

    /// Posts the copy of a chunk into its send block; false if the copy engine is full.
    fn copy_out(&mut self, index: u32, chunk: u32, block: u32, offset: u64, bytes: u32) -> bool {
        let submission = &self.transfers[index as usize].submission;
        let from =
            Place { region: RegionIndex(submission.local_index), offset: submission.local_offset + offset };
        let copy = Copy { from, to: self.pool.place(block), bytes, post: PostId(POST_CHUNK_COPY | chunk) };
        if self.copier.copy(&copy).is_err() {
            self.observe.add(Counter::CopiesFull, 1);
            return false;
        }
        self.observe.add(Counter::CopyBytes, u64::from(bytes));
        true
    }

    /// A send block, unless the transfer's session or connection holds its share of them already.
    pub(super) fn take_block(&mut self, index: u32, now: Nanos) -> Option<u32> {
        let transfer = &self.transfers[index as usize];
        let quota = Self::send_quota(self.config.pool.small_bytes, transfer);
        let is_large = usize::from(quota == Quota::LargeSend);
        let sharing = self.sessions_active.iter().map(List::count).max().unwrap_or(0).max(1);
        let share = (self.pool.shape().count(quota) as usize / sharing).max(1);
        let queue = &mut self.session_queues[transfer.session as usize];
        let connection = &mut self.connections[usize::from(transfer.connection.0)];
        let may = (queue.blocks[is_large] as usize) < share
            && (is_large == 0 || connection.large_send < self.active.window_blocks);
        let Some(block) = may.then(|| self.pool.take(quota)).flatten() else {
            self.observe.add(Counter::BlockWaits, 1);
            return None;
        };
        queue.blocks[is_large] += 1;
        connection.large_send += u16::from(quota == Quota::LargeSend);
        self.block_given_at[is_large] = now;
        Some(block)
    }

    pub(super) fn put_block(&mut self, index: u32, block: u32) {
        let transfer = &self.transfers[index as usize];
        let quota = self.pool.shape().quota(block);
        self.session_queues[transfer.session as usize].blocks[usize::from(quota == Quota::LargeSend)] -= 1;
        self.connections[usize::from(transfer.connection.0)].large_send -=
            u16::from(quota == Quota::LargeSend);
        self.pool.put(block);
    }

    /// Whether the next chunk has a block at the peer; asks for large ones when the transfer has not asked yet. A small
    /// transfer asks only after it has waited in vain: other connections may hold all the small blocks.
    fn has_credit(&mut self, index: u32, is_small: bool, now: Nanos) -> bool {
        let transfer = &self.transfers[index as usize];
        let connection = transfer.connection;
        if is_small && self.connections[usize::from(connection.0)].small_credit_count > 0 {
            return true;
        }
        if transfer.grant_count > 0 {
            return true;
        }
        let since = if transfer.waiting_since == 0 { now } else { transfer.waiting_since };
        if is_small && now < since.saturating_add(SMALL_WAIT) {
            self.wake_wait(index, since.saturating_add(SMALL_WAIT));
            return false;
        }
        let transfer = &self.transfers[index as usize];
        if !transfer.demanded {
            let depth = self.active.depth.min(GRANTS_MAX as u16);
            let demand = Demand {
                slot: transfer.slot,
                chunk_bytes: u32::try_from(transfer.chunk_bytes).unwrap_or(u32::MAX),
                depth,
                chunks: transfer.submission.bytes.div_ceil(transfer.chunk_bytes),
                plan_generation: transfer.plan_generation,
                ..Demand::default()
            };
            if self.send_record(connection, &Record::Demand(demand)) {
                let transfer = &mut self.transfers[index as usize];
                transfer.demanded = true;
                transfer.touched = true;
                transfer.told = true;
                self.progress();
            }
        }
        false
    }

    fn take_credit(&mut self, index: u32, is_standing: bool) -> Option<u32> {
        let transfer = &mut self.transfers[index as usize];
        if !is_standing {
            return transfer.take_grant();
        }
        let connection = &mut self.connections[usize::from(transfer.connection.0)];
        let count = connection.small_credit_count.checked_sub(1)?;
        connection.small_credit_count = count;
        Some(connection.small_credits[usize::from(count)])
    }

    fn send_fin(&mut self, index: u32, now: Nanos) -> Visit {
        let transfer = &self.transfers[index as usize];
        let connection = transfer.connection;
        let is_serve = transfer.kind == Kind::Serve;
        let leg = |leg: &Leg| if leg.staged { LEG_STAGED } else { LEG_DIRECT };
        let fin = Fin {
            slot: transfer.slot,
            notify: transfer.submission.notify,
            notify_index: transfer.submission.notify_index,
            notify_value: transfer.submission.notify_value,
            region_index: transfer.key.index,
            region_epoch: transfer.key.epoch,
            offset: transfer.submission.remote_offset,
            bytes: transfer.submission.bytes,
            receive_leg: leg(&transfer.receive),
            send_leg: if is_serve { leg(&transfer.send) } else { 0 },
            send_reason: if is_serve { transfer.send.reason as u8 } else { 0 },
            receive_reason: if is_serve { transfer.receive.reason as u8 } else { 0 },
            plan_generation: transfer.plan_generation,
            sequence: transfer.sequence,
            ..Fin::default()
        };
        if !self.send_record(connection, &Record::Fin(fin)) {
            return Visit::Blocked;
        }
        self.make_unrunnable(index);
        let transfer = &mut self.transfers[index as usize];
        transfer.touched = true;
        transfer.told = true;
        transfer.phase = Phase::AwaitAck;
        transfer.last_post_at = now;
        if transfer.first_post_at == 0 {
            transfer.first_post_at = now;
        }
        Visit::Made(0)
    }
}
