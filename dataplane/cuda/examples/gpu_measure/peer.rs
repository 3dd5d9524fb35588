//! GPU to GPU directly, beside the driver's own call.

use std::time::Instant;

use railhead_cuda::Stream;

use crate::copies::{Lane, NONE, SOURCE, Shape, TARGET, gigabits};
use crate::rig::{Better, Rig, Row, not_run};

const WINDOW: u64 = 4;

pub(crate) fn large(rig: &Rig) {
    let rows = [(16 << 20, "GPU to GPU, 16 MiB, window 4"), (256 << 20, "GPU to GPU, 256 MiB, window 4")];
    if rig.gpus.len() < 2 {
        for (_, name) in rows {
            not_run(name, "one GPU");
        }
        return;
    }
    let (first, last) = rig.two();
    if !rig.gpus[first].can_reach(&rig.gpus[last]).unwrap_or(false) {
        for (_, name) in rows {
            not_run(name, "the GPUs do not reach each other");
        }
        return;
    }
    let shape = Shape { host_bytes: 2 << 20, gpu_bytes: 256 << 20, streams: 3, kernel_threads: None };
    let mut lane = Lane::new(rig, shape);
    let stream = Stream::new(&rig.gpus[first]).expect("a stream");
    let (from, to) = (lane.source.address(), lane.target.address());
    for (bytes, name) in rows {
        let count: u64 = if bytes > 64 << 20 { 32 } else { 128 };
        let row = Row {
            name,
            unit: "Gb/s",
            better: Better::More,
            goal: 0.98,
            note: "reference: cuMemcpyPeerAsync, 4 under way, on one stream",
        };
        let ours = || {
            let start = Instant::now();
            let (mut posted, mut ended) = (0, 0);
            let mut done = [NONE; WINDOW as usize];
            while ended < count {
                while posted < count && posted - ended < WINDOW {
                    lane.post((SOURCE, 0), (TARGET, 0), bytes as u32, posted as u32);
                    posted += 1;
                }
                ended += lane.poll(&mut done) as u64;
            }
            gigabits(bytes * count, start.elapsed().as_secs_f64())
        };
        let reference = || {
            rig.gpus[first].make_current().expect("current");
            let start = Instant::now();
            for group in 0..count / WINDOW {
                for _ in 0..WINDOW {
                    // SAFETY: memories of the lane, which outlive the wait below.
                    unsafe { stream.copy_peer((&rig.gpus[first], from), (&rig.gpus[last], to), bytes) }
                        .expect("posted");
                }
                // Two groups at most.
                if group % 2 == 1 {
                    stream.wait().expect("copied");
                }
            }
            stream.wait().expect("copied");
            gigabits(bytes * count, start.elapsed().as_secs_f64())
        };
        row.measure(rig, ours, reference);
    }
}
