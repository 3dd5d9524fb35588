//! Our ring and rtrb's between two threads, each on a core of its own: items of 64 bytes, one by one or in batches.

use std::hint::{black_box, spin_loop};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use railhead_ring::{Consumer, Producer, ring_words};
use railhead_shm::Mapping;

use crate::cpu;
use crate::problem::{Problem, Tried};
use crate::runner::Measure;

const ITEM_WORDS: usize = 8;
const CAPACITY: usize = 1024;
/// Items between two looks at the clock.
const STRETCH: usize = 1 << 16;

type Item = [u64; ITEM_WORDS];

/// Items a second through our ring, published and given back in batches.
pub(crate) fn ours(batch: usize, duration: Duration) -> Result<Measure, Problem> {
    let words = ring_words(CAPACITY, ITEM_WORDS);
    let mapping = Mapping::anonymous(words * size_of::<u64>()).tried("the ring's memory")?;
    mapping.populate().tried("the ring's memory")?;
    let words = mapping.words(0, words).tried("the ring's words")?;
    let mut producer: Producer<_, ITEM_WORDS> = Producer::new(words.clone(), CAPACITY).tried("the ring")?;
    let mut consumer: Consumer<_, ITEM_WORDS> = Consumer::new(words, CAPACITY).tried("the ring")?;
    let send = move |first: u64, count: usize| {
        for value in first..first + count as u64 {
            if producer.push(&item(value)).is_err() {
                break;
            }
        }
        producer.publish()
    };
    let receive = move |check: &mut Check| {
        for _ in 0..batch {
            let Ok(Some(item)) = consumer.pop() else { break };
            check.see(&item);
        }
        consumer.release()
    };
    cross(batch, duration, send, receive)
}

/// Items a second through rtrb's, by its calls for one item, or for chunks when the batch is more than one.
pub(crate) fn rtrb(batch: usize, duration: Duration) -> Result<Measure, Problem> {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<Item>::new(CAPACITY);
    if batch == 1 {
        let send = move |first: u64, _| usize::from(producer.push(item(first)).is_ok());
        let receive = move |check: &mut Check| consumer.pop().map_or(0, |item| usize::from(check.see(&item)));
        return cross(batch, duration, send, receive);
    }
    let send = move |first: u64, count: usize| {
        let count = count.min(producer.slots());
        producer
            .write_chunk_uninit(count)
            .map_or(0, |chunk| chunk.fill_from_iter((first..first + count as u64).map(item)))
    };
    let receive = move |check: &mut Check| {
        let count = batch.min(consumer.slots());
        consumer.read_chunk(count).map_or(0, |chunk| chunk.into_iter().filter(|item| check.see(item)).count())
    };
    cross(batch, duration, send, receive)
}

/// That items come complete and in order.
#[derive(Debug, Default)]
struct Check {
    next: u64,
    wrong: u64,
}

impl Check {
    #[inline]
    fn see(&mut self, item: &Item) -> bool {
        let item = black_box(item);
        self.wrong += u64::from(item[0] != self.next || item[ITEM_WORDS - 1] != self.next);
        self.next += 1;
        true
    }
}

/// Sends from one pinned thread to another for `duration`. `send` publishes up to so many items from a value on, `receive`
/// takes some; both return how many.
fn cross(
    batch: usize,
    duration: Duration,
    mut send: impl FnMut(u64, usize) -> usize + Send,
    mut receive: impl FnMut(&mut Check) -> usize + Send,
) -> Result<Measure, Problem> {
    let cores = cpu::allowed()?;
    // On one core a spinning end would hold up the other.
    let pause = if cores.len() > 1 { spin_loop } else { std::thread::yield_now };
    // The sender says how many it sent; should it fail, the channel closes and the receiver ends, too.
    let (total, result) = channel();
    let start = Instant::now();
    let check = std::thread::scope(|scope| {
        let cores = &cores;
        let sender = scope.spawn(move || {
            cpu::pin(cores, 0)?;
            let mut sent = 0;
            let mut stretch = 0;
            loop {
                let count = send(sent as u64, batch);
                if count == 0 {
                    pause();
                }
                sent += count;
                stretch += count;
                if stretch >= STRETCH {
                    stretch = 0;
                    if start.elapsed() >= duration {
                        break;
                    }
                }
            }
            let _ = total.send(sent);
            Ok::<(), Problem>(())
        });
        let receiver = scope.spawn(move || {
            cpu::pin(cores, 1)?;
            let mut check = Check::default();
            let mut received = 0;
            let mut all = usize::MAX;
            let mut quiet = 0_u32;
            while received < all {
                let count = receive(&mut check);
                received += count;
                quiet = if count == 0 { quiet + 1 } else { 0 };
                if count == 0 {
                    pause();
                    if quiet.is_multiple_of(1024) {
                        all = match result.try_recv() {
                            Ok(sent) => sent,
                            Err(TryRecvError::Empty) => all,
                            Err(TryRecvError::Disconnected) => all.min(received),
                        };
                    }
                }
            }
            Ok::<Check, Problem>(check)
        });
        sender.join().map_err(|_| Problem::new("the sending thread panicked"))??;
        receiver.join().map_err(|_| Problem::new("the receiving thread panicked"))?
    })?;
    if check.wrong > 0 {
        return Err(Problem::new(format!("{} items came wrong", check.wrong)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = (check.next as usize * size_of::<Item>()) as f64;
    Ok(Measure { rate: check.next as f64 / seconds, seconds, cpu_s: None, bytes })
}

/// An item that comes from memory, as a submission does.
fn item(value: u64) -> Item {
    black_box([value; ITEM_WORDS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_cross_in_order_in_all_ways() {
        let duration = Duration::from_millis(5);
        for batch in [1, 16] {
            assert!(ours(batch, duration).expect("ours").rate > 0.0);
            assert!(rtrb(batch, duration).expect("rtrb").rate > 0.0);
        }
    }

    #[test]
    fn lost_item_is_noticed() {
        let mut check = Check::default();
        check.see(&[0; ITEM_WORDS]);
        check.see(&[2; ITEM_WORDS]);
        assert_eq!(check.wrong, 1);
    }
}
