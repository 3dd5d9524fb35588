//! Connections: up, wanted, closing, down.

use super::Engine;
use crate::notice::Notice;
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Nanos};
use crate::tables::{Connection, ConnectionInfo, ConnectionPhase, Kind, Phase, Role, Seal};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::observe::{Counter, EventCode};
use railhead_abi::record::{RECORD_WINDOW, SLOTS_MAX};
use railhead_abi::submission::{OPERATION_READ, SIDE_REMOTE};
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// A connection is there; the fabric has it already. False if the slot is in use: the caller closes it again.
    pub fn connection_up(&mut self, connection: ConnectionIndex, info: ConnectionInfo, now: Nanos) -> bool {
        let at = usize::from(connection.0);
        let Some(entry) = self.connections.get_mut(at) else { return false };
        if !matches!(entry.phase, ConnectionPhase::Free | ConnectionPhase::Wanted) {
            return false;
        }
        let slots = info.slots.min(SLOTS_MAX);
        let mut slots_free = [0; SLOTS_MAX as usize / 64];
        for slot in 0..slots {
            slots_free[usize::from(slot) / 64] |= 1 << (slot % 64);
        }
        *entry = Connection {
            phase: ConnectionPhase::Up,
            info: ConnectionInfo { slots, ..info },
            capabilities: self.fabric.capabilities(connection),
            record_credits: RECORD_WINDOW,
            slots_free,
            transfers: entry.transfers,
            ..Connection::FREE
        };
        self.connections_up += 1;
        self.targets_up += u32::from(info.role == Role::Target);
        self.connections_used[at / 64] |= 1 << (at % 64);
        self.event(EventCode::ConnectionUp, Code::Ok, u64::from(info.peer), u64::from(connection.0), now);
        self.progress();
        true
    }

    /// The registrar cannot connect: transfers that wait for this connection end with `peer_down`.
    pub fn connection_refused(&mut self, connection: ConnectionIndex, now: Nanos) {
        let at = usize::from(connection.0);
        if self.connections[at].phase != ConnectionPhase::Wanted {
            return;
        }
        self.connections[at].phase = ConnectionPhase::Free;
        for index in 0..super::to_u32(self.transfers.len()) {
            let transfer = &self.transfers[index as usize];
            if transfer.phase == Phase::Running && transfer.connection == connection {
                self.stop(index, Code::PeerDown, SIDE_REMOTE, now);
            }
        }
    }

    /// Ends a connection; [`Notice::ConnectionDown`] follows when nothing of it is under way.
    pub fn close_connection(&mut self, connection: ConnectionIndex, cause: Code) {
        let entry = &mut self.connections[usize::from(connection.0)];
        if entry.phase == ConnectionPhase::Up {
            entry.phase = ConnectionPhase::Closing;
            entry.cause = cause;
            self.connections_up -= 1;
            self.targets_up -= u32::from(entry.info.role == Role::Target);
            self.fabric.close(connection);
        }
    }

    /// The fabric says that a connection has ended: all posts of it have, too.
    pub(super) fn connection_down(&mut self, connection: ConnectionIndex, cause: Code, now: Nanos) {
        let at = usize::from(connection.0);
        match self.connections[at].phase {
            ConnectionPhase::Up => {
                self.connections_up -= 1;
                self.targets_up -= u32::from(self.connections[at].info.role == Role::Target);
                self.connections[at].cause = cause;
            }
            ConnectionPhase::Closing => {}
            _ => return,
        }
        self.connections[at].phase = ConnectionPhase::Draining;
        let (peer, cause) = (self.connections[at].info.peer, self.connections[at].cause);
        self.observe.add(Counter::ConnectionsDown, 1);
        self.event(EventCode::ConnectionDown, cause, u64::from(peer), u64::from(connection.0), now);
        let ConnectionInfo { role, serves, .. } = self.connections[at].info;
        if role == Role::Target {
            self.end_inbound(connection);
        } else if serves {
            self.end_requests(connection);
        }
        if role == Role::Initiator || serves {
            self.end_transfers(connection, now);
        }
        self.connections_unsettled = true;
        self.progress();
    }

    /// Transfers that the peer may know of end as `unknown`; those that only wait go on waiting.
    fn end_transfers(&mut self, connection: ConnectionIndex, now: Nanos) {
        for index in 0..super::to_u32(self.transfers.len()) {
            let transfer = &self.transfers[index as usize];
            if transfer.connection != connection || matches!(transfer.phase, Phase::Free | Phase::Dead) {
                continue;
            }
            match transfer.phase {
                Phase::Running if !Self::has_slot(transfer) => continue,
                Phase::Running => self.make_unrunnable(index),
                Phase::Stopping => self.transfers_stopping.remove(self.transfer_links, index),
                _ => {}
            }
            self.connections[usize::from(connection.0)].dead += 1;
            let transfer = self.transfers[index as usize];
            // All its posts have ended, and are visible: nothing is open.
            let is_quiet = transfer.chunks_open == 0
                && self.is_sure(&transfer)
                && (transfer.seal == Seal::Done || transfer.status == Code::RemoteRefused);
            let is_held = transfer.into.is_some() && self.is_used(ConnectionIndex(connection.0 ^ 1));
            let transfer = &mut self.transfers[index as usize];
            transfer.phase = Phase::Dead;
            let is_open = transfer.touched && !transfer.acked;
            let is_read = transfer.submission.operation == OPERATION_READ && transfer.kind != Kind::Serve;
            if is_open && is_read {
                // All that could still have landed here has ended: what is left in doubt is nothing.
                if transfer.status == Code::Ok {
                    transfer.status = Code::Interrupted;
                    transfer.side = SIDE_REMOTE;
                }
            } else if is_open && !is_quiet {
                transfer.status = Code::Unknown;
                transfer.side = SIDE_REMOTE;
            } else if transfer.status == Code::Ok && !transfer.acked {
                transfer.status = Code::PeerDown;
                transfer.side = SIDE_REMOTE;
            }
            // Held until the chunks below have ended, so that the transfer completes once, there or here.
            transfer.chunks_open += 1 + u16::from(is_held);
            transfer.is_held = is_held;
        }
        self.drop_ready(connection, now);
        for index in 0..super::to_u32(self.transfers.len()) {
            let transfer = &mut self.transfers[index as usize];
            if transfer.connection == connection && transfer.phase == Phase::Dead {
                transfer.chunks_open -= 1;
                self.settle(index, now);
            }
        }
    }

    fn is_used(&self, connection: ConnectionIndex) -> bool {
        use ConnectionPhase::{Closing, Draining, Up};
        let entry = self.connections.get(usize::from(connection.0));
        entry.is_some_and(|entry| matches!(entry.phase, Up | Closing | Draining))
    }

    /// Nothing comes in on this connection of the lane to itself any more: reads whose own end is down may end.
    fn release_own_reads(&mut self, connection: ConnectionIndex, now: Nanos) {
        let own = ConnectionIndex(connection.0 ^ 1);
        for index in 0..super::to_u32(self.transfers.len()) {
            let transfer = &mut self.transfers[index as usize];
            if transfer.phase == Phase::Dead && transfer.connection == own && transfer.is_held {
                transfer.is_held = false;
                transfer.chunks_open -= 1;
                self.settle(index, now);
            }
        }
    }

    /// Posts what is ready, gives record credits back, and frees the connections whose last local work has ended.
    pub(super) fn push_connections(&mut self, now: Nanos) {
        let mut used = self.connections_used;
        while let Some(at) = super::take_bit(&mut used) {
            let entry = &self.connections[at];
            let connection = ConnectionIndex(u16::try_from(at).unwrap_or(u16::MAX));
            match entry.phase {
                ConnectionPhase::Up => {
                    if !self.connections[at].ready.is_empty() {
                        // Also for transfers that stop: what they have written still owes its record.
                        self.post_ready(connection, now);
                    }
                    self.return_records(connection);
                }
                ConnectionPhase::Draining
                    if self.connections_unsettled && entry.dead == 0 && entry.inbound_open == 0 =>
                {
                    self.free_connection(connection, now);
                }
                _ => {}
            }
        }
        if self.connections_unsettled {
            self.connections_unsettled =
                self.connections.iter().any(|entry| entry.phase == ConnectionPhase::Draining);
        }
    }

    fn free_connection(&mut self, connection: ConnectionIndex, now: Nanos) {
        let at = usize::from(connection.0);
        let entry = &self.connections[at];
        let (info, cause, transfers) = (entry.info, entry.cause, entry.transfers);
        if info.role == Role::Target {
            self.reset_inbound(connection);
            if info.peer == super::PEER_SELF {
                self.release_own_reads(connection, now);
            }
        }
        self.connections[at] = Connection { info, transfers, ..Connection::FREE };
        self.connections_used[at / 64] &= !(1 << (at % 64));
        self.notices.push(Notice::ConnectionDown { connection, cause });
        if transfers > 0 {
            self.connections[at].phase = ConnectionPhase::Wanted;
            self.notices.push(Notice::ConnectionWanted { connection, peer: info.peer });
        }
        self.progress();
    }
}
