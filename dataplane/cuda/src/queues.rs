//! Queues of copies on GPUs, as the copier uses them. The driver's streams and the resident kernel are one implementation,
//! the stand-in of the tests another.

use crate::error::CudaError;

/// Which way a copy goes, seen from a GPU. Each has queues of its own: GPUs have a copy engine for each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To host memory.
    Out,
    /// From host memory.
    In,
    /// Between memories of GPUs, or within one.
    Peer,
}

/// What serves a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Copy engines, through a stream.
    Engine,
    /// The resident copy kernel.
    Kernel,
}

/// What a queue is for; fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueInfo {
    /// The GPU, by its place in the copier's list.
    pub gpu: u8,
    /// Copies that it takes; `None`: all.
    pub direction: Option<Direction>,
    /// What serves it.
    pub mechanism: Mechanism,
}

/// Bytes to copy, by addresses that the queue's mechanism understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Source.
    pub from: u64,
    /// Destination; never overlaps the source.
    pub to: u64,
    /// Bytes, at least 1.
    pub bytes: u64,
}

/// Where a memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In the host's memory, pinned.
    Host,
    /// In a GPU's, by its place in the copier's list.
    Gpu(u8),
}

/// Memory that copies touch. The copier keeps it until the last of them has ended.
pub trait Memory {
    /// Where it lies.
    fn side(&self) -> Side;
    /// First byte, for copy engines.
    fn address(&self) -> u64;
    /// First byte, for kernels; `None` if they do not reach it.
    fn kernel_address(&self) -> Option<u64>;
    /// Bytes.
    fn bytes(&self) -> u64;
    /// No run of a copy engine may cross a multiple of this.
    fn piece_bytes(&self) -> u64;
    /// Whether its content was lost: see [`railhead_shm::OwnedSpan::poisoned`].
    fn is_lost(&self) -> bool;
}

/// Queues in which copies run in order, each with a counter that rises in step. All calls come from one thread.
pub trait Queues {
    /// What copies touch.
    type Memory: Memory;

    /// Queues by their number. Fixed.
    fn queues(&self) -> &[QueueInfo];

    /// How many runs a queue takes now.
    fn room(&self, queue: usize) -> usize;

    /// Posts runs, in one call where that is possible; at most [`RUNS_MAX`], and no more than there is room for. How many
    /// were posted, and why not all.
    fn copy(&mut self, queue: usize, runs: &[Run]) -> (usize, Result<(), CudaError>);

    /// Posts a mark: [`Queues::marked`] becomes `value` when all before it has ended. Values rise by one from 1. Only a
    /// queue of the kernel marks every run by itself, and this does nothing there.
    ///
    /// # Errors
    /// [`CudaError`]; nothing was posted.
    fn mark(&mut self, queue: usize, value: u64) -> Result<(), CudaError>;

    /// The highest mark that was reached. No driver call. What the copies before it wrote can be read.
    fn marked(&self, queue: usize) -> u64;

    /// Asks the driver whether everything posted has ended.
    ///
    /// # Errors
    /// [`CudaError`]; if it is sticky, everything posted to this GPU has ended.
    fn check(&mut self, queue: usize) -> Result<bool, CudaError>;

    /// Called by each poll while copies are open: does what is needed for them to go on. No driver call where nothing is.
    ///
    /// # Errors
    /// As [`Queues::check`].
    fn tend(&mut self, queue: usize) -> Result<(), CudaError> {
        let _ = queue;
        Ok(())
    }

    /// Takes a queue that is empty off its GPU, until something is posted to it again. Only kernels need it.
    fn pause(&mut self, queue: usize) {
        let _ = queue;
    }

    /// Whether a queue that was paused is off its GPU.
    fn is_paused(&mut self, queue: usize) -> bool {
        let _ = queue;
        true
    }
}

/// Most runs of one call.
pub const RUNS_MAX: usize = 16;
