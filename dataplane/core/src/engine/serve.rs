//! Reads of peers that this lane serves: requests wait for a transfer, which is then a write like any other, but that
//! the peer chose its slot, that no client of ours waits for it, and that it ends with FIN or with CANCEL, never both.

use super::{Engine, INTAKE_PER_TURN, route, to_u32};
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Key, Nanos};
use crate::tables::{Inbound, Kind, Leg, Phase, PortIndex, Transfer};
use core::ops::Deref;
use railhead_abi::observe::Counter;
use railhead_abi::record::{Plain, READ_DIRECT, READ_FREE, READ_STAGED, ReadRequest, Record, SLOTS_MAX};
use railhead_abi::settings::Plan;
use railhead_abi::submission::{OPERATION_READ, SIDE_REMOTE, Submission};
use railhead_abi::{Code, Reason};
use railhead_ring::Word;

/// Stands for a port where there is none.
const NO_PORT: PortIndex = PortIndex(u8::MAX);

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// READ_REQ: it waits for its turn.
    pub(super) fn request_arrived(
        &mut self,
        connection: ConnectionIndex,
        request: &ReadRequest,
        now: Nanos,
    ) -> bool {
        let info = &self.connections[usize::from(connection.0)].info;
        let is_known = request.flags & !(READ_DIRECT | READ_FREE | READ_STAGED) == 0;
        if !info.serves || request.slot >= info.slots || !is_known {
            return false;
        }
        let index = Self::inbound_index(connection, request.slot);
        let inbound = &mut self.inbound[index as usize];
        if inbound.is_active {
            return false;
        }
        *inbound = Inbound { is_active: true, request: Some(*request), since: now, ..Inbound::IDLE };
        self.connections[usize::from(connection.0)].inbound += 1;
        self.requests.push_back(self.demand_links, index);
        true
    }

    /// READ_CANCEL: the peer does not want it any more. One that crossed with the end of its read says nothing new.
    pub(super) fn read_cancel_arrived(
        &mut self,
        connection: ConnectionIndex,
        plain: &Plain,
        now: Nanos,
    ) -> bool {
        let info = &self.connections[usize::from(connection.0)].info;
        if !info.serves || plain.slot >= info.slots {
            return false;
        }
        let inbound = &mut self.inbound[Self::inbound_index(connection, plain.slot) as usize];
        if inbound.request.is_some_and(|request| request.sequence == plain.sequence) {
            inbound.is_cancelled = true;
            return true;
        }
        if let Some(index) = self.holder(connection, plain.slot)
            && self.transfers[index as usize].sequence == plain.sequence
            && self.transfers[index as usize].phase == Phase::Running
        {
            self.stop(index, Code::Cancelled, SIDE_REMOTE, now);
        }
        true
    }

    /// Begins to serve what waits, as far as there are transfers.
    pub(super) fn push_requests(&mut self, now: Nanos) {
        let mut rounds = self.requests.count().min(INTAKE_PER_TURN);
        while rounds > 0 {
            rounds -= 1;
            let Some(index) = self.requests.pop_front(self.demand_links) else { return };
            if self.serve(index, now) {
                let (connection, _) = Self::inbound_owner(index);
                self.inbound[index as usize] = Inbound::IDLE;
                self.connections[usize::from(connection.0)].inbound -= 1;
                self.progress();
            } else {
                self.requests.push_back(self.demand_links, index);
            }
        }
    }

    /// Serves or refuses one request; false if it has to wait.
    fn serve(&mut self, index: u32, now: Nanos) -> bool {
        let (connection, slot) = Self::inbound_owner(index);
        let inbound = &self.inbound[index as usize];
        let Some(request) = inbound.request else { return true };
        // The last one of this slot has been answered, but its own posts have not ended.
        if self.holder(connection, slot).is_some() {
            return false;
        }
        let course = if inbound.is_cancelled {
            Err(Code::Cancelled)
        } else {
            self.serving_course(connection, &request)
        };
        let transfer = match course {
            Ok(transfer) => transfer,
            Err(code) => {
                let (status, sequence) = (code.number(), request.sequence);
                let cancel = Plain { slot, status, sequence, ..Plain::default() };
                return self.send_record(connection, &Record::Cancel(cancel));
            }
        };
        // Half of the table at most: the rest is for this node's own.
        if self.serving >= (self.transfers.len() / 2).max(1) {
            return false;
        }
        let Some(free) = self.transfers_free.pop_front(self.transfer_links) else { return false };
        let deadline = now.saturating_add(u64::from(request.deadline_us) * 1000);
        let entry = &mut self.transfers[free as usize];
        let generation = entry.generation.wrapping_add(1).max(1);
        *entry = Transfer { generation, timer: deadline, intake_at: now, ..transfer };
        self.arm(deadline);
        self.serving += 1;
        self.regions[transfer.submission.local_index as usize].uses += 1;
        self.connections[usize::from(connection.0)].transfers += 1;
        self.slots[usize::from(connection.0) * usize::from(SLOTS_MAX) + usize::from(slot)] = free;
        self.fix_chunk_bytes(free);
        self.make_runnable(free);
        true
    }

    /// The transfer that serves a request, or why none does.
    fn serving_course(&self, connection: ConnectionIndex, request: &ReadRequest) -> Result<Transfer, Code> {
        let connection_info = &self.connections[usize::from(connection.0)].info;
        let (region, info) = self
            .readable(
                request.region_index,
                request.region_epoch,
                request.offset,
                request.bytes,
                connection_info.peer,
            )
            .ok_or(Code::RemoteRefused)?;
        let plan = Plan { direct_possible: info.direct_possible, ..self.active.send };
        let send = route::choose(&plan, request.send_leg, request.bytes)?;
        let direct_there = request.flags & READ_DIRECT != 0;
        let receive = Leg {
            staged: request.flags & READ_STAGED != 0,
            reason: Reason::from_number(request.receive_reason).unwrap_or(Reason::None),
            is_free: request.flags & READ_FREE != 0 && direct_there,
            threshold: 0,
        };
        if !receive.staged && !direct_there && request.bytes > 0 {
            return Err(Code::DirectImpossible);
        }
        Ok(Transfer {
            phase: Phase::Running,
            kind: Kind::Serve,
            port: NO_PORT,
            session: info.session,
            submission: Submission {
                operation: OPERATION_READ,
                class: connection_info.class,
                local_index: region.0,
                local_generation: info.generation,
                local_offset: request.offset,
                remote_offset: request.into_offset,
                bytes: request.bytes,
                ..Submission::default()
            },
            remote: to_u32(self.remotes.len()),
            key: Key { index: request.into_index, epoch: request.into_epoch },
            direct_there,
            connection,
            slot: request.slot,
            sequence: request.sequence,
            send,
            receive,
            // The peer waits for an end: it is told of every one.
            touched: true,
            told: true,
            settings_generation: self.active.generation,
            ..Transfer::FREE
        })
    }

    /// The end of serving: what it held goes back, and nobody here is told.
    pub(super) fn complete_serve(&mut self, index: u32) {
        let transfer = self.transfers[index as usize];
        let at = usize::from(transfer.connection.0);
        self.connections[at].transfers -= 1;
        if transfer.phase == Phase::Dead {
            self.connections[at].dead -= 1;
            self.connections_unsettled = true;
        }
        self.serving -= 1;
        self.release_region(transfer.submission.local_index);
        if transfer.status == Code::Ok {
            self.observe.add(Counter::ReadsServed, 1);
            self.observe.add(Counter::ReadBytesServed, transfer.submission.bytes);
        } else {
            self.observe.add(Counter::ReadsFailed, 1);
        }
        let entry = &mut self.transfers[index as usize];
        *entry = Transfer { generation: entry.generation, ..Transfer::FREE };
        self.transfers_free.push_front(self.transfer_links, index);
        self.progress();
    }

    /// The connection is down: what waits on it is not wanted any more.
    pub(super) fn end_requests(&mut self, connection: ConnectionIndex) {
        for slot in 0..self.connections[usize::from(connection.0)].info.slots {
            let index = Self::inbound_index(connection, slot);
            if self.inbound[index as usize].request.is_some() {
                self.requests.remove(self.demand_links, index);
                self.inbound[index as usize] = Inbound::IDLE;
                self.connections[usize::from(connection.0)].inbound -= 1;
            }
        }
    }
}
