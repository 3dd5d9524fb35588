//! The copy engine of GPUs: copies that touch a GPU's memory, posted to queues and ended by words that the GPU writes.

use std::collections::VecDeque;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, CopyFull, Nanos, RegionIndex};

use crate::error::CudaError;
use crate::queues::{Direction, Mechanism, Memory, QueueInfo, Queues, Side};
use crate::resident::RUN_BYTES_MAX;
use queue::{Issue, Queue};
use table::{Posted, Table};

mod queue;
mod table;
#[cfg(test)]
mod tests;

/// Most queues of one copier.
pub const QUEUES_MAX: usize = 128;

/// A copy of so many bytes keeps a copy engine busy by itself.
const LONG_BYTES: u32 = 512 << 10;

/// Sizes of a [`CudaCopier`], fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopierConfig {
    /// Slots of the table of memories; slot 0 is the lane's staging arena.
    pub regions: u32,
    /// Copies that can be posted at once.
    pub copies: u16,
    /// Driver calls that one kick or poll makes, at least 1. Each takes one to three microseconds.
    pub calls_max: u16,
    /// A queue that has made no progress for so long is asked about by a driver call.
    pub check_ns: Nanos,
}

impl Default for CopierConfig {
    fn default() -> Self {
        Self { regions: 4096, copies: 256, calls_max: 16, check_ns: 10_000_000 }
    }
}

/// The largest copies that the resident kernel takes, where one runs. Live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLimits {
    /// From GPU to host; 0: none.
    pub out_bytes_max: u32,
    /// From host to GPU; 0: none.
    pub in_bytes_max: u32,
    /// Between GPUs; 0: none.
    pub peer_bytes_max: u32,
}

impl KernelLimits {
    /// None go to the kernel.
    pub const OFF: Self = Self { out_bytes_max: 0, in_bytes_max: 0, peer_bytes_max: 0 };
}

/// A GPU that was lost: what was posted to it has ended with [`Code::DeviceError`], and so does all that is posted later.
/// The process has to be started again to use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuLost {
    /// The GPU, by its place in the copier's list.
    pub gpu: u8,
    /// What the driver said.
    pub error: CudaError,
}

/// Copies by GPUs: between host memory and theirs, and between theirs.
///
/// Copies are taken by the queue of their direction that has least to do. After the last copy of a batch, and after every
/// large one, a queue writes a word in host memory, which [`CopyEngine::poll`] reads: the end of a copy costs no driver
/// call. A driver call is made only to post, and when a queue stands still.
///
/// Memory that is removed while copies touch it stays mapped until they have ended; [`CudaCopier::take_removed`] then
/// gives it back. Bounds are those of the installed memory.
#[derive(Debug)]
pub struct CudaCopier<Q: Queues> {
    // Before the table: dropping it waits for what is under way.
    queues: Q,
    table: Table<Q::Memory>,
    states: Box<[Queue]>,
    /// Bit by bit the queues that are not empty.
    open: u128,
    /// Ends that need no device: refused when they were posted.
    ended: VecDeque<CopyDone>,
    posted: usize,
    config: CopierConfig,
    limits: KernelLimits,
    /// No copy goes to a kernel, and those that run end.
    paused: bool,
    /// Where the next poll begins, so that no queue waits for ever behind another.
    turn: usize,
    lost: Box<[bool]>,
    losses: VecDeque<GpuLost>,
}

impl<Q: Queues> CudaCopier<Q> {
    /// An engine without any memory. Allocates all that it ever needs.
    ///
    /// # Panics
    /// If `copies` or `calls_max` is 0, or there is no queue, or more than [`QUEUES_MAX`].
    #[must_use]
    pub fn new(config: CopierConfig, queues: Q) -> Self {
        assert!(config.copies > 0 && config.calls_max > 0, "a copy engine needs a queue and calls");
        let copies = usize::from(config.copies);
        let infos = queues.queues();
        assert!((1..=QUEUES_MAX).contains(&infos.len()), "a copy engine has 1 to {QUEUES_MAX} queues");
        let gpus = infos.iter().map(|info| usize::from(info.gpu) + 1).max().unwrap_or(0);
        Self {
            table: Table::new(config.regions),
            states: infos.iter().map(|info| Queue::new(*info, copies)).collect(),
            open: 0,
            ended: VecDeque::with_capacity(copies),
            posted: 0,
            config,
            limits: KernelLimits::OFF,
            paused: false,
            turn: 0,
            lost: vec![false; gpus].into(),
            losses: VecDeque::with_capacity(gpus),
            queues,
        }
    }

    /// Puts memory into a slot. What stood there is removed: see [`CudaCopier::remove`]. Lane-safe.
    ///
    /// # Errors
    /// The memory itself, when as many removed memories as there are slots are still touched or were not taken.
    ///
    /// # Panics
    /// If the slot is outside the table.
    pub fn install(&mut self, region: RegionIndex, memory: Q::Memory) -> Result<(), Q::Memory> {
        self.table.install(region, memory)
    }

    /// Takes memory out of a slot, at any time. Copies that are still posted for it end with [`Code::RegionLost`];
    /// [`CudaCopier::take_removed`] gives the memory back when the last of them has ended.
    pub fn remove(&mut self, region: RegionIndex) {
        self.table.remove(region);
    }

    /// Memory that was removed and that no copy touches any more. Dropping it unmaps: hand it to a registrar thread.
    pub fn take_removed(&mut self) -> Option<Q::Memory> {
        self.table.take_removed()
    }

    /// Whether some memory was removed and is still touched.
    #[must_use]
    pub fn has_removed(&self) -> bool {
        self.table.leaving() > 0
    }

    /// Sets what goes to the resident kernel, at most [`RUN_BYTES_MAX`] each. Without one it changes nothing.
    pub fn set_kernel_limits(&mut self, limits: KernelLimits) {
        let clamp = |bytes: u32| bytes.min(RUN_BYTES_MAX as u32);
        self.limits = KernelLimits {
            out_bytes_max: clamp(limits.out_bytes_max),
            in_bytes_max: clamp(limits.in_bytes_max),
            peer_bytes_max: clamp(limits.peer_bytes_max),
        };
    }

    /// Ends the resident kernels: copies go to the copy engines until [`CudaCopier::resume_kernels`]. The driver lets some
    /// calls of other threads (unregistering memory among them) wait until no kernel runs, so a registrar asks for this
    /// first and waits until [`CudaCopier::kernels_are_paused`].
    pub fn pause_kernels(&mut self) {
        self.paused = true;
        self.pause_idle_kernels();
    }

    /// Lets copies go to resident kernels again.
    pub fn resume_kernels(&mut self) {
        self.paused = false;
    }

    /// Whether no resident kernel runs, after [`CudaCopier::pause_kernels`] and some polls.
    pub fn kernels_are_paused(&mut self) -> bool {
        self.pause_idle_kernels();
        (0..self.states.len())
            .all(|at| self.is_engine(at) || self.states[at].is_empty() && self.queues.is_paused(at))
    }

    fn is_engine(&self, at: usize) -> bool {
        self.states[at].info.mechanism == Mechanism::Engine
    }

    fn pause_idle_kernels(&mut self) {
        for at in 0..self.states.len() {
            if self.paused && !self.is_engine(at) && self.states[at].is_empty() {
                self.queues.pause(at);
            }
        }
    }

    /// Until when nothing of note will end, as far as bytes under way and the rates seen tell: half the time that the
    /// queue with the least to do has left. A lane that has nothing else to do may sleep until then instead of polling;
    /// `None` if it should poll. For long copies only: sleeping and waking cost more than a short one takes.
    #[must_use]
    pub fn rest_until(&self, now: Nanos) -> Option<Nanos> {
        let rests = Open::from(self.open, 0).map(|at| self.states[at].rest(now));
        let shortest = rests.min_by_key(|rest| rest.unwrap_or(0)).flatten()?;
        (self.ended.is_empty()).then(|| now + shortest)
    }

    /// The next GPU that was lost, for an event. Each is told once.
    pub fn take_loss(&mut self) -> Option<GpuLost> {
        self.losses.pop_front()
    }

    /// Copies that are posted and have not ended.
    #[must_use]
    pub const fn posted(&self) -> usize {
        self.posted
    }

    /// The queues, for what is special about them.
    pub fn queues(&mut self) -> &mut Q {
        &mut self.queues
    }

    /// The queue for a copy between two memories; `None` if their GPU is lost or has none.
    fn choose(&self, posted: &Posted) -> Option<usize> {
        let (from, to) = (self.table.get(posted.from)?, self.table.get(posted.to)?);
        let (gpu, direction) = way(from.side(), to.side());
        if self.lost.get(usize::from(gpu)).is_none_or(|lost| *lost) {
            return None;
        }
        let kernel = self.kernel_takes(posted, direction, from, to);
        let fits = |info: &QueueInfo, mechanism: Mechanism| {
            info.gpu == gpu
                && info.mechanism == mechanism
                && info.direction.is_none_or(|takes| takes == direction)
        };
        // Over the bus long copies follow one another in the first queue of their way, so that the first is there early;
        // short ones take turns in the others and wait for none of them. Between GPUs the gap between two copies of one
        // queue counts for more.
        let long = posted.bytes >= LONG_BYTES && direction != Direction::Peer;
        let find = |mechanism: Mechanism| {
            let states = self.states.iter().enumerate();
            let mut fitting = states.filter(|(_, state)| fits(&state.info, mechanism));
            let first = fitting.next()?;
            if long {
                return Some(first.0);
            }
            Some(fitting.min_by_key(|(_, state)| state.load()).unwrap_or(first).0)
        };
        if kernel {
            find(Mechanism::Kernel).or_else(|| find(Mechanism::Engine))
        } else {
            find(Mechanism::Engine)
        }
    }

    fn kernel_takes(&self, posted: &Posted, direction: Direction, from: &Q::Memory, to: &Q::Memory) -> bool {
        let most = match direction {
            Direction::Out => self.limits.out_bytes_max,
            Direction::In => self.limits.in_bytes_max,
            Direction::Peer => self.limits.peer_bytes_max,
        };
        // Without a common alignment it copies byte by byte.
        let aligned = |from: u64, to: u64| {
            (from.wrapping_add(posted.from_offset) ^ to.wrapping_add(posted.to_offset)).is_multiple_of(16)
        };
        !self.paused
            && posted.bytes <= most
            && matches!((from.kernel_address(), to.kernel_address()), (Some(from), Some(to)) if aligned(from, to))
    }

    fn issue_all(&mut self, now: Nanos) {
        let mut calls = usize::from(self.config.calls_max);
        for at in Open::from(self.open, self.turn) {
            while calls > 0 && self.states[at].has_unissued() {
                let issue = Issue { queues: &mut self.queues, table: &self.table, now };
                match self.states[at].issue(at, issue) {
                    Ok(0) => break,
                    Ok(made) => calls = calls.saturating_sub(made),
                    Err(error) => {
                        self.lose(self.states[at].info.gpu, error);
                        break;
                    }
                }
            }
        }
    }

    /// Ends everything of a GPU; nothing of it is under way any more.
    #[cold]
    fn lose(&mut self, gpu: u8, error: CudaError) {
        if core::mem::replace(&mut self.lost[usize::from(gpu)], true) {
            return;
        }
        self.losses.push_back(GpuLost { gpu, error });
        for state in self.states.iter_mut().filter(|state| state.info.gpu == gpu) {
            state.lose();
        }
    }

    /// Asks the driver about queues that stand still.
    fn check(&mut self, at: usize, now: Nanos) {
        if !self.states[at].wants_check(now, self.config.check_ns) {
            return;
        }
        match self.queues.check(at) {
            Ok(true) => self.states[at].all_ended(),
            Ok(false) => {}
            Err(error) => self.lose(self.states[at].info.gpu, error),
        }
    }
}

/// The queues that are not empty, from one on and around.
struct Open {
    above: u128,
    below: u128,
}

impl Open {
    const fn from(open: u128, first: usize) -> Self {
        let above = open & (u128::MAX << first);
        Self { above, below: open & !above }
    }
}

impl Iterator for Open {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let set = if self.above != 0 { &mut self.above } else { &mut self.below };
        let at = set.trailing_zeros();
        *set &= set.wrapping_sub(1);
        (at < u128::BITS).then_some(at as usize)
    }
}

/// The GPU that copies and the direction as it sees it. Between two GPUs it is the source's, which is the faster way
/// round; host memory alone is left to the first.
fn way(from: Side, to: Side) -> (u8, Direction) {
    match (from, to) {
        (Side::Gpu(gpu), Side::Gpu(_)) => (gpu, Direction::Peer),
        (Side::Gpu(gpu), Side::Host) => (gpu, Direction::Out),
        (Side::Host, Side::Gpu(gpu)) => (gpu, Direction::In),
        (Side::Host, Side::Host) => (0, Direction::In),
    }
}

impl<Q: Queues> CopyEngine for CudaCopier<Q> {
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull> {
        if self.posted == usize::from(self.config.copies) {
            return Err(CopyFull);
        }
        self.posted += 1;
        let Some(posted) = self.table.hold(copy) else {
            self.ended.push_back(CopyDone { post: copy.post, status: Code::RegionLost });
            return Ok(());
        };
        match self.choose(&posted) {
            Some(queue) => {
                self.states[queue].push(posted);
                self.open |= 1 << queue;
            }
            None => {
                self.table.release(&posted);
                self.ended.push_back(CopyDone { post: copy.post, status: Code::DeviceError });
            }
        }
        Ok(())
    }

    fn kick(&mut self, now: Nanos) {
        self.issue_all(now);
    }

    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize {
        let mut count = 0;
        while count < done.len()
            && let Some(end) = self.ended.pop_front()
        {
            done[count] = end;
            count += 1;
        }
        self.turn = (self.turn + 1) % self.states.len();
        for at in Open::from(self.open, self.turn) {
            if let Err(error) = self.queues.tend(at) {
                self.lose(self.states[at].info.gpu, error);
            }
            self.check(at, now);
            self.states[at].see(self.queues.marked(at), now);
            while count < done.len()
                && let Some(posted) = self.states[at].pop_ended()
            {
                let lost = self.table.is_lost(posted.from) || self.table.is_lost(posted.to);
                self.table.release(&posted);
                let status = if lost && posted.status == Code::Ok { Code::RegionLost } else { posted.status };
                done[count] = CopyDone { post: posted.post, status };
                count += 1;
            }
            if self.states[at].is_empty() {
                self.open &= !(1 << at);
            }
        }
        self.posted -= count;
        if self.paused {
            self.pause_idle_kernels();
        }
        self.issue_all(now);
        count
    }

    /// While anything is posted: ends are seen by polling only.
    fn is_busy(&self) -> bool {
        self.posted > 0
    }
}
