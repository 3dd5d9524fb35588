//! Producer and consumer order: no copy before the data is there, no word before the data can be seen.

use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, Place, PostId, RegionIndex};
use railhead_cuda::queues::Memory;
use railhead_cuda::{
    CopierConfig, CopyMemory, CudaCopier, Pieces, PinnedWords, Stream, StreamQueues, Verifier,
};

use crate::common;

const WORDS: u64 = 16 << 10;
const BYTES: u32 = 64 << 10;
const HOST: RegionIndex = RegionIndex(0);
const GPU: RegionIndex = RegionIndex(1);
const OTHER: RegionIndex = RegionIndex(2);

struct Lane {
    copier: CudaCopier<StreamQueues>,
    host: CopyMemory,
    gpu: CopyMemory,
    other: CopyMemory,
    start: Instant,
}

impl Lane {
    fn new() -> Self {
        let gpus = common::gpus();
        let queues = StreamQueues::new(&gpus, 1).expect("queues");
        let mut copier = CudaCopier::new(CopierConfig { regions: 8, ..CopierConfig::default() }, queues);
        let host = CopyMemory::Host(common::pinned(&gpus[0], u64::from(BYTES), Pieces::Whole));
        let gpu = common::device(&gpus, 0, u64::from(BYTES));
        let other = common::device(&gpus, gpus.len() - 1, u64::from(BYTES));
        for (region, memory) in [(HOST, &host), (GPU, &gpu), (OTHER, &other)] {
            copier.install(region, memory.clone()).expect("room");
        }
        Self { copier, host, gpu, other, start: Instant::now() }
    }

    fn copy(&mut self, from: RegionIndex, to: RegionIndex) {
        let place = |region| Place { region, offset: 0 };
        self.copier
            .copy(&Copy { from: place(from), to: place(to), bytes: BYTES, post: PostId(1) })
            .expect("room");
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 1];
        loop {
            let now = u64::try_from(self.start.elapsed().as_nanos()).expect("a short test");
            self.copier.kick(now);
            if self.copier.poll(now, &mut done) == 1 {
                assert_eq!(done[0].status, Code::Ok);
                return;
            }
            assert!(self.start.elapsed() < Duration::from_secs(60), "never ended");
        }
    }
}

/// A kernel that takes its time writes the source; its stream opens a gate; the lane copies when it sees the gate open.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn a_gate_opens_behind_the_kernel_that_writes_the_source() {
    let mut lane = Lane::new();
    let gpu = common::gpus()[0].clone();
    let (verifier, stream) = (Verifier::new(&gpu).expect("kernels"), Stream::new(&gpu).expect("a stream"));
    let gate = PinnedWords::new(&gpu, 1).expect("a word");
    let CopyMemory::Host(host) = lane.host.clone() else { unreachable!() };
    let mut seen = vec![0; BYTES as usize];
    for round in 1..=2000u32 {
        let wait_ns = u64::from(round % 7) * 10_000;
        // SAFETY: memories of this test; both outlive the stream's work, which is waited for by the gate.
        unsafe {
            verifier.produce(&stream, lane.gpu.address(), WORDS, round, wait_ns).expect("posted");
            stream.write_word(gate.device_address(0), round).expect("posted");
        }
        // The gate's rule, on the low half of the word.
        while (gate[0].load_acquire() as u32).wrapping_sub(round).cast_signed() < 0 {
            std::hint::spin_loop();
        }
        lane.copy(GPU, HOST);
        host.span().read(0, &mut seen).expect("inside");
        let stale = seen.as_chunks::<4>().0.iter().filter(|word| u32::from_le_bytes(**word) != round).count();
        assert_eq!(stale, 0, "round {round}");
    }
}

/// A kernel that runs already waits for a signal and reads the data at once.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn a_running_kernel_sees_the_data_before_the_signal() {
    let mut lane = Lane::new();
    let gpu = common::gpus().last().expect(common::GIVEN).clone();
    let (verifier, stream) = (Verifier::new(&gpu).expect("kernels"), Stream::new(&gpu).expect("a stream"));
    let words = PinnedWords::new(&gpu, 2).expect("words");
    let CopyMemory::Host(host) = lane.host.clone() else { unreachable!() };
    for round in 1..=1000u32 {
        let bytes: Vec<u8> = (0..WORDS).flat_map(|_| round.to_le_bytes()).collect();
        host.span().write(0, &bytes).expect("inside");
        // SAFETY: memories of this test, which waits for the stream below.
        unsafe {
            let data = (lane.other.address(), WORDS);
            let wrong = words.device_address(1);
            verifier
                .consume(&stream, (words.device_address(0), round), data, 5_000_000_000, wrong)
                .expect("posted");
        }
        lane.copy(HOST, OTHER);
        words[0].store_release(u64::from(round));
        stream.wait().expect("no error");
        assert_eq!(
            words[1].load_acquire(),
            0,
            "round {round}: words that were old when the signal was there"
        );
    }
}

/// A stream waits for a signal without a thread of the host, and what is behind it sees the data.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn a_stream_waits_for_the_signal() {
    let mut lane = Lane::new();
    let gpu = common::gpus().last().expect(common::GIVEN).clone();
    let (verifier, stream) = (Verifier::new(&gpu).expect("kernels"), Stream::new(&gpu).expect("a stream"));
    let words = PinnedWords::new(&gpu, 2).expect("words");
    let CopyMemory::Host(host) = lane.host.clone() else { unreachable!() };
    let flush = gpu.device().flush_by_stream;
    for round in 1..=500u32 {
        let bytes: Vec<u8> = (0..WORDS).flat_map(|_| round.to_le_bytes()).collect();
        host.span().write(0, &bytes).expect("inside");
        gpu.make_current().expect("current");
        // SAFETY: memories of this test, which waits for the stream below.
        unsafe {
            stream.wait_word(words.device_address(0), round, flush).expect("posted");
            let signal = (words.device_address(0), round);
            let data = (lane.other.address(), WORDS);
            verifier.consume(&stream, signal, data, 1_000_000, words.device_address(1)).expect("posted");
        }
        assert!(!stream.is_done().expect("no error"), "it waits");
        lane.copy(HOST, OTHER);
        words[0].store_release(u64::from(round));
        stream.wait().expect("no error");
        assert_eq!(words[1].load_acquire(), 0, "round {round}");
    }
}
