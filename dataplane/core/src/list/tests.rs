extern crate std;

use super::*;
use std::collections::VecDeque;
use std::vec::Vec;

/// A step of a splitmix generator: enough to drive a model.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

#[test]
fn two_lists_over_one_table_follow_their_models() {
    for seed in 0..50 {
        let mut state = seed;
        let mut links = [Link::UNLINKED; 16];
        let mut lists = [List::EMPTY; 2];
        let mut models = [VecDeque::new(), VecDeque::new()];
        for _ in 0..2000 {
            let entry = u32::try_from(next(&mut state) % 16).expect("below 16");
            let which = usize::from(next(&mut state).is_multiple_of(2));
            let owner = models.iter().position(|model: &VecDeque<u32>| model.contains(&entry));
            match (next(&mut state) % 4, owner) {
                (0, None) => {
                    lists[which].push_back(&mut links, entry);
                    models[which].push_back(entry);
                }
                (1, None) => {
                    lists[which].push_front(&mut links, entry);
                    models[which].push_front(entry);
                }
                (2, Some(owner)) => {
                    lists[owner].remove(&mut links, entry);
                    models[owner].retain(|other| *other != entry);
                }
                (3, _) => assert_eq!(lists[which].pop_front(&mut links), models[which].pop_front()),
                _ => {}
            }
            for (list, model) in lists.iter().zip(&models) {
                assert_eq!(walk(list, &links), model.iter().copied().collect::<Vec<_>>(), "seed {seed}");
                assert_eq!(list.count(), model.len());
                assert_eq!(list.is_empty(), model.is_empty());
            }
            for entry in 0..16u32 {
                let is_listed = models.iter().any(|model| model.contains(&entry));
                assert_eq!(links[entry as usize].is_linked(), is_listed);
            }
        }
    }
}

fn walk(list: &List, links: &[Link]) -> Vec<u32> {
    let mut entries = Vec::new();
    let mut at = list.head;
    while at != NONE {
        entries.push(at);
        at = links[at as usize].next;
    }
    entries
}
