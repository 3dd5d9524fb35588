//! The words between host and resident kernel: a ring of commands, and what the kernel says. See kernels/railhead.cu.

use core::ops::Deref;

use railhead_ring::Word;

use super::{ADDRESS_END, COMMANDS, RUN_BYTES_MAX};
use crate::queues::Run;

/// Words of a command.
const COMMAND_WORDS: usize = 2;
/// The word in which the kernel counts what is done; on a cache line of its own, as the next.
pub(super) const DONE: usize = COMMANDS * COMMAND_WORDS;
/// The word that the kernel writes at its end; 0 while it runs.
pub(super) const ENDED: usize = DONE + 8;
/// All words.
pub(super) const WORDS: usize = ENDED + 8;

/// The host's side. One kernel at a time on the other.
#[derive(Debug)]
pub(super) struct Ring<M> {
    words: M,
    /// Commands written since the start.
    posted: u64,
    /// A kernel was launched and has not been seen to end.
    running: bool,
    /// A stop was posted and its end not seen.
    stopping: bool,
}

impl<M: Deref<Target = [Word]>> Ring<M> {
    /// A ring over words of zeroes, without a kernel.
    pub(super) fn new(words: M) -> Self {
        assert!(words.len() >= WORDS, "{} words of {WORDS}", words.len());
        Self { words, posted: 0, running: false, stopping: false }
    }

    pub(super) fn words(&self) -> &M {
        &self.words
    }

    /// A kernel is about to be launched behind [`Ring::done`].
    pub(super) fn launching(&mut self) {
        self.words[ENDED].store_release(0);
        self.running = true;
    }

    /// Whatever was launched is gone.
    pub(super) fn gone(&mut self) {
        self.running = false;
        self.is_stopped();
    }

    pub(super) fn room(&self) -> usize {
        if self.stopping { 0 } else { COMMANDS - (self.posted - self.done()) as usize }
    }

    pub(super) fn post(&mut self, run: &Run) -> u64 {
        assert!(self.room() > 0 && (1..=RUN_BYTES_MAX).contains(&run.bytes), "no room, or too long");
        let below = |address: u64| (1..=ADDRESS_END - run.bytes).contains(&address);
        assert!(below(run.from) && below(run.to), "an address that no command can hold");
        self.command(run.from, run.to, run.bytes - 1)
    }

    fn command(&mut self, from: u64, to: u64, size: u64) -> u64 {
        self.posted += 1;
        let at = (self.posted as usize % COMMANDS) * COMMAND_WORDS;
        let phase = (self.posted / COMMANDS as u64) & 1 ^ 1;
        // The first word makes the command whole. Partner: the kernel's load of both words.
        self.words[at + 1].store_relaxed(to | size << 47 | phase << 63);
        self.words[at].store_release(from | self.posted << 47);
        self.posted
    }

    pub(super) fn done(&self) -> u64 {
        // Partner: the kernel's release store. It counts in 32 bits; at most COMMANDS are open.
        let open = (self.posted as u32).wrapping_sub(self.words[DONE].load_acquire() as u32);
        // A word that says more than was posted is no word of ours.
        let most = self.posted.min(COMMANDS as u64);
        if u64::from(open) > most { self.posted } else { self.posted - u64::from(open) }
    }

    /// Whether a kernel has to be launched: none runs, and something is posted.
    pub(super) fn needs_kernel(&mut self) -> bool {
        self.is_stopped() && self.posted != self.done()
    }

    pub(super) fn request_stop(&mut self) {
        if self.is_running() && self.room() > 0 {
            self.command(0, 0, 0);
            self.stopping = true;
        }
    }

    /// Whether no kernel runs; a stop that was posted is over then.
    pub(super) fn is_stopped(&mut self) -> bool {
        let stopped = !self.is_running();
        if stopped && self.stopping {
            // The stop itself is never done; the next command takes its number and its place.
            self.posted = self.done();
            self.stopping = false;
        }
        stopped
    }

    pub(super) fn is_running(&self) -> bool {
        // Partner: the kernel's release store behind its last command.
        self.running && self.words[ENDED].load_acquire() == 0
    }
}
