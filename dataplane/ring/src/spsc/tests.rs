// Words need a running model under loom: see tests/loom.rs.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::zeroed;

const ITEM_WORDS: usize = 3;

fn item(value: u64) -> [u64; ITEM_WORDS] {
    [value, !value, value.wrapping_mul(0x9E37_79B9_7F4A_7C15)]
}

fn memory_at(capacity: usize, index: u64) -> Vec<Word> {
    let memory = zeroed(ring_words(capacity, ITEM_WORDS));
    memory[TAIL].store_relaxed(index);
    memory[HEAD].store_relaxed(index);
    memory
}

fn ends(memory: &[Word], capacity: usize) -> (Producer<&[Word], ITEM_WORDS>, Consumer<&[Word], ITEM_WORDS>) {
    (Producer::new(memory, capacity).unwrap(), Consumer::new(memory, capacity).unwrap())
}

#[test]
fn staged_items_are_invisible_until_published() {
    let memory = memory_at(4, 0);
    let (mut producer, mut consumer) = ends(&memory, 4);
    assert_eq!(producer.publish(), 0);
    producer.push(&item(1)).unwrap();
    producer.push(&item(2)).unwrap();
    assert_eq!((producer.staged(), producer.free()), (2, 2));
    assert_eq!(consumer.pop(), Ok(None));
    assert!(consumer.is_empty());
    assert_eq!(producer.publish(), 2);
    assert_eq!((producer.staged(), consumer.len()), (0, 2));
    assert_eq!(consumer.pop(), Ok(Some(item(1))));
    assert_eq!(consumer.pop(), Ok(Some(item(2))));
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn taken_slots_are_in_use_until_released() {
    let memory = memory_at(2, 0);
    let (mut producer, mut consumer) = ends(&memory, 2);
    producer.push_publish(&item(1)).unwrap();
    producer.push_publish(&item(2)).unwrap();
    assert_eq!(consumer.pop(), Ok(Some(item(1))));
    assert_eq!(producer.push_publish(&item(3)), Err(Full));
    assert!(!producer.has_room(1));
    assert_eq!((consumer.release(), consumer.release()), (1, 0));
    assert!(producer.has_room(1) && !producer.has_room(2));
    assert_eq!(producer.push_publish(&item(3)), Ok(()));
    assert_eq!(consumer.pop(), Ok(Some(item(2))));
    assert_eq!(consumer.pop(), Ok(Some(item(3))));
}

#[test]
fn a_refused_layout_says_why() {
    let memory = zeroed(ring_words(4, 1));
    for capacity in [0, 3, 6] {
        assert_eq!(
            Producer::<_, 1>::new(&memory[..], capacity).unwrap_err(),
            LayoutError::Capacity { capacity }
        );
        assert_eq!(
            Consumer::<_, 1>::new(&memory[..], capacity).unwrap_err(),
            LayoutError::Capacity { capacity }
        );
    }
    let too_short =
        LayoutError::TooShort { needed_words: RING_HEADER_WORDS + 8, given_words: RING_HEADER_WORDS + 4 };
    assert_eq!(Producer::<_, 1>::new(&memory[..], 8).unwrap_err(), too_short);
    assert_eq!(Consumer::<_, 2>::new(&memory[..], 4).unwrap_err(), too_short);
    let one_short = LayoutError::TooShort { needed_words: memory.len(), given_words: memory.len() - 1 };
    assert_eq!(Consumer::<_, 1>::new(&memory[1..], 4).unwrap_err(), one_short);
    assert!(Consumer::<_, 1>::new(&memory[..], 4).is_ok());
    // The size in words overflows: refused, not wrapped to something that fits.
    let capacity = 1 << 63;
    assert_eq!(Producer::<_, 2>::new(&memory[..], capacity).unwrap_err(), LayoutError::Capacity { capacity });
    memory[TAIL].store_relaxed(5);
    assert_eq!(Producer::<_, 1>::new(&memory[..], 4).unwrap_err(), LayoutError::Indices);
    assert_eq!(Consumer::<_, 1>::new(&memory[..], 4).unwrap_err(), LayoutError::Indices);
}

#[test]
fn new_ends_go_on_where_the_last_ones_stopped() {
    let memory = memory_at(4, u64::MAX);
    let (mut producer, mut consumer) = ends(&memory, 4);
    for value in 0..3 {
        producer.push_publish(&item(value)).unwrap();
    }
    producer.push(&item(99)).unwrap();
    assert_eq!(consumer.pop(), Ok(Some(item(0))));
    consumer.release();
    assert_eq!(consumer.pop(), Ok(Some(item(1))));
    // Lost with their holders: the item that was staged, and that a taken item was not given back.
    let mut producer = Producer::<_, ITEM_WORDS>::new(producer.into_memory(), 4).unwrap();
    let mut consumer = Consumer::<_, ITEM_WORDS>::new(consumer.into_memory(), 4).unwrap();
    assert_eq!(producer.free(), 2);
    producer.push_publish(&item(3)).unwrap();
    for value in 1..4 {
        assert_eq!(consumer.pop(), Ok(Some(item(value))));
    }
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn the_consumer_refuses_an_impossible_tail_and_recovers_nothing_from_it() {
    let memory = memory_at(4, 10);
    let (mut producer, mut consumer) = ends(&memory, 4);
    producer.push_publish(&item(1)).unwrap();
    producer.push_publish(&item(2)).unwrap();
    assert_eq!(consumer.pop(), Ok(Some(item(1))));
    assert_eq!(consumer.pop(), Ok(Some(item(2))));
    // Two taken, none released: the producer owns two more slots, up to index 14.
    for tail in [11, 0, 15, 16, u64::MAX, 1 << 63] {
        memory[TAIL].store_relaxed(tail);
        assert_eq!(consumer.pop(), Err(Corrupt), "tail {tail}");
        assert_eq!(consumer.pop(), Err(Corrupt), "tail {tail}");
        assert!(!consumer.is_empty(), "a sleeper must go on to pop, tail {tail}");
        assert!(consumer.len() <= 4);
    }
    memory[TAIL].store_relaxed(14);
    assert!(consumer.pop().unwrap().is_some());
}

#[test]
fn the_producer_takes_an_impossible_head_for_a_full_ring() {
    let memory = memory_at(4, 10);
    let (mut producer, _) = ends(&memory, 4);
    for value in 0..4 {
        producer.push_publish(&item(value)).unwrap();
    }
    for head in [15, 9, 0, u64::MAX] {
        memory[HEAD].store_relaxed(head);
        assert_eq!(producer.refresh(), Err(Corrupt), "head {head}");
        assert_eq!((producer.free(), producer.push(&item(9))), (0, Err(Full)), "head {head}");
    }
    memory[HEAD].store_relaxed(13);
    assert_eq!(producer.free(), 3);
    producer.push(&item(9)).unwrap();
    // Not beyond what was published, even if staged: the consumer cannot have taken it.
    memory[HEAD].store_relaxed(15);
    assert_eq!(producer.refresh(), Err(Corrupt));
    // A step back within the ring: as full as it claims, and never more free than there is.
    memory[HEAD].store_relaxed(10);
    assert_eq!((producer.free(), producer.has_room(1), producer.push(&item(9))), (0, false, Err(Full)));
}

#[derive(Debug, Clone)]
enum Step {
    Push(u64),
    Publish,
    Pop,
    Release,
    Free,
    Look,
    ReplaceProducer,
    ReplaceConsumer,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u64>().prop_map(Step::Push),
        3 => Just(Step::Publish),
        5 => Just(Step::Pop),
        3 => Just(Step::Release),
        1 => Just(Step::Free),
        1 => Just(Step::Look),
        1 => Just(Step::ReplaceProducer),
        1 => Just(Step::ReplaceConsumer),
    ]
}

/// What a ring is, without indices.
#[derive(Default)]
struct Model {
    /// Taken and not released, oldest first.
    taken: VecDeque<u64>,
    published: VecDeque<u64>,
    staged: VecDeque<u64>,
}

impl Model {
    fn used(&self) -> usize {
        self.taken.len() + self.published.len() + self.staged.len()
    }
}

proptest! {
    #[test]
    fn behaves_as_three_queues(
        capacity_log2 in 0_u32..5,
        // Often so that the indices wrap on the way.
        start in prop_oneof![Just(0), any::<u64>(), (0_u64..64).prop_map(|back| u64::MAX - back)],
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let capacity = 1_usize << capacity_log2;
        let memory = memory_at(capacity, start);
        let (mut producer, mut consumer) = ends(&memory, capacity);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Push(value) => {
                    let expected = if model.used() < capacity { Ok(()) } else { Err(Full) };
                    prop_assert_eq!(producer.push(&item(value)), expected);
                    if expected.is_ok() {
                        model.staged.push_back(value);
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(producer.publish(), model.staged.len());
                    model.published.append(&mut model.staged);
                }
                Step::Pop => {
                    let value = model.published.pop_front();
                    prop_assert_eq!(consumer.pop(), Ok(value.map(item)));
                    model.taken.extend(value);
                }
                Step::Release => {
                    prop_assert_eq!(consumer.release(), model.taken.len());
                    model.taken.clear();
                }
                Step::Free => {
                    let free = capacity - model.used();
                    prop_assert!(producer.has_room(free) && !producer.has_room(free + 1));
                    prop_assert_eq!(producer.free(), free);
                }
                Step::Look => {
                    prop_assert_eq!(consumer.len(), model.published.len());
                    prop_assert_eq!(consumer.is_empty(), model.published.is_empty());
                }
                Step::ReplaceProducer => {
                    model.staged.clear();
                    producer = Producer::new(&memory[..], capacity).unwrap();
                }
                Step::ReplaceConsumer => {
                    model.taken.append(&mut model.published);
                    core::mem::swap(&mut model.taken, &mut model.published);
                    consumer = Consumer::new(&memory[..], capacity).unwrap();
                }
            }
            prop_assert_eq!(producer.staged(), model.staged.len());
        }
    }

    #[test]
    fn no_stored_index_makes_an_end_panic_or_exceed_the_ring(
        stores in prop::collection::vec((any::<bool>(), prop_oneof![any::<u64>(), 0_u64..20]), 1..40),
    ) {
        let capacity = 8;
        let memory = memory_at(capacity, 4);
        let (mut producer, mut consumer) = ends(&memory, capacity);
        for (tail, index) in stores {
            memory[if tail { TAIL } else { HEAD }].store_relaxed(index);
            prop_assert!(producer.free() <= capacity);
            // Whatever the peer stores, an end goes at most once round the ring before it needs the peer again.
            prop_assert!((0..).take(3 * capacity).filter(|_| producer.push(&item(1)).is_ok()).count() <= capacity);
            prop_assert!((0..).take(3 * capacity).filter(|_| matches!(consumer.pop(), Ok(Some(_)))).count() <= capacity);
            prop_assert!(consumer.len() <= capacity);
        }
    }
}

#[test]
fn items_cross_threads_whole_and_in_order() {
    const COUNT: u64 = 200_000;
    let memory = memory_at(64, u64::MAX - 1000);
    let (mut producer, mut consumer) = ends(&memory, 64);
    let started = Instant::now();
    let wait = move || {
        assert!(started.elapsed() < Duration::from_secs(30), "an end waits for ever");
        std::thread::yield_now();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for value in 0..COUNT {
                while producer.push(&item(value)).is_err() {
                    producer.publish();
                    wait();
                }
                if value % 7 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let mut expected = 0;
        while expected < COUNT {
            match consumer.pop().unwrap() {
                Some(found) => {
                    assert_eq!(found, item(expected));
                    expected += 1;
                }
                None => {
                    consumer.release();
                    wait();
                }
            }
        }
    });
}
