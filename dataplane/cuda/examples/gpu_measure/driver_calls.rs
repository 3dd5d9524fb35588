//! What registrar threads' driver calls do to a lane's small copies.

use std::time::Duration;

use railhead_cuda::{ClientMemory, DeviceMemory, Pieces, PinnedMemory};
use railhead_memory::{Arena, ArenaConfig, Policy};
use railhead_ring::Word;

use crate::copies::{HOST, Lane, SOURCE, Shape};
use crate::rig::{Rig, Times};

const BYTES: u32 = 4 << 10;
const COUNT: usize = 20_000;

/// Times of 4 KiB copies while a thread repeats a call; and quiet before.
pub(crate) fn beside_registration(rig: &Rig) {
    let shape = Shape { host_bytes: 2 << 20, gpu_bytes: 2 << 20, streams: 1, kernel_threads: None };
    let mut lane = Lane::new(rig, shape);
    let _ = Times::of(1000, || lane.one(SOURCE, HOST, BYTES));
    Times::of(COUNT, || lane.one(SOURCE, HOST, BYTES)).print("out 4 KiB, quiet", u64::from(BYTES));
    let gpu = &rig.gpus[0];
    let pause = Duration::from_millis(2);
    let arena = Arena::reserve(ArenaConfig { bytes: 256 << 20, huge: Policy::Prefer, numa_node: None })
        .expect("host memory");
    let register = |pieces: Pieces, pause: Duration| {
        let pinned =
            PinnedMemory::register(gpu, arena.span(), pieces, || std::thread::sleep(pause)).expect("registered");
        drop(pinned);
    };
    let calls: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("register and unregister 256 MiB at once", &|| register(Pieces::Whole, Duration::ZERO)),
        ("register 256 MiB in pieces of 2 MiB, pauses of 2 ms", &|| register(Pieces::Of(2 << 20), pause)),
        ("register 256 MiB in pieces of 256 KiB, pauses of 2 ms", &|| register(Pieces::Of(256 << 10), pause)),
        ("allocate and free 64 MiB (VMM)", &|| {
            drop(DeviceMemory::allocate(gpu, 64 << 20, &[]).expect("memory"));
            std::thread::sleep(pause);
        }),
        ("allocate and free 64 MiB (cuMemAlloc)", &|| {
            drop(ClientMemory::allocate(gpu, 64 << 20).expect("memory"));
            std::thread::sleep(pause);
        }),
    ];
    for (name, call) in calls {
        let stop = Word::new(0);
        let times = std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load_acquire() == 0 {
                    call();
                }
            });
            // Bounded by time: beside the slowest of them a copy takes milliseconds.
            let start = std::time::Instant::now();
            let mut times = Vec::new();
            while times.len() < COUNT && start.elapsed() < Duration::from_secs(2) {
                let one = std::time::Instant::now();
                lane.one(SOURCE, HOST, BYTES);
                times.push(one.elapsed().as_secs_f64() * 1e6);
            }
            stop.store_release(1);
            Times::from_unsorted(times)
        });
        times.print(&format!("out 4 KiB beside: {name}"), u64::from(BYTES));
    }
}
