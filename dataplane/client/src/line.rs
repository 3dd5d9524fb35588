//! The session's socket: requests, and whether the dataplane is still there.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railhead_abi::ABI_VERSION;
use railhead_abi::frame::{FRAME_BYTES_MAX, Frame, Release};
use railhead_shm::Word;
use railhead_shm::socket::{self, SocketError};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::SessionError;

/// The session's version on the socket.
#[expect(clippy::cast_possible_truncation, reason = "checked by the assertion below")]
const VERSION: u16 = ABI_VERSION as u16;
const _: () = assert!(ABI_VERSION <= u16::MAX as u32);

/// The socket: one request and its answer at a time.
#[derive(Debug)]
pub(crate) struct Line {
    connection: OwnedFd,
    timeout: Duration,
    /// False once an answer did not come in time: a later one would be taken for the wrong request's.
    in_step: Mutex<bool>,
    /// 1 once the dataplane is known to be gone.
    lost: Word,
}

impl Line {
    /// Connects to the dataplane that listens at `path`; it has `timeout` for each answer.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Self, SessionError> {
        let connection = socket::connect(path)
            .map_err(|source| SessionError::Absent { path: PathBuf::from(path), source })?;
        for which in [Timeout::Recv, Timeout::Send] {
            // A timeout of zero would mean none at all.
            let timeout = timeout.max(Duration::from_millis(1));
            set_socket_timeout(&connection, which, Some(timeout)).map_err(|errno| {
                SessionError::Socket(SocketError::System { call: "setsockopt(SO_RCVTIMEO)", errno })
            })?;
        }
        Ok(Self { connection, timeout, in_step: Mutex::new(true), lost: Word::new(0) })
    }

    /// The dataplane broke the rules of the shared memory: what it says is not to be used any more.
    pub(crate) fn condemn(&self) {
        self.lost.store_release(1);
    }

    pub(crate) fn request(
        &self,
        frame: &Frame,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Frame, Vec<OwnedFd>), SessionError> {
        let mut in_step = lock(&self.in_step);
        if self.is_lost() {
            return Err(SessionError::DataplaneLost);
        }
        if !*in_step {
            return Err(SessionError::TimedOut(self.timeout));
        }
        let (bytes, count) = frame.encode(VERSION);
        // Out of step until the whole exchange is over, whichever way this function is left.
        *in_step = false;
        match socket::send_frame(&self.connection, &bytes[..count], fds) {
            // A refusal may lie in the socket although it is closed for sending.
            Ok(()) | Err(SocketError::Closed) => {}
            Err(error) => return Err(self.failed(error)),
        }
        let mut buffer = [0; FRAME_BYTES_MAX];
        let answer = socket::recv_frame(&self.connection, &mut buffer, socket::FDS_MAX);
        let answer = answer.map_err(|error| self.failed(error))?;
        *in_step = true;
        match Frame::decode(VERSION, &buffer[..answer.bytes]) {
            Ok(Frame::Refused(refused)) => Err(SessionError::refused(&refused)),
            Ok(frame) => Ok((frame, answer.fds)),
            Err(code) => Err(SessionError::Version { code }),
        }
    }

    pub(crate) fn release(&self, release: Release) -> Result<(), SessionError> {
        match self.request(&Frame::Release(release), &[])? {
            (Frame::Released(_), _) => Ok(()),
            _ => Err(SessionError::Answer { what: "it does not follow the release" }),
        }
    }

    fn failed(&self, error: SocketError) -> SessionError {
        match error {
            SocketError::Closed => {
                self.lost.store_release(1);
                SessionError::DataplaneLost
            }
            SocketError::NotReady => SessionError::TimedOut(self.timeout),
            error => SessionError::Socket(error),
        }
    }

    /// Whether it is known to be gone: one load.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // Partner: the release stores of `lost`. The kernel reported the end after the dataplane's last store.
        self.lost.load_acquire() != 0
    }

    /// Asks the kernel whether it is gone.
    pub(crate) fn look(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        let mut wanted = [PollFd::new(&self.connection, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // A failed poll says nothing: the next one will.
        let polled = rustix::event::poll(&mut wanted, Some(&now));
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        if polled.is_ok() && wanted[0].revents().intersects(ended) {
            self.lost.store_release(1);
        }
        self.is_lost()
    }
}

/// Locks; nothing under the locks of this crate is left half-done by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
