//! What registrar threads' driver calls do to a lane's small copies.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use railhead_cuda::{ClientMemory, DeviceMemory, Pieces, PinnedMemory};
use railhead_memory::{Arena, ArenaConfig, Policy};
use railhead_ring::Word;

use crate::copies::{HOST, Lane, SOURCE, Shape};
use crate::rig::{Better, Rig, Row, Times};

const BYTES: u32 = 4 << 10;
const COUNT: usize = 10_000;

/// 4 KiB copies while a thread of the process repeats a call, beside the same in quiet.
pub(crate) fn beside_registration(rig: &Rig) {
    let shape = Shape { host_bytes: 2 << 20, gpu_bytes: 2 << 20, streams: 1, kernel_threads: None };
    let lane = RefCell::new(Lane::new(rig, shape));
    let gpu = &rig.gpus[0];
    let pause = Duration::from_millis(2);
    let arena = Arena::reserve(ArenaConfig { bytes: 256 << 20, huge: Policy::Prefer, numa_node: None })
        .expect("host memory");
    let register = |pieces: Pieces, pause: Duration| {
        let pinned = PinnedMemory::register(gpu, arena.span(), pieces, || std::thread::sleep(pause))
            .expect("registered");
        drop(pinned);
    };
    let calls: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("registering 256 MiB at once", &|| register(Pieces::Whole, Duration::ZERO)),
        ("registering 256 MiB in pieces of 2 MiB, pauses of 2 ms", &|| register(Pieces::Of(2 << 20), pause)),
        ("registering 256 MiB in pieces of 256 KiB, pauses of 2 ms", &|| {
            register(Pieces::Of(256 << 10), pause);
        }),
        ("allocating and freeing 64 MiB (VMM)", &|| {
            drop(DeviceMemory::allocate(gpu, 64 << 20, &[]).expect("memory"));
            std::thread::sleep(pause);
        }),
        ("allocating and freeing 64 MiB (cuMemAlloc)", &|| {
            drop(ClientMemory::allocate(gpu, 64 << 20).expect("memory"));
            std::thread::sleep(pause);
        }),
    ];
    for (name, call) in calls {
        let row = Row {
            name: &format!("out 4 KiB beside {name}"),
            unit: "us p99",
            better: Better::Less,
            goal: 1.5,
            note: "reference: the same in quiet",
        };
        row.measure(rig, || beside(&mut lane.borrow_mut(), call), || copies(&mut lane.borrow_mut()));
    }
}

fn copies(lane: &mut Lane) -> f64 {
    // Bounded by time: beside the slowest call a copy may take milliseconds.
    let start = Instant::now();
    let mut times = Vec::with_capacity(COUNT);
    while times.len() < COUNT && start.elapsed() < Duration::from_secs(1) {
        let one = Instant::now();
        lane.one(SOURCE, HOST, BYTES);
        times.push(one.elapsed().as_secs_f64() * 1e6);
    }
    Times::from_unsorted(times).at(990)
}

fn beside(lane: &mut Lane, call: &(dyn Fn() + Sync)) -> f64 {
    let stop = Word::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load_acquire() == 0 {
                call();
            }
        });
        let time = copies(lane);
        stop.store_release(1);
        time
    })
}
