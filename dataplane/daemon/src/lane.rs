//! A lane: one thread, its own memory, its own devices, its own engine.
//!
//! Life: the thread starts, reserves its arena, makes tables and adapters, faults everything in, *seals* itself, reports
//! that it is ready, and from then on turns until it is told to stop. Sealed means: no heap, no lock, no log, no call that
//! waits but the one in [`idle`]. What is slow comes in and goes out as parcels ([`mail`]).
//!
//! Inside one turn of the loop, in this order: the engine's turn, wake-ups of clients, notices out, commands in, one look
//! at the prepared settings' generation, now and then the figures that others look at.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use railhead_abi::observe::Counter;
use railhead_abi::segment::{LANE_SEALED, LANE_STOPPED, LaneRail, LaneStatus};
use railhead_abi::settings::{IdlePolicy, Plan, SETTINGS_WORDS, Setting, Settings};
use railhead_core::port::{Both, ConnectionIndex, Nanos};
use railhead_core::{Engine, Notice};
use railhead_host::{HostCopier, LocalFabric};
use railhead_ring::{Bell, CellReader, Word};
use railhead_shm::{Words, eventfd, futex};
use railhead_tcp::TcpFabric;
use railhead_verbs::{Ready, VerbsFabric};

use crate::allocator;
use crate::clock;
use crate::machine::ThreadUsage;
use crate::segment::{word_of, write_words};
use crate::tables::SELF;

mod commands;
pub(crate) mod connections;
pub(crate) mod handle;
mod idle;
pub(crate) mod mail;
pub(crate) mod setup;

use handle::{LaneMail, Lanes};
use mail::{Content, Parcel, SPARES};

/// The lane's engine.
type LaneEngine<'s> = Engine<'s, LaneFabric, HostCopier, Words>;

/// What the lane's connections run over: this node itself, sockets, and RDMA where there is a NIC.
type LaneFabric = Both<LocalFabric, Both<TcpFabric, Option<VerbsFabric>>>;

/// Commands taken in one turn.
const COMMANDS_PER_TURN: usize = 16;
/// Clients woken in one turn: each costs a system call.
const WAKES_PER_TURN: usize = 8;
/// Threads of a client woken at once: one may wait for completions and others for events on one word. A client that lets
/// more of them sleep there would have the lane walk through all of them.
pub(crate) const SLEEPERS_MAX: u32 = 16;
/// How often the figures that others look at are written.
const STATUS_EVERY: Nanos = 10_000_000;
/// How often the kernel is asked for faults and switches: a system call.
const USAGE_EVERY: Nanos = 250_000_000;
/// Tries at copying the prepared snapshot; its writer is a thread of this process and takes microseconds.
const SNAPSHOT_TRIES: u32 = 64;

/// What a lane's loop works with.
struct Lane<'s> {
    index: usize,
    engine: LaneEngine<'s>,
    mail: LaneMail,
    lanes: Arc<Lanes>,
    bell: Bell<Words>,
    /// Rung when a parcel goes home.
    notices_doorbell: Arc<OwnedFd>,
    /// Boxes for notices.
    #[expect(clippy::vec_box, reason = "the boxes are what travels")]
    spares: Vec<Box<Parcel>>,
    prepared: CellReader<Words>,
    status: Words,
    /// What it says of each RDMA rail.
    rails: Words,
    /// Where the applied snapshot is copied to.
    settings: Settings,
    applied: u64,
    idle_policy: IdlePolicy,
    spin: Nanos,
    /// Since when there was nothing to do.
    idle_since: Nanos,
    status_at: Nanos,
    usage_at: Nanos,
    usage_at_seal: ThreadUsage,
    /// Ends of the local fabric that went down and wait for their other end.
    local_down: [bool; connections::LOCAL as usize],
    pool_epoch: u32,
    /// Calls of the allocator by the lane's copy thread, which writes it.
    copy_allocations: Option<Arc<Word>>,
    is_stopping: bool,
}

impl Lane<'_> {
    /// Turns until the lane is stopped.
    fn run(&mut self) {
        allocator::seal_thread();
        self.usage_at_seal = ThreadUsage::now();
        self.status[word_of::<LaneStatus>("state")].store_release(LANE_SEALED);
        while !self.is_stopping {
            let now = clock::monotonic_ns();
            let turn = self.engine.turn(now);
            let is_busy =
                turn.is_busy | self.wake_clients() | self.send_notices(now) | self.take_commands(now);
            self.look_at_settings(now);
            if now >= self.status_at {
                self.write_status(now);
            }
            if is_busy {
                self.idle_since = now;
            } else if self.idle_policy == IdlePolicy::Adaptive
                && now.saturating_sub(self.idle_since) >= self.spin
            {
                self.sleep(now, turn.wake_at);
            } else {
                core::hint::spin_loop();
            }
        }
        self.write_status(clock::monotonic_ns());
        self.status[word_of::<LaneStatus>("state")].store_release(LANE_STOPPED);
        allocator::unseal_thread();
    }

    /// Wakes clients that sleep until a completion, event or signal comes.
    fn wake_clients(&mut self) -> bool {
        for count in 0..WAKES_PER_TURN {
            let Some(bell) = self.engine.next_wake() else { return count > 0 };
            futex::wake(&bell[0], SLEEPERS_MAX);
        }
        true
    }

    /// Sends what the engine has for the registrar, as far as there are spare boxes and room.
    fn send_notices(&mut self, now: Nanos) -> bool {
        let mut is_sent = false;
        // Two boxes: the end of an RDMA connection sends one of its own ahead.
        while self.spares.len() > 1 && self.mail.returns.free() > 1 {
            let Some(notice) = self.engine.next_notice() else { break };
            if self.handle_here(&notice, now) {
                continue;
            }
            let Some(mut parcel) = self.spares.pop() else { break };
            parcel.content = Content::Notice(notice);
            self.give(parcel);
            is_sent = true;
        }
        if is_sent {
            self.ring_registrar();
        }
        is_sent
    }

    /// Sends home what is left of an RDMA connection that has ended: dropping it is slow.
    fn retire(&mut self, connection: ConnectionIndex) {
        let verbs = self.engine.fabric_mut().second.second.as_mut();
        if let Some(ready) = verbs.and_then(|verbs| verbs.take_retired(connection)) {
            self.send_home(ready);
        }
    }

    /// Sends home what only an ordinary thread can drop.
    fn send_home(&mut self, ready: Ready) {
        let Some(mut parcel) = self.spares.pop() else {
            debug_assert!(false, "more boxes are on their way than connections can end");
            return;
        };
        parcel.content = Content::Retired(ready);
        self.give(parcel);
    }

    /// What a notice asks of the lane itself; true if that is all of it.
    fn handle_here(&mut self, notice: &Notice<Words>, now: Nanos) -> bool {
        match *notice {
            Notice::RegionDrained { region } => {
                // The registrar keeps the owner of the memory until it has read this notice: nothing is unmapped here.
                drop(self.engine.copier_mut().remove(region));
                let fabric = self.engine.fabric_mut();
                drop(fabric.first.remove(region));
                drop(fabric.second.first.remove(region));
                if let Some(verbs) = &mut fabric.second.second {
                    drop(verbs.remove(region));
                }
                false
            }
            Notice::ConnectionDown { connection, .. } if connection.0 < connections::LOCAL => {
                self.local_down[usize::from(connection.0)] = true;
                self.reopen_local(connection, now);
                true
            }
            Notice::ConnectionDown { connection, .. } => {
                self.retire(connection);
                false
            }
            // It is opened again as soon as both ends are down.
            Notice::ConnectionWanted { connection, .. } => connection.0 < connections::LOCAL,
            _ => false,
        }
    }

    /// Opens a pair of the local fabric again when both ends have gone down.
    fn reopen_local(&mut self, connection: ConnectionIndex, now: Nanos) {
        let first = connection.0 & !1;
        let ends = [usize::from(first), usize::from(first) + 1];
        if ends.iter().all(|end| self.local_down[*end]) && self.engine.fabric_mut().first.open(connection) {
            ends.iter().for_each(|end| self.local_down[*end] = false);
            setup::local_up(&mut self.engine, self.pool_epoch, first, now);
        }
    }

    /// Carries out commands and sends each box home with its answer.
    fn take_commands(&mut self, now: Nanos) -> bool {
        if self.mail.commands.is_empty() {
            return false;
        }
        let mut is_answered = false;
        let mut is_taken = false;
        for _ in 0..COMMANDS_PER_TURN {
            if self.mail.returns.free() == 0 {
                break;
            }
            let Some(mut parcel) = self.mail.commands.take() else { break };
            is_taken = true;
            match parcel.take() {
                Content::Command(command) => {
                    parcel.content = Content::Answer(self.execute(command, now));
                    self.give(parcel);
                    is_answered = true;
                }
                // A spare box that comes back. There are never more than the capacity was made for.
                _ => self.spares.push(parcel),
            }
        }
        if is_answered {
            self.ring_registrar();
        }
        is_taken
    }

    /// Sends a box home. Called with room only, so that it never comes back.
    fn give(&mut self, parcel: Box<Parcel>) {
        if let Err(parcel) = self.mail.returns.give(parcel) {
            debug_assert!(false, "the ring was asked for room before");
            if self.spares.len() < SPARES {
                self.spares.push(parcel);
            }
        }
    }

    fn ring_registrar(&self) {
        // Nobody else holds this descriptor, so it neither blocks nor fails.
        let rung = eventfd::ring(&*self.notices_doorbell);
        debug_assert!(rung.is_ok(), "the doorbell of the notices thread: {rung:?}");
    }

    /// Applies a snapshot that the settings thread has prepared.
    fn look_at_settings(&mut self, now: Nanos) {
        if self.prepared.generation() == self.applied {
            return;
        }
        let mut words = [0; SETTINGS_WORDS];
        if let Ok(generation) = self.prepared.read(&mut words, SNAPSHOT_TRIES)
            && generation != self.applied
        {
            self.settings.words = words;
            self.apply(generation);
            self.idle_since = now;
        }
    }

    /// Uses the snapshot for everything that starts from now on, then acknowledges it.
    fn apply(&mut self, generation: u64) {
        let settings = &self.settings;
        self.engine.apply(settings, generation);
        self.engine.update_plan(SELF, &Plan::of(settings, generation, true));
        let bytes = |setting| u32::try_from(settings.get(setting)).unwrap_or(u32::MAX);
        let (slice, coalesce) = (bytes(Setting::SliceBytes), bytes(Setting::CoalesceBytes));
        self.engine.copier_mut().set_slice(slice);
        let fabric = self.engine.fabric_mut();
        fabric.first.set_slice(slice);
        fabric.second.first.set_slice(slice, coalesce);
        self.idle_policy = settings.idle_policy();
        self.spin = settings.get(Setting::IdleSpinUs) * 1000;
        let spin = (self.idle_policy == IdlePolicy::Adaptive).then_some(self.spin);
        self.engine.copier_mut().set_spin(spin);
        self.applied = generation;
        // Partner: the acquire load in the settings thread and in control.
        self.status[word_of::<LaneStatus>("acknowledged")].store_release(generation);
    }

    /// Writes the figures that others look at.
    fn write_status(&mut self, now: Nanos) {
        self.status_at = now + STATUS_EVERY;
        if now >= self.usage_at {
            self.usage_at = now + USAGE_EVERY;
            let usage = ThreadUsage::now();
            let (faults, switches) = (usage.minor_faults, usage.voluntary_switches);
            let since = self.usage_at_seal;
            self.set("minor_faults", faults.saturating_sub(since.minor_faults));
            self.set("voluntary_switches", switches.saturating_sub(since.voluntary_switches));
        }
        self.set("ports", self.engine.ports_attached() as u64);
        self.set("in_flight", self.engine.in_flight() as u64);
        self.set("inbound", self.engine.inbound_in_flight() as u64);
        self.set("connections", u64::from(self.engine.connections_up()));
        setup::write_free_blocks(&self.status, &self.engine);
        let tcp = self.engine.fabric().second.first.counters();
        let counters = &self.engine.observe().counters;
        counters.set(Counter::SocketCalls as usize, tcp.sends + tcp.receives + tcp.looks);
        self.write_rails();
        let counters = &self.engine.observe().counters;
        let copies = self.copy_allocations.as_ref().map_or(0, |calls| calls.load_relaxed());
        counters.set(Counter::Allocations as usize, allocator::sealed_calls() + copies);
        counters.set(Counter::CopyThreadBytes as usize, self.engine.copier().handed_bytes());
    }

    fn write_rails(&self) {
        let Some(verbs) = &self.engine.fabric().second.second else { return };
        for (rail, words) in self.rails.chunks(LaneRail::WORDS).take(verbs.rails()).enumerate() {
            let counters = verbs.counters(rail);
            let now = LaneRail {
                connections: verbs.connections(rail) as u64,
                doorbells: counters.doorbells,
                requests: counters.requests,
                signalled: counters.signalled,
                inline: counters.inline,
                bytes_written: counters.bytes_written,
                bytes_read: counters.bytes_read,
                confirms: counters.confirms,
                flush_reads: counters.flush_reads,
                messages: counters.messages,
                completions: counters.completions,
                errors: counters.errors,
                refused: counters.refused,
                downs: counters.downs,
            };
            write_words(words, &now.encode());
        }
    }

    #[inline(always)]
    fn set(&self, field: &'static str, value: u64) {
        self.status[word_of::<LaneStatus>(field)].store_relaxed(value);
    }

    /// Whether nothing waits for this lane: the second look, after it announced its sleep.
    fn may_sleep(&mut self) -> bool {
        // Last: it has the NICs say when something comes from here on.
        self.engine.may_sleep()
            && self.mail.commands.is_empty()
            && self.prepared.generation() == self.applied
            && !self.engine.fabric().first.is_busy()
            && self.engine.fabric().second.first.may_sleep()
            && self.engine.fabric_mut().second.second.as_mut().is_none_or(VerbsFabric::prepare_sleep)
    }
}

/// The descriptor that says that sockets of the fabric are ready.
fn fabric_descriptor<'a>(engine: &'a LaneEngine<'_>) -> std::os::fd::BorrowedFd<'a> {
    engine.fabric().second.first.as_fd()
}
