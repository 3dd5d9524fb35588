//! The clock of a simulation: it goes only when it is told to.

use std::cell::Cell;
use std::rc::Rc;

use railhead_core::port::Nanos;

/// A monotonic clock in nanoseconds. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    now: Rc<Cell<Nanos>>,
}

impl SimClock {
    /// A clock at 1 ms, so that no moment is zero.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Rc::new(Cell::new(1_000_000)) }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// Goes on by `nanos` and returns the time.
    pub fn pass(&self, nanos: Nanos) -> Nanos {
        self.now.set(self.now.get() + nanos);
        self.now.get()
    }
}
