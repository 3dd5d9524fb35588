//! Every interleaving, up to the preemption bound, of each structure's writer and reader.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p railhead-ring --release --test loom
//! --target-dir target-loom`. With `RAILHEAD_MUTANT` set to a line of `mutants.txt` at least one model must fail.
//!
//! Loom remembers one last access per word: a thread that loads a word before it stores it hides the loads that others
//! did before, and their interleavings go unexplored. Writers therefore keep private copies of what only they store,
//! which is also the faster way.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;
use railhead_ring::sync::{Site, fence_acquire, fence_release, fence_seq_cst};
use railhead_ring::{
    Bell, CellReader, CellWriter, Claim, Consumer, Entry, LogReader, LogWriter, Producer, Word, cell_words,
    log_words, ring_words,
};

fn zeroed(words: usize) -> Arc<[Word]> {
    (0..words).map(|_| Word::new(0)).collect()
}

#[test]
fn the_list_of_mutants_is_that_of_the_sites() {
    let listed: Vec<&str> = include_str!("../mutants.txt").lines().collect();
    let sites: Vec<&str> = Site::ALL.iter().map(|(_, name)| *name).collect();
    assert_eq!(listed, sites);
}

mod ring {
    use super::*;

    const INDICES: [usize; 2] = [0, 8];

    /// Three items through two slots, with indices that wrap: the third overwrites the slot of the first, so both
    /// directions of the handover matter.
    #[test]
    fn hands_over_slots_both_ways() {
        loom::model(|| {
            let memory = zeroed(ring_words(2, 2));
            for index in INDICES {
                memory[index].store_relaxed(u64::MAX);
            }
            let mut producer = Producer::<_, 2>::new(memory.clone(), 2).unwrap();
            let mut consumer = Consumer::<_, 2>::new(memory, 2).unwrap();
            let sender = thread::spawn(move || {
                let mut sent = 0;
                while sent < 3 {
                    if producer.push_publish(&[sent, !sent]).is_ok() {
                        sent += 1;
                    } else {
                        thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < 3 {
                if let Some(item) = consumer.pop().unwrap() {
                    assert_eq!(item, [expected, !expected]);
                    expected += 1;
                    consumer.release();
                } else {
                    thread::yield_now();
                }
            }
            sender.join().unwrap();
            assert!(consumer.is_empty());
        });
    }

    /// A batch is published by one store, taken by one refresh and given back by one store.
    #[test]
    fn hands_over_batches() {
        loom::model(|| {
            let memory = zeroed(ring_words(2, 1));
            let mut producer = Producer::<_, 1>::new(memory.clone(), 2).unwrap();
            let mut consumer = Consumer::<_, 1>::new(memory, 2).unwrap();
            let sender = thread::spawn(move || {
                for batch in 0..2 {
                    while producer.free() < 2 {
                        thread::yield_now();
                    }
                    producer.push(&[2 * batch]).unwrap();
                    producer.push(&[2 * batch + 1]).unwrap();
                    assert_eq!(producer.publish(), 2);
                }
            });
            for batch in 0..2 {
                while consumer.is_empty() {
                    thread::yield_now();
                }
                assert_eq!(consumer.pop(), Ok(Some([2 * batch])));
                assert_eq!(consumer.pop(), Ok(Some([2 * batch + 1])));
                assert_eq!(consumer.pop(), Ok(None));
                assert_eq!(consumer.release(), 2);
            }
            sender.join().unwrap();
        });
    }
}

mod bell {
    use super::*;

    /// The sleeper blocks only if its second look found nothing; then the waker must ring.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let (ring, word) = (zeroed(ring_words(1, 1)), zeroed(1));
            let mut producer = Producer::<_, 1>::new(ring.clone(), 1).unwrap();
            let consumer = Consumer::<_, 1>::new(ring, 1).unwrap();
            let (sleeper, waker) = (Bell::new(word.clone()).unwrap(), Bell::new(word).unwrap());
            let waking = thread::spawn(move || {
                producer.push_publish(&[1]).unwrap();
                waker.take()
            });
            sleeper.prepare();
            let blocks = consumer.is_empty();
            let rung = waking.join().unwrap();
            assert!(rung || !blocks, "sleeps on an item and nobody rings");
        });
    }

    /// The whole loop: a consumer that blocks whenever it finds nothing takes every item. A lost wake-up is a deadlock.
    #[test]
    fn a_sleeping_consumer_takes_every_item() {
        loom::model(|| {
            let (ring, word) = (zeroed(ring_words(1, 1)), zeroed(1));
            let mut producer = Producer::<_, 1>::new(ring.clone(), 1).unwrap();
            let mut consumer = Consumer::<_, 1>::new(ring, 1).unwrap();
            let (sleeper, waker) = (Bell::new(word.clone()).unwrap(), Bell::new(word).unwrap());
            let doorbell = Arc::new(Notify::new());
            let waking = {
                let doorbell = doorbell.clone();
                thread::spawn(move || {
                    for value in 0..2 {
                        while producer.push_publish(&[value]).is_err() {
                            thread::yield_now();
                        }
                        if waker.take() {
                            doorbell.notify();
                        }
                    }
                })
            };
            let mut expected = 0;
            while expected < 2 {
                if let Some([value]) = consumer.pop().unwrap() {
                    assert_eq!(value, expected);
                    consumer.release();
                    expected += 1;
                    continue;
                }
                sleeper.prepare();
                if consumer.is_empty() {
                    doorbell.wait();
                }
                sleeper.end();
            }
            waking.join().unwrap();
        });
    }

    /// Two wakers with a ring each and one sleeper: it is woken if it misses either, and never by both.
    #[test]
    fn of_two_wakers_one_rings() {
        loom::model(|| {
            let (flags, word) = (zeroed(2), zeroed(1));
            let sleeper = Bell::new(word.clone()).unwrap();
            let wakers: Vec<_> = (0..2)
                .map(|index| {
                    let (flags, bell) = (flags.clone(), Bell::new(word.clone()).unwrap());
                    thread::spawn(move || {
                        flags[index].store_relaxed(1);
                        bell.take()
                    })
                })
                .collect();
            sleeper.prepare();
            let missed = flags.iter().filter(|flag| flag.load_relaxed() == 0).count();
            let rings = wakers.into_iter().map(|waker| waker.join().unwrap()).filter(|rung| *rung).count();
            assert!(rings <= 1 && (rings == 1 || missed == 0), "{missed} missed, {rings} rings");
        });
    }
}

mod claim {
    use super::*;
    use loom::cell::UnsafeCell;

    struct Thing(UnsafeCell<u64>);

    // SAFETY: the claim decides who touches the cell; loom reports it when two do.
    unsafe impl Sync for Thing {}

    /// The user works in two pieces; the owner takes the thing back at any moment and then changes it.
    #[test]
    fn what_was_revoked_is_touched_by_its_owner_only() {
        loom::model(|| {
            let (words, thing) = (zeroed(1), Arc::new(Thing(UnsafeCell::new(0))));
            let user = {
                let (claim, thing) = (Claim::new(words.clone()), Arc::clone(&thing));
                thread::spawn(move || {
                    for _ in 0..2 {
                        if !claim.enter() {
                            break;
                        }
                        // SAFETY: the claim was entered and is not left: the owner waits.
                        thing.0.with_mut(|value| unsafe { *value += 1 });
                    }
                    claim.leave();
                })
            };
            let claim = Claim::new(words);
            if !claim.revoke() {
                while !claim.is_left() {
                    thread::yield_now();
                }
            }
            // SAFETY: the user has left, or never comes in.
            thing.0.with_mut(|value| unsafe { *value += 1 });
            user.join().unwrap();
        });
    }
}

mod cell {
    use super::*;

    fn payload(generation: u64) -> [u64; 2] {
        [10 * generation, 10 * generation + 1]
    }

    #[test]
    fn a_copy_is_of_one_generation_and_never_steps_back() {
        loom::model(|| {
            let memory = zeroed(cell_words(2));
            let mut writer = CellWriter::new(memory.clone()).unwrap();
            let reader = CellReader::new(memory).unwrap();
            let writing = thread::spawn(move || {
                for generation in [1, 2] {
                    writer.publish(generation, &payload(generation)).unwrap();
                }
            });
            let mut last = 0;
            for _ in 0..2 {
                let mut copy = [0; 2];
                if let Ok(generation) = reader.read(&mut copy, 1) {
                    assert!(generation >= last);
                    assert!(generation == 0 || copy == payload(generation), "{generation}: {copy:?}");
                    last = generation;
                }
            }
            writing.join().unwrap();
            let mut copy = [0; 2];
            assert_eq!((reader.read(&mut copy, 1), copy), (Ok(2), payload(2)));
        });
    }

    /// The successor of a writer that died in the middle meets a reader that began before.
    #[test]
    fn a_repair_is_as_safe_as_a_publication() {
        loom::model(|| {
            let memory = zeroed(cell_words(2));
            CellWriter::new(memory.clone()).unwrap().publish(1, &payload(1)).unwrap();
            let reader = CellReader::new(memory.clone()).unwrap();
            let writing = thread::spawn(move || {
                // As `publish` of generation 2 that dies after its first payload word.
                memory[0].store_relaxed(3);
                fence_release();
                memory[1].store_relaxed(99);
                CellWriter::new(memory).unwrap().publish(2, &payload(2)).unwrap();
            });
            let mut copy = [0; 2];
            if let Ok(generation) = reader.read(&mut copy, 2) {
                assert_eq!(copy, payload(generation));
            }
            writing.join().unwrap();
        });
    }
}

mod log {
    use super::*;

    const ENTRIES: usize = 2;

    fn content(position: u64) -> [u64; 2] {
        [10 * position, 10 * position + 1]
    }

    #[test]
    fn an_entry_is_found_whole_or_not_at_all() {
        loom::model(|| {
            let memory = zeroed(log_words(ENTRIES, 2));
            let mut writer = LogWriter::<_, 2>::new(memory.clone(), ENTRIES).unwrap();
            let reader = LogReader::<_, 2>::new(memory, ENTRIES).unwrap();
            writer.append(&content(0));
            let writing = thread::spawn(move || {
                writer.append(&content(1));
                writer.append(&content(2));
            });
            for position in [0, 2] {
                if let Entry::Found(words) = reader.read(position) {
                    assert_eq!(words, content(position));
                }
            }
            writing.join().unwrap();
            assert_eq!(reader.read(0), Entry::Overwritten);
        });
    }

    #[test]
    fn what_is_counted_is_complete() {
        loom::model(|| {
            let memory = zeroed(log_words(ENTRIES, 2));
            let mut writer = LogWriter::<_, 2>::new(memory.clone(), ENTRIES).unwrap();
            let reader = LogReader::<_, 2>::new(memory, ENTRIES).unwrap();
            let writing = thread::spawn(move || {
                writer.append(&content(0));
                writer.append(&content(1));
            });
            for position in 0..reader.next_position() {
                assert_eq!(reader.read(position), Entry::Found(content(position)));
            }
            writing.join().unwrap();
        });
    }

    /// A writer that completed an entry and died before counting it, a reader copying that entry, and the next writer.
    #[test]
    fn a_successor_does_not_write_a_complete_entry_again() {
        loom::model(|| {
            let memory = zeroed(log_words(1, 2));
            LogWriter::<_, 2>::new(memory.clone(), 1).unwrap().append(&content(0));
            memory[0].store_relaxed(0);
            let reader = LogReader::<_, 2>::new(memory.clone(), 1).unwrap();
            let writing = thread::spawn(move || {
                LogWriter::<_, 2>::new(memory, 1).unwrap().append(&content(1));
            });
            if let Entry::Found(words) = reader.read(0) {
                assert_eq!(words, content(0));
            }
            writing.join().unwrap();
        });
    }
}

mod word {
    use super::*;

    #[test]
    fn release_reaches_acquire() {
        loom::model(|| {
            let words = zeroed(2);
            let writing = {
                let words = words.clone();
                thread::spawn(move || {
                    words[0].store_relaxed(1);
                    words[1].store_release(1);
                })
            };
            if words[1].load_acquire() == 1 {
                assert_eq!(words[0].load_relaxed(), 1);
            }
            writing.join().unwrap();
        });
    }

    /// A signal: two lanes each write their part and add one; who acquires the sum sees both parts.
    #[test]
    fn a_sum_carries_what_every_adder_wrote() {
        loom::model(|| {
            let words = zeroed(3);
            let lanes: Vec<_> = (0..2)
                .map(|lane| {
                    let words = words.clone();
                    thread::spawn(move || {
                        words[lane].store_relaxed(1);
                        words[2].fetch_add_release(1);
                    })
                })
                .collect();
            if words[2].load_acquire() == 2 {
                assert_eq!((words[0].load_relaxed(), words[1].load_relaxed()), (1, 1));
            }
            for lane in lanes {
                lane.join().unwrap();
            }
        });
    }

    /// Of two threads that exchange a word, the second sees what the first wrote before.
    fn exchange_is_ordered(exchange: fn(&Word, u64) -> u64) {
        loom::model(move || {
            let words = zeroed(3);
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    words[1].store_relaxed(1);
                    exchange(&words[0], 1);
                })
            };
            if exchange(&words[0], 2) == 1 {
                assert_eq!(words[1].load_relaxed(), 1);
            }
            other.join().expect("the other thread ends");
        });
    }

    #[test]
    fn a_swap_is_ordered_both_ways() {
        exchange_is_ordered(Word::swap_acq_rel);
    }

    #[test]
    fn an_exchange_is_ordered_both_ways_when_it_succeeds() {
        exchange_is_ordered(|word, value| match word.compare_exchange_acq_rel(value - 1, value) {
            Ok(before) | Err(before) => before,
        });
    }

    #[test]
    fn an_exchange_is_ordered_when_it_fails() {
        exchange_is_ordered(|word, value| match word.compare_exchange_acq_rel(0, value) {
            Ok(before) | Err(before) => before,
        });
    }

    #[test]
    fn fences_order_relaxed_words() {
        loom::model(|| {
            let words = zeroed(2);
            let writing = {
                let words = words.clone();
                thread::spawn(move || {
                    words[0].store_relaxed(1);
                    fence_release();
                    words[1].store_relaxed(1);
                })
            };
            if words[1].load_relaxed() == 1 {
                fence_acquire();
                assert_eq!(words[0].load_relaxed(), 1);
            }
            writing.join().unwrap();
        });
    }

    #[test]
    fn of_two_that_store_fence_and_look_one_sees_the_other() {
        loom::model(|| {
            let words = zeroed(2);
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    words[0].store_relaxed(1);
                    fence_seq_cst();
                    words[1].load_relaxed()
                })
            };
            words[1].store_relaxed(1);
            fence_seq_cst();
            let seen_here = words[0].load_relaxed();
            assert!(seen_here == 1 || other.join().unwrap() == 1);
        });
    }
}
