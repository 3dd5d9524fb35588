//! The resident kernel: its end, its idleness, and what goes on beside it.

use std::time::{Duration, Instant};

use railhead_cuda::queues::Run;
use railhead_cuda::{
    ClientMemory, DeviceMemory, Gpu, Permission, Pieces, PinnedMemory, Resident, ResidentConfig, Stream,
    Verifier, pattern,
};

use crate::common;

struct Bench {
    gpu: Gpu,
    memory: DeviceMemory,
    host: PinnedMemory,
    verifier: Verifier,
}

impl Bench {
    fn new() -> Self {
        let gpus = common::gpus();
        let gpu = gpus[0].clone();
        Self {
            memory: DeviceMemory::allocate(&gpu, 4 << 20, &[]).expect("memory"),
            host: common::pinned(&gpu, 4 << 20, Pieces::Whole),
            verifier: Verifier::new(&gpu).expect("kernels"),
            gpu,
        }
    }

    fn start(&self, idle: Duration) -> Resident {
        let config = ResidentConfig { idle, ..ResidentConfig::default() };
        Resident::start(&self.gpu, Permission::OwnContext, config).expect("a kernel")
    }

    /// Copies the first bytes out and compares.
    fn out(&self, resident: &mut Resident, bytes: usize, seed: u64) {
        let to = self.host.device_address().expect("kernels reach it");
        let run = Run { from: self.memory.address(), to, bytes: bytes as u64 };
        // SAFETY: memories of this test, which wait below for the end.
        let number = unsafe { resident.post(&run) };
        let start = Instant::now();
        while resident.done() < number {
            resident.tend().expect("the kernel runs");
            assert!(start.elapsed() < Duration::from_secs(10), "never done");
        }
        let (mut seen, mut expected) = (vec![0; bytes], vec![0; bytes]);
        self.host.span().read(0, &mut seen).expect("inside");
        pattern(seed, &mut expected);
        assert!(seen == expected, "{bytes} bytes");
    }
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn it_ends_when_idle_and_comes_back() {
    let bench = Bench::new();
    // SAFETY: memory of this test.
    unsafe { bench.verifier.fill(bench.memory.address(), 4096, 3) }.expect("filled");
    let mut resident = bench.start(Duration::from_millis(20));
    for _ in 0..3 {
        bench.out(&mut resident, 4096, 3);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!resident.is_running(), "it should have ended by itself");
        assert!(resident.query().expect("no error"));
    }
    // At the very moment of its end, again and again.
    for round in 0..200 {
        std::thread::sleep(Duration::from_micros(19_500 + 10 * (round % 100)));
        bench.out(&mut resident, 512, 3);
    }
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn it_stops_at_once_and_behind_what_was_posted() {
    let bench = Bench::new();
    // SAFETY: memory of this test.
    unsafe { bench.verifier.fill(bench.memory.address(), 1 << 20, 4) }.expect("filled");
    let mut resident = bench.start(Duration::from_secs(5));
    bench.out(&mut resident, 1 << 20, 4);
    let to = bench.host.device_address().expect("kernels reach it");
    let run = Run { from: bench.memory.address(), to, bytes: 1 << 16 };
    let mut last = 0;
    while resident.room() > 1 {
        // SAFETY: memories of this test, which outlive the kernel.
        last = unsafe { resident.post(&run) };
    }
    let start = Instant::now();
    assert!(resident.stop(Duration::from_secs(2)));
    println!("stopped behind 63 copies of 64 KiB in {:?}", start.elapsed());
    assert!(resident.done() >= last, "{} of {last}", resident.done());
}

/// What registrar threads do while lanes use the kernel: none of it may wait for the kernel's end.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn slow_calls_go_on_beside_it() {
    let bench = Bench::new();
    let resident = bench.start(Duration::from_secs(3));
    let timed = |name: &str, call: &mut dyn FnMut()| {
        let start = Instant::now();
        call();
        let took = start.elapsed();
        println!("{name} beside a resident kernel: {took:?}");
        took
    };
    let mut memory = None;
    let mut waits = Vec::new();
    let mut note = |name, took: Duration| {
        if took > Duration::from_secs(1) {
            waits.push(name);
        }
    };
    note(
        "allocate",
        timed("allocate", &mut || {
            memory = Some(DeviceMemory::allocate(&bench.gpu, 64 << 20, &[]).expect("memory"));
        }),
    );
    note("free", timed("free", &mut || memory = None));
    let mut pinned = None;
    note(
        "register",
        timed("register", &mut || {
            pinned = Some(common::pinned(&bench.gpu, 16 << 20, Pieces::Of(2 << 20)));
        }),
    );
    note("unregister", timed("unregister", &mut || pinned = None));
    note("stream", timed("stream", &mut || drop(Stream::new(&bench.gpu).expect("a stream"))));
    let mut client = None;
    timed("cuMemAlloc", &mut || client = Some(ClientMemory::allocate(&bench.gpu, 1 << 20).expect("memory")));
    // A client's call, which is known to wait for the device: told, not judged.
    timed("cuMemFree", &mut || client = None);
    println!("the kernel still runs: {}", resident.is_running());
    assert!(waits.is_empty(), "waited for the kernel: {waits:?}");
}
