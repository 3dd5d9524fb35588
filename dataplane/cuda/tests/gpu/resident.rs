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
        let bench = Self {
            memory: DeviceMemory::allocate(&gpu, 4 << 20, &[]).expect("memory"),
            host: common::pinned(&gpu, 4 << 20, Pieces::Whole),
            verifier: Verifier::new(&gpu).expect("kernels"),
            gpu,
        };
        // SAFETY: memory of this value, which nobody else uses.
        unsafe { bench.verifier.fill(bench.memory.address(), 1 << 16, 0) }.expect("filled");
        bench
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

/// Out and in again, from and to every alignment. (Memory that is made while a kernel runs is none to compute-sanitizer,
/// so that looks at this test.)
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn every_size_and_alignment_is_copied_whole() {
    const ROOM: usize = 80 << 10;
    let bench = Bench::new();
    let stream = Stream::new(&bench.gpu).expect("a stream");
    let host = bench.host.device_address().expect("kernels reach it");
    let mut resident = bench.start(Duration::from_secs(2));
    let copy = |resident: &mut Resident, from: u64, to: u64, bytes: usize| {
        // SAFETY: memories of this test, which waits below for the end.
        let number = unsafe { resident.post(&Run { from, to, bytes: bytes as u64 }) };
        while resident.done() < number {
            resident.tend().expect("the kernel runs");
        }
    };
    let mut seen = vec![0; ROOM];
    for bytes in [1, 2, 15, 16, 17, 31, 33, 1000, 4095, 4096, 4097, 65_535, 65_536] {
        for (from, to) in [(0, 0), (16, 32), (1, 1), (1, 3), (5, 0), (0, 7), (17, 33), (4, 8)] {
            let mut expected = vec![0xaa; ROOM];
            common::put(&stream, bench.memory.address(), &expected);
            bench.host.span().fill(0, ROOM as u64, 0).expect("inside");
            let mut data = vec![0; bytes];
            pattern((bytes + 100 * from + to) as u64, &mut data);
            bench.host.span().write(from as u64, &data).expect("inside");
            copy(&mut resident, host + from as u64, bench.memory.address() + to as u64, bytes);
            expected[to..to + bytes].copy_from_slice(&data);
            common::get(&stream, bench.memory.address(), &mut seen);
            assert!(seen == expected, "in: {bytes} bytes from {from} to {to}");
            bench.host.span().fill(0, ROOM as u64, 0x55).expect("inside");
            copy(&mut resident, bench.memory.address() + to as u64, host + from as u64, bytes);
            expected.fill(0x55);
            expected[from..from + bytes].copy_from_slice(&data);
            bench.host.span().read(0, &mut seen).expect("inside");
            assert!(seen == expected, "out: {bytes} bytes from {to} to {from}");
        }
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
    unsafe { bench.verifier.fill(bench.memory.address(), 1 << 16, 4) }.expect("filled");
    let mut resident = bench.start(Duration::from_secs(5));
    bench.out(&mut resident, 1 << 16, 4);
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

/// What registrar threads do while lanes use the kernel: none of it may wait for the kernel's end, but for what is known to
/// wait, which must be over soon after a stop was asked for.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn slow_calls_go_on_beside_it() {
    let bench = Bench::new();
    let mut resident = bench.start(Duration::from_secs(3));
    let timed = |name: &str, call: &mut dyn FnMut()| {
        let start = Instant::now();
        call();
        println!("{name} beside a resident kernel: {:?}", start.elapsed());
        start.elapsed()
    };
    let (mut memory, mut pinned, mut client) = (None, None, None);
    let mut waits = Vec::new();
    let mut note = |name: &'static str, call: &mut dyn FnMut()| {
        if timed(name, call) > Duration::from_secs(1) {
            waits.push(name);
        }
    };
    note("allocate", &mut || {
        memory = Some(DeviceMemory::allocate(&bench.gpu, 64 << 20, &[]).expect("memory"));
    });
    note("register", &mut || pinned = Some(common::pinned(&bench.gpu, 16 << 20, Pieces::Of(2 << 20))));
    note("a stream", &mut || drop(Stream::new(&bench.gpu).expect("a stream")));
    note("cuMemAlloc", &mut || {
        client = Some(ClientMemory::allocate(&bench.gpu, 1 << 20).expect("memory"));
    });
    note("free", &mut || memory = None);
    assert!(waits.is_empty(), "waited for the kernel: {waits:?}");
    assert!(resident.is_running(), "or nothing was tried");
    // Known to wait until no kernel runs (driver 580): so the lane pauses it first.
    resident.request_stop();
    let unregister = timed("stop and unregister", &mut || pinned = None);
    assert!(resident.is_stopped());
    bench.out(&mut resident, 512, 0);
    timed("cuMemFree, a client's call, told and not judged,", &mut || client = None);
    assert!(unregister < Duration::from_secs(1));
}
