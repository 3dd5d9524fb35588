use super::*;
use crate::mapping::{Access, Mapping};
use crate::memfd::{self, Huge};

#[test]
fn changed_word_does_not_sleep() {
    let word = Word::new(5);
    assert_eq!(wait(&word, 4, None), Wait::Changed);
}

#[test]
fn only_the_low_half_counts() {
    let word = Word::new(0xffff_ffff_0000_0007);
    assert_eq!(wait(&word, 7, Some(Duration::from_millis(1))), Wait::TimedOut);
}

#[test]
fn wake_without_sleepers_wakes_nobody() {
    assert_eq!(wake(&Word::new(0), u32::MAX), 0);
}

#[test]
fn sleeper_is_woken_through_another_mapping_of_the_file() {
    // Two mappings at two addresses: a process-private futex would never be woken.
    let file = memfd::create("test", 4096, Huge::No).unwrap();
    let theirs = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, 1).unwrap();
    let ours = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, 1).unwrap();
    let sleeper = std::thread::spawn(move || {
        while theirs[0].load_acquire() == 0 {
            assert_ne!(wait(&theirs[0], 0, Some(Duration::from_secs(20))), Wait::TimedOut);
        }
    });
    // Wait until it really sleeps, so that the wake-up is what ends the sleep.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        if wake(&ours[0], 1) == 1 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "nobody went to sleep");
        std::thread::yield_now();
    }
    ours[0].store_release(1);
    while !sleeper.is_finished() {
        wake(&ours[0], 1);
        std::thread::yield_now();
    }
    sleeper.join().unwrap();
}
