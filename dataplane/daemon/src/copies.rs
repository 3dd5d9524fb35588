//! Copy threads: whether lanes get them, how one runs, and where.

use std::sync::Arc;
use std::thread::JoinHandle;

use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use railhead_abi::segment::{COPY_THREAD_OFF, COPY_THREAD_ON, COPY_THREAD_SHORT};
use railhead_abi::settings::Settings;
use railhead_config::{CopyThreads, Dataplane};
use railhead_host::{CopyThread, Helper, copy_thread};
use railhead_ring::Word;

use crate::error::StartError;
use crate::events::{Event, EventLog};
use crate::machine::Cores;
use crate::{allocator, clock, machine};

/// Copies of at least so many bytes go to the copy thread. Below, handing over costs the lane more than it saves: see
/// `ops/adr/0007-copy-thread.md`.
const HAND_OVER_BYTES: u32 = 64 << 10;

/// Whether the lanes of this node have copy threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// They have.
    Threads,
    /// They copy themselves, as the configuration says.
    Lanes,
    /// They copy themselves, because threads would need so many cores.
    Short {
        /// Cores that there would have to be.
        needed: usize,
    },
}

impl Copies {
    /// What the configuration comes to on so many cores.
    pub(crate) const fn of(dataplane: &Dataplane, cores: usize) -> Self {
        // Two cores for each lane, and one for everything else: a copy thread that takes turns with a lane on one core
        // costs both more than it saves.
        let needed = 2 * dataplane.lanes + 1;
        match dataplane.copy_threads {
            CopyThreads::On => Self::Threads,
            CopyThreads::Off => Self::Lanes,
            CopyThreads::Auto if cores >= needed => Self::Threads,
            CopyThreads::Auto => Self::Short { needed },
        }
    }

    /// Says why lanes copy themselves although the configuration would let threads do it.
    pub(crate) fn report(self, lanes: usize, cores: usize, events: &EventLog) {
        if let Self::Short { needed } = self {
            let text = format!("{cores} cores for {lanes} lane(s); copy threads need {needed}");
            let event = Event::new(EventCode::CopyThreadsOff).reason(Code::CoresShort).text(text);
            events.emit(event.figures(cores as u64, needed as u64));
        }
    }

    /// As a lane's status says it.
    pub(crate) const fn word(self) -> u64 {
        match self {
            Self::Threads => COPY_THREAD_ON,
            Self::Lanes => COPY_THREAD_OFF,
            Self::Short { .. } => COPY_THREAD_SHORT,
        }
    }
}

/// A copy thread, as the lane knows it that it belongs to.
#[derive(Debug)]
pub(crate) struct RunningCopies {
    thread: JoinHandle<()>,
    /// The thread's id for the kernel.
    pub(crate) tid: u64,
    /// Calls of the allocator that the thread made since it was sealed.
    pub(crate) allocations: Arc<Word>,
}

impl RunningCopies {
    /// Starts the copy thread of a lane. It ends when the copier that gets the helper is dropped.
    ///
    /// # Errors
    /// [`Code::DeviceError`] when there is no room for another thread.
    pub(crate) fn start(lane: usize) -> Result<(Self, Helper), StartError> {
        let name = format!("railhead-copy-{lane}");
        let failed = |error: &dyn core::fmt::Display| {
            StartError::new(Code::DeviceError, format!("thread {name}"), error)
        };
        let (helper, copies) = copy_thread(HAND_OVER_BYTES);
        let allocations = Arc::new(Word::new(0));
        let (reply, tid) = flume::bounded(1);
        let count = Arc::clone(&allocations);
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                // The lane waits for it.
                let _ = reply.send(machine::thread_id());
                drop(reply);
                run(copies, &count);
            })
            .map_err(|error| failed(&error))?;
        let tid = tid.recv().map_err(|error| failed(&error))?;
        Ok((Self { thread, tid, allocations }, helper))
    }

    /// Waits for the end of the thread, after the copier has been dropped.
    pub(crate) fn join(self) {
        // A panic has ended the process.
        drop(self.thread.join());
    }
}

/// The thread's life: sealed like its lane.
fn run(copies: CopyThread, allocations: &Word) {
    allocator::seal_thread();
    copies.run(clock::monotonic_ns, || allocations.store_relaxed(allocator::sealed_calls()));
    allocator::unseal_thread();
}

/// Where the copy thread of a lane may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this core.
    Core(u64),
    /// On any of these.
    Any(Cores),
}

/// Where the copy thread of `lane` shall run: on the configured core; else on the NUMA node of the lane's core, if it is
/// pinned, and never on a core that a lane is pinned to, as far as there are others. `node_of` gives all cores of a
/// core's NUMA node.
pub(crate) fn place(
    lane: usize,
    lanes: usize,
    settings: &Settings,
    configured: Option<&[u64]>,
    allowed: &Cores,
    node_of: impl Fn(u64) -> Option<Cores>,
) -> Place {
    if let Some(core) = configured.and_then(|cores| cores.get(lane)) {
        return Place::Core(*core);
    }
    let mut free = *allowed;
    (0..lanes).filter_map(|lane| settings.lane_core(lane)).for_each(|core| free.remove(core));
    let near = settings.lane_core(lane).and_then(node_of).map(|node| free.and(&node));
    let cores = [near, Some(free)].into_iter().flatten().find(|cores| cores.count() > 0);
    Place::Any(cores.unwrap_or(*allowed))
}

#[cfg(test)]
mod tests;
