//! Random spans of time.

use railhead_core::port::Nanos;

use crate::Rng;

/// A span of time between two bounds, and now and then eight times as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// Shortest, in nanoseconds.
    pub min: Nanos,
    /// Longest in the usual case.
    pub max: Nanos,
}

impl Latency {
    /// One span.
    pub fn draw(&self, rng: &mut Rng) -> Nanos {
        let usual = rng.between(self.min, self.max);
        if rng.chance(15_000) { usual * 8 } else { usual }
    }
}
