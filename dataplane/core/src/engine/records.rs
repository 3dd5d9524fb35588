//! Records: sent under credits, received into tables.

use super::Engine;
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Nanos};
use crate::tables::{Connection, ConnectionPhase, GRANTS_MAX, Phase, Role, SMALL_CREDITS_MAX};
use core::ops::Deref;
use railhead_abi::observe::{Counter, EventCode};
use railhead_abi::record::{Ack, Credit, Plain, RECORD_WINDOW, RawRecord, Record, SLOT_NONE, SLOTS_MAX};
use railhead_abi::submission::SIDE_REMOTE;
use railhead_abi::{Code, Reason};
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Posts a record if credits and the fabric allow; the last credit is kept for CREDIT.
    pub(super) fn send_record(&mut self, connection: ConnectionIndex, record: &Record) -> bool {
        let entry = &mut self.connections[usize::from(connection.0)];
        let needed = match record {
            Record::RecordCredit(_) => 0,
            Record::Credit(_) => 1,
            _ => 2,
        };
        if entry.phase != ConnectionPhase::Up || entry.record_credits < needed {
            self.observe.add(Counter::RecordWaits, 1);
            return false;
        }
        let mut raw = record.encode();
        raw.set_returned(entry.record_returns);
        if self.fabric.send(connection, &raw).is_err() {
            self.observe.add(Counter::RecordWaits, 1);
            return false;
        }
        entry.record_returns = 0;
        if needed > 0 {
            entry.record_credits -= 1;
        }
        true
    }

    /// Gives record credits back on connections that have nothing else to say.
    pub(super) fn return_records(&mut self, connection: ConnectionIndex) {
        if self.connections[usize::from(connection.0)].record_returns >= RECORD_WINDOW / 2 {
            self.send_record(
                connection,
                &Record::RecordCredit(Plain { slot: SLOT_NONE, ..Plain::default() }),
            );
        }
    }

    pub(super) fn record_arrived(&mut self, connection: ConnectionIndex, raw: &RawRecord, now: Nanos) {
        let at = usize::from(connection.0);
        if self.connections[at].phase != ConnectionPhase::Up {
            return;
        }
        let Ok((record, returned)) = Record::decode(raw) else {
            self.violation(connection, now);
            return;
        };
        let entry = &mut self.connections[at];
        entry.record_credits = entry.record_credits.saturating_add(returned);
        if entry.record_credits > RECORD_WINDOW {
            self.violation(connection, now);
            return;
        }
        if !matches!(record, Record::RecordCredit(_)) {
            entry.record_returns += 1;
            if entry.record_returns > RECORD_WINDOW {
                self.observe.add(Counter::RecordOverrun, 1);
                self.violation(connection, now);
                return;
            }
        }
        let understood = match (self.connections[at].info.role, record) {
            (_, Record::RecordCredit(_)) => true,
            (Role::Initiator, Record::Ack(ack)) => self.ack_arrived(connection, &ack, now),
            (Role::Initiator, Record::Credit(credit)) => self.credit_arrived(connection, &credit, now),
            (Role::Initiator, Record::ReadRequest(request)) => {
                self.request_arrived(connection, &request, now)
            }
            (Role::Initiator, Record::ReadCancel(plain)) => self.read_cancel_arrived(connection, &plain, now),
            (Role::Initiator, Record::Cancelled(plain)) => self.cancelled_arrived(connection, &plain, now),
            (Role::Initiator, Record::Replan(plain)) => self.replan_arrived(connection, &plain, now),
            (Role::Target, Record::Chunk(chunk)) => self.chunk_arrived(connection, &chunk, now),
            (Role::Target, Record::Fin(fin)) => self.fin_arrived(connection, &fin, now),
            (Role::Target, Record::Demand(demand)) => self.demand_arrived(connection, &demand, now),
            (Role::Target, Record::Cancel(plain)) => self.cancel_arrived(connection, &plain, now),
            // The rest is not for this end, or for versions to come.
            _ => false,
        };
        if !understood {
            self.violation(connection, now);
        }
    }

    /// The peer broke the protocol: its connection is closed, others go on.
    pub(super) fn violation(&mut self, connection: ConnectionIndex, now: Nanos) {
        self.observe.add(Counter::ProtocolViolations, 1);
        let peer = u64::from(self.connections[usize::from(connection.0)].info.peer);
        self.event(EventCode::ProtocolViolation, Code::ProtocolViolation, peer, u64::from(connection.0), now);
        self.close_connection(connection, Code::ProtocolViolation);
    }

    /// The transfer that holds a slot, if one does.
    pub(super) fn holder(&self, connection: ConnectionIndex, slot: u16) -> Option<u32> {
        if slot >= self.connections[usize::from(connection.0)].info.slots {
            return None;
        }
        let index = self.slots[usize::from(connection.0) * usize::from(SLOTS_MAX) + usize::from(slot)];
        let transfer = self.transfers.get(index as usize)?;
        (transfer.phase != Phase::Free && transfer.connection == connection && transfer.slot == slot)
            .then_some(index)
    }

    fn ack_arrived(&mut self, connection: ConnectionIndex, ack: &Ack, now: Nanos) -> bool {
        let Some(index) = self.holder(connection, ack.slot) else { return false };
        let transfer = &mut self.transfers[index as usize];
        if transfer.sequence != ack.sequence || transfer.acked {
            self.observe.add(Counter::Duplicates, 1);
            return true;
        }
        let status = Code::from_number(ack.status).unwrap_or(Code::ProtocolViolation);
        transfer.receive_ns = ack.receive_ns;
        match transfer.phase {
            Phase::AwaitAck => {}
            Phase::Stopping => {
                // It ended before we could cancel it.
                self.transfers_stopping.remove(self.transfer_links, index);
                transfer.phase = Phase::AwaitAck;
            }
            Phase::AwaitCancelled => {}
            _ => return false,
        }
        let transfer = &mut self.transfers[index as usize];
        transfer.acked = true;
        // What the target did is what happened, whatever we had given up on; a failure of our own memory stays.
        if transfer.status == Code::Ok || transfer.status.is_given_up() {
            transfer.status = status;
            transfer.side = if status == Code::Ok { 0 } else { SIDE_REMOTE };
        }
        self.settle(index, now);
        true
    }

    fn credit_arrived(&mut self, connection: ConnectionIndex, credit: &Credit, now: Nanos) -> bool {
        let entry: &mut Connection = &mut self.connections[usize::from(connection.0)];
        if credit.pool_epoch != entry.info.pool_epoch {
            return true;
        }
        if credit.count > 0 {
            entry.credit_given_at[usize::from(credit.slot != SLOT_NONE)] = now;
        }
        if credit.slot == SLOT_NONE {
            for page in credit.iter() {
                if usize::from(entry.small_credit_count) >= SMALL_CREDITS_MAX {
                    return false;
                }
                entry.small_credits[usize::from(entry.small_credit_count)] = page;
                entry.small_credit_count += 1;
            }
            return true;
        }
        let Some(index) = self.holder(connection, credit.slot) else { return false };
        let transfer = &mut self.transfers[index as usize];
        for page in credit.iter() {
            if usize::from(transfer.grant_count) >= GRANTS_MAX {
                return false;
            }
            transfer.grants[usize::from(transfer.grant_count)] = page;
            transfer.grant_count += 1;
        }
        true
    }

    fn cancelled_arrived(&mut self, connection: ConnectionIndex, plain: &Plain, now: Nanos) -> bool {
        // A request may have been refused without ever becoming a transfer.
        let serves = self.connections[usize::from(connection.0)].info.serves;
        let Some(index) = self.holder(connection, plain.slot) else { return serves };
        let transfer = &mut self.transfers[index as usize];
        if transfer.phase != Phase::AwaitCancelled || transfer.sequence != plain.sequence {
            return serves;
        }
        if !transfer.acked && plain.status == Code::Ok.number() && transfer.status.is_given_up() {
            // Delivered after all.
            transfer.status = Code::Ok;
            transfer.side = 0;
        }
        transfer.acked = true;
        transfer.phase = Phase::AwaitAck;
        self.settle(index, now);
        true
    }

    /// The target cannot stage this transfer: once, it goes direct if nobody forced staging.
    fn replan_arrived(&mut self, connection: ConnectionIndex, plain: &Plain, now: Nanos) -> bool {
        let Some(index) = self.holder(connection, plain.slot) else { return false };
        let transfer = &mut self.transfers[index as usize];
        let info = &self.connections[usize::from(connection.0)].info;
        let is_small = transfer.submission.bytes <= info.small_bytes;
        if transfer.phase != Phase::Running
            || !transfer.receive.staged
            || (is_small && transfer.chunks_total > 0)
        {
            // It ended, went direct meanwhile, or got a standing credit.
            return true;
        }
        let may = transfer.replans == 0
            && transfer.chunks_total == 0
            && transfer.receive.reason != Reason::Override;
        transfer.replans = transfer.replans.saturating_add(1);
        let bytes = transfer.submission.bytes;
        self.observe.add(Counter::Replans, 1);
        self.event(EventCode::RouteReplanned, Code::Replan, self.ticket(index), bytes, now);
        if may && self.is_direct_possible_there(index) {
            let transfer = &mut self.transfers[index as usize];
            transfer.receive.staged = false;
            transfer.receive.is_free = false;
            transfer.receive.reason = Reason::Replanned;
            self.end_wait(index);
        } else {
            self.stop(index, Code::Replan, SIDE_REMOTE, now);
        }
        true
    }

    fn is_direct_possible_there(&self, index: u32) -> bool {
        self.transfers[index as usize].direct_there
    }
}
