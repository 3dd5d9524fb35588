//! From the end of a kernel to the end of the copy of what it wrote: by a gate that its stream opens, and by a thread that
//! waits for the stream.

use std::time::Instant;

use railhead_cuda::{PinnedWords, Stream, Verifier};

use crate::copies::{HOST, Lane, SOURCE, Shape};
use crate::rig::{Better, Rig, Row, Times};

const BYTES: u32 = 4 << 10;
const COUNT: usize = 1000;
const KERNEL_NS: u64 = 20_000;

pub(crate) fn chain(rig: &Rig) {
    let shape = Shape { host_bytes: 2 << 20, gpu_bytes: 2 << 20, streams: 1, kernel_threads: None };
    let mut lane = Lane::new(rig, shape);
    let gpu = &rig.gpus[0];
    let verifier = Verifier::new(gpu).expect("kernels");
    let stream = Stream::new(gpu).expect("a stream");
    let gate = PinnedWords::new(gpu, 1).expect("a word");
    let address = lane.source.address();
    let mut value = 0u32;
    let produce = |value: u32| {
        // SAFETY: memory of the lane, which outlives the waits below.
        unsafe { verifier.produce(&stream, address, u64::from(BYTES) / 4, value, KERNEL_NS) }.expect("posted");
    };
    let lane = std::cell::RefCell::new(&mut lane);
    let row = Row {
        name: "kernel and copy of what it wrote, 4 KiB, gate",
        unit: "us p50",
        better: Better::Less,
        goal: 1.0,
        note: "from the launch of a kernel of 20 us on; reference: cuStreamSynchronize, then the copy",
    };
    row.measure(
        rig,
        || {
            let mut times = Vec::with_capacity(COUNT);
            for _ in 0..COUNT {
                value += 1;
                let start = Instant::now();
                produce(value);
                // SAFETY: a word of this function, which waits for it right away.
                unsafe { stream.write_word(gate.device_address(0), value) }.expect("posted");
                while (gate[0].load_acquire() as u32).wrapping_sub(value).cast_signed() < 0 {
                    std::hint::spin_loop();
                }
                lane.borrow_mut().one(SOURCE, HOST, BYTES);
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Times::from_unsorted(times).at(0.5)
        },
        || {
            Times::of(COUNT, || {
                produce(1);
                stream.wait().expect("ended");
                lane.borrow_mut().one(SOURCE, HOST, BYTES);
            })
            .at(0.5)
        },
    );
}
