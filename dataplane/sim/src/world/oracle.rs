//! What must be true of every transfer, whatever goes wrong.

use railhead_abi::settings::{Mode, Setting};
use railhead_abi::submission::{
    Completion, LEG_AUTO, LEG_DIRECT, LEG_STAGED, LEVEL_PLACED, NOTIFY_EVENT, NOTIFY_SIGNAL, OPERATION_READ,
    SessionEvent, Submission,
};
use railhead_abi::{Code, Reason};
use railhead_core::port::Nanos;

use super::World;
use super::registrar::Undefined;
use super::session::{Area, AreaIndex};
use crate::Window;

/// What has to come of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// It is refused with this code.
    Refused(Code),
    /// It is accepted.
    Outcome,
    /// It is accepted, and may end with this code.
    Perhaps(Code),
    /// It is accepted and cannot succeed; unless something else comes first, it ends with this code.
    Fails(Code),
}

/// A submission whose completion has not come.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) session: usize,
    pub(super) target: usize,
    pub(super) lane: usize,
    pub(super) slot: u32,
    pub(super) source: AreaIndex,
    pub(super) destination: AreaIndex,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) data: Vec<u8>,
    /// What devices may read of the source and write of the destination.
    pub(super) windows: (Window, Window),
    pub(super) submission: Submission,
    pub(super) expect: Expect,
    pub(super) submitted_at: Nanos,
    /// What the lane applied when it was submitted.
    pub(super) generation: u64,
    /// Events seen.
    pub(super) events: u32,
    /// Its client died.
    pub(super) is_abandoned: bool,
}

impl Pending {
    fn is_read(&self) -> bool {
        self.submission.operation == OPERATION_READ
    }

    /// The regions here and at the other end.
    fn near_and_far(&self) -> (AreaIndex, AreaIndex) {
        if self.is_read() { (self.destination, self.source) } else { (self.source, self.destination) }
    }
}

/// A transfer that completed: what may still be heard of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    target: usize,
    /// Its event may still come: nobody knows whether it was delivered.
    may_come: bool,
}

/// Codes of submissions that were never accepted.
const fn is_refused(status: Code) -> bool {
    status.number() > 0 && status.number() < 100
}

/// Outcomes that say that nothing was delivered and nothing ever will be.
const fn is_undelivered(status: Code) -> bool {
    is_refused(status)
        || matches!(
            status,
            Code::PeerDown
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Replan
                | Code::RemoteRefused
                | Code::Revoked
        )
}

impl World<'_> {
    /// An event came to a session.
    pub(super) fn see_event(&mut self, session: usize, event: &SessionEvent) {
        let cookie = event.value;
        let Some(pending) = self.pending.get_mut(&cookie) else {
            let past =
                self.past.get_mut(&cookie).unwrap_or_else(|| panic!("an event of no transfer: {event:?}"));
            assert!(past.may_come && past.target == session, "a late event: {event:?}");
            past.may_come = false;
            return;
        };
        let destination = &self.areas[pending.destination];
        assert_eq!(event.region_index, destination.info.region.0);
        assert_eq!(event.region_generation, destination.info.generation);
        pending.events += 1;
        assert_eq!(pending.events, 1, "transfer {cookie}: its event came twice");
        assert_eq!(pending.target, session, "transfer {cookie}: its event came to another session");
        assert_eq!((event.offset, event.bytes), (pending.to as u64, pending.data.len() as u64));
        let wrong = destination.memory.first_difference(pending.to, &pending.data);
        // Of a source that was taken away zeroes arrive; its transfer must not succeed.
        let is_lost = self.areas[pending.source].memory.is_lost();
        assert!(wrong.is_none() || is_lost, "transfer {cookie}: an event before its data, at {wrong:?}");
    }

    /// A completion came.
    pub(super) fn complete(&mut self, session: usize, completion: &Completion) {
        let cookie = completion.cookie;
        // So that an event that was delivered before counts as such.
        if let Some(pending) = self.pending.get(&cookie) {
            self.collect_events(pending.target);
        }
        let pending = self
            .pending
            .remove(&cookie)
            .unwrap_or_else(|| panic!("completed twice or never made: {completion:?}"));
        assert_eq!(pending.session, session, "transfer {cookie}: completed to another session");
        let status =
            Code::from_number(completion.status).unwrap_or_else(|| panic!("an unknown code: {completion:?}"));
        self.sessions[session].in_flight -= 1;
        *self.outcomes.entry(status.name()).or_default() += 1;
        let context = format!("transfer {cookie} {:?} -> {status:?} {completion:?}", pending.submission);

        self.trace(&context);

        self.check_status(&pending, status, &context);
        self.check_notification(&pending, status, &context);
        if status == Code::Ok {
            assert_eq!(completion.bytes, pending.data.len() as u64, "{context}");
            let destination = &self.areas[pending.destination];
            let is_placed = pending.submission.level == LEVEL_PLACED && !pending.is_read();
            if is_placed {
                // Placed is not visible: whoever wants to see it has to look by other means.
                self.network.see_all(&destination.memory);
            }
            // What was only placed is lost with a region that is taken back.
            let is_kept = !is_placed || !destination.is_leaving;
            let wrong = destination.memory.first_difference(pending.to, &pending.data).filter(|_| is_kept);
            assert_eq!(wrong, None, "{context}: a byte at the target is not what was sent");
            self.check_route(&pending, completion, &context);
            self.note_route(completion, pending.is_read());
        } else {
            assert_eq!(completion.bytes, 0, "{context}");
        }
        if is_refused(status) || status == Code::PeerDown {
            let area = &self.areas[pending.destination];
            assert!(
                area.is_unchanged(pending.to, pending.data.len()),
                "{context}: the destination has changed"
            );
        }
        self.check_time(&pending, completion, &context);
        let may_come =
            !is_undelivered(status) && pending.submission.notify == NOTIFY_EVENT && pending.events == 0;
        self.past.insert(cookie, Past { target: pending.target, may_come });
        self.release(pending, status);
    }

    /// A submission that an abandoned port has not taken: nothing of it may have happened.
    pub(super) fn never_taken(&mut self, cookie: u64) {
        let Some(pending) = self.pending.remove(&cookie) else { return };
        self.sessions[pending.session].in_flight -= 1;
        *self.outcomes.entry("never taken").or_default() += 1;
        assert_eq!(pending.events, 0, "transfer {cookie} was never taken, but its event came");
        let bytes = pending.data.len();
        let destination = &mut self.areas[pending.destination];
        assert!(destination.is_unchanged(pending.to, bytes), "transfer {cookie} was never taken");
        destination.memory.close(pending.windows.1);
        destination.release(pending.to, bytes);
        let source = &mut self.areas[pending.source];
        source.memory.close(pending.windows.0);
        source.release(pending.from, bytes);
    }

    /// With `RAILHEAD_TRACE` set, says what happens.
    pub(super) fn trace(&self, what: &str) {
        if self.is_traced {
            eprintln!("{} {what}", self.clock.now());
        }
    }

    /// From now on nothing may touch source and destination; if nobody knows, the destination is closed by a fence.
    fn release(&mut self, pending: Pending, status: Code) {
        let bytes = pending.data.len();
        let source = &mut self.areas[pending.source];
        if pending.is_read() && status != Code::Ok && !is_refused(status) {
            // The owner's side may go on with reading it for a while, as what it has in use.
            self.lingering.push((pending.source, pending.from, bytes, pending.windows.0));
            let destination = &mut self.areas[pending.destination];
            destination.memory.close(pending.windows.1);
            destination.release(pending.to, bytes);
            assert_ne!(status, Code::Unknown, "a read cannot end so");
            self.check_violations();
            return;
        }
        source.memory.close(pending.windows.0);
        source.release(pending.from, bytes);
        // The owner makes use of it at once.
        source.fill(pending.from, bytes, &mut self.rng);
        if status == Code::Unknown {
            let window = pending.windows.1;
            let undefined = Undefined { area: pending.destination, at: pending.to, bytes, window };
            self.expire(pending.lane, pending.slot, undefined);
            return;
        }
        let destination = &mut self.areas[pending.destination];
        destination.memory.close(pending.windows.1);
        destination.release(pending.to, bytes);
        self.check_violations();
    }

    /// What faults have begun has come to its end, at both sides of every read.
    pub(super) fn end_lingering(&mut self) {
        for (area, at, bytes, window) in std::mem::take(&mut self.lingering) {
            self.areas[area].memory.close(window);
            self.areas[area].release(at, bytes);
        }
        self.check_violations();
    }

    fn check_status(&self, pending: &Pending, status: Code, context: &str) {
        match pending.expect {
            // The handle may have become stale behind the client's back, which is found first or last.
            Expect::Refused(code) => {
                let (near, far) = pending.near_and_far();
                let near = self.areas[near].is_leaving && status == Code::LocalHandleStale;
                let near = near || (self.areas[far].is_leaving && status == Code::RemoteHandleStale);
                let stale = near || (self.is_faulty() && status == Code::RemoteHandleStale);
                assert!(status == code || stale, "{context}: should be refused with {code:?}");
            }
            Expect::Fails(_) if status == Code::Ok => panic!("{context}: cannot succeed"),
            Expect::Outcome | Expect::Perhaps(_) if status == Code::Ok => {}
            Expect::Fails(code) | Expect::Perhaps(code) if status == code => {}
            Expect::Outcome | Expect::Fails(_) | Expect::Perhaps(_) => {
                let late = pending.submission.deadline_us > 0 && status == Code::DeadlineExceeded;
                let faults = !self.is_quiet && self.may_fail();
                let in_doubt = if pending.is_read() { Code::Interrupted } else { Code::Unknown };
                let broken = status == in_doubt
                    || matches!(
                        status,
                        Code::PeerDown | Code::DeviceError | Code::RemoteHandleStale | Code::DeadlineExceeded
                    );
                let (near, far) = pending.near_and_far();
                let far = self.areas[far].is_leaving
                    && matches!(
                        status,
                        Code::RemoteRefused
                            | Code::RemoteRegionLost
                            | Code::RemoteHandleStale
                            | Code::Revoked
                    );
                let near = self.areas[near].is_leaving
                    && matches!(status, Code::LocalHandleStale | Code::RegionLost);
                let gone = pending.is_abandoned && status == Code::SessionClosed;
                let broken = broken || far || near || gone;
                assert!(late || (faults && broken), "{context}: should have succeeded");
            }
        }
    }

    fn check_notification(&mut self, pending: &Pending, status: Code, context: &str) {
        let submission = &pending.submission;
        let is_event = submission.notify == NOTIFY_EVENT && status == Code::Ok;
        assert!(!is_event || pending.events == 1, "{context}: done without its event");
        assert!(
            pending.events == 0 || !is_undelivered(status),
            "{context}: not delivered, but its event came"
        );
        if submission.notify == NOTIFY_SIGNAL && !matches!(pending.expect, Expect::Refused(_)) {
            let word = submission.notify_index as usize;
            let target = &mut self.sessions[pending.target];
            let value = submission.notify_value;
            if status == Code::Ok {
                target.sure[word] += value;
            } else if !is_undelivered(status) {
                target.unsure[word] += value;
            }
            let seen = target.signals[word].load_acquire();
            assert!(
                seen >= target.sure[word],
                "{context}: signal {word} is {seen}, less than {}",
                target.sure[word]
            );
        }
    }

    /// The route is the one that the override or the settings of its generation say, or a reason tells why not.
    fn check_route(&self, pending: &Pending, completion: &Completion, context: &str) {
        let submission = &pending.submission;
        assert!(completion.generation >= pending.generation, "{context}: an old generation");
        let lane = &self.lanes[pending.lane];
        let settings = lane
            .settings
            .get(&completion.generation)
            .unwrap_or_else(|| panic!("{context}: no such generation"));
        let legs = [
            (submission.send_leg, completion.send_leg, completion.send_reason, pending.source),
            (submission.receive_leg, completion.receive_leg, completion.receive_reason, pending.destination),
        ];
        for (at, (wanted, taken, reason, area)) in legs.into_iter().enumerate() {
            let reason =
                Reason::from_number(reason).unwrap_or_else(|| panic!("{context}: an unknown reason"));
            if pending.data.is_empty() {
                assert_eq!(reason, Reason::Empty, "{context}");
                continue;
            }
            assert!(matches!(taken, LEG_STAGED | LEG_DIRECT), "{context}: no leg");
            let direct_possible = self.areas[area].info.direct_possible;
            assert!(direct_possible || taken == LEG_STAGED, "{context}: direct is not possible");
            let is_asked = pending.is_read()
                && self.sessions[pending.session].node != self.sessions[pending.target].node;
            if at == 1 && is_asked && reason == Reason::Impossible && taken == LEG_STAGED {
                assert!(!direct_possible || !self.config.network.capabilities.windows, "{context}");
                continue;
            }
            // Our settings rule our leg.
            let is_ours = if is_asked { at == 1 } else { at == 0 };
            let (mode, from) = [
                (Setting::SendMode, Setting::SendDirectFromBytes),
                (Setting::ReceiveMode, Setting::ReceiveDirectFromBytes),
            ][at];
            if wanted != LEG_AUTO && direct_possible {
                assert_eq!((taken, reason), (wanted, Reason::Override), "{context}");
            } else if is_ours && direct_possible && wanted == LEG_AUTO {
                match (settings.mode(mode), reason) {
                    (Mode::Staged, _) => assert_eq!((taken, reason), (LEG_STAGED, Reason::Mode), "{context}"),
                    (Mode::Direct, _) => assert_eq!((taken, reason), (LEG_DIRECT, Reason::Mode), "{context}"),
                    (Mode::Auto, Reason::Pressure) => assert_eq!(taken, LEG_DIRECT, "{context}"),
                    (Mode::Auto, _) => {
                        let is_direct = pending.data.len() as u64 >= settings.get(from);
                        assert_eq!(taken == LEG_DIRECT, is_direct, "{context}");
                    }
                }
            }
        }
    }

    fn note_route(&mut self, completion: &Completion, is_read: bool) {
        if completion.send_leg > 0 && completion.receive_leg > 0 {
            let route = usize::from(completion.send_leg - 1) * 2 + usize::from(completion.receive_leg - 1);
            let routes = if is_read { &mut self.read_routes } else { &mut self.routes };
            routes[route] += 1;
        }
    }

    /// A deadline is kept within the time to stop and to end a connection that does not answer.
    fn check_time(&self, pending: &Pending, completion: &Completion, context: &str) {
        let deadline = u64::from(pending.submission.deadline_us) * 1000;
        if deadline > 0 && !matches!(pending.expect, Expect::Refused(_)) {
            let ends_within =
                8 * (self.config.network.down_latency.max + self.config.network.latency.max) + 8_000_000;
            let quiesce_max = 4_000_000;
            let limit = deadline + quiesce_max + ends_within;
            assert!(
                completion.duration_ns <= limit,
                "{context}: took {} ns of {limit}",
                completion.duration_ns
            );
        }
        assert!(self.clock.now() >= pending.submitted_at);
    }

    /// Nobody touched bytes that it may not touch.
    pub(super) fn check_violations(&self) {
        let areas = self.areas.iter().map(|area| &area.memory);
        for memory in areas.chain(&self.arenas) {
            let seen = memory.take_violations();
            assert!(seen.is_empty(), "{seen:#?}");
        }
    }

    /// At the very end: memory is what the clients think it is, signals add up, and everything has come home.
    pub(super) fn check_end(&mut self) {
        use railhead_core::pool::Quota;
        self.check_violations();
        self.areas.iter().for_each(Area::check);
        for session in 0..self.sessions.len() {
            self.collect_events(session);
            let client = &self.sessions[session];
            for word in 0..client.signals.len() {
                let (seen, sure) = (client.signals[word].load_acquire(), client.sure[word]);
                let most = sure + client.unsure[word];
                assert!(
                    seen >= sure && seen <= most,
                    "session {session}: signal {word} is {seen}, not {sure} to {most}"
                );
            }
        }
        for (at, lane) in self.lanes.iter().enumerate() {
            assert_eq!(lane.engine.in_flight(), 0, "lane {at} holds transfers");
            assert_eq!(lane.engine.inbound_in_flight(), 0, "lane {at} holds inbound transfers");
            assert_eq!(lane.engine.connections_up(), 0, "lane {at} thinks that connections are up");
            let pool = lane.engine.pool();
            for quota in [Quota::LargeSend, Quota::LargeReceive, Quota::SmallSend, Quota::SmallReceive] {
                let (free, all) = (pool.free(quota), pool.shape().count(quota) as usize);
                assert_eq!(free, all, "lane {at}: blocks of {quota:?} are not home");
            }
        }
    }
}
