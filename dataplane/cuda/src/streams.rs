//! The queues of a node's GPUs: streams whose marks are words in host memory, and resident kernels.

use std::fmt;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
};

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host::{PinnedMemory, PinnedWords};
use crate::memory::DeviceMemory;
use crate::queues::{Direction, Mechanism, Memory, QueueInfo, Queues, RUNS_MAX, Run, Side};
use crate::resident::{self, Resident};
use crate::stream::Stream;

/// Words of a cache line: marks of different queues are written at the same time.
const LINE_WORDS: usize = 8;

/// Memory that copies of GPUs may touch.
#[derive(Debug, Clone)]
pub enum CopyMemory {
    /// Host memory, registered with the driver.
    Host(PinnedMemory),
    /// A part of a GPU's memory.
    Device {
        /// The memory.
        memory: DeviceMemory,
        /// The GPU, by its place in the list that [`StreamQueues::new`] was given.
        gpu: u8,
        /// Where the part starts.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
}

impl Memory for CopyMemory {
    fn side(&self) -> Side {
        match self {
            CopyMemory::Host(_) => Side::Host,
            CopyMemory::Device { gpu, .. } => Side::Gpu(*gpu),
        }
    }

    fn address(&self) -> u64 {
        match self {
            CopyMemory::Host(memory) => memory.address(),
            CopyMemory::Device { memory, offset, .. } => memory.address() + offset,
        }
    }

    fn kernel_address(&self) -> Option<u64> {
        match self {
            CopyMemory::Host(memory) => memory.device_address(),
            CopyMemory::Device { .. } => Some(self.address()),
        }
        .filter(|address| address.checked_add(self.bytes()).is_some_and(|end| end <= resident::ADDRESS_END))
    }

    fn bytes(&self) -> u64 {
        match self {
            CopyMemory::Host(memory) => memory.len(),
            // Never more than there is, whatever was said.
            CopyMemory::Device { memory, offset, bytes, .. } => {
                (*bytes).min(memory.len().saturating_sub(*offset))
            }
        }
    }

    fn piece_bytes(&self) -> u64 {
        match self {
            CopyMemory::Host(memory) => memory.piece_bytes(),
            CopyMemory::Device { .. } => u64::MAX,
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            CopyMemory::Host(memory) => memory.span().poisoned(),
            CopyMemory::Device { .. } => false,
        }
    }
}

#[derive(Debug)]
enum Server {
    Stream { stream: Stream, word: usize },
    Kernel(Resident),
}

/// Queues of several GPUs for one lane. Made by a slow thread, used by the lane.
pub struct StreamQueues {
    infos: Vec<QueueInfo>,
    servers: Vec<Server>,
    words: PinnedWords,
    gpus: Vec<Gpu>,
    /// The GPU whose context is current to the lane's thread, as far as this value has set it.
    current: Option<u8>,
    batch: bool,
}

impl StreamQueues {
    /// Queues of `gpus`: `streams` for each GPU and direction. Slow.
    ///
    /// # Errors
    /// [`CudaError`].
    ///
    /// # Panics
    /// Without a GPU or a stream, or with more than 255 GPUs.
    pub fn new(gpus: &[Gpu], streams: usize) -> Result<Self, CudaError> {
        assert!(!gpus.is_empty() && streams > 0, "queues without GPU or stream");
        let count = gpus.len() * 3 * streams;
        let words = PinnedWords::new(&gpus[0], count * LINE_WORDS)?;
        let (mut infos, mut servers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (index, gpu) in gpus.iter().enumerate() {
            let index = u8::try_from(index).expect("at most 255 GPUs");
            for direction in [Direction::Out, Direction::In, Direction::Peer] {
                for _ in 0..streams {
                    let word = servers.len() * LINE_WORDS;
                    servers.push(Server::Stream { stream: Stream::new(gpu)?, word });
                    infos.push(QueueInfo {
                        gpu: index,
                        direction: Some(direction),
                        mechanism: Mechanism::Engine,
                    });
                }
            }
        }
        let batch = gpus[0].driver().has_batched_copies();
        Ok(Self { infos, servers, words, gpus: gpus.to_vec(), current: None, batch })
    }

    /// Adds a resident kernel as a queue of its GPU, before the copier is made.
    ///
    /// # Panics
    /// If it is of no GPU of the list.
    pub fn add_resident(&mut self, gpu: u8, resident: Resident) {
        assert!(usize::from(gpu) < self.gpus.len(), "GPU {gpu} of {}", self.gpus.len());
        self.infos.push(QueueInfo { gpu, direction: None, mechanism: Mechanism::Kernel });
        self.servers.push(Server::Kernel(resident));
    }

    /// Sets whether several small copies are posted by one driver call, where the driver can do that. Live.
    pub fn set_batch(&mut self, batch: bool) {
        self.batch = batch && self.gpus[0].driver().has_batched_copies();
    }

    /// The driver keeps one current context a thread; setting it costs a call.
    fn make_current(&mut self, gpu: u8) -> Result<(), CudaError> {
        if self.current != Some(gpu) {
            self.gpus[usize::from(gpu)].make_current()?;
            self.current = Some(gpu);
        }
        Ok(())
    }

    /// Says that the calling thread's context may have been changed by others, or that the queues went to another thread.
    pub fn forget_current(&mut self) {
        self.current = None;
    }
}

fn copy_one_by_one(gpu: &Gpu, stream: &Stream, runs: &[Run]) -> (usize, Result<(), CudaError>) {
    for (posted, run) in runs.iter().enumerate() {
        // SAFETY: the copier has checked the run against memories that it keeps until the copy has ended, and found them
        // pinned or a GPU's, so that the call does not wait; the stream lives, its context is current.
        let status = unsafe { (gpu.api().copy_async)(run.to, run.from, run.bytes as usize, stream.raw()) };
        if let Err(error) = gpu.api().check("cuMemcpyAsync", status) {
            return (posted, Err(error));
        }
    }
    (runs.len(), Ok(()))
}

/// One call for all. `None` where it was refused: nothing was posted then.
fn copy_batch(gpu: &Gpu, stream: &Stream, runs: &[Run]) -> Option<()> {
    let batch = gpu.api().copy_batch_async?;
    let (mut to, mut from): ([CUdeviceptr; RUNS_MAX], [CUdeviceptr; RUNS_MAX]) =
        ([0; RUNS_MAX], [0; RUNS_MAX]);
    let mut bytes = [0; RUNS_MAX];
    for (at, run) in runs.iter().enumerate() {
        (to[at], from[at], bytes[at]) = (run.to, run.from, run.bytes as usize);
    }
    let anywhere = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
    let mut attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: anywhere,
        dstLocHint: anywhere,
        flags: 0,
    };
    let (mut first, mut failed) = (0, 0);
    // SAFETY: as for `copy_one_by_one`; the arrays have at least `runs.len()` elements, and the one set of attributes
    // counts from element 0 on. The driver has read them all when it returns.
    let status = unsafe {
        batch(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            bytes.as_mut_ptr(),
            runs.len(),
            &raw mut attributes,
            &raw mut first,
            1,
            &raw mut failed,
            stream.raw(),
        )
    };
    (status == 0).then_some(())
}

impl Queues for StreamQueues {
    type Memory = CopyMemory;

    fn queues(&self) -> &[QueueInfo] {
        &self.infos
    }

    fn room(&self, queue: usize) -> usize {
        match &self.servers[queue] {
            Server::Stream { .. } => RUNS_MAX,
            Server::Kernel(resident) => resident.room(),
        }
    }

    fn copy(&mut self, queue: usize, runs: &[Run]) -> (usize, Result<(), CudaError>) {
        let gpu = self.infos[queue].gpu;
        if matches!(self.servers[queue], Server::Stream { .. })
            && let Err(error) = self.make_current(gpu)
        {
            return (0, Err(error));
        }
        let batch = self.batch;
        match &mut self.servers[queue] {
            Server::Stream { stream, .. } => {
                let gpu = &self.gpus[usize::from(gpu)];
                if batch && runs.len() > 1 && copy_batch(gpu, stream, runs).is_some() {
                    return (runs.len(), Ok(()));
                }
                copy_one_by_one(gpu, stream, runs)
            }
            Server::Kernel(resident) => {
                for run in runs {
                    // SAFETY: as for streams: the copier keeps both memories until the copy has ended, and kernels reach
                    // them at these addresses.
                    unsafe { resident.post(run) };
                }
                (runs.len(), resident.tend())
            }
        }
    }

    fn mark(&mut self, queue: usize, value: u64) -> Result<(), CudaError> {
        if matches!(self.servers[queue], Server::Kernel(_)) {
            return Ok(());
        }
        // Nothing may have been copied before, and another GPU's context be current.
        self.make_current(self.infos[queue].gpu)?;
        let Server::Stream { stream, word } = &self.servers[queue] else { return Ok(()) };
        let address = self.words.device_address(*word);
        let api = stream.gpu().api();
        // SAFETY: a word of ours that lives until the stream has ended; its context is current. The write waits for all
        // copies before it, with what they wrote visible (no flag says otherwise).
        let status = unsafe { (api.stream_write_64)(stream.raw(), address, value, 0) };
        api.check("cuStreamWriteValue64", status)
    }

    fn marked(&self, queue: usize) -> u64 {
        match &self.servers[queue] {
            // Partner: the stream's write, which the device orders behind the copies.
            Server::Stream { word, .. } => self.words[*word].load_acquire(),
            Server::Kernel(resident) => resident.done(),
        }
    }

    fn check(&mut self, queue: usize) -> Result<bool, CudaError> {
        // The query makes the queue's GPU current.
        self.current = None;
        match &mut self.servers[queue] {
            Server::Stream { stream, .. } => stream.is_done(),
            Server::Kernel(resident) => {
                resident.tend()?;
                // Its stream ends with the kernel, not with a copy: only an error counts.
                resident.query().map(|_| false)
            }
        }
    }

    fn tend(&mut self, queue: usize) -> Result<(), CudaError> {
        match &mut self.servers[queue] {
            Server::Stream { .. } => Ok(()),
            Server::Kernel(resident) => {
                // A launch makes its GPU current.
                if !resident.is_running() {
                    self.current = None;
                }
                resident.tend()
            }
        }
    }

    fn pause(&mut self, queue: usize) {
        if let Server::Kernel(resident) = &mut self.servers[queue] {
            resident.request_stop();
        }
    }

    fn is_paused(&mut self, queue: usize) -> bool {
        match &mut self.servers[queue] {
            Server::Stream { .. } => true,
            Server::Kernel(resident) => resident.is_stopped(),
        }
    }
}

impl Drop for StreamQueues {
    fn drop(&mut self) {
        for server in &self.servers {
            if let Server::Stream { stream, .. } = server {
                // Until then the words are written. An error has ended everything.
                let _ = stream.wait();
            }
        }
    }
}

impl fmt::Debug for StreamQueues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StreamQueues")
            .field("gpus", &self.gpus)
            .field("queues", &self.infos)
            .finish_non_exhaustive()
    }
}

const _: () = assert!(RUNS_MAX <= resident::COMMANDS);
