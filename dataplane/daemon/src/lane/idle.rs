//! The one place where a lane may wait.
//!
//! The lane announces its sleep in its word of the lanes' page, looks at every input once more, and only then waits in
//! `epoll_wait`: for its doorbell (registrar, settings), the sessions' doorbells (clients) and the fabric's sockets, until
//! the engine's next deadline at the latest. Whoever publishes something looks at the word afterwards and rings; both
//! sides have a sequentially consistent fence between their store and their look, so one of them sees the other.

use core::mem::MaybeUninit;

use railhead_abi::observe::Counter;
use railhead_core::port::Nanos;
use rustix::event::epoll;
use rustix::time::Timespec;

use super::Lane;
use crate::clock;

/// The longest sleep. A client that does not keep to the handshake can lose its own wake-ups; this bounds what it loses.
const SLEEP_MAX: Nanos = 100_000_000;
/// Ready descriptors taken at once. Which ones they are does not matter: the next turn looks at everything.
const EVENTS: usize = 16;

impl Lane<'_> {
    /// Sleeps until something happens or the next deadline, unless something waits already.
    pub(super) fn sleep(&mut self, now: Nanos, wake_at: Option<Nanos>) {
        // Figures would otherwise stay those of the moment before the last transfer ended.
        self.write_status(now);
        let left = wake_at.map_or(SLEEP_MAX, |wake_at| wake_at.saturating_sub(now).min(SLEEP_MAX));
        self.bell.prepare();
        let is_woken = if self.may_sleep() && left > 0 {
            self.engine.observe().counters.add(Counter::Sleeps as usize, 1);
            self.wait(left)
        } else {
            true
        };
        self.bell.end();
        if is_woken {
            self.idle_since = clock::monotonic_ns();
        }
        // After a time-out one turn looks at the timers; with nothing found the lane sleeps again without polling first.
    }

    /// Waits; true if a descriptor ended the wait.
    fn wait(&self, left: Nanos) -> bool {
        // Rounded up to whole milliseconds, which every kernel's call takes.
        let milliseconds = i64::try_from(left.div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        match epoll::wait(self.lanes.get(self.index).epoll(), &mut events, Some(&timeout)) {
            Ok((ready, _)) => !ready.is_empty(),
            // Interrupted: look again, as after a ring.
            Err(_) => true,
        }
    }
}
