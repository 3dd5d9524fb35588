//! A stand-in for GPUs: queues that work when they are told to, one piece at a time and in any order among each other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use railhead_shm::{Access, Mapping, OwnedSpan, guard, memfd};
use railhead_sim::Rng;

use crate::error::CudaError;
use crate::queues::{Direction, Mechanism, Memory, QueueInfo, Queues, RUNS_MAX, Run, Side};

#[derive(Debug, Clone)]
pub(crate) struct StandInMemory {
    pub(crate) span: OwnedSpan,
    pub(crate) side: Side,
    pub(crate) piece_bytes: u64,
}

impl Memory for StandInMemory {
    fn side(&self) -> Side {
        self.side
    }

    fn address(&self) -> u64 {
        self.span.address() as u64
    }

    fn kernel_address(&self) -> Option<u64> {
        Some(self.address())
    }

    fn bytes(&self) -> u64 {
        self.span.len() as u64
    }

    fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    fn is_lost(&self) -> bool {
        self.span.poisoned()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Posted {
    Run(Run),
    Mark(u64),
}

/// What the stand-in's device does, seen and steered by the tests.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) queues: Vec<VecDeque<Posted>>,
    pub(crate) marked: Vec<u64>,
    /// Calls that posted runs, and marks.
    pub(crate) copies: usize,
    pub(crate) marks: usize,
    pub(crate) runs: usize,
    /// The next calls fail so: (runs taken before, error number).
    pub(crate) refuse_copy: Option<(usize, i32)>,
    pub(crate) refuse_mark: Option<i32>,
    pub(crate) lost: Option<i32>,
    /// Marks never come.
    pub(crate) blind: bool,
    /// Kernels that were told to go.
    pub(crate) paused: Vec<usize>,
    /// Memory that copies may touch, as first byte and end; anything while nothing is listed.
    pub(crate) live: Vec<(u64, u64)>,
}

impl Device {
    /// Does some of what was posted, in order within each queue.
    pub(crate) fn work(&mut self, infos: &[QueueInfo], rng: &mut Rng) {
        for (queue, info) in infos.iter().enumerate() {
            for _ in 0..rng.below(4) {
                self.work_one(queue, info.mechanism);
            }
        }
    }

    pub(crate) fn work_one(&mut self, queue: usize, mechanism: Mechanism) {
        match self.queues[queue].pop_front() {
            None => {}
            Some(Posted::Mark(_)) if self.blind => {}
            Some(Posted::Mark(value)) => self.marked[queue] = value,
            Some(Posted::Run(run)) => {
                for start in [run.from, run.to] {
                    let inside = |(first, end): &(u64, u64)| *first <= start && start + run.bytes <= *end;
                    assert!(
                        self.live.is_empty() || self.live.iter().any(inside),
                        "{run:?} touches memory that is gone"
                    );
                }
                let pointer = |address: u64| core::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                // SAFETY: addresses of spans that the copier keeps until the copy has ended: that it does is what is
                // tested. They never overlap.
                unsafe {
                    core::ptr::copy_nonoverlapping(pointer(run.from), pointer(run.to), run.bytes as usize);
                }
                if mechanism == Mechanism::Kernel {
                    self.marked[queue] += 1;
                }
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StandIn {
    pub(crate) infos: Vec<QueueInfo>,
    pub(crate) device: Rc<RefCell<Device>>,
}

impl StandIn {
    pub(crate) fn new(kernel: bool) -> Self {
        let directions = [Direction::Out, Direction::In, Direction::Peer];
        let mut infos: Vec<QueueInfo> = (0..2u8)
            .flat_map(|gpu| directions.map(|direction| (gpu, direction)))
            .flat_map(|(gpu, direction)| [(gpu, direction); 3])
            .map(|(gpu, direction)| QueueInfo {
                gpu,
                direction: Some(direction),
                mechanism: Mechanism::Engine,
            })
            .collect();
        if kernel {
            infos.push(QueueInfo { gpu: 0, direction: None, mechanism: Mechanism::Kernel });
            infos.push(QueueInfo { gpu: 1, direction: None, mechanism: Mechanism::Kernel });
        }
        let device = Device {
            queues: vec![VecDeque::new(); infos.len()],
            marked: vec![0; infos.len()],
            copies: 0,
            marks: 0,
            runs: 0,
            refuse_copy: None,
            refuse_mark: None,
            lost: None,
            blind: false,
            paused: Vec::new(),
            live: Vec::new(),
        };
        Self { infos, device: Rc::new(RefCell::new(device)) }
    }
}

pub(crate) fn error(number: i32) -> CudaError {
    CudaError { call: "stand-in", number, name: "STAND_IN" }
}

impl Queues for StandIn {
    type Memory = StandInMemory;

    fn queues(&self) -> &[QueueInfo] {
        &self.infos
    }

    fn room(&self, queue: usize) -> usize {
        match self.infos[queue].mechanism {
            Mechanism::Engine => RUNS_MAX,
            Mechanism::Kernel => 4 - self.device.borrow().queues[queue].len().min(4),
        }
    }

    fn copy(&mut self, queue: usize, runs: &[Run]) -> (usize, Result<(), CudaError>) {
        let device = &mut *self.device.borrow_mut();
        if let Some(number) = device.lost {
            // As the driver has it: when it says so, everything posted has ended.
            device.queues.iter_mut().for_each(VecDeque::clear);
            return (0, Err(error(number)));
        }
        device.copies += 1;
        let (take, result) = match device.refuse_copy.take() {
            Some((take, number)) => (take.min(runs.len() - 1), Err(error(number))),
            None => (runs.len(), Ok(())),
        };
        device.runs += take;
        device.queues[queue].extend(runs[..take].iter().copied().map(Posted::Run));
        (take, result)
    }

    fn mark(&mut self, queue: usize, value: u64) -> Result<(), CudaError> {
        let device = &mut *self.device.borrow_mut();
        if self.infos[queue].mechanism == Mechanism::Kernel {
            return Ok(());
        }
        if let Some(number) = device.refuse_mark.take() {
            return Err(error(number));
        }
        device.marks += 1;
        device.queues[queue].push_back(Posted::Mark(value));
        Ok(())
    }

    fn marked(&self, queue: usize) -> u64 {
        self.device.borrow().marked[queue]
    }

    fn check(&mut self, queue: usize) -> Result<bool, CudaError> {
        let device = &mut *self.device.borrow_mut();
        if let Some(number) = device.lost {
            device.queues.iter_mut().for_each(VecDeque::clear);
            return Err(error(number));
        }
        Ok(device.queues[queue].is_empty() && self.infos[queue].mechanism == Mechanism::Engine)
    }

    fn pause(&mut self, queue: usize) {
        let device = &mut *self.device.borrow_mut();
        assert!(device.queues[queue].is_empty(), "paused with copies under way");
        if !device.paused.contains(&queue) {
            device.paused.push(queue);
        }
    }

    fn is_paused(&mut self, queue: usize) -> bool {
        self.device.borrow().paused.contains(&queue)
    }
}

/// Memory of `bytes` zeroes that can be lost, as a client's can.
pub(crate) fn memory(bytes: usize) -> OwnedSpan {
    guard::install().expect("a handler");
    let file = memfd::create("copied", bytes as u64, memfd::Huge::No).expect("a memory file");
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).expect("mapped");
    let span = guard::protect(&mapping).expect("guarded").span();
    // The stand-in goes by address.
    // SAFETY: the span is given back, and only its address is used here.
    let _ = unsafe { span.span() }.as_ptr().expose_provenance();
    span
}
