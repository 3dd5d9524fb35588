//! A copy engine that finishes later: several queues, latency, ends out of order, bounded room.

use std::collections::VecDeque;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, CopyFull, Nanos, PostId};

use crate::memory::{Hold, SimMemory, SimRegions, Use};
use crate::{Latency, Rng};

/// How a [`SimCopier`] behaves.
#[derive(Debug, Clone, Copy)]
pub struct CopierConfig {
    /// Queues; copies of one queue end in order, those of different queues in any.
    pub queues: usize,
    /// Copies that each queue holds before it is full.
    pub queue_copies_max: usize,
    /// From kick to end.
    pub latency: Latency,
}

impl Default for CopierConfig {
    fn default() -> Self {
        Self { queues: 3, queue_copies_max: 16, latency: Latency { min: 300, max: 8_000 } }
    }
}

/// A part of a copy, moved at its own time.
#[derive(Debug)]
struct Piece {
    at: Nanos,
    offset: u64,
    bytes: usize,
    moved: bool,
}

#[derive(Debug)]
struct Posted {
    copy: Copy,
    from: SimMemory,
    to: SimMemory,
    holds: [Hold; 2],
    /// Set by kick.
    done_at: Option<Nanos>,
    pieces: Vec<Piece>,
}

/// A simulated copy engine of one lane.
#[derive(Debug)]
pub struct SimCopier {
    regions: SimRegions,
    config: CopierConfig,
    rng: Rng,
    queues: Vec<VecDeque<Posted>>,
    next_queue: usize,
}

impl SimCopier {
    /// A copy engine between the memories of `regions`.
    ///
    /// # Panics
    /// If the configuration has no queue or no room.
    #[must_use]
    pub fn new(regions: SimRegions, config: CopierConfig, rng: Rng) -> Self {
        assert!(config.queues > 0 && config.queue_copies_max > 0, "a copy engine has room for a copy");
        let queues = (0..config.queues).map(|_| VecDeque::new()).collect();
        Self { regions, config, rng, queues, next_queue: 0 }
    }

    /// Copies under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    fn schedule(
        posted: &mut Posted,
        start: Nanos,
        not_before: Nanos,
        config: &CopierConfig,
        rng: &mut Rng,
    ) -> Nanos {
        let done_at = (start + config.latency.draw(rng)).max(not_before);
        posted.done_at = Some(done_at);
        let (mut offset, bytes) = (0, posted.copy.bytes as usize);
        let pieces = rng.index(3) + 1;
        while offset < bytes {
            let size = (bytes - offset).min(bytes / pieces + 1);
            let at = rng.between(start, done_at);
            posted.pieces.push(Piece { at, offset: offset as u64, bytes: size, moved: false });
            offset += size;
        }
        done_at
    }

    fn move_pieces(posted: &mut Posted, now: Nanos) {
        for piece in posted.pieces.iter_mut().filter(|piece| !piece.moved && piece.at <= now) {
            piece.moved = true;
            if posted.from.is_lost() || posted.to.is_lost() {
                continue;
            }
            let mut bytes = vec![0; piece.bytes];
            posted.from.device_read(posted.copy.from.offset + piece.offset, &mut bytes, "a copy");
            posted.to.device_write(posted.copy.to.offset + piece.offset, &bytes, "a copy");
        }
    }
}

impl CopyEngine for SimCopier {
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull> {
        let bytes = copy.bytes as usize;
        assert!(bytes > 0, "a copy of nothing");
        let room = (0..self.queues.len())
            .map(|at| (self.next_queue + at) % self.queues.len())
            .find(|queue| self.queues[*queue].len() < self.config.queue_copies_max);
        let queue = room.ok_or(CopyFull)?;
        self.next_queue = queue + 1;
        let (from, to) = (self.regions.local(copy.from, bytes), self.regions.local(copy.to, bytes));
        let lane = self.regions.lane();
        let holds = [
            from.hold(lane, copy.from.offset, bytes, Use::Read),
            to.hold(lane, copy.to.offset, bytes, Use::Write),
        ];
        let posted = Posted { copy: *copy, from, to, holds, done_at: None, pieces: Vec::new() };
        self.queues[queue].push_back(posted);
        Ok(())
    }

    fn kick(&mut self, now: Nanos) {
        for queue in &mut self.queues {
            let mut not_before = 0;
            for posted in queue {
                not_before = match posted.done_at {
                    Some(at) => at,
                    None => Self::schedule(posted, now, not_before, &self.config, &mut self.rng),
                };
            }
        }
    }

    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize {
        for posted in self.queues.iter_mut().flatten() {
            Self::move_pieces(posted, now);
        }
        let mut count = 0;
        let first = self.rng.index(self.queues.len());
        for at in 0..self.queues.len() {
            let at = (first + at) % self.queues.len();
            let queue = &mut self.queues[at];
            while count < done.len()
                && queue.front().and_then(|posted| posted.done_at).is_some_and(|at| at <= now)
            {
                let Some(posted) = queue.pop_front() else { break };
                posted.from.release(posted.holds[0]);
                posted.to.release(posted.holds[1]);
                let lost = posted.from.is_lost() || posted.to.is_lost();
                let status = if lost { Code::RegionLost } else { Code::Ok };
                done[count] = CopyDone { post: posted.copy.post, status };
                count += 1;
            }
        }
        count
    }

    fn is_busy(&self) -> bool {
        self.pending() > 0
    }
}

/// A [`CopyDone`] to fill a slice with before a poll.
pub(crate) const NO_COPY: CopyDone = CopyDone { post: PostId(0), status: Code::Ok };
