//! The two clocks. Only the daemon reads them; everything below is handed the time.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds on the monotonic clock. No system call (vDSO); lane-safe.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds since 1970 on the wall clock. No system call (vDSO); lane-safe.
#[inline]
pub(crate) fn unix_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    // Neither clock is negative, nor past the year 2554.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
