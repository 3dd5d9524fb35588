//! Registrations that are kept for the next use, and the budget that all of them share.
//!
//! Registering costs tens of microseconds to milliseconds; finding a registration that is still there costs less than
//! 100 ns. The cache is a hash table from what is registered to its registration, bounded in entries and bytes; what was
//! not used for longest goes first, what is in use stays. Memory that goes away is invalidated by its identity before it is
//! unmapped, so a later mapping at the same address is never mistaken for it. For registrar threads.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::memory::MemoryAccess;

#[cfg(test)]
mod tests;

/// What is registered: memory by its identity, never by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// Identity of the memory; never given out twice while the node runs.
    pub memory: u64,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// How it is registered.
    pub access: MemoryAccess,
    /// With which NIC.
    pub rail: u8,
}

/// What the cache has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// Registrations that were found.
    pub hits: u64,
    /// Registrations that had to be made.
    pub misses: u64,
    /// Registrations given up to make room.
    pub evictions: u64,
    /// Registrations given up because their memory went.
    pub invalidations: u64,
    /// Registrations that were refused because the budget or the cache is full of what is in use.
    pub over_budget: u64,
    /// Microseconds that hits saved: what making them had cost.
    pub saved_us: u64,
    /// Entries now.
    pub entries: u64,
    /// Bytes now.
    pub bytes: u64,
}

/// Pinned bytes and memory keys that this node may have, over all caches, pools and regions.
#[derive(Debug)]
pub struct PinBudget {
    bytes_max: u64,
    keys_max: u64,
    taken: Mutex<(u64, u64)>,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Pinned {
    budget: Arc<PinBudget>,
    bytes: u64,
}

impl PinBudget {
    /// A budget.
    #[must_use]
    pub fn new(bytes_max: u64, keys_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, keys_max, taken: Mutex::new((0, 0)) })
    }

    /// Takes `bytes` and one key. `None` if that is more than is left: the region is then staged, it does not fail.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Pinned> {
        let mut taken = lock(&self.taken);
        let (all, keys) = (taken.0.checked_add(bytes)?, taken.1 + 1);
        if all > self.bytes_max || keys > self.keys_max {
            return None;
        }
        *taken = (all, keys);
        Some(Pinned { budget: Arc::clone(self), bytes })
    }

    /// Bytes and keys that are taken.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        *lock(&self.taken)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut taken = lock(&self.budget.taken);
        taken.0 -= self.bytes;
        taken.1 -= 1;
    }
}

/// A registration in use: it stays as long as this lives, also when its entry has gone.
#[derive(Debug)]
pub struct Lease<M> {
    held: Arc<Held<M>>,
}

impl<M> Clone for Lease<M> {
    fn clone(&self) -> Self {
        Self { held: Arc::clone(&self.held) }
    }
}

impl<M> core::ops::Deref for Lease<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.held.registration
    }
}

#[derive(Debug)]
struct Held<M> {
    registration: M,
    // After the registration: the budget is free when the pages are.
    _pinned: Pinned,
}

#[derive(Debug)]
struct Entry<M> {
    key: CacheKey,
    held: Arc<Held<M>>,
    cost_ns: u64,
    /// Neighbours in the order of use.
    before: u32,
    after: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct State<M> {
    index: HashMap<CacheKey, u32, BuildHasherDefault<Mixer>>,
    entries: Vec<Option<Entry<M>>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    bytes: u64,
    saved_ns: u64,
    counters: CacheCounters,
}

/// The cache. `M` is a registration: dropping it gives it up.
#[derive(Debug)]
pub struct RegistrationCache<M> {
    state: Mutex<State<M>>,
    budget: Arc<PinBudget>,
    entries_max: usize,
    bytes_max: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M> RegistrationCache<M> {
    /// An empty cache of at most `entries_max` entries and `bytes_max` bytes, within `budget`.
    #[must_use]
    pub fn new(entries_max: usize, bytes_max: u64, budget: Arc<PinBudget>) -> Self {
        let state = State {
            index: HashMap::with_capacity_and_hasher(entries_max, BuildHasherDefault::default()),
            entries: Vec::with_capacity(entries_max),
            free: Vec::with_capacity(entries_max),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            saved_ns: 0,
            counters: CacheCounters::default(),
        };
        Self { state: Mutex::new(state), budget, entries_max, bytes_max }
    }

    /// The registration of `key`: the one that is there, or else what `register` makes. `Ok(None)` if there is no room for
    /// it even without everything that is not in use: the memory is then to be staged.
    ///
    /// # Errors
    /// What `register` says; nothing is kept then.
    pub fn get<E>(
        &self,
        key: CacheKey,
        register: impl FnOnce() -> Result<M, E>,
    ) -> Result<Option<Lease<M>>, E> {
        if let Some(lease) = self.find(&key) {
            return Ok(Some(lease));
        }
        let Some(pinned) = self.make_room(key.bytes) else { return Ok(None) };
        // Registering is slow: not under the lock. Two threads may both register; the later one finds the other's entry.
        let start = Instant::now();
        let registration = register()?;
        let cost_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let held = Arc::new(Held { registration, _pinned: pinned });
        Ok(Some(self.keep(key, held, cost_ns)))
    }

    /// The registration of `key`, if it is there.
    #[must_use]
    pub fn find(&self, key: &CacheKey) -> Option<Lease<M>> {
        let mut state = lock(&self.state);
        let at = *state.index.get(key)?;
        state.use_again(at);
        let entry = state.entries[at as usize].as_ref()?;
        let (held, cost_ns) = (Arc::clone(&entry.held), entry.cost_ns);
        state.counters.hits += 1;
        state.saved_ns = state.saved_ns.saturating_add(cost_ns);
        Some(Lease { held })
    }

    /// Gives up every registration of a memory, before it goes away. Those in use live until their last lease is dropped;
    /// returns how many of these there are, and the caller waits for their users before it unmaps.
    pub fn invalidate(&self, memory: u64) -> usize {
        let mut gone = Vec::new();
        {
            let mut state = lock(&self.state);
            let found: Vec<u32> =
                state.index.iter().filter(|(key, _)| key.memory == memory).map(|(_, at)| *at).collect();
            for at in found {
                gone.extend(state.remove(at));
                state.counters.invalidations += 1;
            }
        }
        // Deregistering is slow: not under the lock.
        gone.iter().filter(|held| Arc::strong_count(held) > 1).count()
    }

    /// What was done, and what is there.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        let state = lock(&self.state);
        CacheCounters {
            saved_us: state.saved_ns / 1000,
            entries: state.index.len() as u64,
            bytes: state.bytes,
            ..state.counters
        }
    }

    /// Takes from the budget, giving up unused entries from the oldest on until that works.
    fn make_room(&self, bytes: u64) -> Option<Pinned> {
        loop {
            let evicted = {
                let mut state = lock(&self.state);
                let fits = state.index.len() < self.entries_max
                    && state.bytes.saturating_add(bytes) <= self.bytes_max;
                if fits && let Some(pinned) = self.budget.take(bytes) {
                    return Some(pinned);
                }
                let evicted = state.oldest_unused().and_then(|at| state.remove(at));
                if evicted.is_some() {
                    state.counters.evictions += 1;
                } else {
                    state.counters.over_budget += 1;
                }
                evicted
            };
            // Dropped here, without the lock.
            evicted?;
        }
    }

    fn keep(&self, key: CacheKey, held: Arc<Held<M>>, cost_ns: u64) -> Lease<M> {
        let mut state = lock(&self.state);
        state.counters.misses += 1;
        if let Some(at) = state.index.get(&key).copied()
            && let Some(entry) = &state.entries[at as usize]
        {
            let lease = Lease { held: Arc::clone(&entry.held) };
            drop(state);
            drop(held);
            return lease;
        }
        // Others may have filled the cache meanwhile: then the registration lives with its lease only.
        if state.index.len() < self.entries_max && state.bytes.saturating_add(key.bytes) <= self.bytes_max {
            state.insert(key, Arc::clone(&held), cost_ns);
        }
        Lease { held }
    }
}

impl<M> State<M> {
    fn insert(&mut self, key: CacheKey, held: Arc<Held<M>>, cost_ns: u64) {
        let entry = Entry { key, held, cost_ns, before: NONE, after: NONE };
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        });
        self.entries[at as usize] = Some(entry);
        self.index.insert(key, at);
        self.bytes += key.bytes;
        self.link_newest(at);
    }

    fn entry(&mut self, at: u32) -> Option<&mut Entry<M>> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn link_newest(&mut self, at: u32) {
        let newest = self.newest;
        if let Some(entry) = self.entry(at) {
            (entry.before, entry.after) = (NONE, newest);
        }
        match self.entry(newest) {
            Some(entry) => entry.before = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Some((before, after)) = self.entry(at).map(|entry| (entry.before, entry.after)) else { return };
        match self.entry(before) {
            Some(entry) => entry.after = after,
            None => self.newest = after,
        }
        match self.entry(after) {
            Some(entry) => entry.before = before,
            None => self.oldest = before,
        }
    }

    fn use_again(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn oldest_unused(&self) -> Option<u32> {
        let mut at = self.oldest;
        loop {
            let entry = self.entries.get(at as usize)?.as_ref()?;
            if Arc::strong_count(&entry.held) == 1 {
                return Some(at);
            }
            at = entry.before;
        }
    }

    fn remove(&mut self, at: u32) -> Option<Arc<Held<M>>> {
        self.unlink(at);
        let entry = self.entries.get_mut(at as usize)?.take()?;
        self.index.remove(&entry.key);
        self.bytes -= entry.key.bytes;
        self.free.push(at);
        Some(entry.held)
    }
}

/// A fast hash for keys that no stranger chooses: multiply and fold.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are folded")]
        let folded = (wide as u64) ^ ((wide >> 64) as u64);
        self.0 = folded.rotate_left(23).wrapping_add(value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
