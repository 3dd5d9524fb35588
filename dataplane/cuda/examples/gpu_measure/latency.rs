//! Single copies by size and mechanism: what the table of mechanisms is made from.

use railhead_cuda::Stream;

use crate::copies::{HOST, Lane, NONE, SOURCE, Shape, TARGET};
use crate::rig::{Better, Rig, Row, Times};

const SIZES: [u32; 7] = [16, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const COUNT: usize = 2000;

fn shape(kernel_threads: Option<u32>) -> Shape {
    Shape { host_bytes: 4 << 20, gpu_bytes: 4 << 20, streams: 3, kernel_threads }
}

pub(crate) fn table(rig: &Rig) {
    let ways = [("out", SOURCE, HOST), ("in", HOST, TARGET), ("peer", SOURCE, TARGET)];
    for (mechanism, threads) in
        [("engine", None), ("kernel256", Some(256)), ("kernel512", Some(512)), ("kernel1024", Some(1024))]
    {
        let mut lane = Lane::new(rig, shape(threads));
        lane.kernel_limits(if threads.is_some() { 64 << 10 } else { 0 });
        for (way, from, to) in ways {
            for bytes in SIZES.into_iter().filter(|bytes| threads.is_none() || *bytes <= 64 << 10) {
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
    let mut lane = Lane::new(rig, shape(Some(512)));
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
        .at(500)
    };
    let row = Row {
        name: "out 4 KiB, resident kernel",
        unit: "us p50",
        better: Better::Less,
        goal: 0.45,
        note: "reference: cuMemcpyAsync and cuStreamSynchronize; the goal stands for 3.5 us of some 8",
    };
    row.measure(rig, || Times::of(COUNT, || lane.one(SOURCE, HOST, BYTES)).at(500), raw);
}

/// Many small copies at once: by one call of the driver for a batch, and by one for each.
pub(crate) fn batches(rig: &Rig) {
    const WINDOW: u32 = 64;
    const ROUNDS: u32 = 200;
    let lane = std::cell::RefCell::new(Lane::new(rig, shape(None)));
    let rate = |batch: bool| {
        let mut lane = lane.borrow_mut();
        lane.copier.queues().set_batch(batch);
        let start = std::time::Instant::now();
        let (mut posted, mut ended) = (0, 0);
        let mut done = [NONE; WINDOW as usize];
        while ended < WINDOW * ROUNDS {
            while posted < WINDOW * ROUNDS && posted - ended < WINDOW {
                let place = u64::from(posted % WINDOW) * 4096;
                lane.post((SOURCE, place), (HOST, place), 4096, posted);
                posted += 1;
            }
            ended += lane.poll(&mut done) as u32;
        }
        f64::from(WINDOW * ROUNDS) / start.elapsed().as_secs_f64() / 1e6
    };
    let row = Row {
        name: "out 4 KiB, 64 under way, batched calls",
        unit: "million copies/s",
        better: Better::More,
        goal: 1.0,
        note: "reference: the same copier with one driver call for each copy",
    };
    row.measure(rig, || rate(true), || rate(false));
}
