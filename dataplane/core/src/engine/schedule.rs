//! Whose turn it is: classes by share, sessions by deficit round robin, transfers of a session in turn.

use super::{BYTES_PER_TURN, Engine, VISITS_PER_TURN};
use crate::port::{CopyEngine, Fabric, Nanos};
use crate::tables::Phase;
use core::ops::Deref;
use railhead_abi::submission::{CLASS_BULK, CLASS_LATENCY, CLASSES};
use railhead_ring::Word;

/// How far the latency class may run ahead of its share, in bytes times percent.
const BALANCE_MAX: i64 = 100 * (4 << 20);

/// What a visit costs at least: a message without bytes takes its turn, too.
const VISIT_BYTES_MIN: u64 = 4096;

/// What a visit to a transfer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// Bytes were set on their way (0 for a FIN alone).
    Made(u64),
    /// Nothing could be done now.
    Blocked,
}

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Puts a transfer at the end of its session's queue.
    pub(super) fn make_runnable(&mut self, index: u32) {
        let transfer = &self.transfers[index as usize];
        let (session, class) = (transfer.session as usize, usize::from(transfer.submission.class));
        self.session_queues[session].runnable[class].push_back(self.transfer_links, index);
        if !self.session_links[class][session].is_linked() {
            self.session_queues[session].deficit[class] = 0;
            self.sessions_active[class].push_back(self.session_links[class], super::to_u32(session));
        }
        self.visits_in_vain = [0; CLASSES];
    }

    /// Takes a transfer out of its session's queue.
    pub(super) fn make_unrunnable(&mut self, index: u32) {
        let transfer = &self.transfers[index as usize];
        let (session, class) = (transfer.session as usize, usize::from(transfer.submission.class));
        self.session_queues[session].runnable[class].remove(self.transfer_links, index);
        if self.session_queues[session].runnable[class].is_empty() {
            self.sessions_active[class].remove(self.session_links[class], super::to_u32(session));
        }
    }

    /// Whether every transfer that could run was visited since something last happened. Sessions take turns, so the
    /// longest queue is through after that many visits to each session.
    pub(super) fn all_visited(&self) -> bool {
        (0..CLASSES).all(|class| {
            let sessions = self.sessions_active[class].count();
            let longest = self.session_queues.iter().map(|queue| queue.runnable[class].count()).max();
            self.visits_in_vain[class] >= sessions * longest.unwrap_or(0)
        })
    }

    /// Sets chunks on their way until the budget is used or nothing more can be done.
    pub(super) fn schedule(&mut self, now: Nanos) {
        let mut bytes_left = BYTES_PER_TURN;
        let mut visits = VISITS_PER_TURN;
        let mut in_vain = [0; CLASSES];
        while visits > 0 && bytes_left > 0 {
            let Some(class) = self.next_class(&in_vain) else { break };
            visits -= 1;
            match self.visit_next(class, now) {
                Visit::Made(bytes) => {
                    in_vain[class] = 0;
                    bytes_left = bytes_left.saturating_sub(bytes);
                    self.progress();
                    self.account(class, bytes.max(VISIT_BYTES_MIN));
                }
                Visit::Blocked => {
                    in_vain[class] += 1;
                    self.visits_in_vain[class] += 1;
                }
            }
        }
    }

    /// Latency first, unless it has had more than its share while bulk can run.
    fn next_class(&self, in_vain: &[usize; CLASSES]) -> Option<usize> {
        let can_run = |class: usize| {
            let sessions = &self.sessions_active[class];
            !sessions.is_empty() && in_vain[class] <= VISITS_PER_TURN / 4
        };
        let (latency, bulk) = (usize::from(CLASS_LATENCY), usize::from(CLASS_BULK));
        match (can_run(latency), can_run(bulk)) {
            (true, true) => Some(if self.latency_balance > 0 { bulk } else { latency }),
            (true, false) => Some(latency),
            (false, true) => Some(bulk),
            (false, false) => None,
        }
    }

    fn account(&mut self, class: usize, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 100);
        let share = self.active.latency_share;
        self.latency_balance +=
            if class == usize::from(CLASS_LATENCY) { bytes * (100 - share) } else { -bytes * share };
        self.latency_balance = self.latency_balance.clamp(-BALANCE_MAX, BALANCE_MAX);
        if self.sessions_active.iter().any(crate::list::List::is_empty) {
            // A class that had nothing to do saves nothing up.
            self.latency_balance = 0;
        }
    }

    /// Visits the next transfer of the session whose turn it is.
    fn visit_next(&mut self, class: usize, now: Nanos) -> Visit {
        let Some(session) = self.sessions_active[class].front() else { return Visit::Blocked };
        let queue = &mut self.session_queues[session as usize];
        if queue.deficit[class] <= 0 {
            queue.deficit[class] += i64::try_from(self.active.chunk_bytes).unwrap_or(i64::MAX);
        }
        let Some(index) = queue.runnable[class].front() else {
            debug_assert!(false, "an active session without a transfer");
            return Visit::Blocked;
        };
        // To the back first: the visit may take the transfer out of the queue.
        queue.runnable[class].remove(self.transfer_links, index);
        queue.runnable[class].push_back(self.transfer_links, index);
        debug_assert!(self.transfers[index as usize].phase == Phase::Running);
        let visit = self.visit(index, now);
        let queue = &mut self.session_queues[session as usize];
        match visit {
            Visit::Made(bytes) => {
                queue.deficit[class] -= i64::try_from(bytes.max(VISIT_BYTES_MIN)).unwrap_or(i64::MAX);
            }
            // A transfer that waits does not use up its session's turn for the others, but ends it.
            Visit::Blocked => {}
        }
        let ends_turn = queue.deficit[class] <= 0 || visit == Visit::Blocked;
        if ends_turn && self.session_links[class][session as usize].is_linked() {
            self.sessions_active[class].remove(self.session_links[class], session);
            self.sessions_active[class].push_back(self.session_links[class], session);
        }
        visit
    }
}
