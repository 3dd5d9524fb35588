//! GPU to GPU through host memory inside the node: what the engine does with blocks, driven by ends that the copier tells.

use std::time::Instant;

use railhead_cuda::{PinnedWords, Stream};

use crate::copies::{HOST, Lane, NONE, SOURCE, Shape, TARGET, gigabits};
use crate::rig::{Better, Rig, Row, Times, cpu_seconds};

/// Blocks and their size, as a lane's arena has them for large transfers between GPUs.
const BLOCK_BYTES: u64 = 4 << 20;
const BLOCKS: usize = 8;
const BYTES_MAX: u64 = 256 << 20;

/// One message: out into a free block, then in from it, with as many blocks under way as there are.
fn ours(lane: &mut Lane, bytes: u64) {
    let (mut posted, mut ended) = (0, 0);
    let mut free: Vec<usize> = (0..BLOCKS).rev().collect();
    let mut at = [0u64; BLOCKS];
    let size = |offset: u64| (bytes - offset).min(BLOCK_BYTES) as u32;
    let mut done = [NONE; 2 * BLOCKS];
    while ended < bytes {
        while posted < bytes
            && let Some(block) = free.pop()
        {
            at[block] = posted;
            let place = block as u64 * BLOCK_BYTES;
            lane.post((SOURCE, posted), (HOST, place), size(posted), block as u32);
            posted += u64::from(size(posted));
        }
        let count = lane.poll(&mut done);
        for end in &done[..count] {
            let block = end.post.0 as usize % BLOCKS;
            if (end.post.0 as usize) < BLOCKS {
                let place = block as u64 * BLOCK_BYTES;
                let second = (BLOCKS + block) as u32;
                lane.post((HOST, place), (TARGET, at[block]), size(at[block]), second);
            } else {
                ended += u64::from(size(at[block]));
                free.push(block);
            }
        }
    }
}

/// The same by two streams that wait for each other's words: no host between the copies.
struct Raw {
    out: Stream,
    into: Stream,
    words: PinnedWords,
    /// Blocks filled so far, over all messages.
    filled: u32,
}

impl Raw {
    fn new(rig: &Rig) -> Self {
        let (first, last) = rig.two();
        Self {
            out: Stream::new(&rig.gpus[first]).expect("a stream"),
            into: Stream::new(&rig.gpus[last]).expect("a stream"),
            words: PinnedWords::new(&rig.gpus[first], 2).expect("words"),
            filled: 0,
        }
    }

    fn message(&mut self, lane: &Lane, bytes: u64) {
        let (full, empty) = (self.words.device_address(0), self.words.device_address(1));
        let mut offset = 0;
        while offset < bytes {
            let size = (bytes - offset).min(BLOCK_BYTES);
            let place = lane.host.address() + u64::from(self.filled % BLOCKS as u32) * BLOCK_BYTES;
            self.filled += 1;
            // SAFETY: memories of this lane and words of this value, which outlive the wait below.
            unsafe {
                self.out.gpu().make_current().expect("current");
                if self.filled > BLOCKS as u32 {
                    self.out.wait_word(empty, self.filled - BLOCKS as u32, false).expect("posted");
                }
                self.out.copy(lane.source.address() + offset, place, size).expect("posted");
                self.out.write_word(full, self.filled).expect("posted");
                self.into.gpu().make_current().expect("current");
                self.into.wait_word(full, self.filled, false).expect("posted");
                self.into.copy(place, lane.target.address() + offset, size).expect("posted");
                self.into.write_word(empty, self.filled).expect("posted");
            }
            offset += size;
        }
        self.into.wait().expect("copied");
    }
}

fn shape(kernel_threads: Option<u32>) -> Shape {
    Shape { host_bytes: BLOCKS as u64 * BLOCK_BYTES, gpu_bytes: BYTES_MAX, streams: 2, kernel_threads }
}

pub(crate) fn large(rig: &Rig) {
    let mut lane = Lane::new(rig, shape(None));
    let mut raw = Raw::new(rig);
    for (bytes, name) in
        [(16 << 20, "staged in the node, 16 MiB"), (BYTES_MAX, "staged in the node, 256 MiB")]
    {
        let repeats = (BYTES_MAX / bytes).min(8);
        let row = Row {
            name,
            unit: "Gb/s",
            better: Better::More,
            goal: 0.95,
            note: "reference: two streams that wait for each other's words, 4 MiB chunks, 8 deep",
        };
        // Both need the copies' memories; the reference only reads addresses.
        let (raw, lane) = (std::cell::RefCell::new(&mut raw), std::cell::RefCell::new(&mut lane));
        row.measure(
            rig,
            || rate(bytes, repeats, || ours(&mut lane.borrow_mut(), bytes)),
            || rate(bytes, repeats, || raw.borrow_mut().message(&lane.borrow(), bytes)),
        );
    }
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..8 {
        ours(&mut lane, BYTES_MAX);
    }
    let gigabytes = 8.0 * BYTES_MAX as f64 / 1e9;
    println!(
        "{}",
        serde_json::json!({
            "figure": "CPU seconds a GB, staged in the node, polling",
            "value": (cpu_seconds() - cpu) / gigabytes, "seconds": start.elapsed().as_secs_f64(),
        })
    );
}

fn rate(bytes: u64, repeats: u64, mut message: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..repeats {
        message();
    }
    gigabits(bytes * repeats, start.elapsed().as_secs_f64())
}

/// 4 KiB until done.
pub(crate) fn small(rig: &Rig) {
    const BYTES: u64 = 4 << 10;
    const COUNT: usize = 2000;
    for (name, threads, goal) in [
        ("staged in the node, 4 KiB, copy engines", None, 1.15),
        ("staged in the node, 4 KiB, resident kernels", Some(256), 0.65),
    ] {
        let mut lane = Lane::new(rig, shape(threads));
        lane.kernel_limits(if threads.is_some() { BYTES as u32 } else { 0 });
        let mut raw = Raw::new(rig);
        let note = "reference: two streams, the second waiting for the first's word, and cuStreamSynchronize";
        let row = Row { name, unit: "us p50", better: Better::Less, goal, note };
        let (raw, lane) = (std::cell::RefCell::new(&mut raw), std::cell::RefCell::new(&mut lane));
        row.measure(
            rig,
            || Times::of(COUNT, || ours(&mut lane.borrow_mut(), BYTES)).at(0.5),
            || Times::of(COUNT, || raw.borrow_mut().message(&lane.borrow(), BYTES)).at(0.5),
        );
    }
}
