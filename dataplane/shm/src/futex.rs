//! Sleeping on a shared word until another process changes it.
//!
//! The kernel compares and sleeps on 32 bits; these calls use the low half of a [`Word`], and the shared (not the
//! process-private) kind of futex, because the waker is another process.

use core::time::Duration;

use railhead_ring::sync::Word;

#[cfg(test)]
mod tests;

// The low half of a word is its first four bytes.
const _: () = assert!(cfg!(target_endian = "little"), "shared memory layouts are little-endian");

/// How a wait ended. In every case the caller looks at the word again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Somebody called [`wake`] (or the kernel woke for no reason, which it may).
    Woken,
    /// The word did not hold the expected value: nobody slept.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while the low half of `word` is `expected`, at most for `timeout` (for ever without one).
///
/// # Panics
/// When the kernel has no futexes, or the word is in memory that they don't work on: both are bugs of the caller.
pub fn wait(word: &Word, expected: u32, timeout: Option<Duration>) -> Wait {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `word` is 8 live bytes aligned to 8, whose first four the kernel reads; `timeout` is null or points to a
    // timespec that outlives the call; the remaining arguments are ignored by FUTEX_WAIT.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, expected, timeout, 0, 0) };
    if result == 0 {
        return Wait::Woken;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Wait::Changed,
        Some(libc::ETIMEDOUT) => Wait::TimedOut,
        Some(libc::EINTR) => Wait::Interrupted,
        other => panic!("futex wait on a word failed: {other:?}"),
    }
}

/// Wakes up to `count` sleepers on `word` and returns how many. Never blocks; costs a system call, so only call it when
/// a sleeper announced itself.
///
/// A word in memory that the other side has destroyed wakes nobody: the kernel's refusal is not an error here.
pub fn wake(word: &Word, count: u32) -> usize {
    // The kernel takes a signed number.
    let count = count.min(i32::MAX.unsigned_abs());
    // SAFETY: FUTEX_WAKE uses the address only as a key and checks that it is mapped; the rest is ignored.
    let result = unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, count, 0, 0, 0) };
    usize::try_from(result).unwrap_or(0)
}

fn low_half(word: &Word) -> *const u32 {
    core::ptr::from_ref(word).cast()
}
