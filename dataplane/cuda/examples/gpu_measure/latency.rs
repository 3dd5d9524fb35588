//! Single copies by size and mechanism: what the table of mechanisms is made from.

use railhead_cuda::Stream;

use crate::copies::{HOST, Lane, SOURCE, Shape, TARGET};
use crate::rig::{Better, Rig, Row, Times};

const SIZES: [u32; 7] = [16, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const COUNT: usize = 2000;

fn shape(kernel_threads: Option<u32>) -> Shape {
    Shape { host_bytes: 4 << 20, gpu_bytes: 4 << 20, streams: 2, kernel_threads }
}

pub(crate) fn table(rig: &Rig) {
    let ways = [("out", SOURCE, HOST), ("in", HOST, TARGET), ("peer", SOURCE, TARGET)];
    for (mechanism, threads) in [("engine", None), ("kernel256", Some(256)), ("kernel1024", Some(1024))] {
        let mut lane = Lane::new(rig, shape(threads));
        lane.kernel_limits(if threads.is_some() { 1 << 20 } else { 0 });
        for (way, from, to) in ways {
            for bytes in SIZES {
                let _ = Times::of(100, || lane.one(from, to, bytes));
                Times::of(COUNT, || lane.one(from, to, bytes))
                    .print(&format!("{way} {mechanism}"), u64::from(bytes));
            }
        }
    }
}

/// 4 KiB to the host, seen by the lane: the resident kernel beside an asynchronous copy and its end.
pub(crate) fn out_by_kernel(rig: &Rig) {
    const BYTES: u32 = 4 << 10;
    let mut lane = Lane::new(rig, shape(Some(256)));
    lane.kernel_limits(BYTES);
    let stream = Stream::new(&rig.gpus[0]).expect("a stream");
    let (from, to) = (lane.source.address(), lane.host.address());
    let raw = || {
        rig.gpus[0].make_current().expect("current");
        Times::of(COUNT, || {
            // SAFETY: memories of this lane, which outlive the wait.
            unsafe { stream.copy(from, to, u64::from(BYTES)) }.expect("posted");
            stream.wait().expect("copied");
        })
        .at(0.5)
    };
    let row = Row {
        name: "out 4 KiB, resident kernel",
        unit: "us p50",
        better: Better::Less,
        goal: 0.45,
        note: "reference: cuMemcpyAsync and cuStreamSynchronize; the goal stands for 3.5 us of some 8",
    };
    row.measure(rig, || Times::of(COUNT, || lane.one(SOURCE, HOST, BYTES)).at(0.5), raw);
}
