//! GPU to GPU through host memory inside the node: what the engine does with blocks, driven by ends that the copier tells.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use railhead_core::port::CopyEngine;
use railhead_cuda::{Event, Stream};
use railhead_ring::Word;

use crate::copies::{HOST, Lane, NONE, SOURCE, Shape, TARGET, gigabits};
use crate::rig::{Better, Rig, Row, Times, cpu_seconds};

/// Blocks and their size, as a lane's arena has them for large transfers between GPUs.
const BLOCK_BYTES: u64 = 4 << 20;
const BLOCKS: usize = 8;
const BYTES_MAX: u64 = 256 << 20;

/// `count` messages of `bytes` one behind the other: out into a free block, then in from it, with as many blocks under way as
/// there are. With `rest` it sleeps where the copier says that nothing will end.
fn ours(lane: &mut Lane, bytes: u64, count: u64, rest: bool) {
    let total = bytes * count;
    let (mut posted, mut ended) = (0, 0);
    let mut free: Vec<usize> = (0..BLOCKS).rev().collect();
    let (mut at, mut sizes) = ([0u64; BLOCKS], [0u32; BLOCKS]);
    let mut done = [NONE; 2 * BLOCKS];
    while ended < total {
        while posted < total
            && let Some(block) = free.pop()
        {
            // A chunk never belongs to two messages.
            at[block] = posted % bytes;
            sizes[block] = (bytes - at[block]).min(BLOCK_BYTES) as u32;
            let place = block as u64 * BLOCK_BYTES;
            lane.post((SOURCE, at[block]), (HOST, place), sizes[block], block as u32);
            posted += u64::from(sizes[block]);
        }
        let count = lane.poll(&mut done);
        for end in &done[..count] {
            let block = end.post.0 as usize % BLOCKS;
            if (end.post.0 as usize) < BLOCKS {
                let place = block as u64 * BLOCK_BYTES;
                let second = (BLOCKS + block) as u32;
                lane.post((HOST, place), (TARGET, at[block]), sizes[block], second);
            } else {
                ended += u64::from(sizes[block]);
                free.push(block);
            }
        }
        if rest && count == 0 {
            sleep(lane);
        }
    }
    assert!(!lane.copier.is_busy());
}

fn sleep(lane: &Lane) {
    let now = lane.now();
    if let Some(until) = lane.copier.rest_until(now) {
        std::thread::sleep(Duration::from_nanos(until - now));
    }
}

/// The same by two streams that wait for each other's events: no host between the copies. What `gpu_raw.cpp` of the
/// comparison with peers does.
struct Raw {
    out: Stream,
    into: Stream,
    full: Vec<Event>,
    empty: Vec<Event>,
    /// Blocks filled so far, over all messages.
    filled: usize,
}

impl Raw {
    fn new(rig: &Rig) -> Self {
        let (first, last) = rig.two();
        let events =
            |at: usize| (0..BLOCKS).map(|_| Event::new(&rig.gpus[at]).expect("an event")).collect::<Vec<_>>();
        Self {
            out: Stream::new(&rig.gpus[first]).expect("a stream"),
            into: Stream::new(&rig.gpus[last]).expect("a stream"),
            full: events(first),
            empty: events(last),
            filled: 0,
        }
    }

    fn messages(&mut self, lane: &Lane, bytes: u64, count: u64) {
        for _ in 0..count {
            let mut offset = 0;
            while offset < bytes {
                let size = (bytes - offset).min(BLOCK_BYTES);
                self.chunk(lane, offset, size);
                offset += size;
            }
        }
        self.into.wait().expect("copied");
    }

    fn chunk(&mut self, lane: &Lane, offset: u64, size: u64) {
        let block = self.filled % BLOCKS;
        let place = lane.host.address() + block as u64 * BLOCK_BYTES;
        self.out.gpu().make_current().expect("current");
        if self.filled >= BLOCKS {
            self.empty[block].hold(&self.out).expect("posted");
        }
        // SAFETY: memories of this lane, which outlive the wait of `messages`.
        unsafe { self.out.copy(lane.source.address() + offset, place, size) }.expect("posted");
        self.full[block].record(&self.out).expect("posted");
        self.into.gpu().make_current().expect("current");
        self.full[block].hold(&self.into).expect("posted");
        // SAFETY: as above.
        unsafe { self.into.copy(place, lane.target.address() + offset, size) }.expect("posted");
        self.empty[block].record(&self.into).expect("posted");
        self.filled += 1;
    }
}

fn shape(kernel_threads: Option<u32>) -> Shape {
    Shape { host_bytes: BLOCKS as u64 * BLOCK_BYTES, gpu_bytes: BYTES_MAX, streams: 3, kernel_threads }
}

pub(crate) fn large(rig: &Rig) {
    let (lane, raw) = (RefCell::new(Lane::new(rig, shape(None))), RefCell::new(Raw::new(rig)));
    for (bytes, name) in
        [(16 << 20, "staged in the node, 16 MiB"), (BYTES_MAX, "staged in the node, 256 MiB")]
    {
        let count = 4 * BYTES_MAX / bytes;
        let row = Row {
            name,
            unit: "Gb/s",
            better: Better::More,
            goal: 0.95,
            note: "messages one behind the other; reference: two streams and events, 4 MiB chunks, 8 deep",
        };
        row.measure(
            rig,
            || rate(bytes * count, || ours(&mut lane.borrow_mut(), bytes, count, false)),
            || rate(bytes * count, || raw.borrow_mut().messages(&lane.borrow(), bytes, count)),
        );
    }
    adaptive(rig, &lane, &raw);
}

/// The same with a lane that sleeps: rate and CPU time.
fn adaptive(rig: &Rig, lane: &RefCell<Lane>, raw: &RefCell<Raw>) {
    const COUNT: u64 = 4;
    // SAFETY: sets how late this thread may be woken, in nanoseconds; no memory is involved.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let row = Row {
        name: "staged in the node, 256 MiB, lane sleeps",
        unit: "Gb/s",
        better: Better::More,
        goal: 0.95,
        note: "reference as before, polling",
    };
    row.measure(
        rig,
        || rate(BYTES_MAX * COUNT, || ours(&mut lane.borrow_mut(), BYTES_MAX, COUNT, true)),
        || rate(BYTES_MAX * COUNT, || raw.borrow_mut().messages(&lane.borrow(), BYTES_MAX, COUNT)),
    );
    let cost = |rest: bool| {
        let cpu = cpu_seconds();
        ours(&mut lane.borrow_mut(), BYTES_MAX, COUNT, rest);
        (cpu_seconds() - cpu) / (COUNT as f64 * BYTES_MAX as f64 / 1e9)
    };
    let row = Row {
        name: "CPU seconds a GB, staged in the node, lane sleeps",
        unit: "s/GB",
        better: Better::Less,
        goal: 0.25,
        note: "reference: the same, polling; the goal stands for 0.005 of some 0.02",
    };
    row.measure(rig, || cost(true), || cost(false));
}

fn rate(bytes: u64, mut messages: impl FnMut()) -> f64 {
    let start = Instant::now();
    messages();
    gigabits(bytes, start.elapsed().as_secs_f64())
}

/// Copies while the last line read was `on`, until the input ends; answers each line. Large messages by copy engines, or
/// small ones by resident kernels.
pub(crate) fn load(rig: &Rig) {
    let kernels = rig.options.kernels;
    let mut lane = Lane::new(rig, shape(kernels.then_some(512)));
    lane.kernel_limits(if kernels { 4 << 10 } else { 0 });
    let bytes = if kernels { 4 << 10 } else { BYTES_MAX };
    let (on, end) = (Word::new(0), Word::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            println!("ready");
            for line in std::io::stdin().lines() {
                let wanted = line.is_ok_and(|line| line.trim() == "on");
                on.store_release(u64::from(wanted));
                println!("{}", if wanted { "on" } else { "off" });
            }
            end.store_release(1);
        });
        while end.load_acquire() == 0 {
            if on.load_acquire() == 1 {
                lane.copier.resume_kernels();
                ours(&mut lane, bytes, 1, false);
            } else {
                // Idle in both ways: no copy, and no kernel on the GPU.
                lane.copier.pause_kernels();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

/// One message alone, until done.
pub(crate) fn alone(rig: &Rig) {
    for (name, bytes, threads, count, goal) in [
        ("staged in the node, 4 KiB alone, copy engines", 4 << 10, None, 2000, 1.15),
        ("staged in the node, 4 KiB alone, resident kernels", 4 << 10, Some(512), 2000, 0.65),
        ("staged in the node, 1 MiB alone", 1 << 20, None, 500, 1.15),
        ("staged in the node, 16 MiB alone", 16 << 20, None, 100, 1.15),
    ] {
        let (lane, raw) = (RefCell::new(Lane::new(rig, shape(threads))), RefCell::new(Raw::new(rig)));
        lane.borrow_mut().kernel_limits(if threads.is_some() { 4 << 10 } else { 0 });
        let row = Row {
            name,
            unit: "us p50",
            better: Better::Less,
            goal,
            note: "reference: two streams, the second held by the first's event, and cuStreamSynchronize",
        };
        row.measure(
            rig,
            || Times::of(count, || ours(&mut lane.borrow_mut(), bytes, 1, false)).at(500),
            || Times::of(count, || raw.borrow_mut().messages(&lane.borrow(), bytes, 1)).at(500),
        );
    }
}
