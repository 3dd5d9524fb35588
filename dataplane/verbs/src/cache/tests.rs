use std::cell::RefCell;
use std::collections::HashSet;
use std::convert::Infallible;
use std::rc::Rc;

use super::{CacheKey, PinBudget, RegistrationCache};
use crate::memory::MemoryAccess;

/// Registrations that are alive.
type Alive = Rc<RefCell<HashSet<u64>>>;

#[derive(Debug)]
struct Fake {
    id: u64,
    alive: Alive,
}

impl Drop for Fake {
    fn drop(&mut self) {
        assert!(self.alive.borrow_mut().remove(&self.id));
    }
}

fn key(memory: u64, bytes: u64) -> CacheKey {
    CacheKey { memory, offset: 0, bytes, access: MemoryAccess::default(), rail: 0 }
}

struct Rig {
    cache: RegistrationCache<Fake>,
    alive: Alive,
    next: u64,
}

impl Rig {
    fn new(entries: usize, bytes: u64, budget: (u64, u64)) -> Self {
        let cache = RegistrationCache::new(entries, bytes, PinBudget::new(budget.0, budget.1));
        Self { cache, alive: Alive::default(), next: 0 }
    }

    fn get(&mut self, key: CacheKey) -> Option<super::Lease<Fake>> {
        let (id, alive) = (self.next, Rc::clone(&self.alive));
        self.next += 1;
        let made = self.cache.get(key, || {
            alive.borrow_mut().insert(id);
            Ok::<_, Infallible>(Fake { id, alive: Rc::clone(&alive) })
        });
        made.unwrap()
    }

    fn alive(&self) -> usize {
        self.alive.borrow().len()
    }
}

#[test]
fn a_second_use_finds_the_first() {
    let mut rig = Rig::new(4, 1000, (1000, 10));
    let first = rig.get(key(1, 10)).unwrap();
    let second = rig.get(key(1, 10)).unwrap();
    assert_eq!((first.id, second.id, rig.alive()), (0, 0, 1));
    let other = rig.get(CacheKey { offset: 5, ..key(1, 10) }).unwrap();
    assert_ne!(other.id, 0, "another range is another registration");
    let other = rig.get(CacheKey { rail: 1, ..key(1, 10) }).unwrap();
    assert_ne!(other.id, 0, "another NIC too");
    let counters = rig.cache.counters();
    assert_eq!((counters.hits, counters.misses, counters.entries, counters.bytes), (1, 3, 3, 30));
}

#[test]
fn the_oldest_unused_entry_goes_first() {
    let mut rig = Rig::new(3, 1000, (1000, 10));
    for memory in 1..=3 {
        rig.get(key(memory, 10));
    }
    rig.get(key(1, 10));
    rig.get(key(4, 10));
    assert!(rig.cache.find(&key(2, 10)).is_none(), "2 was not used for longest");
    assert!([1, 3, 4].iter().all(|memory| rig.cache.find(&key(*memory, 10)).is_some()));
    assert_eq!((rig.alive(), rig.cache.counters().evictions), (3, 1));
}

#[test]
fn what_is_in_use_stays_and_what_finds_no_room_is_said() {
    let mut rig = Rig::new(2, 100, (1000, 10));
    let held = [rig.get(key(1, 60)).unwrap(), rig.get(key(2, 40)).unwrap()];
    assert!(rig.get(key(3, 1)).is_none(), "both entries are in use");
    assert_eq!(rig.cache.counters().over_budget, 1);
    drop(held);
    let held = rig.get(key(3, 1)).unwrap();
    assert!(rig.cache.find(&key(2, 40)).is_some() && rig.cache.find(&key(1, 60)).is_none());
    assert!(rig.get(key(4, 101)).is_none(), "larger than the cache");
    assert_eq!(held.id, 3);
}

#[test]
fn the_budget_bounds_all_caches_together() {
    let budget = PinBudget::new(100, 2);
    let other = budget.take(80).unwrap();
    assert!(budget.take(21).is_none(), "bytes");
    let second = budget.take(0).unwrap();
    assert!(budget.take(0).is_none(), "keys");
    drop(second);
    let cache = RegistrationCache::new(8, 1000, std::sync::Arc::clone(&budget));
    let make = || Ok::<_, Infallible>(());
    drop(cache.get(key(1, 20), make).unwrap().unwrap());
    assert!(cache.get(key(2, 30), make).unwrap().is_none());
    assert_eq!(cache.counters().evictions, 1, "the unused entry was given up in vain");
    drop(other);
    assert!(cache.get(key(2, 30), make).unwrap().is_some());
    assert_eq!(budget.taken(), (30, 1));
    drop(cache);
    assert_eq!(budget.taken(), (0, 0));
}

#[test]
fn memory_that_goes_takes_all_its_registrations_and_no_others() {
    let mut rig = Rig::new(8, 1000, (1000, 10));
    let held = rig.get(key(1, 10)).unwrap();
    rig.get(CacheKey { offset: 10, ..key(1, 10) });
    rig.get(key(2, 10));
    assert_eq!(rig.cache.invalidate(1), 1, "one of them is in use");
    assert_eq!(rig.alive(), 2, "the unused one is gone at once");
    assert!(rig.cache.find(&key(1, 10)).is_none());
    // The same memory is registered anew, and the old lease is not mistaken for it.
    let again = rig.get(key(1, 10)).unwrap();
    assert_ne!(again.id, held.id);
    drop(held);
    assert_eq!((rig.alive(), rig.cache.invalidate(3)), (2, 0));
    assert_eq!(rig.cache.counters().invalidations, 2);
}

#[test]
fn a_failed_registration_leaves_nothing() {
    let budget = PinBudget::new(100, 2);
    let cache: RegistrationCache<()> = RegistrationCache::new(8, 1000, std::sync::Arc::clone(&budget));
    assert_eq!(cache.get(key(1, 10), || Err("no")).unwrap_err(), "no");
    assert_eq!((cache.counters().entries, budget.taken()), (0, (0, 0)));
}

/// Against a model: a list in the order of use.
#[test]
fn random_uses_agree_with_a_list() {
    let mut rig = Rig::new(8, 200, (10_000, 100));
    let mut model: Vec<(CacheKey, u64)> = Vec::new();
    let mut state = 1u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wanted = key(state >> 60, 20 + (state >> 40) % 3 * 20);
        let found = model.iter().position(|(held, _)| *held == wanted);
        let expected = found.map_or(rig.next, |at| model.remove(at).1);
        let lease = rig.get(wanted).unwrap();
        assert_eq!(lease.id, expected);
        if found.is_none() {
            while model.len() >= 8
                || model.iter().map(|(held, _)| held.bytes).sum::<u64>() + wanted.bytes > 200
            {
                model.remove(0);
            }
        }
        model.push((wanted, expected));
        let counters = rig.cache.counters();
        assert_eq!(counters.entries, model.len() as u64);
        assert_eq!(rig.alive(), model.len());
    }
}

#[test]
fn hits_cost_little() {
    let cache = RegistrationCache::new(1024, u64::MAX, PinBudget::new(u64::MAX, 1024));
    for memory in 0..1000 {
        cache.get(key(memory, 4096), || Ok::<_, Infallible>(memory)).unwrap();
    }
    let mut best = f64::MAX;
    for _ in 0..20 {
        let start = std::time::Instant::now();
        for memory in 0..1000 {
            assert_eq!(*cache.find(&key(memory, 4096)).unwrap(), memory);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    println!("a hit costs {best:.0} ns");
    // The bound of a release build is 100 ns; tests are built with less care, and machines are busy.
    assert!(best < 400.0, "a hit costs {best:.0} ns");
}
