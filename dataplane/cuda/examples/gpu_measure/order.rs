//! From the end of a kernel to the end of the copy of what it wrote: by a gate that its stream opens, and by a thread that
//! waits for the stream and tells the lane. Client and lane are threads of their own, as they are in life.

use std::time::Instant;

use railhead_cuda::{PinnedWords, Stream, Verifier};

use crate::copies::{HOST, Lane, SOURCE, Shape};
use crate::rig::{Better, Rig, Row, Times};

const BYTES: u32 = 4 << 10;
const COUNT: u32 = 1000;
const KERNEL_NS: u64 = 20_000;

pub(crate) fn chain(rig: &Rig) {
    let shape = Shape { host_bytes: 2 << 20, gpu_bytes: 2 << 20, streams: 1, kernel_threads: None };
    let mut lane = Lane::new(rig, shape);
    let gpu = &rig.gpus[0];
    let verifier = Verifier::new(gpu).expect("kernels");
    let stream = Stream::new(gpu).expect("a stream");
    // The gate, and what the lane says when the copy has ended; each on a cache line of its own.
    let words = PinnedWords::new(gpu, 16).expect("words");
    let (gate, ended) = (&words[0], &words[8]);
    let address = lane.source.address();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 1u32;
            loop {
                let seen = gate.load_acquire() as u32;
                if seen == u32::MAX {
                    return;
                }
                if seen.wrapping_sub(next).cast_signed() >= 0 {
                    lane.one(SOURCE, HOST, BYTES);
                    ended.store_release(u64::from(next));
                    next += 1;
                }
            }
        });
        let number = std::cell::Cell::new(0u32);
        let one = |by_gate: bool| {
            number.set(number.get() + 1);
            let value = number.get();
            let start = Instant::now();
            gpu.make_current().expect("current");
            // SAFETY: memory of the lane and a word of this function, both there until the lane has said that it has copied.
            unsafe {
                verifier.produce(&stream, address, u64::from(BYTES) / 4, value, KERNEL_NS).expect("posted");
                if by_gate {
                    stream.write_word(words.device_address(0), value).expect("posted");
                } else {
                    stream.wait().expect("ended");
                    gate.store_release(u64::from(value));
                }
            }
            while ended.load_acquire() < u64::from(value) {
                std::hint::spin_loop();
            }
            start.elapsed().as_secs_f64() * 1e6
        };
        let row = Row {
            name: "kernel and copy of what it wrote, 4 KiB, gate",
            unit: "us p50",
            better: Better::Less,
            goal: 1.0,
            note: "from the launch of a kernel of 20 us on; reference: cuStreamSynchronize, then a word to the lane",
        };
        let many = |by_gate| Times::from_unsorted((0..COUNT).map(|_| one(by_gate)).collect()).at(500);
        row.measure(rig, || many(true), || many(false));
        gate.store_release(u64::from(u32::MAX));
    });
}
