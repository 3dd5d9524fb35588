use super::*;

/// Counts how often it was dropped.
#[derive(Debug)]
struct Counted(Arc<Word>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add_release(1);
    }
}

#[test]
fn boxes_arrive_in_order_and_full_gives_the_box_back() {
    let (mut giver, mut taker) = channel::<u32>(2);
    assert!(taker.is_empty());
    assert!(taker.take().is_none());
    assert_eq!(giver.free(), 2);
    giver.give(Box::new(1)).unwrap();
    giver.give(Box::new(2)).unwrap();
    assert_eq!(giver.give(Box::new(3)), Err(Box::new(3)));
    assert!(!taker.is_empty());
    assert_eq!(taker.take(), Some(Box::new(1)));
    giver.give(Box::new(3)).unwrap();
    assert_eq!(taker.take(), Some(Box::new(2)));
    assert_eq!(taker.take(), Some(Box::new(3)));
    assert_eq!(taker.take(), None);
}

#[test]
fn the_very_box_arrives() {
    let (mut giver, mut taker) = channel::<[u8; 64]>(1);
    let item = Box::new([7; 64]);
    let address = item.as_ptr();
    giver.give(item).unwrap();
    let arrived = taker.take().unwrap();
    assert_eq!(arrived.as_ptr(), address);
}

#[test]
fn what_was_never_taken_is_dropped_once_whichever_end_goes_first() {
    for taker_first in [true, false] {
        let drops = Arc::new(Word::new(0));
        let (mut giver, mut taker) = channel(4);
        giver.give(Box::new(Counted(Arc::clone(&drops)))).unwrap();
        giver.give(Box::new(Counted(Arc::clone(&drops)))).unwrap();
        drop(taker.take());
        assert_eq!(drops.load_acquire(), 1);
        if taker_first {
            drop(taker);
            giver.give(Box::new(Counted(Arc::clone(&drops)))).unwrap();
            assert_eq!(drops.load_acquire(), 1);
            drop(giver);
            assert_eq!(drops.load_acquire(), 3);
        } else {
            drop(giver);
            assert_eq!(drops.load_acquire(), 1);
            drop(taker.take());
            assert_eq!(drops.load_acquire(), 2);
        }
    }
}

#[test]
fn boxes_travel_between_threads_and_home_again() {
    const BOXES: u64 = 20_000;
    let (mut giver, mut taker) = channel::<u64>(8);
    let (mut home, mut returned) = channel::<u64>(8);
    let lane = std::thread::spawn(move || {
        let mut sum = 0;
        let mut seen = 0;
        while seen < BOXES {
            let Some(mut item) = taker.take() else {
                std::thread::yield_now();
                continue;
            };
            seen += 1;
            sum += *item;
            *item += 1;
            while let Err(again) = home.give(item) {
                item = again;
                std::thread::yield_now();
            }
        }
        sum
    });
    let mut next = 0;
    let mut back = 0;
    while back < BOXES {
        if next < BOXES && giver.give(Box::new(next)).is_ok() {
            next += 1;
        }
        while let Some(item) = returned.take() {
            assert_eq!(*item, back + 1);
            back += 1;
        }
        std::thread::yield_now();
    }
    assert_eq!(lane.join().unwrap(), BOXES * (BOXES - 1) / 2);
}

#[test]
#[should_panic(expected = "power of two")]
fn odd_capacity_is_refused() {
    let _ = channel::<u8>(3);
}
