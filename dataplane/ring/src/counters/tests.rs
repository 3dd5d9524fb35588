// Words need a running model under loom: see tests/loom.rs.
#![cfg(not(loom))]

use super::*;
use crate::zeroed;

#[test]
fn counts_wrap_and_do_not_touch_their_neighbours() {
    let memory = zeroed(3);
    let counters = Counters::new(&memory[..]);
    let reader = counters.clone();
    assert_eq!((counters.len(), counters.is_empty()), (3, false));
    counters.add(1, 5);
    counters.add(1, 6);
    counters.set(2, u64::MAX);
    counters.add(2, 3);
    assert_eq!((reader.get(0), reader.get(1), reader.get(2)), (0, 11, 2));
}
