//! The books of one queue: which copies were handed to the device, and which of them have ended.

use std::collections::VecDeque;

use railhead_abi::Code;
use railhead_core::port::Nanos;

use super::table::{Posted, Table};
use crate::error::CudaError;
use crate::queues::{Mechanism, Memory, QueueInfo, Queues, RUNS_MAX, Run};

/// A copy of so many bytes gets a mark of its own: it takes longer than the mark, and what waits for it need not wait for
/// those behind it.
const MARK_BYTES: u32 = 64 << 10;

/// What is needed to hand copies to the device.
pub(super) struct Issue<'a, Q: Queues> {
    pub(super) queues: &'a mut Q,
    pub(super) table: &'a Table<Q::Memory>,
    pub(super) now: Nanos,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    posted: Posted,
    /// The mark behind it; 0 while it was not handed to the device.
    mark: u64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) info: QueueInfo,
    entries: VecDeque<Entry>,
    /// Entries at the front that were handed to the device.
    issued: usize,
    /// Bytes of the first entry that is not issued that were handed over: a copy over several pieces takes several runs.
    progress: u64,
    /// Entries at the front that have ended.
    ended: usize,
    last_mark: u64,
    /// The last mark could not be posted: only the driver knows when it is all over.
    by_query: bool,
    bytes: u64,
    /// When it last made progress, was asked about, or was given something while empty.
    moved: Nanos,
    lost: bool,
    /// Since when it has not been empty, and the bytes that have ended since then.
    busy_since: Nanos,
    busy_bytes: u64,
    /// The best rate seen, in bytes per 1,024 ns; fades, so that a better past does not count for ever. 0: none yet.
    rate: u64,
}

/// Less than this under way is not worth a sleep.
const REST_BYTES: u64 = 2 << 20;
/// Nor is less time than this: a thread is woken some 50 us late.
const REST_NS: Nanos = 60_000;
/// Bytes of one busy time that make a rate.
const RATE_BYTES: u64 = 8 << 20;

impl Queue {
    pub(super) fn new(info: QueueInfo, copies: usize) -> Self {
        Self {
            info,
            entries: VecDeque::with_capacity(copies),
            issued: 0,
            progress: 0,
            ended: 0,
            last_mark: 0,
            by_query: false,
            bytes: 0,
            moved: 0,
            lost: false,
            busy_since: 0,
            busy_bytes: 0,
            rate: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn has_unissued(&self) -> bool {
        self.issued < self.entries.len()
    }

    /// By what a new copy would have to wait: bytes first, then copies.
    pub(super) fn load(&self) -> (u64, usize) {
        (self.bytes >> 16, self.entries.len())
    }

    pub(super) fn push(&mut self, posted: Posted) {
        self.bytes += u64::from(posted.bytes);
        self.entries.push_back(Entry { posted, mark: 0 });
    }

    /// Hands copies to the device: at most one call of runs, and one mark where one is due. How many driver calls it made;
    /// 0 if the queue has no room.
    pub(super) fn issue<Q: Queues>(&mut self, at: usize, issue: Issue<'_, Q>) -> Result<usize, CudaError> {
        if self.issued == 0 {
            self.moved = issue.now;
            (self.busy_since, self.busy_bytes) = (issue.now, 0);
        }
        let room = issue.queues.room(at).min(RUNS_MAX);
        if room == 0 {
            return Ok(0);
        }
        let mut runs = [Run { from: 0, to: 0, bytes: 0 }; RUNS_MAX];
        let (count, whole, progress) = self.gather(issue.table, &mut runs[..room]);
        let (posted, result) = if count == 0 { (0, Ok(())) } else { issue.queues.copy(at, &runs[..count]) };
        let mut calls = usize::from(count > 0);
        match result {
            Ok(()) => self.advance(whole, progress, posted > 0),
            Err(error) if error.is_sticky() => return Err(error),
            Err(_) => self.fail_behind(posted, &runs[..count]),
        }
        let due = self.issued > 0 && self.entries[self.issued - 1].mark > self.last_mark;
        if due {
            // A kernel marks by itself.
            self.last_mark += 1;
            calls += usize::from(self.info.mechanism == Mechanism::Engine);
            match issue.queues.mark(at, self.last_mark) {
                Ok(()) => {}
                Err(error) if error.is_sticky() => return Err(error),
                Err(_) => self.by_query = true,
            }
        }
        Ok(calls.max(1))
    }

    /// Runs of the next copies up to the first that gets a mark of its own: how many runs, how many copies they complete,
    /// and how far they go into the one after those.
    fn gather<M: Memory>(&mut self, table: &Table<M>, runs: &mut [Run]) -> (usize, usize, u64) {
        let (mut count, mut whole, mut progress) = (0, 0, self.progress);
        let kernel = self.info.mechanism == Mechanism::Kernel;
        while let Some(entry) = self.entries.get_mut(self.issued + whole) {
            let posted = &mut entry.posted;
            if table.is_lost(posted.from) || table.is_lost(posted.to) {
                // Taken away before it began. What was begun goes on being true: a part may have landed.
                posted.status = Code::RegionLost;
                progress = u64::from(posted.bytes);
            }
            let mut full = false;
            while progress < u64::from(posted.bytes) {
                if count == runs.len() {
                    full = true;
                    break;
                }
                let Some(run) = run_of(posted, table, progress, kernel) else {
                    posted.status = Code::DeviceError;
                    break;
                };
                runs[count] = run;
                count += 1;
                progress += run.bytes;
            }
            if full {
                break;
            }
            whole += 1;
            progress = 0;
            if kernel || posted.bytes >= MARK_BYTES {
                break;
            }
        }
        (count, whole, progress)
    }

    /// `whole` more copies are with the device, all under the next mark. A kernel marks what it was given and nothing else:
    /// copies of which it was given nothing have no mark to wait for but the last.
    fn advance(&mut self, whole: usize, progress: u64, anything: bool) {
        let step = u64::from(anything || self.info.mechanism == Mechanism::Engine);
        for entry in self.entries.range_mut(self.issued..self.issued + whole) {
            entry.mark = self.last_mark + step;
        }
        self.issued += whole;
        self.progress = progress;
    }

    /// The device took `posted` of these runs and refused the next. The copy that it is of has failed; what of it was
    /// posted ends before the next mark. Copies behind it are tried again.
    #[cold]
    fn fail_behind(&mut self, posted: usize, runs: &[Run]) {
        let mut taken: u64 = runs[..posted].iter().map(|run| run.bytes).sum::<u64>() + self.progress;
        let mut whole = 0;
        for entry in self.entries.range_mut(self.issued..) {
            whole += 1;
            let bytes = u64::from(entry.posted.bytes);
            if entry.posted.status == Code::Ok && taken < bytes {
                entry.posted.status = Code::DeviceError;
                break;
            }
            taken = taken.saturating_sub(if entry.posted.status == Code::Ok { bytes } else { 0 });
        }
        self.advance(whole, 0, posted > 0);
    }

    /// Everything up to a mark has ended.
    pub(super) fn see(&mut self, marked: u64, now: Nanos) {
        // A counter beyond what was posted is no counter of ours.
        let marked = marked.min(self.last_mark);
        let before = self.ended;
        while self.ended < self.issued && self.entries[self.ended].mark <= marked {
            self.busy_bytes += u64::from(self.entries[self.ended].posted.bytes);
            self.ended += 1;
        }
        if self.ended > before {
            self.moved = now;
            self.learn(now);
        }
    }

    fn learn(&mut self, now: Nanos) {
        let took = now.saturating_sub(self.busy_since);
        if self.busy_bytes >= RATE_BYTES && took > 0 {
            let seen = self.busy_bytes.saturating_mul(1024) / took;
            self.rate = seen.max(self.rate - self.rate / 64);
        }
    }

    /// Half the time that what is under way will still take, if that is long and everything is under way.
    pub(super) fn rest(&self, now: Nanos) -> Option<Nanos> {
        let kernel = self.info.mechanism == Mechanism::Kernel;
        if kernel || self.has_unissued() || self.ended > 0 || self.bytes < REST_BYTES || self.rate == 0 {
            return None;
        }
        let takes = self.bytes.saturating_mul(1024) / self.rate;
        let left = takes.saturating_sub(now.saturating_sub(self.moved));
        (left / 2 >= REST_NS).then_some(left / 2)
    }

    /// Everything that was handed to the device has ended.
    pub(super) fn all_ended(&mut self) {
        self.ended = self.issued;
        self.by_query = false;
    }

    pub(super) fn pop_ended(&mut self) -> Option<Posted> {
        if self.ended == 0 {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.ended -= 1;
        self.issued -= 1;
        self.bytes -= u64::from(entry.posted.bytes);
        Some(entry.posted)
    }

    pub(super) fn wants_check(&mut self, now: Nanos, check_ns: Nanos) -> bool {
        if self.lost || self.issued == self.ended {
            return false;
        }
        let due = self.by_query || now.saturating_sub(self.moved) >= check_ns;
        if due {
            self.moved = now;
        }
        due
    }

    /// The GPU is lost: nothing is under way any more, and all of it failed.
    pub(super) fn lose(&mut self) {
        for entry in self.entries.range_mut(self.ended..) {
            entry.posted.status = Code::DeviceError;
        }
        self.issued = self.entries.len();
        self.ended = self.issued;
        self.progress = 0;
        self.lost = true;
    }
}

/// The next run of a copy, up to the end of a piece; `None` if a kernel cannot reach the memory.
fn run_of<M: Memory>(posted: &Posted, table: &Table<M>, progress: u64, kernel: bool) -> Option<Run> {
    let (from, to) = (table.get(posted.from)?, table.get(posted.to)?);
    let rest = u64::from(posted.bytes) - progress;
    let (from_offset, to_offset) = (posted.from_offset + progress, posted.to_offset + progress);
    if kernel {
        let (from, to) = (from.kernel_address()?, to.kernel_address()?);
        return Some(Run { from: from + from_offset, to: to + to_offset, bytes: rest });
    }
    let in_piece = |memory: &M, offset: u64| memory.piece_bytes() - offset % memory.piece_bytes();
    let bytes = rest.min(in_piece(from, from_offset)).min(in_piece(to, to_offset));
    Some(Run { from: from.address() + from_offset, to: to.address() + to_offset, bytes })
}
