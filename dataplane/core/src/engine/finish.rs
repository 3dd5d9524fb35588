//! How transfers end: quiescence, deadlines, cancelling, the one completion.

use super::{Engine, TIMERS_PER_TURN};
use crate::port::{CopyEngine, Fabric, Nanos};
use crate::tables::{ConnectionPhase, Kind, Leg, Phase, Seal, Transfer};
use core::ops::Deref;
use railhead_abi::observe::{Counter, EventCode, Flight};
use railhead_abi::record::{Plain, Record};
use railhead_abi::submission::{Completion, LEG_DIRECT, LEG_STAGED, SIDE_LOCAL, SIDE_REMOTE};
use railhead_abi::{Code, Reason};
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Ends a transfer early: nothing more is posted, what is posted ends, the peer confirms. The first cause counts.
    pub(super) fn stop(&mut self, index: u32, status: Code, side: u8, now: Nanos) {
        let transfer = &mut self.transfers[index as usize];
        // A transfer past its deadline is a success if the target had delivered it; not from a source that was lost.
        let may_succeed = (transfer.acked && transfer.status == Code::Ok)
            || (matches!(transfer.phase, Phase::Stopping | Phase::AwaitCancelled)
                && transfer.status.is_given_up());
        let is_of_a_post = matches!(
            status,
            Code::RegionLost | Code::DeviceError | Code::RemoteRefused | Code::RemoteRegionLost
        );
        if may_succeed && is_of_a_post {
            transfer.status = status;
            transfer.side = side;
        }
        if !matches!(transfer.phase, Phase::Running | Phase::AwaitAck | Phase::AwaitDone) || transfer.acked {
            return;
        }
        if transfer.kind == Kind::Serve && transfer.phase == Phase::AwaitAck {
            // After FIN it is in the reader's hands.
            return;
        }
        let was_running = transfer.phase == Phase::Running;
        if was_running {
            self.make_unrunnable(index);
        }
        let quiesced_by = now.saturating_add(self.active.quiesce_max);
        let transfer = &mut self.transfers[index as usize];
        transfer.phase = Phase::Stopping;
        transfer.status = status;
        transfer.side = side;
        transfer.timer = quiesced_by;
        self.arm(quiesced_by);
        self.transfers_stopping.push_back(self.transfer_links, index);
        self.progress();
        if was_running && self.transfers[index as usize].chunks_unposted > 0 {
            for chunk in self.chunks.iter_mut() {
                chunk.is_dropped |= chunk.transfer == index;
            }
            self.post_ready(self.transfers[index as usize].connection, now);
        }
    }

    /// Stops all transfers of a remote handle, whose owner wants it back: they end with `cause`, or with success if they had
    /// been delivered by then.
    pub fn stop_remote(&mut self, remote: u32, cause: Code, now: Nanos) {
        for index in 0..super::to_u32(self.transfers.len()) {
            let transfer = &self.transfers[index as usize];
            if transfer.phase != Phase::Free && transfer.remote == remote {
                self.stop(index, cause, SIDE_REMOTE, now);
            }
        }
    }

    /// Moves transfers that stop towards their end.
    pub(super) fn push_stopping(&mut self, now: Nanos) {
        let mut budget = self.transfers_stopping.count().min(TIMERS_PER_TURN);
        while budget > 0 {
            budget -= 1;
            let Some(index) = self.transfers_stopping.pop_front(self.transfer_links) else { return };
            let transfer = &self.transfers[index as usize];
            if transfer.chunks_open == 0 && !transfer.touched {
                self.complete(index, now);
                self.progress();
                continue;
            }
            if transfer.chunks_open == 0 && self.is_sure(transfer) {
                if !self.quiesce_untold(index, now) {
                    self.transfers_stopping.push_back(self.transfer_links, index);
                }
                continue;
            }
            // What the peer writes for a read of ours it may go on with until it has heard.
            let is_ask = transfer.kind == Kind::Ask;
            if is_ask || (transfer.chunks_open == 0 && transfer.seal != Seal::Posted) {
                let status = if transfer.kind == Kind::Serve { transfer.status.number() } else { 0 };
                let (slot, sequence) = (transfer.slot, transfer.sequence);
                let plain = Plain { slot, status, sequence, ..Plain::default() };
                let cancel = if is_ask { Record::ReadCancel(plain) } else { Record::Cancel(plain) };
                if self.send_record(transfer.connection, &cancel) {
                    self.transfers[index as usize].phase = Phase::AwaitCancelled;
                    self.progress();
                    continue;
                }
            }
            self.transfers_stopping.push_back(self.transfer_links, index);
        }
    }

    /// Completes a transfer whose last open end has just closed.
    pub(super) fn settle(&mut self, index: u32, now: Nanos) {
        let transfer = &self.transfers[index as usize];
        let is_over = match transfer.phase {
            Phase::AwaitAck => transfer.acked,
            // What is not sure is stopped, or its connection ends.
            Phase::AwaitDone => transfer.seal != Seal::Posted && !transfer.is_unsure,
            Phase::Dead => true,
            _ => false,
        };
        if is_over && transfer.chunks_open == 0 {
            self.doubt_lost_ends(index);
            self.complete(index, now);
        }
    }

    /// The target has it all, but the connection took with it the end of a post that reads the source: if the source was
    /// lost meanwhile, nobody is going to say so.
    fn doubt_lost_ends(&mut self, index: u32) {
        let transfer = &mut self.transfers[index as usize];
        let is_doubtful = transfer.acked && transfer.is_unsure && !transfer.send.staged;
        if is_doubtful && transfer.kind == Kind::Write && transfer.status == Code::Ok {
            transfer.status = if transfer.into.is_some() { Code::Interrupted } else { Code::Unknown };
            transfer.side = SIDE_LOCAL;
        }
    }

    /// The one completion: everything that the transfer held goes back first.
    pub(super) fn complete(&mut self, index: u32, now: Nanos) {
        let transfer = self.transfers[index as usize];
        debug_assert!(transfer.chunks_open == 0 && transfer.phase != Phase::Free);
        if transfer.kind == Kind::Serve {
            self.complete_serve(index);
            return;
        }
        if let Some(into) = transfer.into {
            self.forget_own_read(&transfer);
            self.release_region(into.0);
            // It went the other way round.
            let (status, side) = match transfer.status {
                Code::RegionLost => (Code::RemoteRegionLost, SIDE_REMOTE),
                Code::RemoteRegionLost => (Code::RegionLost, SIDE_LOCAL),
                status => (status, transfer.side),
            };
            self.transfers[index as usize].status = status;
            self.transfers[index as usize].side = side;
        }
        let transfer = self.transfers[index as usize];
        let at = usize::from(transfer.connection.0);
        if Self::has_slot(&transfer) && self.connections[at].phase == ConnectionPhase::Up {
            self.connections[at].put_slot(transfer.slot);
        }
        self.connections[at].transfers -= 1;
        if transfer.phase == Phase::Dead {
            self.connections[at].dead -= 1;
            self.connections_unsettled = true;
        }
        if transfer.status == Code::Unknown {
            self.remotes[transfer.remote as usize].is_stale = true;
        }
        self.remotes[transfer.remote as usize].uses -= 1;
        self.settle_remote(transfer.remote);
        self.release_region(transfer.submission.local_index);
        self.count(&transfer);
        let flight = self.flight(index, &transfer, now);
        self.observe.flight.append(&flight.encode());
        if transfer.status != Code::Ok {
            self.event(
                EventCode::TransferFailed,
                transfer.status,
                flight.ticket,
                transfer.submission.bytes,
                now,
            );
        }
        let is_ok = transfer.status == Code::Ok;
        let completion = Completion {
            cookie: transfer.submission.cookie,
            ticket: flight.ticket,
            status: transfer.status.number(),
            side: transfer.side,
            retry: u8::from(transfer.status.is_retryable()),
            send_leg: flight.send_leg,
            receive_leg: flight.receive_leg,
            send_reason: flight.send_reason,
            receive_reason: flight.receive_reason,
            bytes: if is_ok { transfer.submission.bytes } else { 0 },
            generation: transfer.settings_generation,
            duration_ns: flight.total_ns,
        };
        let entry = &mut self.transfers[index as usize];
        *entry = Transfer { generation: entry.generation, ..Transfer::FREE };
        self.transfers_free.push_front(self.transfer_links, index);
        self.push_completion(transfer.port, &completion);
        self.progress();
    }

    fn count(&self, transfer: &Transfer) {
        let bytes = transfer.submission.bytes;
        if transfer.status != Code::Ok {
            self.observe.add(Counter::Failed, 1);
            match transfer.status {
                Code::DeadlineExceeded => self.observe.add(Counter::Deadlines, 1),
                Code::Unknown => self.observe.add(Counter::Unknown, 1),
                _ => {}
            }
            return;
        }
        let (by_bytes, by_transfers) = match (transfer.send.staged, transfer.receive.staged) {
            (true, true) => (Counter::BytesStagedStaged, Counter::TransfersStagedStaged),
            (true, false) => (Counter::BytesStagedDirect, Counter::TransfersStagedDirect),
            (false, true) => (Counter::BytesDirectStaged, Counter::TransfersDirectStaged),
            (false, false) => (Counter::BytesDirectDirect, Counter::TransfersDirectDirect),
        };
        self.observe.add(Counter::Done, 1);
        self.observe.add(by_bytes, bytes);
        self.observe.add(by_transfers, 1);
    }

    fn flight(&self, index: u32, transfer: &Transfer, now: Nanos) -> Flight {
        let leg = |leg: &Leg| match leg.reason {
            Reason::None => 0,
            _ if leg.staged => LEG_STAGED,
            _ => LEG_DIRECT,
        };
        let session = self.sessions.get(transfer.session as usize).and_then(Option::as_ref);
        Flight {
            ticket: self.ticket(index),
            cookie: transfer.submission.cookie,
            bytes: transfer.submission.bytes,
            status: transfer.status.number(),
            class: transfer.submission.class,
            send_leg: leg(&transfer.send),
            receive_leg: leg(&transfer.receive),
            send_reason: transfer.send.reason as u8,
            receive_reason: transfer.receive.reason as u8,
            replans: transfer.replans,
            session: transfer.session,
            peer: self.remotes[transfer.remote as usize].info.map_or(u32::MAX, |info| info.peer),
            generation: transfer.settings_generation,
            plan_generation: transfer.plan_generation,
            intake_ns: transfer.intake_at,
            wait_ns: transfer.first_post_at.saturating_sub(transfer.intake_at),
            post_ns: transfer.last_post_at.saturating_sub(transfer.first_post_at),
            receive_ns: transfer.receive_ns,
            total_ns: now.saturating_sub(transfer.intake_at),
            predicted_ns: 0,
            chunks: transfer.chunks_total,
            copy_ns: transfer.copy_ns,
            send_threshold: transfer.send.threshold,
            receive_threshold: transfer.receive.threshold,
            session_name: session.map_or([0; 4], |session| session.name),
            operation: transfer.submission.operation,
        }
    }

    /// Notes a timer that was set, for the scan under way, too: it may have passed that transfer already.
    pub(super) fn arm(&mut self, at: Nanos) {
        self.timer_next = self.timer_next.min(at);
        self.timer_found = self.timer_found.min(at);
    }

    /// Looks for timers that are due, some transfers a turn, when the earliest may be.
    pub(super) fn run_timers(&mut self, now: Nanos) {
        if now < self.timer_next {
            return;
        }
        if self.timer_scan == 0 {
            self.timer_found = Nanos::MAX;
        }
        let end = (self.timer_scan + TIMERS_PER_TURN).min(self.transfers.len());
        for index in self.timer_scan..end {
            let timer = self.transfers[index].timer;
            if self.transfers[index].phase != Phase::Free && timer <= now {
                self.timer_due(super::to_u32(index), now);
            }
            let transfer = &mut self.transfers[index];
            if transfer.phase != Phase::Free {
                if transfer.wait_until <= now {
                    // The visits below look at it; what still waits then is armed again.
                    transfer.wait_until = Nanos::MAX;
                }
                self.timer_found = self.timer_found.min(transfer.timer).min(transfer.wait_until);
            }
        }
        self.timer_scan = end;
        // All that waits is visited before the lane may sleep again.
        self.progress();
        if end == self.transfers.len() {
            self.timer_next = self.timer_found;
            self.timer_scan = 0;
        }
    }

    /// Whether a transfer past its deadline needs no stopping, only time for what is under way.
    const fn may_be_overdue(&self, index: u32) -> bool {
        let transfer = &self.transfers[index as usize];
        transfer.acked || matches!(transfer.kind, Kind::Serve)
    }

    fn timer_due(&mut self, index: u32, now: Nanos) {
        match self.transfers[index as usize].phase {
            Phase::AwaitAck if self.may_be_overdue(index) && !self.transfers[index as usize].is_overdue => {
                // Delivered in time, or told all; only the end of our own posts is still to come.
                let until = now.saturating_add(self.active.quiesce_max);
                let transfer = &mut self.transfers[index as usize];
                transfer.is_overdue = true;
                transfer.timer = until;
                self.arm(until);
            }
            Phase::Running | Phase::AwaitAck | Phase::AwaitDone if !self.transfers[index as usize].acked => {
                self.stop(index, Code::DeadlineExceeded, SIDE_REMOTE, now);
            }
            Phase::Stopping | Phase::AwaitAck | Phase::AwaitCancelled => {
                // The peer or a device does not confirm: only the end of the connection makes sure that we touch nothing more.
                let transfer = &mut self.transfers[index as usize];
                transfer.timer = Nanos::MAX;
                let connection = transfer.connection;
                self.close_connection(connection, Code::HeartbeatLost);
            }
            _ => self.transfers[index as usize].timer = Nanos::MAX,
        }
    }
}
