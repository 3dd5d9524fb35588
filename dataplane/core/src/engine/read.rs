//! Reads that the peer serves: we ask on a connection of which we are the target, and what comes in is a write like any
//! other, but that it may go nowhere else than the read says, and that its end here is the end of the read.
//!
//! Whatever becomes of the connection, nothing lands here after it: a read never ends `unknown`.

use super::schedule::Visit;
use super::{Engine, PEER_SELF};
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Nanos, Place, RegionIndex};
use crate::tables::{ConnectionPhase, Inbound, Kind, Leg, Phase, Reader, Transfer};
use core::ops::Deref;
use railhead_abi::record::{READ_DIRECT, READ_FREE, READ_STAGED, ReadRequest, Record, SLOTS_MAX};
use railhead_abi::submission::{LEG_STAGED, SIDE_LOCAL, SIDE_NONE, SIDE_REMOTE};
use railhead_abi::{Code, Reason};
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Where a read goes: region, its generation, first byte, bytes.
    pub(super) const fn read_into(transfer: &Transfer) -> (RegionIndex, u32, u64, u64) {
        let submission = &transfer.submission;
        match transfer.into {
            Some(region) => (region, transfer.key.epoch, submission.remote_offset, submission.bytes),
            None => (
                RegionIndex(submission.local_index),
                submission.local_generation,
                submission.local_offset,
                submission.bytes,
            ),
        }
    }

    /// Asks the peer to serve a read that has a slot.
    pub(super) fn ask(&mut self, index: u32, now: Nanos) -> Visit {
        let connection = self.transfers[index as usize].connection;
        let windows = self.connections[usize::from(connection.0)].capabilities.windows;
        if !windows && !self.stage_instead(index, now) {
            return Visit::Made(0);
        }
        let transfer = &self.transfers[index as usize];
        let (region, epoch, offset, bytes) = Self::read_into(transfer);
        let is_open = windows && transfer.direct_there;
        let mut flags = 0;
        flags |= if is_open { READ_DIRECT } else { 0 };
        flags |= if is_open && transfer.receive.is_free { READ_FREE } else { 0 };
        flags |= if transfer.receive.staged { READ_STAGED } else { 0 };
        let left = transfer.timer.saturating_sub(now).div_ceil(1000);
        let request = ReadRequest {
            slot: transfer.slot,
            send_leg: transfer.submission.send_leg,
            flags,
            region_index: transfer.key.index,
            region_epoch: transfer.key.epoch,
            offset: transfer.submission.remote_offset,
            bytes,
            into_index: region.0,
            into_epoch: epoch,
            into_offset: offset,
            sequence: transfer.sequence,
            deadline_us: u32::try_from(left).unwrap_or(u32::MAX).max(1),
            receive_reason: transfer.receive.reason as u8,
            ..ReadRequest::default()
        };
        let slot = transfer.slot;
        if !self.send_record(connection, &Record::ReadRequest(request)) {
            return Visit::Blocked;
        }
        if is_open && bytes > 0 {
            self.fabric.open_window(connection, slot, Place { region, offset }, bytes);
        }
        self.make_unrunnable(index);
        let transfer = &mut self.transfers[index as usize];
        transfer.phase = Phase::AwaitAck;
        transfer.touched = true;
        transfer.told = true;
        transfer.first_post_at = now;
        transfer.last_post_at = now;
        let reader = Some(Reader { transfer: index, generation: transfer.generation });
        let at = Self::inbound_index(connection, slot) as usize;
        self.inbound[at] = Inbound { is_active: true, since: now, reader, ..Inbound::IDLE };
        self.connections[usize::from(connection.0)].inbound += 1;
        Visit::Made(0)
    }

    /// Where the peer cannot be let into a region, what it serves goes through blocks. False if that was ruled out, and
    /// the read is stopped.
    fn stage_instead(&mut self, index: u32, now: Nanos) -> bool {
        let transfer = &mut self.transfers[index as usize];
        if transfer.receive.staged || transfer.submission.bytes == 0 {
            return true;
        }
        if transfer.receive.reason == Reason::Override {
            self.stop(index, Code::DirectImpossible, SIDE_LOCAL, now);
            return false;
        }
        transfer.receive.staged = true;
        transfer.receive.is_free = false;
        transfer.receive.reason = Reason::Impossible;
        true
    }

    /// Tells the other end of a connection of this lane to itself which transfer has a slot, if it is a read.
    pub(super) fn note_own_read(&mut self, index: u32) {
        let transfer = &self.transfers[index as usize];
        let connection = transfer.connection;
        if self.connections[usize::from(connection.0)].info.peer != PEER_SELF || transfer.kind != Kind::Write
        {
            return;
        }
        let other = ConnectionIndex(connection.0 ^ 1);
        let reader = transfer.into.map(|_| Reader { transfer: index, generation: transfer.generation });
        let (region, _, offset, bytes) = Self::read_into(transfer);
        let slot = transfer.slot;
        let at = Self::inbound_index(other, slot) as usize;
        if let Some(inbound) = self.inbound.get_mut(at) {
            inbound.reader = reader;
        }
        if reader.is_some() && bytes > 0 && self.may_open(other) {
            self.fabric.open_window(other, slot, Place { region, offset }, bytes);
        }
    }

    /// The slot of a read of this node's own memory is given back.
    pub(super) fn forget_own_read(&mut self, transfer: &Transfer) {
        let other = ConnectionIndex(transfer.connection.0 ^ 1);
        if transfer.slot < SLOTS_MAX && self.may_open(other) {
            self.fabric.close_window(other, transfer.slot);
        }
    }

    fn may_open(&self, connection: ConnectionIndex) -> bool {
        self.connections
            .get(usize::from(connection.0))
            .is_some_and(|entry| entry.phase == ConnectionPhase::Up && entry.capabilities.windows)
    }

    /// Whether a sequence is that of the read that an entry belongs to; yes if it belongs to none.
    pub(super) fn is_of_reader(&self, index: u32, sequence: u64) -> bool {
        match self.inbound[index as usize].reader {
            Some(reader) => {
                let transfer = &self.transfers[reader.transfer as usize];
                transfer.generation == reader.generation && transfer.sequence == sequence
            }
            None => true,
        }
    }

    /// A copy home begins: the read that it is for does not end before it.
    pub(super) fn hold_reader(&mut self, index: u32) {
        if let Some(ask) = self.asked_by(self.inbound[index as usize].reader) {
            self.transfers[ask as usize].chunks_open += 1;
        }
    }

    /// A copy home has ended.
    pub(super) fn release_reader(&mut self, reader: Option<Reader>, now: Nanos) {
        if let Some(ask) = self.asked_by(reader) {
            self.transfers[ask as usize].chunks_open -= 1;
            self.settle(ask, now);
        }
    }

    fn asked_by(&self, reader: Option<Reader>) -> Option<u32> {
        let reader = reader?;
        let transfer = &self.transfers[reader.transfer as usize];
        (transfer.kind == Kind::Ask && transfer.generation == reader.generation).then_some(reader.transfer)
    }

    /// The last word on what came in for a read was sent: that is its end.
    pub(super) fn finish_ask(&mut self, connection: ConnectionIndex, inbound: &Inbound, now: Nanos) {
        let Some(index) = self.asked_by(inbound.reader) else { return };
        if self.connections[usize::from(connection.0)].capabilities.windows {
            self.fabric.close_window(connection, self.transfers[index as usize].slot);
        }
        if self.transfers[index as usize].phase == Phase::Stopping {
            self.transfers_stopping.remove(self.transfer_links, index);
        }
        let (status, side) = outcome(inbound);
        let transfer = &mut self.transfers[index as usize];
        transfer.phase = Phase::AwaitAck;
        transfer.acked = true;
        transfer.receive_ns = now.saturating_sub(inbound.since);
        let is_late = transfer.status == Code::DeadlineExceeded && !inbound.is_cancelled;
        if transfer.status == Code::Ok || is_late {
            transfer.status = status;
            transfer.side = side;
        }
        if let Some(fin) = inbound.fin.filter(|_| !inbound.is_cancelled) {
            let told = |leg: Leg, staged: u8, reason: u8| Leg {
                staged: staged == LEG_STAGED,
                reason: Reason::from_number(reason).unwrap_or(leg.reason),
                ..leg
            };
            transfer.send = told(transfer.send, fin.send_leg, fin.send_reason);
            transfer.receive = told(transfer.receive, fin.receive_leg, fin.receive_reason);
        }
        self.settle(index, now);
    }
}

/// What the end of the inbound side of a read means for the read.
fn outcome(inbound: &Inbound) -> (Code, u8) {
    if inbound.is_cancelled {
        return match Code::from_number(inbound.cancel_status) {
            None | Some(Code::Ok) => (Code::Cancelled, SIDE_REMOTE),
            Some(Code::RegionLost) => (Code::RemoteRegionLost, SIDE_REMOTE),
            Some(code) => (code, SIDE_REMOTE),
        };
    }
    match inbound.status {
        Code::Ok => (Code::Ok, SIDE_NONE),
        Code::RemoteRegionLost => (Code::RegionLost, SIDE_LOCAL),
        Code::DeviceError => (Code::DeviceError, SIDE_LOCAL),
        code => (code, SIDE_REMOTE),
    }
}
