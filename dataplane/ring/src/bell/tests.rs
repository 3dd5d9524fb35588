// Words need a running model under loom: see tests/loom.rs.
#![cfg(not(loom))]

use super::*;
use crate::{LayoutError, zeroed};

#[test]
fn rings_once_and_only_for_a_sleeper() {
    let memory = zeroed(BELL_WORDS);
    let bell = Bell::new(&memory[..]).unwrap();
    let waker = Bell::new(&memory[..]).unwrap();
    assert!(!waker.take());
    bell.prepare();
    assert!(waker.is_sleeping());
    assert!(waker.take());
    assert!(!waker.take() && !waker.is_sleeping());
    bell.end();
    assert!(!waker.take());
}

#[test]
fn a_sleeper_that_found_work_is_not_rung() {
    let memory = zeroed(BELL_WORDS);
    let bell = Bell::new(&memory[..]).unwrap();
    bell.prepare();
    bell.end();
    assert!(!bell.take());
}

#[test]
fn any_other_content_counts_as_asleep_and_is_cleared() {
    let memory = zeroed(BELL_WORDS);
    memory[0].store_relaxed(u64::MAX);
    let bell = Bell::new(&memory[..]).unwrap();
    assert!(bell.take());
    assert!(!bell.take());
}

#[test]
fn no_memory_is_refused() {
    let memory = zeroed(0);
    let refused = LayoutError::TooShort { needed_words: 1, given_words: 0 };
    assert_eq!(Bell::new(&memory[..]).unwrap_err(), refused);
}
