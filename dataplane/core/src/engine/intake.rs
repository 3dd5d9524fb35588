//! Intake: submissions become transfers, or completions that say why not.

use super::{Engine, INTAKE_PER_TURN, to_u32};
use crate::port::{CopyEngine, Fabric, Nanos, RegionIndex};
use crate::tables::{ConnectionPhase, Phase, PortIndex, RemoteInfo, SessionQueue, Transfer};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::observe::{Counter, EventCode};
use railhead_abi::record::SLOT_NONE;
use railhead_abi::segment::SIGNALS;
use railhead_abi::submission::{
    CLASSES, Completion, LEVEL_PLACED, NOTIFY_EVENT, NOTIFY_NONE, NOTIFY_SIGNAL, OPERATION_READ,
    OPERATION_WRITE, SIDE_LOCAL, Submission,
};
use railhead_abi::words::reserved_is_zero;
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Takes submissions, ports in turn, while there are free transfers.
    pub(super) fn intake(&mut self, now: Nanos) {
        let mut budget = INTAKE_PER_TURN;
        let mut idle = 0;
        let attached = self.ports_used.count_ones();
        while budget > 0 && idle < attached && self.ports_used != 0 && self.may_admit() {
            // The next used bit from `intake_next` on, round the end.
            let turned = self.ports_used.rotate_right(self.intake_next);
            let port = (self.intake_next + turned.trailing_zeros()) % 64;
            self.intake_next = (port + 1) % 64;
            match self.take_submission(port as usize) {
                Some(words) => {
                    budget -= 1;
                    idle = 0;
                    self.progress();
                    self.observe.add(Counter::Submissions, 1);
                    self.admit(PortIndex(u8::try_from(port).unwrap_or(u8::MAX)), &words, now);
                }
                None => idle += 1,
            }
        }
    }

    /// Whether there is a transfer for a submission. Some are kept for reads that peers ask for: two nodes that wait for
    /// each other's reads must not fill each other's tables.
    pub(super) const fn may_admit(&self) -> bool {
        let all = self.transfers.len();
        let kept = if all > 1 { all.div_ceil(16) } else { 0 };
        let kept = kept.saturating_sub(self.serving);
        self.transfers_free.count() > kept
    }

    /// Takes one submission if its completion has a place.
    fn take_submission(&mut self, at: usize) -> Option<[u64; Submission::WORDS]> {
        let port = self.ports[at].as_mut()?;
        if port.is_closing {
            return None;
        }
        let queue = &mut self.session_queues[port.session as usize];
        if queue.in_flight >= SessionQueue::IN_FLIGHT_MAX {
            return None;
        }
        // Exactly one completion for what is taken: its place in the ring is reserved by the count in flight.
        if !port.parts.completions.has_room(port.in_flight as usize + 1) {
            return None;
        }
        match port.parts.submissions.pop() {
            Ok(Some(words)) => {
                port.in_flight += 1;
                queue.in_flight += 1;
                self.ports_dirty |= 1 << at;
                Some(words)
            }
            Ok(None) => None,
            Err(_) => {
                let session = port.session;
                self.observe.add(Counter::PortsCorrupt, 1);
                self.event(EventCode::PortCorrupt, Code::FrameMalformed, u64::from(session), at as u64, 0);
                self.close_port(PortIndex(u8::try_from(at).unwrap_or(u8::MAX)));
                None
            }
        }
    }

    fn admit(&mut self, port: PortIndex, words: &[u64; Submission::WORDS], now: Nanos) {
        let submission = Submission::decode(words);
        let Some(session) = self.ports[usize::from(port.0)].as_ref().map(|port| port.session) else { return };
        let checked = if reserved_is_zero::<Submission>(words) {
            self.check(session, &submission)
        } else {
            Err(Code::ReservedNotZero)
        };
        match checked {
            Ok(remote) => self.begin(port, session, submission, &remote, now),
            Err(code) => {
                self.observe.add(Counter::Refused, 1);
                self.complete_refused(port, submission.cookie, code);
            }
        }
    }

    /// Everything that can be known before anything is done.
    fn check(&self, session: u32, submission: &Submission) -> Result<RemoteInfo, Code> {
        if !matches!(submission.operation, OPERATION_WRITE | OPERATION_READ) {
            return Err(Code::OperationUnknown);
        }
        let is_read = submission.operation == OPERATION_READ;
        if usize::from(submission.class) >= CLASSES {
            return Err(Code::ClassUnknown);
        }
        if submission.level > LEVEL_PLACED {
            return Err(Code::LevelUnknown);
        }
        let unsupported = submission.inline_bytes != 0
            || submission.list_count != 0
            || submission.list_index != 0
            || submission.group != 0
            || submission.gate_index != 0
            || submission.gate_value != 0
            || submission.inline_data != [0; 4];
        if unsupported {
            return Err(Code::Unsupported);
        }
        let notify_fits = match submission.notify {
            NOTIFY_SIGNAL => (submission.notify_index as usize) < SIGNALS,
            NOTIFY_EVENT => submission.notify_index == 0,
            NOTIFY_NONE => submission.notify_index == 0 && submission.notify_value == 0,
            _ => false,
        };
        if !notify_fits || (is_read && submission.notify != NOTIFY_NONE) {
            return Err(Code::NotificationUnknown);
        }
        let (near, far) = if is_read { (ACCESS_WRITE, ACCESS_READ) } else { (ACCESS_READ, ACCESS_WRITE) };
        self.check_local(session, submission, near)?;
        self.check_remote(session, submission, far)
    }

    fn check_local(&self, session: u32, submission: &Submission, access: u32) -> Result<(), Code> {
        // Slot 0 is the staging arena, which no client may name.
        let region =
            self.regions.get(submission.local_index as usize).filter(|_| submission.local_index != 0);
        let info = region
            .filter(|region| !region.is_closing)
            .and_then(|region| region.info)
            .filter(|info| info.generation == submission.local_generation && info.session == session)
            .ok_or(Code::LocalHandleStale)?;
        if info.access & access == 0 {
            return Err(Code::AccessMissing);
        }
        if !within(submission.local_offset, submission.bytes, info.bytes) {
            return Err(Code::LocalRange);
        }
        Ok(())
    }

    fn check_remote(&self, session: u32, submission: &Submission, access: u32) -> Result<RemoteInfo, Code> {
        let info = self
            .remotes
            .get(submission.remote_index as usize)
            .filter(|remote| !remote.is_closing && !remote.is_stale)
            .and_then(|remote| remote.info)
            .filter(|info| info.generation == submission.remote_generation && info.session == session)
            .ok_or(Code::RemoteHandleStale)?;
        if info.access & access == 0 {
            return Err(Code::AccessMissing);
        }
        if !within(submission.remote_offset, submission.bytes, info.bytes) {
            return Err(Code::RemoteRange);
        }
        Ok(info)
    }

    /// Chooses the way and puts the transfer in the queue of its session.
    fn begin(
        &mut self,
        port: PortIndex,
        session: u32,
        submission: Submission,
        remote: &RemoteInfo,
        now: Nanos,
    ) {
        let course = match self.course(&submission, remote) {
            Ok(course) => course,
            Err(code) => {
                self.observe.add(Counter::Refused, 1);
                self.complete_refused(port, submission.cookie, code);
                return;
            }
        };
        let Some(index) = self.transfers_free.pop_front(self.transfer_links) else {
            debug_assert!(false, "intake looked for a free transfer");
            return;
        };
        let given = u64::from(submission.deadline_us) * 1000;
        let deadline = now.saturating_add(if given == 0 { self.active.deadline } else { given });
        let entry = &mut self.transfers[index as usize];
        *entry = Transfer {
            phase: Phase::Running,
            kind: course.kind,
            generation: entry.generation.wrapping_add(1).max(1),
            port,
            session,
            submission: course.submission,
            remote: submission.remote_index,
            key: course.key,
            into: course.into,
            direct_there: course.direct_there,
            connection: course.connection,
            send: course.send,
            receive: course.receive,
            timer: deadline,
            settings_generation: self.active.generation,
            plan_generation: course.plan_generation,
            intake_at: now,
            ..Transfer::FREE
        };
        self.arm(deadline);
        self.regions[course.submission.local_index as usize].uses += 1;
        if let Some(into) = course.into {
            self.regions[into.0 as usize].uses += 1;
        }
        self.remotes[submission.remote_index as usize].uses += 1;
        self.connections[usize::from(course.connection.0)].transfers += 1;
        self.want_connection(course.connection, remote.peer);
        self.make_runnable(index);
    }

    /// Asks the registrar for a connection that is not there.
    fn want_connection(&mut self, connection: crate::port::ConnectionIndex, peer: u32) {
        let entry = &mut self.connections[usize::from(connection.0)];
        if entry.phase == ConnectionPhase::Free {
            entry.phase = ConnectionPhase::Wanted;
            self.notices.push(crate::Notice::ConnectionWanted { connection, peer });
        }
    }

    fn complete_refused(&mut self, port: PortIndex, cookie: u64, code: Code) {
        let completion = Completion {
            cookie,
            status: code.number(),
            side: SIDE_LOCAL,
            retry: u8::from(code.is_retryable()),
            generation: self.active.generation,
            ..Completion::default()
        };
        self.push_completion(port, &completion);
    }

    /// Writes a completion into the place that intake reserved.
    pub(super) fn push_completion(&mut self, index: PortIndex, completion: &Completion) {
        let at = usize::from(index.0);
        let Some(port) = self.ports[at].as_mut() else { return };
        port.in_flight -= 1;
        self.session_queues[port.session as usize].in_flight -= 1;
        if port.parts.completions.push(&completion.encode()).is_err() {
            // Only a client that corrupts its own ring gets here; it loses the completion, nobody else anything.
            port.is_closing = true;
        }
        self.ports_dirty |= 1 << at;
        if port.is_closing && port.in_flight == 0 {
            self.finish_port(index);
        }
    }

    /// Makes this turn's completions visible and gives the places of taken submissions back.
    pub(super) fn publish_completions(&mut self) {
        while let Some(at) = super::take_bit(core::slice::from_mut(&mut self.ports_dirty)) {
            let Some(port) = self.ports[at].as_mut() else { continue };
            port.parts.submissions.release();
            if port.parts.completions.publish() > 0 && port.parts.bell.take() {
                self.ports_to_wake |= 1 << at;
            }
        }
    }

    /// The slot of a transfer that has not posted anything.
    pub(super) const fn has_slot(transfer: &Transfer) -> bool {
        transfer.slot != SLOT_NONE
    }

    /// The index of a region named by a client or peer, if it can be an index at all.
    pub(super) fn region_at(&self, index: u32) -> Option<RegionIndex> {
        (index != 0 && (index as usize) < self.regions.len()).then_some(RegionIndex(to_u32(index as usize)))
    }
}

/// Whether `offset + bytes` stays within `limit`.
pub(super) const fn within(offset: u64, bytes: u64, limit: u64) -> bool {
    match offset.checked_add(bytes) {
        Some(end) => end <= limit,
        None => false,
    }
}
