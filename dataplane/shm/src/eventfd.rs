//! Doorbells that a lane can wait on together with its sockets.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::{self, Errno};

/// Makes a doorbell: non-blocking and closed on exec.
///
/// # Errors
/// The error of `eventfd(2)`: no descriptors left.
pub fn create() -> io::Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings. Never blocks on a descriptor from [`create`] that nobody else holds: with one that a client also holds, the
/// client could clear `O_NONBLOCK` and fill the counter, so the dataplane never calls this on those.
///
/// # Errors
/// Any error except that the counter is full: then the bell is ringing already.
pub fn ring(bell: impl AsFd) -> io::Result<()> {
    match io::retry_on_intr(|| io::write(&bell, &1u64.to_ne_bytes())) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Silences the bell and returns how often it was rung since the last time (0: not at all). For own bells only, as
/// [`ring`].
///
/// # Errors
/// Any error except that the bell was silent.
pub fn drain(bell: impl AsFd) -> io::Result<u64> {
    let mut count = [0; 8];
    match io::retry_on_intr(|| io::read(&bell, &mut count)) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_counted_and_drained() {
        let bell = create().unwrap();
        assert_eq!(drain(&bell), Ok(0));
        ring(&bell).unwrap();
        ring(&bell).unwrap();
        assert_eq!(drain(&bell), Ok(2));
        assert_eq!(drain(&bell), Ok(0));
    }

    #[test]
    fn full_bell_does_not_block() {
        let bell = create().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(ring(&bell), Ok(()));
        assert_eq!(drain(&bell), Ok(u64::MAX - 1));
    }

    #[test]
    fn other_errors_are_passed_on() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(ring(&file), Err(Errno::BADF));
    }
}
