//! The ring between host and kernel, with the kernel's side played as kernels/railhead.cu has it; and where one may run.

use railhead_ring::Word;

use super::ring::{DONE, ENDED, Ring, WORDS};
use super::*;
use crate::device::{PciAddress, WritesOrdering};

fn device(mps: bool) -> Device {
    Device {
        ordinal: 0,
        name: "none".to_owned(),
        uuid: String::new(),
        pci: PciAddress(String::new()),
        numa_node: None,
        bytes: 0,
        compute: (9, 0),
        multiprocessors: 132,
        copy_engines: 3,
        rdma: true,
        dma_buf: true,
        rdma_of_mapped: true,
        shared_handles: true,
        writes_ordering: WritesOrdering::Owner,
        flush_by_host: true,
        flush_by_stream: false,
        stream_words_64: true,
        mps,
    }
}

#[test]
fn beside_other_processes_only_under_mps() {
    assert_eq!(Permission::Shared.check(&device(false)), Err(ResidentOff::TakesTurns));
    assert_eq!(Permission::Shared.check(&device(true)), Ok(()));
    assert_eq!(Permission::OwnContext.check(&device(false)), Ok(()));
}

/// The kernel: what it has done, and the copies that it saw.
#[derive(Default)]
struct Kernel {
    done: u32,
    seen: Vec<Run>,
}

impl Kernel {
    /// Looks for the next command once. False when it has ended.
    fn step(&mut self, words: &[Word]) -> bool {
        const ADDRESS: u64 = ADDRESS_END - 1;
        let wanted = self.done.wrapping_add(1);
        let at = 2 * (wanted as usize % COMMANDS);
        let (source, target) = (words[at].load_acquire(), words[at + 1].load_relaxed());
        let phase = u64::from((wanted / COMMANDS as u32) & 1 ^ 1);
        if source >> 47 != u64::from(wanted & 0x1_ffff) || target >> 63 != phase {
            return true;
        }
        if source & ADDRESS == 0 {
            self.end(words, 1);
            return false;
        }
        let bytes = (target >> 47 & 0xffff) + 1;
        self.seen.push(Run { from: source & ADDRESS, to: target & ADDRESS, bytes });
        self.done = wanted;
        words[DONE].store_release(u64::from(wanted));
        true
    }

    fn end(&self, words: &[Word], reason: u64) {
        words[ENDED].store_release(reason << 32 | u64::from(self.done));
    }
}

fn ring() -> Ring<Vec<Word>> {
    Ring::new((0..WORDS).map(|_| Word::new(0)).collect())
}

fn run(number: u64) -> Run {
    Run { from: 0x1000 + number, to: ADDRESS_END - (1 << 20) + number, bytes: 1 + number % RUN_BYTES_MAX }
}

#[test]
fn commands_come_whole_and_in_order_over_many_laps() {
    let (mut ring, mut kernel) = (ring(), Kernel::default());
    ring.launching();
    let mut next = 1;
    // More than the 17 bits of the sequence number, in bursts of all lengths.
    while next < 150_000 {
        let burst = 1 + next % COMMANDS as u64;
        for _ in 0..burst {
            assert_eq!(ring.post(&run(next)), next);
            next += 1;
        }
        assert_eq!(ring.room(), COMMANDS - burst as usize);
        for _ in 0..burst + 2 {
            assert!(kernel.step(ring.words()));
        }
        assert_eq!((ring.done(), ring.room()), (next - 1, COMMANDS));
    }
    assert!(kernel.seen.iter().zip(1..).all(|(seen, number)| *seen == run(number)));
    assert_eq!(kernel.seen.len() as u64, next - 1);
}

#[test]
fn a_command_whose_second_word_is_of_the_lap_before_is_not_taken() {
    let (mut ring, mut kernel) = (ring(), Kernel::default());
    ring.launching();
    for number in 1..=COMMANDS as u64 {
        ring.post(&run(number));
        kernel.step(ring.words());
    }
    let at = 2 * ((COMMANDS + 1) % COMMANDS);
    let old = ring.words()[at + 1].load_relaxed();
    ring.post(&run(65));
    let new = ring.words()[at + 1].load_relaxed();
    ring.words()[at + 1].store_relaxed(old);
    kernel.step(ring.words());
    assert_eq!(ring.done(), 64, "half a command was taken");
    ring.words()[at + 1].store_relaxed(new);
    kernel.step(ring.words());
    assert_eq!(ring.done(), 65);
}

#[test]
fn a_kernel_that_ended_by_itself_is_launched_for_what_was_posted() {
    let (mut ring, mut kernel) = (ring(), Kernel::default());
    ring.launching();
    for round in 0..200 {
        // Its end and the host's command cross: it never saw this one.
        kernel.end(ring.words(), 2);
        assert!(!ring.needs_kernel(), "with nothing to do it may be gone");
        let number = ring.post(&run(round + 1));
        assert!(ring.needs_kernel());
        assert_eq!(ring.done() as u32, kernel.done, "it goes on where it ended");
        ring.launching();
        assert!(!ring.needs_kernel());
        kernel.step(ring.words());
        assert_eq!(ring.done(), number);
    }
}

#[test]
fn after_a_stop_it_comes_back_whether_or_not_the_stop_was_seen() {
    for seen in [true, false] {
        let (mut ring, mut kernel) = (ring(), Kernel::default());
        ring.launching();
        let mut expected = 0;
        for round in 0..200 {
            for _ in 0..3 {
                expected = ring.post(&run(round + 1));
            }
            ring.request_stop();
            ring.request_stop();
            assert_eq!(ring.room(), 0, "nothing is posted behind a stop");
            for _ in 0..3 {
                assert!(kernel.step(ring.words()), "what was posted comes first");
            }
            assert_eq!(ring.done(), expected);
            // Nobody asks whether it has stopped before the next copy.
            if seen {
                assert!(!kernel.step(ring.words()));
            } else {
                kernel.end(ring.words(), 2);
            }
            assert!(!ring.needs_kernel());
            assert_eq!(ring.room(), COMMANDS);
            expected = ring.post(&run(7));
            assert!(ring.needs_kernel());
            ring.launching();
            assert!(kernel.step(ring.words()));
            assert_eq!(ring.done(), expected);
        }
    }
}

#[test]
fn a_word_that_says_too_much_is_not_believed() {
    let mut ring = ring();
    ring.launching();
    ring.post(&run(1));
    for word in [2, 1 << 31, u64::MAX] {
        ring.words()[DONE].store_release(word);
        assert!(ring.done() <= 1 && ring.room() <= COMMANDS);
    }
}
