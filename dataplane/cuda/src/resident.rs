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

use ring::{DONE, Ring, WORDS};

mod ring;
#[cfg(test)]
mod tests;

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
        Self { threads: 512, idle: Duration::from_millis(500) }
    }
}

/// A resident copy kernel of one GPU. Used by one thread.
#[derive(Debug)]
pub struct Resident {
    // Order of dropping: after `Drop::drop` has stopped the kernel, in any order.
    gpu: Gpu,
    stream: Stream,
    kernels: Kernels,
    ring: Ring<PinnedWords>,
    config: ResidentConfig,
}

impl Resident {
    /// Loads the kernel and starts it. Slow; not on lanes.
    ///
    /// # Errors
    /// [`ResidentOff`].
    pub fn start(gpu: &Gpu, permission: Permission, config: ResidentConfig) -> Result<Self, ResidentOff> {
        permission.check(gpu.device())?;
        let kernels = Kernels::load(gpu)?;
        let (stream, ring) = (Stream::new(gpu)?, Ring::new(PinnedWords::new(gpu, WORDS)?));
        let mut resident = Self { gpu: gpu.clone(), stream, kernels, ring, config };
        resident.launch()?;
        Ok(resident)
    }

    /// Starts the kernel behind what is done.
    fn launch(&mut self) -> Result<(), CudaError> {
        self.gpu.make_current()?;
        let mut done = self.ring.done() as u32;
        self.ring.launching();
        let mut commands = self.ring.words().device_address(0);
        let mut slots = COMMANDS as u32;
        let mut state = self.ring.words().device_address(DONE);
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
        let launched =
            unsafe { self.kernels.launch(self.kernels.resident, &self.stream, shape, &mut arguments) };
        if launched.is_err() {
            self.ring.gone();
        }
        launched
    }

    /// How many copies can be posted now; none between a stop that was asked for and its end.
    #[must_use]
    pub fn room(&self) -> usize {
        self.ring.room()
    }

    /// Posts a copy; its number, counted from 1. No driver call. [`Resident::tend`] must follow.
    ///
    /// # Safety
    /// Kernels of this GPU may read the source and write the destination until [`Resident::done`] has reached the number.
    ///
    /// # Panics
    /// Without room, or if it is empty, longer than [`RUN_BYTES_MAX`], or ends at or above [`ADDRESS_END`].
    pub unsafe fn post(&mut self, run: &Run) -> u64 {
        self.ring.post(run)
    }

    /// The number of the last copy that everybody can see. No driver call.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.ring.done()
    }

    /// Starts the kernel again if it has ended and copies are posted; call it while copies are open, or while one waits for
    /// room. Two loads where there is nothing to do.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn tend(&mut self) -> Result<(), CudaError> {
        if self.ring.needs_kernel() { self.launch() } else { Ok(()) }
    }

    /// Asks the kernel to end after all that was posted; [`Resident::is_stopped`] says when it has. No driver call.
    pub fn request_stop(&mut self) {
        self.ring.request_stop();
    }

    /// Whether the kernel has ended, as far as its words say; the next copy starts it again.
    pub fn is_stopped(&mut self) -> bool {
        self.ring.is_stopped()
    }

    /// Whether the kernel is on the GPU, as far as its words say.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ring.is_running()
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
                self.ring.gone();
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
