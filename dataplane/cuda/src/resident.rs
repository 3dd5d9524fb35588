//! The resident copy kernel: a block that stays on the GPU and takes copies from a ring in host memory. For small messages:
//! a few microseconds, where a copy engine takes eight and the driver's call alone two.

use core::ffi::c_uint;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host::PinnedWords;
use crate::kernels::{Kernels, argument};
use crate::queues::Run;
use crate::stream::Stream;

/// Commands that can be posted at once; a power of two.
pub const COMMANDS: usize = 64;

/// The largest copy, as commands are made; above, copy engines are faster.
pub const RUN_BYTES_MAX: u64 = 64 << 10;

/// Addresses below this fit into a command. Linux gives no process others unless it asks for them.
pub const ADDRESS_END: u64 = 1 << 47;

/// Why no resident kernel runs. The setting may ask for one; this is then an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResidentOff {
    /// Processes take turns on this GPU, and a kernel that never ends takes every second turn: seen to halve what another
    /// process computes.
    #[error(
        "without MPS a resident kernel takes turns with all other processes of the GPU and halves their throughput: \
         start the MPS daemon"
    )]
    TakesTurns,
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// Where a resident kernel may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// In the process that computes on this GPU, launched by its own code: they share one context.
    OwnContext,
    /// Beside other processes: only under MPS.
    Shared,
}

impl Permission {
    /// Whether it may.
    ///
    /// # Errors
    /// [`ResidentOff::TakesTurns`].
    pub const fn check(self, device: &Device) -> Result<(), ResidentOff> {
        match self {
            Permission::Shared if !device.mps => Err(ResidentOff::TakesTurns),
            Permission::OwnContext | Permission::Shared => Ok(()),
        }
    }
}

/// How a resident kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentConfig {
    /// Threads of its block, a multiple of 32 and at most 1024: more for larger copies, fewer for the smallest.
    pub threads: u32,
    /// Without a copy for so long it ends by itself and is launched again by the next: a lane that has stopped keeps no
    /// multiprocessor, and the device can be waited for.
    pub idle: Duration,
}

impl Default for ResidentConfig {
    fn default() -> Self {
        Self { threads: 1024, idle: Duration::from_millis(500) }
    }
}

// Words of the ring: two for a command, then the state. See kernels/railhead.cu.
const COMMAND_WORDS: usize = 2;
const DONE: usize = COMMANDS * COMMAND_WORDS;
const ENDED: usize = DONE + 8;
const WORDS: usize = ENDED + 8;

/// A resident copy kernel of one GPU. Used by one thread.
#[derive(Debug)]
pub struct Resident {
    // Order of dropping: after `Drop::drop` has stopped the kernel, in any order.
    gpu: Gpu,
    stream: Stream,
    kernels: Kernels,
    words: PinnedWords,
    config: ResidentConfig,
    /// Commands written since the start.
    posted: u64,
    running: bool,
    /// A stop was posted and its end not seen.
    stopping: bool,
}

impl Resident {
    /// Loads the kernel and starts it. Slow; not on lanes.
    ///
    /// # Errors
    /// [`ResidentOff`].
    pub fn start(gpu: &Gpu, permission: Permission, config: ResidentConfig) -> Result<Self, ResidentOff> {
        permission.check(gpu.device())?;
        let kernels = Kernels::load(gpu)?;
        let (stream, words) = (Stream::new(gpu)?, PinnedWords::new(gpu, WORDS)?);
        let mut resident = Self {
            gpu: gpu.clone(),
            stream,
            kernels,
            words,
            config,
            posted: 0,
            running: false,
            stopping: false,
        };
        resident.launch(0)?;
        Ok(resident)
    }

    /// Starts the kernel behind command `done`.
    fn launch(&mut self, done: u32) -> Result<(), CudaError> {
        self.gpu.make_current()?;
        self.words[ENDED].store_release(0);
        let mut commands = self.words.device_address(0);
        let mut slots = COMMANDS as u32;
        let mut done = done;
        let mut state = self.words.device_address(DONE);
        let mut idle_ns = u64::try_from(self.config.idle.as_nanos()).unwrap_or(u64::MAX);
        let mut arguments = [
            argument(&mut commands),
            argument(&mut slots),
            argument(&mut done),
            argument(&mut state),
            argument(&mut idle_ns),
        ];
        let threads = self.config.threads.clamp(32, 1024) / 32 * 32;
        let shape: (c_uint, c_uint) = (1, threads);
        // SAFETY: the kernel's five parameters, by their types. The words live until `drop` has seen the kernel end. What
        // it copies is named by commands, for which `post` has the contract.
        unsafe { self.kernels.launch(self.kernels.resident, &self.stream, shape, &mut arguments) }?;
        self.running = true;
        Ok(())
    }

    /// How many copies can be posted now.
    #[must_use]
    pub fn room(&self) -> usize {
        COMMANDS - (self.posted - self.done()) as usize
    }

    /// Posts a copy; its number, counted from 1. No driver call.
    ///
    /// # Safety
    /// Kernels of this GPU may read the source and write the destination until [`Resident::done`] has reached the number.
    ///
    /// # Panics
    /// Without room, or if it is empty, longer than [`RUN_BYTES_MAX`], or ends at or above [`ADDRESS_END`].
    pub unsafe fn post(&mut self, run: &Run) -> u64 {
        debug_assert!(!self.stopping, "a copy behind a stop");
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

    /// The number of the last copy that everybody can see. No driver call.
    #[must_use]
    pub fn done(&self) -> u64 {
        // Partner: the kernel's system fence before its store.
        self.whole(self.words[DONE].load_acquire())
    }

    /// The kernel counts in 32 bits; at most [`COMMANDS`] are open.
    fn whole(&self, done: u64) -> u64 {
        let open = (self.posted as u32).wrapping_sub(done as u32);
        // A word that says more than was posted is no word of ours.
        if open as usize > COMMANDS { self.posted } else { self.posted - u64::from(open) }
    }

    /// Starts the kernel again if it ended with copies posted behind its end; call it while copies are open. One load where
    /// there is nothing to do.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn tend(&mut self) -> Result<(), CudaError> {
        // Partner: the kernel's store after its last command.
        let ended = self.words[ENDED].load_acquire();
        if ended == 0 || self.stopping || self.posted == self.done() {
            return Ok(());
        }
        self.launch(ended as u32)
    }

    /// Asks the kernel to end after all that was posted; [`Resident::is_stopped`] says when it has. Nothing may be posted
    /// until then. No driver call.
    pub fn request_stop(&mut self) {
        if !self.stopping && self.is_running() && self.room() > 0 {
            self.command(0, 0, 0);
            self.stopping = true;
        }
    }

    /// Whether the kernel has ended, as far as its words say; the next copy starts it again.
    pub fn is_stopped(&mut self) -> bool {
        let stopped = !self.is_running();
        if stopped && self.stopping {
            // The stop itself is never done; the next command takes its number.
            self.posted = self.done();
            self.stopping = false;
        }
        stopped
    }

    /// Whether the kernel is on the GPU, as far as its words say.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running && self.words[ENDED].load_acquire() == 0
    }

    /// Whether everything in its stream has ended; a driver call.
    ///
    /// # Errors
    /// [`CudaError`] of the kernel.
    pub fn query(&self) -> Result<bool, CudaError> {
        self.stream.is_done()
    }

    /// Ends the kernel after all that was posted; waits for it, at most `limit`. Whether it has ended. Not for lanes.
    pub fn stop(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            self.request_stop();
            // The words say that it is past its last copy, the stream that it is gone. Also an error ends it.
            if self.query().unwrap_or(true) {
                self.running = false;
                self.is_stopped();
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // It ends by itself at the latest when it has been idle: longer than that, and the GPU is lost.
        let limit = self.config.idle.saturating_mul(2).saturating_add(Duration::from_secs(1));
        let ended = self.stop(limit);
        debug_assert!(ended, "a resident kernel that does not end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{PciAddress, WritesOrdering};

    fn device(mps: bool) -> Device {
        Device {
            ordinal: 0,
            name: "none".to_owned(),
            uuid: String::new(),
            pci: PciAddress(String::new()),
            numa_node: None,
            bytes: 0,
            compute: (9, 0),
            multiprocessors: 132,
            copy_engines: 3,
            rdma: true,
            dma_buf: true,
            rdma_of_mapped: true,
            shared_handles: true,
            writes_ordering: WritesOrdering::Owner,
            flush_by_host: true,
            flush_by_stream: false,
            stream_words_64: true,
            mps,
        }
    }

    #[test]
    fn beside_other_processes_only_under_mps() {
        assert_eq!(Permission::Shared.check(&device(false)), Err(ResidentOff::TakesTurns));
        assert_eq!(Permission::Shared.check(&device(true)), Ok(()));
        assert_eq!(Permission::OwnContext.check(&device(false)), Ok(()));
    }
}
