//! What the fabric says, and how connections end.

use railhead_abi::Code;
use railhead_core::port::FabricEvent;

use crate::connection::{Posted, State, Step, Work};
use crate::fabric::{Events, VerbsFabric};
use crate::message::{self, MESSAGE_BYTES_MAX};

impl VerbsFabric {
    /// Says what has happened, connection by connection in turn.
    pub(crate) fn tell(&mut self, events: &mut Events<'_>) {
        let mut from = self.turn;
        let mut wrapped = false;
        while !events.is_full() {
            let Some(at) = self.busy.next(from).filter(|at| !wrapped || *at < self.turn) else {
                if wrapped || self.turn == 0 {
                    break;
                }
                (wrapped, from) = (true, 0);
                continue;
            };
            self.tell_of(at, events);
            from = at + 1;
        }
        if !self.connections.is_empty() {
            self.turn = (self.turn + 1) % self.connections.len();
        }
    }

    fn tell_of(&mut self, at: usize, events: &mut Events<'_>) {
        let name = self.name(at);
        let connection = &mut self.connections[at];
        while !events.is_full() {
            let Some((ended, status)) = connection.next_ended() else { break };
            if ended.work.is_post() {
                events.push(FabricEvent::Done { connection: name, post: ended.post, status });
            }
            if matches!(ended.work, Work::Bye { .. }) {
                self.fail(at, Code::ConnectionReset);
                return;
            }
        }
        self.tell_arrived(at, events);
        self.settle(at, events);
    }

    fn tell_arrived(&mut self, at: usize, events: &mut Events<'_>) {
        let name = self.name(at);
        let connection = &mut self.connections[at];
        let Some(ready) = &connection.ready else { return };
        while !events.is_full() {
            let Some((slot, words)) = connection.arrived.pop() else { break };
            let mut message = [0; MESSAGE_BYTES_MAX];
            ready.mailbox.read(slot, &mut message[..8 + 8 * usize::from(words)]);
            connection.spare.push(slot);
            events.push(FabricEvent::Record {
                connection: name,
                record: message::decode_record(words, &message),
            });
        }
    }

    /// Goes on with a connection's end, and decides whether it is to be looked at again.
    fn settle(&mut self, at: usize, events: &mut Events<'_>) {
        let (name, now) = (self.name(at), self.now);
        let give_back_ns = self.config.give_back_ns;
        self.post_receives(at);
        let connection = &mut self.connections[at];
        match connection.state {
            State::Open => {
                let more = !connection.arrived.is_empty() || connection.has_ended();
                self.busy.set(at, more);
            }
            State::Leaving { until } if now >= until => self.fail(at, Code::ConnectionReset),
            State::Leaving { .. } | State::Free => {}
            State::Failing { until, step } => {
                let (has_failed, is_destroyed) = connection
                    .ready
                    .as_ref()
                    .map_or((false, true), |ready| (ready.pair.has_failed(), ready.pair.is_destroyed()));
                if is_destroyed {
                    connection.give_up();
                } else if step == Step::Asked && has_failed && connection.outstanding() > 0 {
                    connection.state = State::Failing { until, step: Step::Marked };
                    self.post_marker(at);
                    return;
                } else if now >= until && !connection.is_quiet() && step != Step::Destroying {
                    connection.destroy(now.saturating_add(give_back_ns));
                    self.rails[usize::from(connection.rail)].counters.given_up += 1;
                    self.caller.call();
                    return;
                }
                let all_told =
                    connection.queue.is_empty() && connection.arrived.is_empty() && connection.flushes == 0;
                if connection.is_quiet() && all_told && !events.is_full() {
                    let cause = connection.cause.unwrap_or(Code::ConnectionReset);
                    events.push(FabricEvent::Down { connection: name, cause });
                    connection.retire();
                    let rail = usize::from(connection.rail);
                    self.rails[rail].counters.downs += 1;
                    self.busy.set(at, false);
                    self.queued.set(at, false);
                }
            }
        }
    }

    /// Ends a connection.
    pub(crate) fn fail(&mut self, at: usize, cause: Code) {
        let until = self.now.saturating_add(self.config.give_back_ns);
        if self.connections[at].fail(cause, until) {
            self.caller.call();
            self.busy.set(at, true);
            self.queued.set(at, false);
        }
    }

    /// Sends a farewell behind what is queued, so that the other end ends too, and takes nothing more. When the farewell has
    /// arrived, or after `leave_ns`, the queue pair is made to fail.
    pub(crate) fn leave(&mut self, at: usize, cause: Code) {
        let until = self.now.saturating_add(self.config.leave_ns);
        let entry = &mut self.connections[at];
        let sends = entry.ready.as_ref().map(|ready| ready.mailbox.sends());
        let Some(sends) = sends.filter(|_| entry.credits > 0) else {
            self.fail(at, cause);
            return;
        };
        let slot = entry.take_slot(sends);
        entry.credits -= 1;
        entry.queue(Posted { work: Work::Bye { slot }, ..Posted::NOTHING });
        entry.cause = Some(cause);
        entry.state = State::Leaving { until };
        self.queued.set(at, true);
        self.busy.set(at, true);
    }
}
