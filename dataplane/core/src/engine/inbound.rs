//! The target's side: blocks for peers, copies home, delivery, ACK.

use super::intake::within;
use super::{Engine, POST_BLOCK_COPY, POST_FLUSH, to_u32};
use crate::pool::Quota;
use crate::port::{ConnectionIndex, Copy, CopyEngine, Fabric, Key, Nanos, Place, PostId, RegionIndex};
use crate::tables::{BlockEntry, BlockPhase, ConnectionPhase, Inbound, Phase, RegionInfo, Role};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_abi::observe::Counter;
use railhead_abi::record::{Ack, Chunk, Fin, Plain, Record, SLOT_NONE, SLOTS_MAX};
use railhead_abi::submission::{LEG_DIRECT, NOTIFY_EVENT, NOTIFY_NONE, NOTIFY_SIGNAL, SessionEvent};
use railhead_ring::Word;

/// What became of an answer.
enum Answer {
    Sent,
    Waits,
    Flushing,
}

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    pub(super) const fn inbound_index(connection: ConnectionIndex, slot: u16) -> u32 {
        to_u32(connection.0 as usize * SLOTS_MAX as usize + slot as usize)
    }

    pub(super) const fn inbound_owner(index: u32) -> (ConnectionIndex, u16) {
        #[expect(clippy::cast_possible_truncation, reason = "the table has connections x SLOTS_MAX entries")]
        (ConnectionIndex((index / SLOTS_MAX as u32) as u16), (index % SLOTS_MAX as u32) as u16)
    }

    /// The entry of a slot, begun if this is the transfer's first record.
    pub(super) fn touch_inbound(
        &mut self,
        connection: ConnectionIndex,
        slot: u16,
        now: Nanos,
    ) -> Option<u32> {
        if slot >= self.connections[usize::from(connection.0)].info.slots {
            return None;
        }
        let index = Self::inbound_index(connection, slot);
        let inbound = &mut self.inbound[index as usize];
        if !inbound.is_active {
            if self.connections[usize::from(connection.0)].info.serves {
                // Nobody asked for it.
                return None;
            }
            let reader = inbound.reader;
            *inbound = Inbound { is_active: true, since: now, reader, ..Inbound::IDLE };
            self.connections[usize::from(connection.0)].inbound += 1;
        }
        Some(index)
    }

    /// The region that a peer may write to at these bytes.
    fn writable(
        &self,
        connection: ConnectionIndex,
        index: u32,
        epoch: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<(RegionIndex, RegionInfo)> {
        let region = self.region_at(index)?;
        let entry = &self.regions[index as usize];
        let info = entry.info.filter(|info| !entry.is_closing && info.generation == epoch)?;
        let peer = self.connections[usize::from(connection.0)].info.peer;
        let may = info.access & ACCESS_WRITE != 0 && peer < 64 && info.peers >> peer & 1 == 1;
        (may && within(offset, bytes, info.bytes)).then_some((region, info))
    }

    /// The region that what comes in under an entry may be put to: the peer's choice where it has the right, or exactly
    /// what a read of ours asked for.
    fn destination(
        &self,
        index: u32,
        key: Key,
        offset: u64,
        bytes: u64,
    ) -> Option<(RegionIndex, RegionInfo)> {
        let (connection, _) = Self::inbound_owner(index);
        let Some(reader) = self.inbound[index as usize].reader else {
            return self.writable(connection, key.index, key.epoch, offset, bytes);
        };
        let transfer = self.transfers.get(reader.transfer as usize)?;
        if transfer.generation != reader.generation || transfer.phase == Phase::Free {
            return None;
        }
        let (region, epoch, first, length) = Self::read_into(transfer);
        let inside = offset >= first && within(offset - first, bytes, length);
        // The read holds the region, even if it is to go.
        let info = self.regions[region.0 as usize].info.filter(|info| info.generation == epoch)?;
        (inside && key == Key { index: region.0, epoch }).then_some((region, info))
    }

    /// CHUNK: the block was written; its copy home begins.
    pub(super) fn chunk_arrived(&mut self, connection: ConnectionIndex, chunk: &Chunk, now: Nanos) -> bool {
        let Some(index) = self.touch_inbound(connection, chunk.slot, now) else { return false };
        let Some(block) = self.pool.shape().at_page(chunk.block) else { return false };
        let entry = self.blocks[block as usize];
        let is_granted = entry.phase == BlockPhase::Granted
            && entry.connection == connection
            && (entry.slot == chunk.slot || entry.slot == SLOT_NONE);
        let block_bytes = self.pool.shape().block_bytes(self.pool.shape().quota(block));
        let inbound = &mut self.inbound[index as usize];
        if !is_granted || chunk.bytes == 0 || u64::from(chunk.bytes) > block_bytes || inbound.fin.is_some() {
            return false;
        }
        if entry.slot == SLOT_NONE {
            self.connections[usize::from(connection.0)].small_granted -= 1;
        } else {
            inbound.grants_open -= 1;
        }
        let key = Key { index: chunk.region_index, epoch: chunk.region_epoch };
        let target = self.destination(index, key, chunk.offset, u64::from(chunk.bytes));
        let Some((region, _)) = target else {
            self.fail_inbound(index, Code::RemoteRefused);
            self.home(block);
            return true;
        };
        self.regions[region.0 as usize].uses += 1;
        self.inbound[index as usize].copies += 1;
        self.hold_reader(index);
        self.connections[usize::from(connection.0)].inbound_open += 1;
        self.blocks[block as usize] = BlockEntry {
            phase: BlockPhase::Waiting,
            connection,
            slot: chunk.slot,
            region,
            offset: chunk.offset,
            bytes: chunk.bytes,
        };
        self.copies_waiting.push_back(self.block_links, block);
        self.post_copies();
        true
    }

    fn home(&mut self, block: u32) {
        let connection = usize::from(self.blocks[block as usize].connection.0);
        let is_large = self.pool.shape().quota(block) == Quota::LargeReceive;
        self.connections[connection].large_granted -= u16::from(is_large);
        self.blocks[block as usize] = BlockEntry::default();
        self.pool.put(block);
    }

    fn fail_inbound(&mut self, index: u32, status: Code) {
        let inbound = &mut self.inbound[index as usize];
        if inbound.status == Code::Ok {
            inbound.status = status;
        }
    }

    fn post_copies(&mut self) {
        while let Some(block) = self.copies_waiting.front() {
            let entry = self.blocks[block as usize];
            let copy = Copy {
                from: self.pool.place(block),
                to: Place { region: entry.region, offset: entry.offset },
                bytes: entry.bytes,
                post: PostId(POST_BLOCK_COPY | block),
            };
            if self.copier.copy(&copy).is_err() {
                self.observe.add(Counter::CopiesFull, 1);
                return;
            }
            self.observe.add(Counter::CopyBytes, u64::from(entry.bytes));
            self.copies_waiting.remove(self.block_links, block);
            self.blocks[block as usize].phase = BlockPhase::Copying;
        }
    }

    /// A copy home ended: the block is free again.
    pub(super) fn block_copied(&mut self, block: u32, status: Code, now: Nanos) {
        let entry = self.blocks[block as usize];
        debug_assert!(entry.phase == BlockPhase::Copying);
        self.home(block);
        self.release_region(entry.region.0);
        let at = usize::from(entry.connection.0);
        self.connections[at].inbound_open -= 1;
        let index = Self::inbound_index(entry.connection, entry.slot);
        let inbound = &mut self.inbound[index as usize];
        inbound.copies -= 1;
        let reader = inbound.reader;
        if status != Code::Ok {
            let status = if status == Code::RegionLost { Code::RemoteRegionLost } else { Code::DeviceError };
            self.fail_inbound(index, status);
        }
        if self.connections[at].phase == ConnectionPhase::Up {
            self.answer_later(index);
        } else {
            self.connections_unsettled = true;
        }
        self.release_reader(reader, now);
    }

    /// Queues the answer if everything that it waits for has ended.
    fn answer_later(&mut self, index: u32) {
        let inbound = &self.inbound[index as usize];
        let is_due =
            (inbound.fin.is_some() || inbound.is_cancelled) && inbound.copies == 0 && !inbound.is_flushing;
        if is_due && !self.answer_links[index as usize].is_linked() {
            self.answers.push_back(self.answer_links, index);
        }
    }

    /// FIN: everything of the transfer has arrived.
    pub(super) fn fin_arrived(&mut self, connection: ConnectionIndex, fin: &Fin, now: Nanos) -> bool {
        let Some(index) = self.touch_inbound(connection, fin.slot, now) else { return false };
        // Transfers of this version use one connection, so no PART is to come.
        let serves = self.connections[usize::from(connection.0)].info.serves;
        let is_sound = fin.parts == 0 && fin.notify <= NOTIFY_EVENT && (fin.notify == NOTIFY_NONE || !serves);
        let is_sound = is_sound && self.is_of_reader(index, fin.sequence);
        if !is_sound || self.inbound[index as usize].fin.is_some() {
            return false;
        }
        self.inbound[index as usize].fin = Some(*fin);
        self.reclaim(connection, fin.slot);
        let key = Key { index: fin.region_index, epoch: fin.region_epoch };
        if self.destination(index, key, fin.offset, fin.bytes).is_none() {
            self.fail_inbound(index, Code::RemoteRefused);
        }
        self.answer_later(index);
        true
    }

    /// CANCEL: nothing more comes; what came is brought to an end first.
    pub(super) fn cancel_arrived(&mut self, connection: ConnectionIndex, plain: &Plain, now: Nanos) -> bool {
        let Some(index) = self.touch_inbound(connection, plain.slot, now) else { return false };
        if self.inbound[index as usize].is_cancelled || !self.is_of_reader(index, plain.sequence) {
            return false;
        }
        self.inbound[index as usize].is_cancelled = true;
        self.inbound[index as usize].cancel_status = plain.status;
        if self.inbound[index as usize].fin.is_none() {
            // Only the sequence of the answer is taken from it.
            self.inbound[index as usize].fin =
                Some(Fin { slot: plain.slot, sequence: plain.sequence, ..Fin::default() });
            self.fail_inbound(index, Code::Cancelled);
            self.reclaim(connection, plain.slot);
        }
        self.answer_later(index);
        true
    }

    /// Takes back the blocks that a transfer was granted and did not use: none can be written any more.
    pub(super) fn reclaim(&mut self, connection: ConnectionIndex, slot: u16) {
        let index = Self::inbound_index(connection, slot);
        let inbound = &mut self.inbound[index as usize];
        inbound.chunks_granted = inbound.chunks_wanted;
        let open = core::mem::take(&mut inbound.grants_open);
        if open > 0 {
            self.reclaim_blocks(|entry| entry.connection == connection && entry.slot == slot);
        }
    }

    fn reclaim_blocks(&mut self, is_meant: impl Fn(&BlockEntry) -> bool) {
        for block in 0..to_u32(self.blocks.len()) {
            let entry = &self.blocks[block as usize];
            if entry.phase == BlockPhase::Granted && is_meant(entry) {
                self.home(block);
            }
        }
    }

    /// Everything that the target's side can do in one turn.
    pub(super) fn push_inbound(&mut self, now: Nanos) {
        self.post_copies();
        self.push_answers(now);
        self.grant_small();
        self.grant_large();
    }

    fn push_answers(&mut self, now: Nanos) {
        let mut rounds = self.answers.count();
        while rounds > 0 {
            rounds -= 1;
            let Some(index) = self.answers.pop_front(self.answer_links) else { return };
            match self.answer(index, now) {
                Answer::Sent => {
                    let (connection, _) = Self::inbound_owner(index);
                    let inbound = core::mem::replace(&mut self.inbound[index as usize], Inbound::IDLE);
                    self.connections[usize::from(connection.0)].inbound -= 1;
                    self.finish_ask(connection, &inbound, now);
                    self.progress();
                }
                Answer::Waits => self.answers.push_back(self.answer_links, index),
                Answer::Flushing => self.progress(),
            }
        }
    }

    /// Flushes, delivers and answers one inbound transfer.
    fn answer(&mut self, index: u32, now: Nanos) -> Answer {
        let (connection, slot) = Self::inbound_owner(index);
        let inbound = self.inbound[index as usize];
        let Some(fin) = inbound.fin else { return Answer::Sent };
        // Of what failed nothing may become visible later, either; after CANCEL the region is not known.
        let failed = inbound.is_cancelled || inbound.status != Code::Ok;
        let flush_needed = self.connections[usize::from(connection.0)].capabilities.flush_needed;
        if failed && flush_needed && !inbound.is_flushed {
            return self.flush_inbound(index);
        }
        if inbound.is_cancelled {
            let status = if inbound.is_delivered { Code::Ok } else { Code::Cancelled };
            let plain = Plain { slot, status: status.number(), sequence: fin.sequence, ..Plain::default() };
            return if self.send_record(connection, &Record::Cancelled(plain)) {
                Answer::Sent
            } else {
                Answer::Waits
            };
        }
        if inbound.status == Code::Ok && !inbound.is_delivered {
            // Looked up again: the region may have gone since FIN came.
            let key = Key { index: fin.region_index, epoch: fin.region_epoch };
            let target = self.destination(index, key, fin.offset, fin.bytes);
            let Some((region, info)) = target else {
                self.fail_inbound(index, Code::RemoteRefused);
                self.progress();
                return Answer::Waits;
            };
            let is_direct = fin.receive_leg == LEG_DIRECT && fin.bytes > 0;
            if flush_needed && info.flush && is_direct && !inbound.is_flushed {
                return self.flush_inbound(index);
            }
            match self.deliver(region, &info, &fin) {
                Ok(true) => {}
                Ok(false) => {
                    self.events_full = true;
                    self.observe.add(Counter::EventWaits, 1);
                    return Answer::Waits;
                }
                Err(status) => self.fail_inbound(index, status),
            }
            self.inbound[index as usize].is_delivered = self.inbound[index as usize].status == Code::Ok;
        }
        let status = self.inbound[index as usize].status;
        let ack = Ack {
            slot,
            status: status.number(),
            receive_ns: now.saturating_sub(inbound.since),
            sequence: fin.sequence,
            ..Ack::default()
        };
        if !self.send_record(connection, &Record::Ack(ack)) {
            return Answer::Waits;
        }
        if status == Code::Ok {
            self.observe.add(Counter::Inbound, 1);
            self.observe.add(Counter::InboundBytes, fin.bytes);
        } else {
            self.observe.add(Counter::RemoteRefused, 1);
        }
        Answer::Sent
    }

    /// Makes what came in for a transfer visible before anything is said about it.
    fn flush_inbound(&mut self, index: u32) -> Answer {
        let (connection, _) = Self::inbound_owner(index);
        if self.fabric.flush(connection, PostId(POST_FLUSH | index)).is_err() {
            return Answer::Waits;
        }
        self.observe.add(Counter::Flushes, 1);
        self.inbound[index as usize].is_flushing = true;
        self.connections[usize::from(connection.0)].inbound_open += 1;
        Answer::Flushing
    }

    /// Notifies the session that owns the region; false while its event ring is full.
    fn deliver(&mut self, region: RegionIndex, info: &RegionInfo, fin: &Fin) -> Result<bool, Code> {
        if fin.notify == 0 {
            return Ok(true);
        }
        let session = info.session as usize;
        let parts =
            self.sessions.get_mut(session).and_then(Option::as_mut).ok_or(Code::NotificationRefused)?;
        if fin.notify == NOTIFY_SIGNAL {
            let word = parts.signals.get(fin.notify_index as usize).ok_or(Code::NotificationRefused)?;
            word.fetch_add_release(fin.notify_value);
        } else {
            let event = SessionEvent {
                value: fin.notify_value,
                region_index: region.0,
                region_generation: info.generation,
                offset: fin.offset,
                bytes: fin.bytes,
            };
            if parts.events.push_publish(&event.encode()).is_err() {
                return Ok(false);
            }
        }
        if parts.bell.take() {
            self.sessions_to_wake[session / 64] |= 1 << (session % 64);
        }
        Ok(true)
    }

    pub(super) fn inbound_flushed(&mut self, index: u32, status: Code, _now: Nanos) {
        let (connection, _) = Self::inbound_owner(index);
        self.connections[usize::from(connection.0)].inbound_open -= 1;
        let inbound = &mut self.inbound[index as usize];
        inbound.is_flushing = false;
        inbound.is_flushed = true;
        if status != Code::Ok {
            self.fail_inbound(index, Code::DeviceError);
        }
        if self.connections[usize::from(connection.0)].phase == ConnectionPhase::Up {
            self.answer_later(index);
        } else {
            self.connections_unsettled = true;
        }
    }

    /// The fabric refused a write of a peer; the transfer's ACK will say so.
    pub(super) fn inbound_refused(
        &mut self,
        connection: ConnectionIndex,
        slot: u16,
        status: Code,
        now: Nanos,
    ) {
        let entry = &self.connections[usize::from(connection.0)];
        if entry.phase != ConnectionPhase::Up || entry.info.role != Role::Target {
            return;
        }
        match self.touch_inbound(connection, slot, now) {
            Some(index) => self.fail_inbound(index, status),
            None => self.violation(connection, now),
        }
    }

    /// The connection is down: no block of it is written any more, no answer can be given.
    pub(super) fn end_inbound(&mut self, connection: ConnectionIndex) {
        let slots = self.connections[usize::from(connection.0)].info.slots;
        for slot in 0..slots {
            let index = Self::inbound_index(connection, slot);
            if self.demand_links[index as usize].is_linked() {
                self.demands.remove(self.demand_links, index);
            }
            if self.answer_links[index as usize].is_linked() {
                self.answers.remove(self.answer_links, index);
            }
        }
        self.reclaim_blocks(|entry| entry.connection == connection);
        self.connections[usize::from(connection.0)].small_granted = 0;
    }

    pub(super) fn reset_inbound(&mut self, connection: ConnectionIndex) {
        for slot in 0..self.connections[usize::from(connection.0)].info.slots {
            self.inbound[Self::inbound_index(connection, slot) as usize] = Inbound::IDLE;
        }
    }
}
