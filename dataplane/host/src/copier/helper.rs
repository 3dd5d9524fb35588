//! The copy thread: a second thread that does a lane's larger copies while the lane makes its socket calls.
//!
//! The lane's end ([`Helper`], inside the copier) gives orders through one ring and gets them back through another; the
//! thread's end ([`CopyThread`]) does them one by one. The boxes that travel are made at construction. Memory may be
//! removed while copies are out: the thread claims each piece of a copy before it touches it, and the lane revokes those
//! claims before it gives the memory back.
//!
//! While copies come the thread polls. When none has come for a while it sleeps, and then a single copy is not worth
//! waking it: the lane does that one. The second within [`STREAM`] wakes it for those that follow.

use std::sync::Arc;

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, Nanos, RegionIndex};
use railhead_ring::{Bell, Claim, Word};
use railhead_shm::handoff::{self, Giver, Taker};
use railhead_shm::{Span, futex};

use crate::regions::{Regions, Stamped};

/// Copies that can be out at once, a power of two. More wait in the lane's own queue, and the lane does those itself.
const ORDERS: usize = 64;
/// The most that the thread moves between two looks at its claim: what a removal may have to wait for.
const PIECE_BYTES: u64 = 64 << 10;
/// Copies that follow each other faster than this are a stream, for which the thread is woken and stays awake. A lane that
/// does everything itself takes up to 100 us for a chunk of 256 KiB.
const STREAM: Nanos = 200_000;
/// Looks at an empty ring between two looks at the clock.
const LOOKS: u32 = 64;

/// Words that both ends share, each group on a line of its own.
const BELL: usize = 0;
const SPIN: usize = 8;
const STOP: usize = 9;
const CLAIMS: usize = 16;
/// Words from one claim to the next: a line.
const CLAIM_STRIDE: usize = 8;
const WORDS: usize = CLAIMS + ORDERS * CLAIM_STRIDE;
/// In [`SPIN`]: never sleep.
const FOR_EVER: u64 = u64::MAX;

#[cfg(test)]
mod tests;

type Shared = Arc<[Word]>;

/// A copy on its way to the thread or back.
#[derive(Debug, Default)]
struct Order {
    from: Span,
    to: Span,
    slot: usize,
    /// The claim was revoked before the last byte was moved.
    is_revoked: bool,
}

/// What the lane remembers of a copy that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    from: Stamped,
    to: Stamped,
    post: railhead_core::port::PostId,
}

/// The lane's end.
#[derive(Debug)]
pub struct Helper {
    shared: Shared,
    orders: Giver<Order>,
    ends: Taker<Order>,
    out: Box<[Option<Out>]>,
    /// Boxes at home; each names a free slot of `out`.
    #[expect(clippy::vec_box, reason = "the boxes are what travels")]
    idle: Vec<Box<Order>>,
    from_bytes: u32,
    /// Bytes given to the thread so far.
    bytes: u64,
    /// The time, as the lane last told it.
    now: Nanos,
    /// When the last copy came that was large enough.
    asked_at: Option<Nanos>,
}

/// The thread's end: hand it to a thread of its own and call [`CopyThread::run`] there.
#[derive(Debug)]
pub struct CopyThread {
    shared: Shared,
    orders: Taker<Order>,
    ends: Giver<Order>,
}

/// Both ends of a copy thread that takes copies of at least `from_bytes`. Allocates all that it ever needs.
#[must_use]
pub fn copy_thread(from_bytes: u32) -> (Helper, CopyThread) {
    let shared: Shared = (0..WORDS).map(|_| Word::new(0)).collect();
    let (orders, orders_taker) = handoff::channel(ORDERS);
    let (ends_giver, ends) = handoff::channel(ORDERS);
    let helper = Helper {
        shared: Arc::clone(&shared),
        orders,
        ends,
        out: vec![None; ORDERS].into(),
        idle: (0..ORDERS).map(|slot| Box::new(Order { slot, ..Order::default() })).collect(),
        from_bytes,
        bytes: 0,
        now: 0,
        asked_at: None,
    };
    (helper, CopyThread { shared, orders: orders_taker, ends: ends_giver })
}

fn claim(shared: &[Word], slot: usize) -> Claim<&[Word]> {
    let first = CLAIMS + slot * CLAIM_STRIDE;
    Claim::new(&shared[first..=first])
}

fn bell(shared: &[Word]) -> Bell<&[Word]> {
    Bell::new(&shared[BELL..=BELL]).expect("one word is a bell")
}

impl Helper {
    /// Gives a copy to the thread. False if it is for the lane itself: too small, not inside its memory, or the thread
    /// sleeps or has enough to do.
    pub(super) fn take(&mut self, copy: &Copy, regions: &Regions) -> bool {
        if copy.bytes < self.from_bytes || !self.is_awake() {
            return false;
        }
        let (from, to) = (regions.stamp(copy.from), regions.stamp(copy.to));
        let bytes = u64::from(copy.bytes);
        // Used by the thread until the end of the copy has come back; `revoke` keeps the owners in the table until then.
        let (Some(source), Some(target)) = (regions.span(from, 0, bytes), regions.span(to, 0, bytes)) else {
            return false;
        };
        let Some(mut order) = self.idle.pop() else { return false };
        let slot = order.slot;
        claim(&self.shared, slot).renew();
        (order.from, order.to, order.is_revoked) = (source, target, false);
        match self.orders.give(order) {
            Ok(()) => self.out[slot] = Some(Out { from, to, post: copy.post }),
            Err(order) => {
                debug_assert!(false, "the ring holds all boxes");
                self.idle.push(order);
                return false;
            }
        }
        self.bytes += bytes;
        self.ring();
        true
    }

    /// Whether the thread polls. If it sleeps although copies follow each other closely, it is woken, for the next one.
    fn is_awake(&mut self) -> bool {
        let last = self.asked_at.replace(self.now);
        if !bell(&self.shared).is_sleeping() {
            return true;
        }
        if last.is_some_and(|last| self.now.saturating_sub(last) < STREAM) {
            self.ring();
        }
        false
    }

    /// Tells the time.
    pub(super) const fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    fn ring(&self) {
        let bell = bell(&self.shared);
        if bell.take() {
            futex::wake(&self.shared[BELL], 1);
        }
    }

    /// Takes the next copy that ended.
    pub(super) fn next_end(&mut self, regions: &Regions) -> Option<CopyDone> {
        loop {
            let order = self.ends.take()?;
            let (out, is_revoked) = (self.out[order.slot].take(), order.is_revoked);
            self.idle.push(order);
            let Some(Out { from, to, post }) = out else {
                debug_assert!(false, "a copy came back twice");
                continue;
            };
            // After the last byte: a page lost meanwhile was replaced by zeroes, and this is the only sign of it.
            let is_lost = is_revoked || regions.is_lost(from) || regions.is_lost(to);
            return Some(CopyDone { post, status: if is_lost { Code::RegionLost } else { Code::Ok } });
        }
    }

    /// Copies that are out.
    pub(super) fn count(&self) -> usize {
        ORDERS - self.idle.len()
    }

    /// Bytes of all copies that were given to the thread so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sees to it that the thread does not touch the memory in `region` any more, nor will: copies that are out for it
    /// end as revoked. May wait until the thread has moved one piece of a copy; the engine removes memory only when
    /// nothing is posted for it, and then there is nothing to wait for.
    pub(super) fn revoke(&self, region: RegionIndex) {
        self.revoke_where(|out| out.from.place.region == region || out.to.place.region == region);
    }

    fn revoke_where(&self, is_meant: impl Fn(&Out) -> bool) {
        for (slot, out) in self.out.iter().enumerate() {
            if !out.as_ref().is_some_and(&is_meant) {
                continue;
            }
            let claim = claim(&self.shared, slot);
            if !claim.revoke() {
                while !claim.is_left() {
                    core::hint::spin_loop();
                }
            }
        }
    }

    /// How long the thread looks for copies before it sleeps, [`STREAM`] at least; `None`: it never sleeps.
    pub(super) fn set_spin(&self, spin: Option<Nanos>) {
        self.shared[SPIN].store_relaxed(spin.map_or(FOR_EVER, |spin| spin.max(STREAM)));
        self.ring();
    }
}

impl Drop for Helper {
    /// Ends the thread. The memories that copies are out for may be freed afterwards.
    fn drop(&mut self) {
        self.revoke_where(|_| true);
        // Partner: the acquire load in `CopyThread::run`.
        self.shared[STOP].store_release(1);
        self.ring();
    }
}

impl CopyThread {
    /// Does copies until the copier at the other end is dropped. `now` is the clock; `after` is called after every copy.
    ///
    /// Does not allocate, lock or log. Sleeps when it had nothing to do for as long as the copier says, and only then.
    pub fn run(mut self, now: impl Fn() -> Nanos, mut after: impl FnMut()) {
        let mut idle_since = now();
        loop {
            if let Some(order) = self.orders.take() {
                self.execute(order);
                after();
                idle_since = now();
            } else if self.is_stopped() {
                return;
            } else if !self.look() && now().saturating_sub(idle_since) >= self.shared[SPIN].load_relaxed() {
                self.sleep();
                idle_since = now();
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared[STOP].load_acquire() != 0
    }

    /// Looks for an order for a moment; whether one came.
    fn look(&self) -> bool {
        (0..LOOKS).any(|_| {
            core::hint::spin_loop();
            !self.orders.is_empty()
        })
    }

    fn sleep(&self) {
        let bell = bell(&self.shared);
        bell.prepare();
        // The second look, after the announcement: at everything that rings.
        if self.orders.is_empty() && !self.is_stopped() && self.shared[SPIN].load_relaxed() != FOR_EVER {
            // However it ends, the caller looks again.
            let _ = futex::wait(&self.shared[BELL], 1, None);
        }
        bell.end();
    }

    /// Moves the bytes of a copy piece by piece, as long as the lane lets it, and sends the order home.
    fn execute(&mut self, mut order: Box<Order>) {
        let claim = claim(&self.shared, order.slot);
        let bytes = order.from.len() as u64;
        let mut moved = 0;
        while moved < bytes {
            if !claim.enter() {
                order.is_revoked = true;
                break;
            }
            let piece = (bytes - moved).min(PIECE_BYTES);
            let (from, to) = (order.from.sub(moved, piece), order.to.sub(moved, piece));
            if let (Ok(from), Ok(to)) = (from, to) {
                from.copy_to(to);
            }
            moved += piece;
        }
        claim.leave();
        let is_given = self.ends.give(order).is_ok();
        debug_assert!(is_given, "the ring holds all boxes");
    }
}
