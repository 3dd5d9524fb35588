//! Waiting with a bound.

use std::time::{Duration, Instant};

/// Between two looks.
const POLL: Duration = Duration::from_millis(5);

/// Looks until there is something, at most `limit` long.
///
/// # Panics
/// If there is nothing in time, naming `what` was waited for.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    match within(limit, &mut look) {
        Some(found) => found,
        None => panic!("not within {limit:?}: {what}"),
    }
}

/// As [`until`], without the panic.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(POLL);
    }
}
