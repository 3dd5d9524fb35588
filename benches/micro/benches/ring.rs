//! The ring against rtrb, item by item and in batches, in one thread and between two; and what a lane pays per turn for
//! a bell, a settings cell, a log entry and a counter.
//!
//! In one thread both ends' lines stay in one cache: the cost of the instructions. Between two threads the lines
//! travel: the cost of the hop, spread over a batch. Items are 64 bytes, a cache line.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use railhead_ring::{Consumer, Producer, ring_words};
use railhead_shm::{Mapping, Words};

const ITEM_WORDS: usize = 8;
const CAPACITY: usize = 1024;
const BATCHES: [usize; 3] = [1, 16, 64];

type Item = [u64; ITEM_WORDS];

fn main() {
    divan::main();
}

/// Words as the daemon gives them to its rings: on their own pages.
fn mapped(words: usize) -> Words {
    let mapping = Mapping::anonymous(words * size_of::<u64>()).expect("a few pages of memory");
    // As a lane's memory: a fault in the first round would also mislead divan about how often to iterate.
    mapping.populate().expect("pages for it");
    mapping.words(0, words).expect("the mapping is as long as asked")
}

/// An item that comes from memory, as a submission does: otherwise the compiler makes it in vector registers, and the
/// stores that are counted here are not those that a lane does.
fn item(value: u64) -> Item {
    black_box([value; ITEM_WORDS])
}

fn ours() -> (Producer<Words, ITEM_WORDS>, Consumer<Words, ITEM_WORDS>) {
    let words = mapped(ring_words(CAPACITY, ITEM_WORDS));
    let producer = Producer::new(words.clone(), CAPACITY).expect("an empty ring");
    (producer, Consumer::new(words, CAPACITY).expect("an empty ring"))
}

/// `batch` items in, then out, in one thread.
mod one_thread {
    use super::*;

    #[divan::bench(args = BATCHES, sample_count = 200, sample_size = 2000)]
    fn ours(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = super::ours();
        bencher.counter(ItemsCount::new(batch)).bench_local(|| {
            for value in 0..batch as u64 {
                producer.push(&item(value)).expect("room for a batch");
            }
            producer.publish();
            while let Some(item) = consumer.pop().expect("an honest producer") {
                black_box(item);
            }
            consumer.release();
        });
    }

    #[divan::bench(args = BATCHES, sample_count = 200, sample_size = 2000)]
    fn rtrb(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Item>::new(CAPACITY);
        bencher.counter(ItemsCount::new(batch)).bench_local(|| {
            for value in 0..batch as u64 {
                producer.push(item(value)).expect("room for a batch");
            }
            while let Ok(item) = consumer.pop() {
                black_box(item);
            }
        });
    }

    #[divan::bench(args = BATCHES, sample_count = 200, sample_size = 2000)]
    fn rtrb_chunks(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Item>::new(CAPACITY);
        bencher.counter(ItemsCount::new(batch)).bench_local(|| {
            let chunk = producer.write_chunk_uninit(batch).expect("room for a batch");
            chunk.fill_from_iter((0..batch as u64).map(item));
            let chunk = consumer.read_chunk(consumer.slots()).expect("all that is there");
            chunk.into_iter().for_each(|item| {
                black_box(item);
            });
        });
    }
}

/// `CROSSING` items from one thread to another, published in batches.
mod two_threads {
    use super::*;

    const CROSSING: usize = 200_000;

    /// Runs the two ends until all items have crossed. `send` publishes up to the given number of items from the given
    /// value on; both return how many they moved, and yield if none: a spinning end would hold the only core.
    fn cross(
        batch: usize,
        mut send: impl FnMut(u64, usize) -> usize + Send,
        mut receive: impl FnMut() -> usize,
    ) {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < CROSSING {
                    let count = send(sent as u64, batch.min(CROSSING - sent));
                    if count == 0 {
                        std::thread::yield_now();
                    }
                    sent += count;
                }
            });
            let mut received = 0;
            while received < CROSSING {
                let count = receive();
                if count == 0 {
                    std::thread::yield_now();
                }
                received += count;
            }
        });
    }

    #[divan::bench(args = BATCHES, sample_count = 20, sample_size = 1)]
    fn ours(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = super::ours();
        bencher.counter(ItemsCount::new(CROSSING)).bench_local(|| {
            let send = |first: u64, count: usize| {
                for value in first..first + count as u64 {
                    if producer.push(&item(value)).is_err() {
                        break;
                    }
                }
                producer.publish()
            };
            let receive = || {
                for _ in 0..batch {
                    let Some(item) = consumer.pop().expect("an honest producer") else { break };
                    black_box(item);
                }
                consumer.release()
            };
            cross(batch, send, receive);
        });
    }

    #[divan::bench(args = BATCHES, sample_count = 20, sample_size = 1)]
    fn rtrb(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Item>::new(CAPACITY);
        bencher.counter(ItemsCount::new(CROSSING)).bench_local(|| {
            let send = |first: u64, count: usize| {
                (first..first + count as u64).take_while(|value| producer.push(item(*value)).is_ok()).count()
            };
            let receive = || (0..batch).map_while(|_| consumer.pop().ok().map(black_box)).count();
            cross(batch, send, receive);
        });
    }

    #[divan::bench(args = BATCHES, sample_count = 20, sample_size = 1)]
    fn rtrb_chunks(bencher: Bencher, batch: usize) {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Item>::new(CAPACITY);
        bencher.counter(ItemsCount::new(CROSSING)).bench_local(|| {
            let send = |first: u64, count: usize| {
                let count = count.min(producer.slots());
                let chunk = producer.write_chunk_uninit(count).expect("as many as are free");
                chunk.fill_from_iter((first..first + count as u64).map(item))
            };
            let receive = || {
                let count = batch.min(consumer.slots());
                let chunk = consumer.read_chunk(count).expect("as many as are there");
                chunk.into_iter().map(black_box).count()
            };
            cross(batch, send, receive);
        });
    }
}
