//! What simulated clients do: submit, collect completions and events, fall asleep.

use std::rc::Rc;

use railhead_abi::Code;
use railhead_abi::submission::{
    CLASSES, Completion, LEG_DIRECT, LEVEL_PLACED, LEVEL_VISIBLE, NOTIFY_EVENT, NOTIFY_NONE, NOTIFY_SIGNAL,
    OPERATION_READ, OPERATION_WRITE, SessionEvent, Submission,
};

use super::World;
use super::oracle::{Expect, Pending};
use super::session::{AreaIndex, Purpose};
use super::tables::Words;
use crate::{Rng, Use};

/// Signal words that transfers use.
const SIGNALS_USED: u64 = 4;

/// A size: edges and a spread over several chunks.
fn draw_bytes(rng: &mut Rng, large_bytes: u64, area: usize) -> usize {
    let edge = *rng.pick(&[4096, 8192, large_bytes, 2 * large_bytes]);
    let bytes = match rng.below(8) {
        0 => 0,
        1 => 1,
        2 => rng.below(4096),
        3 | 4 => edge + rng.below(3) - 1,
        5 => rng.below(2 * large_bytes),
        6 => rng.below(5 * large_bytes),
        _ => rng.below(200),
    };
    usize::try_from(bytes).unwrap_or(0).min(area / 4)
}

impl World<'_> {
    /// One client's step.
    pub(super) fn run_client(&mut self, session: usize) {
        for lane in 0..self.config.lanes {
            let port = &mut self.sessions[session].ports[lane];
            if port.is_asleep || port.is_abandoned {
                continue;
            }
            self.collect(session, lane);
            let port = &mut self.sessions[session].ports[lane];
            if self.rng.chance(200_000) {
                port.bell.prepare();
                port.is_asleep = port.completions.is_empty();
                if !port.is_asleep {
                    port.bell.end();
                }
            }
        }
        if !self.sessions[session].is_event_asleep && self.rng.chance(300_000) {
            self.collect_events(session);
            let client = &mut self.sessions[session];
            client.event_bell.prepare();
            client.is_event_asleep = client.events.iter().all(railhead_ring::Consumer::is_empty);
            if !client.is_event_asleep {
                client.event_bell.end();
            }
        }
        let client = &self.sessions[session];
        if client.left > 0 && client.in_flight < self.config.in_flight && self.rng.chance(300_000) {
            self.submit(session);
        }
    }

    /// A lane woke whoever sleeps on this word.
    pub(super) fn wake(&mut self, word: &Words) {
        for session in &mut self.sessions {
            if Rc::ptr_eq(session.event_bell.memory(), word) {
                session.is_event_asleep = false;
                session.event_bell.end();
            }
            for port in session.ports.iter_mut().filter(|port| Rc::ptr_eq(port.bell.memory(), word)) {
                port.is_asleep = false;
                port.bell.end();
            }
        }
    }

    fn collect(&mut self, session: usize, lane: usize) {
        loop {
            let port = &mut self.sessions[session].ports[lane];
            let Some(words) = port.completions.pop().expect("the engine's ring is sound") else { break };
            port.completions.release();
            self.complete(session, &Completion::decode(&words));
        }
    }

    pub(super) fn collect_events(&mut self, session: usize) {
        for lane in 0..self.config.lanes {
            loop {
                let events = &mut self.sessions[session].events[lane];
                let Some(words) = events.pop().expect("the engine's ring is sound") else { break };
                events.release();
                self.see_event(session, &SessionEvent::decode(&words));
            }
            // A delivery may wait for the room.
            let node = self.sessions[session].node;
            self.lanes[node * self.config.lanes + lane].is_rung = true;
        }
    }

    fn submit(&mut self, session: usize) {
        let lane_number = self.rng.index(self.config.lanes);
        let lane = self.sessions[session].node * self.config.lanes + lane_number;
        let target = self.rng.index(self.sessions.len());
        let is_read = self.rng.chance(400_000);
        let slot = self.handle_slot(session, target, is_read);
        let (near, far) = (&self.sessions[session], &self.sessions[target]);
        let (source, destination) = if is_read {
            (far.area(Purpose::Source), near.area(Purpose::Sink))
        } else {
            (near.area(Purpose::Source), far.area(Purpose::Destination))
        };
        let port = &mut self.sessions[session].ports[lane_number];
        let is_ready =
            self.handles[&(lane, slot)].is_usable && !port.is_abandoned && port.submissions.has_room(1);
        if !is_ready || self.areas[source].is_leaving || self.areas[destination].is_leaving {
            return;
        }
        let large_bytes = self.config.pools[self.sessions[target].node].large_bytes;
        let bytes = draw_bytes(&mut self.rng, large_bytes, self.areas[destination].memory.len());
        let Some(from) = self.areas[source].reserve(bytes, &mut self.rng) else { return };
        let Some(to) = self.areas[destination].reserve(bytes, &mut self.rng) else {
            self.areas[source].release(from, bytes);
            return;
        };
        let data = self.areas[source].fill(from, bytes, &mut self.rng);
        self.cookies += 1;
        let cookie = self.cookies;
        let mut submission = self.draw_submission(source, destination, cookie, is_read);
        let (local_offset, remote_offset) = if is_read { (to, from) } else { (from, to) };
        submission.local_offset = local_offset as u64;
        submission.remote_index = slot;
        submission.remote_generation = self.handles[&(lane, slot)].generation;
        submission.remote_offset = remote_offset as u64;
        submission.bytes = bytes as u64;
        let is_self = self.sessions[session].node == self.sessions[target].node;
        let (words, expect) = self.spoil(source, destination, &submission, is_self);
        let windows = (
            self.areas[source].open(from, bytes, Use::Read),
            self.areas[destination].open(to, bytes, Use::Write),
        );
        let submitted_at = self.clock.now();
        let generation = self.lanes[lane].generation;
        let pending = Pending {
            session,
            target,
            lane,
            slot,
            source,
            destination,
            from,
            to,
            data,
            windows,
            submission,
            expect,
            submitted_at,
            generation,
            events: 0,
            is_abandoned: false,
        };
        self.trace(&format!("session {session} -> {target} on lane {lane}: {submission:?} {expect:?}"));
        self.pending.insert(cookie, pending);
        let client = &mut self.sessions[session];
        client.left -= 1;
        client.in_flight += 1;
        client.ports[lane_number].submissions.push_publish(&words).expect("there is room");
        self.lanes[lane].is_rung = true;
    }

    fn draw_submission(
        &mut self,
        source: AreaIndex,
        destination: AreaIndex,
        cookie: u64,
        is_read: bool,
    ) -> Submission {
        let rng = &mut self.rng;
        let notify =
            if is_read { NOTIFY_NONE } else { *rng.pick(&[NOTIFY_NONE, NOTIFY_SIGNAL, NOTIFY_EVENT]) };
        let (notify_index, notify_value) = match notify {
            NOTIFY_SIGNAL => (u32::try_from(rng.below(SIGNALS_USED)).unwrap_or(0), rng.between(1, 1000)),
            NOTIFY_EVENT => (0, cookie),
            _ => (0, 0),
        };
        let mut leg = |direct_possible: bool| match rng.below(6) {
            0 => 1,
            // Now and then also where it must be refused.
            1 if direct_possible || rng.chance(50_000) => LEG_DIRECT,
            _ => 0,
        };
        let send_leg = leg(self.areas[source].info.direct_possible);
        let receive_leg = leg(self.areas[destination].info.direct_possible);
        let deadlines = if self.is_quiet { 0 } else { self.config.deadlines };
        let most = *rng.pick(&[50, 3_000]);
        let deadline_us =
            if rng.chance(deadlines) { u32::try_from(rng.between(5, most)).unwrap_or(1) } else { 0 };
        let level = *rng.pick(&[LEVEL_VISIBLE, LEVEL_PLACED]);
        let local = self.areas[if is_read { destination } else { source }].info;
        Submission {
            operation: if is_read { OPERATION_READ } else { OPERATION_WRITE },
            class: u8::try_from(rng.index(CLASSES)).unwrap_or(0),
            send_leg,
            receive_leg,
            notify,
            notify_index,
            notify_value,
            level,
            cookie,
            local_index: local.region.0,
            local_generation: local.generation,
            deadline_us,
            ..Submission::default()
        }
    }

    /// The words to submit, now and then with a fault that must be refused, and what must come of them.
    fn spoil(
        &mut self,
        source: AreaIndex,
        destination: AreaIndex,
        good: &Submission,
        is_self: bool,
    ) -> ([u64; Submission::WORDS], Expect) {
        let mut bad = *good;
        let kind = if self.rng.chance(self.config.bad) { self.rng.below(11) } else { 99 };
        let mut reserved = 0;
        let code = match kind {
            0 => {
                bad.operation = 9;
                Code::OperationUnknown
            }
            1 => {
                reserved = 1;
                Code::ReservedNotZero
            }
            2 => {
                bad.local_generation += 1_000;
                Code::LocalHandleStale
            }
            3 => {
                bad.local_offset = u64::MAX - 3;
                bad.bytes = bad.bytes.max(1);
                Code::LocalRange
            }
            4 => {
                bad.remote_generation += 1_000;
                Code::RemoteHandleStale
            }
            5 => {
                bad.remote_offset = u64::MAX - bad.bytes;
                bad.bytes = bad.bytes.max(1);
                Code::RemoteRange
            }
            6 => {
                bad.class = 7;
                Code::ClassUnknown
            }
            7 => {
                bad.send_leg = 3;
                Code::RouteUnknown
            }
            8 => {
                bad.notify = 9;
                Code::NotificationUnknown
            }
            9 => {
                bad.level = 2;
                Code::LevelUnknown
            }
            10 => {
                // The regions and the handle are not for this; a read cannot notify either.
                bad.operation = OPERATION_WRITE + OPERATION_READ - good.operation;
                if good.notify == NOTIFY_NONE { Code::AccessMissing } else { Code::NotificationUnknown }
            }
            _ => return (good.encode(), self.expect(source, destination, good, is_self)),
        };
        let mut words = bad.encode();
        words[11] |= reserved;
        (words, Expect::Refused(code))
    }

    /// What has to come of a good submission: some demand what is impossible.
    fn expect(&self, source: AreaIndex, destination: AreaIndex, good: &Submission, is_self: bool) -> Expect {
        let (source, destination) = (&self.areas[source].info, &self.areas[destination].info);
        let capabilities = &self.config.network.capabilities;
        if good.bytes == 0 {
            return Expect::Outcome;
        }
        let sends = good.send_leg == LEG_DIRECT && !source.direct_possible;
        let receives = good.receive_leg == LEG_DIRECT && !destination.direct_possible;
        let is_asked = good.operation == OPERATION_READ && !is_self;
        if receives || (sends && (!is_asked || capabilities.reads)) {
            return Expect::Refused(Code::DirectImpossible);
        }
        if sends {
            // Only its owner knows.
            return Expect::Fails(Code::DirectImpossible);
        }
        // Into what no key opens the peer can only be let by a window.
        let is_closed = is_asked && !capabilities.windows && good.receive_leg == LEG_DIRECT;
        if is_closed { Expect::Perhaps(Code::DirectImpossible) } else { Expect::Outcome }
    }
}
