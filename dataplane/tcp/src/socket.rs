//! The system calls on data sockets. All non-blocking; each moves a bounded number of bytes.

use core::mem::MaybeUninit;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use railhead_shm::Span;
use rustix::event::epoll;
use rustix::net::sockopt;

/// Pieces that one gathered or scattered call takes.
pub(crate) const PIECES_MAX: usize = 256;
/// Sockets that one look at the readiness of all finds at most.
const READY_MAX: usize = 64;

/// The pieces of one call. Filled and used within one call of the fabric.
pub(crate) struct Pieces {
    iovecs: Box<[libc::iovec]>,
    count: usize,
    bytes: usize,
}

// SAFETY: the addresses in `iovecs` are only ever used by the call that follows their `push`, before the fabric's own
// call returns; between calls they are leftovers that nothing reads.
unsafe impl Send for Pieces {}

impl core::fmt::Debug for Pieces {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("Pieces")
            .field("count", &self.count)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Pieces {
    pub(crate) fn new() -> Self {
        let empty = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        Self { iovecs: vec![empty; PIECES_MAX].into(), count: 0, bytes: 0 }
    }

    pub(crate) const fn clear(&mut self) {
        self.count = 0;
        self.bytes = 0;
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.count == PIECES_MAX
    }

    /// Adds memory that others may write at the same time.
    pub(crate) fn push_span(&mut self, span: Span) {
        self.push(span.iovec());
    }

    /// Adds memory of our own, to be filled by [`receive`].
    pub(crate) fn push_target(&mut self, bytes: &mut [u8]) {
        self.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    }

    /// Adds memory of our own, to be read by [`send`].
    pub(crate) fn push_source(&mut self, bytes: &[u8]) {
        self.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }

    fn push(&mut self, iovec: libc::iovec) {
        self.iovecs[self.count] = iovec;
        self.count += 1;
        self.bytes += iovec.iov_len;
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a zeroed msghdr is a valid value of this plain C struct: no name, no control, no pieces.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = self.iovecs.as_mut_ptr();
        message.msg_iovlen = self.count;
        message
    }
}

/// How a call on a socket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// So many bytes, at least 1.
    Bytes(usize),
    /// None now; the kernel tells when.
    Again,
    /// None now, and the kernel does not tell when: it was short of memory, or interrupted.
    Retry,
    /// The other side will send nothing more.
    End,
    /// A piece lies in memory that was taken away; nothing was moved.
    Fault,
    /// The connection is broken.
    Broken,
}

fn moved(result: isize) -> Moved {
    if let Ok(bytes) = usize::try_from(result) {
        return if bytes == 0 { Moved::End } else { Moved::Bytes(bytes) };
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Moved::Again,
        Some(libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => Moved::Retry,
        Some(libc::EFAULT) => Moved::Fault,
        _ => Moved::Broken,
    }
}

/// Sends the pieces, which must not be empty.
pub(crate) fn send(socket: BorrowedFd<'_>, pieces: &mut Pieces) -> Moved {
    let message = pieces.message();
    // SAFETY: the pieces are memory that is readable until this call returns: spans whose owner stands in the region
    // table, and slices borrowed by the caller. Memory that is taken away by its owner gives EFAULT.
    let result = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    moved(result)
}

/// Receives into the pieces, which must not be empty.
pub(crate) fn receive(socket: BorrowedFd<'_>, pieces: &mut Pieces) -> Moved {
    let mut message = pieces.message();
    // SAFETY: the pieces are memory that is writable until this call returns and to which no other Rust reference is
    // used meanwhile: spans whose owner stands in the region table, and slices that the caller borrowed mutably.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    moved(result)
}

/// Makes a socket fit for a lane.
///
/// No delay: frames are gathered here, and a small one must leave at once. No `TCP_QUICKACK`: answers come as records,
/// which carry the acknowledgement.
pub(crate) fn prepare(socket: BorrowedFd<'_>, send_bytes: u32, receive_bytes: u32) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    // Not for Unix sockets, which tests use.
    match sockopt::set_tcp_nodelay(socket, true) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOPROTOOPT) => {}
        Err(error) => return Err(error.into()),
    }
    if send_bytes > 0 {
        sockopt::set_socket_send_buffer_size(socket, send_bytes as usize)?;
    }
    if receive_bytes > 0 {
        sockopt::set_socket_recv_buffer_size(socket, receive_bytes as usize)?;
    }
    Ok(())
}

/// What the kernel says of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other side has finished, or the connection is broken.
    pub(crate) ended: bool,
}

/// The set of all sockets of a fabric, told of changes only (edge-triggered).
#[derive(Debug)]
pub(crate) struct ReadySet {
    epoll: OwnedFd,
}

impl ReadySet {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?;
        Ok(())
    }

    /// Takes a socket out, and ends its connection in both directions even if another process holds a duplicate.
    pub(crate) fn end(&self, socket: OwnedFd) {
        // Both fail only for a connection that is gone already.
        let _ = epoll::delete(&self.epoll, &socket);
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    }

    /// Looks, without waiting, what has changed since the last look. Takes about 100 ns when nothing has.
    pub(crate) fn look(&self, mut found: impl FnMut(Readiness)) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; READY_MAX];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&now)) else { return };
        for event in events {
            let flags = event.flags;
            let ended =
                flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            found(Readiness {
                token: event.data.u64(),
                readable: ended || flags.contains(epoll::EventFlags::IN),
                writable: ended || flags.contains(epoll::EventFlags::OUT),
                ended,
            });
        }
    }
}
