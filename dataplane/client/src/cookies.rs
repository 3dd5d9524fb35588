//! The cookies of open transfers: a multiset of fixed capacity, so that every accepted submission is completed exactly
//! once, also when the dataplane dies.
//!
//! A hash table with linear probing and no tombstones, at most half full. Cookies are the application's own and need not
//! differ; equal ones share a slot and a count.

/// Cookies of open transfers.
#[derive(Debug)]
pub(crate) struct Cookies {
    /// Power of two, at least twice the capacity; a count of 0 marks a free slot.
    slots: Box<[Slot]>,
    /// Transfers open, equal cookies counted each.
    open: usize,
    /// Where the last `take_any` found something.
    hand: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    cookie: u64,
    count: usize,
}

impl Cookies {
    /// For at most `capacity` open transfers.
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = vec![Slot::default(); (2 * capacity.max(1)).next_power_of_two()];
        Self { slots: slots.into_boxed_slice(), open: 0, hand: 0 }
    }

    /// Open transfers.
    pub(crate) const fn len(&self) -> usize {
        self.open
    }

    /// Adds one. The caller keeps to the capacity.
    pub(crate) fn insert(&mut self, cookie: u64) {
        debug_assert!(2 * self.open < self.slots.len(), "more transfers than the port has entries");
        let at = self.find(cookie);
        self.slots[at] = Slot { cookie, count: self.slots[at].count + 1 };
        self.open += 1;
    }

    /// Takes one out; false if there is none with this cookie.
    pub(crate) fn remove(&mut self, cookie: u64) -> bool {
        let at = self.find(cookie);
        if self.slots[at].count == 0 {
            return false;
        }
        self.slots[at].count -= 1;
        self.open -= 1;
        if self.slots[at].count == 0 {
            self.close_gap(at);
        }
        true
    }

    /// Takes out any one.
    pub(crate) fn take_any(&mut self) -> Option<u64> {
        if self.open == 0 {
            return None;
        }
        while self.slots[self.hand].count == 0 {
            self.hand = (self.hand + 1) & (self.slots.len() - 1);
        }
        let cookie = self.slots[self.hand].cookie;
        self.remove(cookie);
        Some(cookie)
    }

    /// The slot that holds `cookie`, or the free one where it would go.
    fn find(&self, cookie: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(cookie);
        while self.slots[at].count != 0 && self.slots[at].cookie != cookie {
            at = (at + 1) & mask;
        }
        at
    }

    /// Where a probe for `cookie` begins.
    fn home(&self, cookie: u64) -> usize {
        // Fibonacci hashing: cookies are often small numbers or addresses, whose entropy is in the low or middle bits.
        let hash = cookie.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    /// Moves later entries of the probe sequence up, so that no search stops at the gap.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut at = (gap + 1) & mask;
        while self.slots[at].count != 0 {
            let home = self.home(self.slots[at].cookie);
            // It may move if its home is not between the gap (exclusive) and its place.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = self.slots[at];
                self.slots[at] = Slot::default();
                gap = at;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests;
