//! Pauses between attempts: doubling, bounded, and never in step with another node's.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(2);

/// The pauses of one peer.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    state: u64,
}

impl Backoff {
    /// Pauses whose jitter follows from `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { pause: FIRST, state: seed | 1 }
    }

    /// The attempt succeeded: the next pause is short again.
    pub(crate) const fn reset(&mut self) {
        self.pause = FIRST;
    }

    /// The next pause: between half and all of one that doubles each time.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.pause;
        self.pause = (whole * 2).min(LAST);
        // A xorshift step: the pauses need not be unpredictable, only different.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let share = u32::try_from(self.state % 512).unwrap_or(0);
        whole / 2 + whole / 1024 * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_again() {
        let mut backoff = Backoff::new(7);
        let pauses: Vec<Duration> = (0..12).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST);
        assert!(pauses.iter().all(|pause| *pause <= LAST));
        assert!(pauses[11] >= LAST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }

    #[test]
    fn two_nodes_do_not_pause_alike() {
        let mut one = Backoff::new(1);
        let mut other = Backoff::new(2);
        assert!((0..8).any(|_| one.next() != other.next()));
    }
}
