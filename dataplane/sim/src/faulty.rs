//! Faults as a decorator: wraps a device, and the engine above cannot tell it from a bad one.
//!
//! What it does is always something that the port allows: queues that are full for no reason, posts that end with an
//! error, connections that die, devices that say nothing for a while. It never loses a record of a connection that
//! lives. Decorating with the switch off changes nothing.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Copy, CopyDone, CopyEngine, CopyFull, Fabric, FabricEvent, Nanos, Place,
    PostError, PostId, Read, RemotePlace, Write,
};

use crate::copier::NO_COPY;
use crate::{Latency, Rng};

/// Turns all faults of a simulation on and off. Clones are the same switch.
#[derive(Debug, Clone, Default)]
pub struct FaultSwitch {
    on: Rc<Cell<bool>>,
}

impl FaultSwitch {
    /// A switch that is on or off.
    #[must_use]
    pub fn new(on: bool) -> Self {
        Self { on: Rc::new(Cell::new(on)) }
    }

    /// Turns it.
    pub fn set(&self, on: bool) {
        self.on.set(on);
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.get()
    }
}

/// How often what goes wrong; all rates are per million.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultPlan {
    /// A post is refused as if the queue were full.
    pub full: u32,
    /// A post that went well ends with `DeviceError`, and nothing else happens.
    pub error: u32,
    /// A write, read or confirm is swallowed, and its connection dies of it, as queue pairs do.
    pub fatal: u32,
    /// At a kick, a connection in use is closed.
    pub close: u32,
    /// At a poll, the device starts to say nothing for `silence`.
    pub silent: u32,
    /// How long it says nothing.
    pub silence: Option<Latency>,
}

/// A device with faults.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    plan: FaultPlan,
    switch: FaultSwitch,
    rng: Rng,
    silent_until: Nanos,
    held: VecDeque<FabricEvent>,
    held_copies: VecDeque<CopyDone>,
    swallowed: Vec<(ConnectionIndex, PostId)>,
    used: BTreeSet<ConnectionIndex>,
}

/// Events taken from the inner device at once.
const BATCH: usize = 32;

impl<T> Faulty<T> {
    /// Wraps a device.
    #[must_use]
    pub fn new(inner: T, plan: FaultPlan, switch: FaultSwitch, rng: Rng) -> Self {
        let (held, held_copies) = (VecDeque::new(), VecDeque::new());
        let (swallowed, used) = (Vec::new(), BTreeSet::new());
        Self { inner, plan, switch, rng, silent_until: 0, held, held_copies, swallowed, used }
    }

    /// The device inside.
    pub const fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    fn strikes(&mut self, per_million: u32) -> bool {
        self.switch.is_on() && self.rng.chance(per_million)
    }

    /// Whether the device says nothing now.
    fn is_silent(&mut self, now: Nanos) -> bool {
        if let Some(silence) = self.plan.silence
            && now >= self.silent_until
            && self.strikes(self.plan.silent)
        {
            self.silent_until = now + silence.draw(&mut self.rng);
        }
        now < self.silent_until
    }
}

impl<F: Fabric> Faulty<F> {
    /// Whether events wait here that the device inside has given already: its doorbell will not ring for them.
    #[must_use]
    pub fn holds_events(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a post is swallowed: its connection dies of it.
    fn swallows(&mut self, connection: ConnectionIndex, post: PostId) -> bool {
        let strikes = self.used.contains(&connection) && self.strikes(self.plan.fatal);
        if strikes {
            self.inner.close(connection);
            self.swallowed.push((connection, post));
            self.used.remove(&connection);
        }
        strikes
    }

    fn take(&mut self, event: FabricEvent) {
        match event {
            FabricEvent::Done { connection, post, status: Code::Ok } if self.strikes(self.plan.error) => {
                self.held.push_back(FabricEvent::Done { connection, post, status: Code::DeviceError });
            }
            FabricEvent::Down { connection, .. } => {
                for (of, post) in std::mem::take(&mut self.swallowed) {
                    if of == connection {
                        self.held.push_back(FabricEvent::Done {
                            connection,
                            post,
                            status: Code::DeviceError,
                        });
                    } else {
                        self.swallowed.push((of, post));
                    }
                }
                self.used.remove(&connection);
                self.held.push_back(event);
            }
            _ => self.held.push_back(event),
        }
    }
}

impl<F: Fabric> Fabric for Faulty<F> {
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities {
        self.inner.capabilities(connection)
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        if self.strikes(self.plan.full) {
            return Err(PostError::Full);
        }
        self.inner.send(connection, record)
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        if self.strikes(self.plan.full) {
            return Err(PostError::Full);
        }
        if self.swallows(connection, write.post) {
            return Ok(());
        }
        let taken = self.inner.write(connection, write);
        if taken.is_ok() {
            self.used.insert(connection);
        }
        taken
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        if self.strikes(self.plan.full) {
            return Err(PostError::Full);
        }
        if self.swallows(connection, read.post) {
            return Ok(());
        }
        let taken = self.inner.read(connection, read);
        if taken.is_ok() {
            self.used.insert(connection);
        }
        taken
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        if self.strikes(self.plan.full) {
            return Err(PostError::Full);
        }
        self.inner.flush(connection, post)
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        if self.strikes(self.plan.full) {
            return Err(PostError::Full);
        }
        if self.swallows(connection, post) {
            return Ok(());
        }
        self.inner.confirm(connection, at, post)
    }

    fn open_window(&mut self, connection: ConnectionIndex, slot: u16, to: Place, bytes: u64) {
        self.inner.open_window(connection, slot, to, bytes);
    }

    fn close_window(&mut self, connection: ConnectionIndex, slot: u16) {
        self.inner.close_window(connection, slot);
    }

    fn close(&mut self, connection: ConnectionIndex) {
        self.used.remove(&connection);
        self.inner.close(connection);
    }

    fn kick(&mut self, now: Nanos) {
        if self.strikes(self.plan.close) && !self.used.is_empty() {
            let at = self.rng.index(self.used.len());
            if let Some(connection) = self.used.iter().nth(at).copied() {
                self.used.remove(&connection);
                self.inner.close(connection);
            }
        }
        self.inner.kick(now);
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        if self.is_silent(now) {
            return 0;
        }
        if self.held.len() < BATCH {
            let mut batch = [FabricEvent::Down { connection: ConnectionIndex(0), cause: Code::Ok }; BATCH];
            let count = self.inner.poll(now, &mut batch);
            for event in &batch[..count] {
                self.take(*event);
            }
        }
        let count = events.len().min(self.held.len());
        for (event, held) in events.iter_mut().zip(self.held.drain(..count)) {
            *event = held;
        }
        count
    }
}

impl<C: CopyEngine> CopyEngine for Faulty<C> {
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull> {
        if self.strikes(self.plan.full) {
            return Err(CopyFull);
        }
        if self.strikes(self.plan.fatal) {
            self.held_copies.push_back(CopyDone { post: copy.post, status: Code::DeviceError });
            return Ok(());
        }
        self.inner.copy(copy)
    }

    fn kick(&mut self, now: Nanos) {
        self.inner.kick(now);
    }

    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize {
        if self.is_silent(now) {
            return 0;
        }
        let mut batch = [NO_COPY; BATCH];
        let count = self.inner.poll(now, &mut batch);
        for end in &batch[..count] {
            let failed = end.status == Code::Ok && self.strikes(self.plan.error);
            self.held_copies.push_back(if failed {
                CopyDone { status: Code::DeviceError, ..*end }
            } else {
                *end
            });
        }
        let count = done.len().min(self.held_copies.len());
        for (end, held) in done.iter_mut().zip(self.held_copies.drain(..count)) {
            *end = held;
        }
        count
    }

    fn is_busy(&self) -> bool {
        self.inner.is_busy() || !self.held_copies.is_empty()
    }
}
