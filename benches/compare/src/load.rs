//! Our side of the rows: a session at node a that writes to a region at node b, with so many outstanding.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use railhead_client::{
    ACCESS_READ, ACCESS_WRITE, AttachOptions, Class, Completion, Leg, Port, Region, RegionOptions, Remote,
    Session, Write, outcome,
};

use crate::cpu;
use crate::nodes::{NAMES, Nodes};
use crate::problem::{Problem, Tried};
use crate::runner::Measure;

/// Bytes of both regions: more than any private cache, and at least four of the largest writes.
pub(crate) const REGION_BYTES: u64 = 64 << 20;
/// Without any completion for so long, a measurement is given up.
const STALL: Duration = Duration::from_secs(15);
const POLL: usize = 64;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    /// Bytes of one write.
    pub(crate) bytes: u64,
    /// Writes submitted and not completed.
    pub(crate) outstanding: usize,
    /// Bytes walked through at either end before a place is used again, at most [`REGION_BYTES`].
    pub(crate) walk_bytes: u64,
    /// Both legs.
    pub(crate) leg: Leg,
    /// The queue.
    pub(crate) class: Class,
    /// How long the client polls for completions before it sleeps.
    pub(crate) spin: Duration,
}

/// Sessions at both nodes with a region each.
#[derive(Debug)]
pub(crate) struct Load {
    port: Port,
    source: Region,
    target: Region,
    remote: Remote,
    /// Counts runs, so that what a run has written can be told from what was there.
    runs: u64,
}

impl Load {
    /// Attaches to both nodes and opens b's region from a.
    pub(crate) fn attach(nodes: &mut Nodes) -> Result<Self, Problem> {
        let sockets = [nodes.session_socket(0), nodes.session_socket(1)];
        let attach = |nodes: &mut Nodes, at: usize, ports: u32| {
            let options = AttachOptions { name: "compare", ports, ..AttachOptions::default() };
            nodes.retry(|| {
                Session::attach(&sockets[at], &options).tried(format!("attaching to node {}", NAMES[at]))
            })
        };
        let receiver = attach(nodes, 1, 0)?;
        let sender = attach(nodes, 0, 1)?;
        let options = RegionOptions {
            bytes: REGION_BYTES,
            name: "target",
            grant: "*",
            access: ACCESS_READ | ACCESS_WRITE,
            ..RegionOptions::default()
        };
        let target = receiver.create_region(&options).tried("the region at node b")?;
        let options = RegionOptions { name: "", grant: "", ..options };
        let source = sender.create_region(&options).tried("the region at node a")?;
        let remote = nodes.retry(|| sender.open(NAMES[1], "target").tried("opening the region of node b"))?;
        let port = sender.take_port().ok_or_else(|| Problem::new("the dataplane granted no port"))?;
        for region in [&source, &target] {
            region.fill(0, REGION_BYTES, 1).tried("filling a region")?;
        }
        Ok(Self { port, source, target, remote, runs: 0 })
    }

    /// Why a region is not on hugepages, if one is not.
    pub(crate) fn step_down(&self) -> Option<String> {
        let step = self.source.step_down().or(self.target.step_down())?;
        Some(format!("regions lie on pages of {} bytes: {step}", self.source.page_bytes()))
    }

    /// Writes for `duration` and measures until the last write is visible. `nodes` are those whose CPU time counts.
    pub(crate) fn measure(
        &mut self,
        nodes: &Nodes,
        shape: &Shape,
        duration: Duration,
    ) -> Result<Measure, Problem> {
        let used = |nodes: &Nodes| nodes.cpu_s().map(|used| used.iter().sum::<f64>() + cpu::thread_s());
        let cpu = used(nodes)?;
        let start = Instant::now();
        let writes = self.run(shape, |elapsed| elapsed >= duration)?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu_s = Some(used(nodes)? - cpu);
        let bytes = writes as f64 * shape.bytes as f64;
        Ok(Measure { rate: bytes / seconds, seconds, cpu_s, bytes })
    }

    /// Writes until `stop` says so, waits for what is outstanding, and checks what arrived. Returns the number of
    /// writes.
    pub(crate) fn run(
        &mut self,
        shape: &Shape,
        mut stop: impl FnMut(Duration) -> bool,
    ) -> Result<u64, Problem> {
        let slots = shape.walk_bytes.min(REGION_BYTES) / shape.bytes;
        self.runs += 1;
        self.stamp(shape, slots)?;
        self.port.set_spin(shape.spin);
        let mut free: VecDeque<u64> = (0..slots).collect();
        let mut done = [Completion::default(); POLL];
        let (mut writes, mut stopping) = (0, false);
        let start = Instant::now();
        loop {
            while !stopping && self.port.in_flight() < shape.outstanding {
                let Some(slot) = free.pop_front() else { break };
                let write = self.write(shape, slot);
                self.port.submit(&write).tried("submitting a write")?;
            }
            if self.port.in_flight() == 0 {
                break;
            }
            if !self.port.wait(STALL) {
                return Err(Problem::new(format!("no completion within {} s", STALL.as_secs())));
            }
            let count = self.port.poll(&mut done);
            for completion in &done[..count] {
                check(completion, shape.leg)?;
                free.push_back(completion.cookie);
                writes += 1;
            }
            stopping = stopping || stop(start.elapsed());
        }
        self.verify(shape, writes.min(slots))?;
        Ok(writes)
    }

    fn write(&self, shape: &Shape, slot: u64) -> Write {
        let offset = slot * shape.bytes;
        Write {
            cookie: slot,
            local: self.source.handle(),
            local_offset: offset,
            remote: self.remote.handle(),
            remote_offset: offset,
            bytes: shape.bytes,
            class: shape.class,
            send_leg: shape.leg,
            receive_leg: shape.leg,
            ..Write::default()
        }
    }

    /// The first and the last eight bytes of each slot say which run and which slot they are of.
    fn stamp(&self, shape: &Shape, slots: u64) -> Result<(), Problem> {
        for slot in 0..slots {
            let bytes = self.mark(slot).to_le_bytes();
            for offset in ends(shape, slot) {
                self.source.copy_in(offset, &bytes).tried("stamping the source")?;
            }
        }
        Ok(())
    }

    /// Slots are used in order, so that the first `slots` of them were written.
    fn verify(&self, shape: &Shape, slots: u64) -> Result<(), Problem> {
        for slot in 0..slots {
            for offset in ends(shape, slot) {
                let mut bytes = [0; 8];
                self.target.copy_out(offset, &mut bytes).tried("reading the target")?;
                if u64::from_le_bytes(bytes) != self.mark(slot) {
                    return Err(Problem::new(format!("wrong data at {offset} of the target")));
                }
            }
        }
        Ok(())
    }

    const fn mark(&self, slot: u64) -> u64 {
        self.runs << 32 | slot
    }
}

const fn ends(shape: &Shape, slot: u64) -> [u64; 2] {
    let first = slot * shape.bytes;
    [first, first + shape.bytes - 8]
}

/// That the write succeeded, on the route that was asked for.
fn check(completion: &Completion, leg: Leg) -> Result<(), Problem> {
    outcome(completion).tried("a write")?;
    let legs = [Leg(completion.send_leg), Leg(completion.receive_leg)];
    if leg != Leg::AUTO && legs != [leg; 2] {
        let [send, receive] = legs.map(Leg::name);
        return Err(Problem::new(format!("a write was to go {} and went {send}, {receive}", leg.name())));
    }
    Ok(())
}
