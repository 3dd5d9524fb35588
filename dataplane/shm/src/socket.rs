//! Unix sockets that keep message boundaries and carry descriptors: the way between a process of this node and the
//! dataplane. All calls here may block; they are for registrar threads and clients, never for lanes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

#[cfg(test)]
mod tests;

/// Most descriptors in one frame: two segments and one doorbell for each of 64 lanes, with some to spare.
pub const FDS_MAX: usize = 128;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// Why a frame could not be sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// The other end is gone.
    #[error("the other end closed the socket")]
    Closed,
    /// Nothing to receive, or no room to send, on a non-blocking socket or within its timeout.
    #[error("the socket is not ready")]
    NotReady,
    /// A frame of no bytes could not be told from the end.
    #[error("a frame has at least one byte")]
    Empty,
    /// The frame had more bytes than the receiver allows.
    #[error("frame is longer than the {limit} bytes allowed")]
    Oversized {
        /// What the receiver allows.
        limit: usize,
    },
    /// More descriptors than allowed, or the receiver's own table is full.
    #[error("frame carries more descriptors than the {limit} allowed, or this process has none left")]
    Descriptors {
        /// What is allowed.
        limit: usize,
    },
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The call, as its manual page names it.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id; `None` when the peer lives in a process namespace that is not visible from here.
    pub pid: Option<u32>,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    /// How many bytes of the buffer it filled; at least one.
    pub bytes: usize,
    /// Its descriptors, closed on exec, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// Two connected ends.
///
/// # Errors
/// [`SocketError::System`].
pub fn pair() -> Result<(OwnedFd, OwnedFd), SocketError> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("socketpair"))
}

/// Listens at a path, which must not exist. Connections beyond `backlog` wait in `connect`.
///
/// # Errors
/// [`SocketError::System`]: `EADDRINUSE` when the path exists, `ENAMETOOLONG` when it has more than 107 bytes.
pub fn listen(path: &Path, backlog: u16) -> Result<OwnedFd, SocketError> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    let address = SocketAddrUnix::new(path).map_err(system("bind"))?;
    rustix::net::bind(&socket, &address).map_err(system("bind"))?;
    rustix::net::listen(&socket, i32::from(backlog)).map_err(system("listen"))?;
    Ok(socket)
}

/// Takes the next connection.
///
/// # Errors
/// [`SocketError::NotReady`] on a non-blocking listener, else [`SocketError::System`].
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, SocketError> {
    retry_on_intr(|| rustix::net::accept_with(&listener, SocketFlags::CLOEXEC)).map_err(system("accept4"))
}

/// Connects to a listener's path. Waits while too many others wait to be accepted there.
///
/// # Errors
/// [`SocketError::System`]: `ENOENT` or `ECONNREFUSED` when nobody listens, `EACCES` when this user may not.
pub fn connect(path: &Path) -> Result<OwnedFd, SocketError> {
    connect_with(path, SocketFlags::CLOEXEC)
}

/// As [`connect`], without waiting: to see whether somebody listens. The connection is non-blocking.
///
/// # Errors
/// As [`connect`]; [`SocketError::NotReady`] when too many others wait to be accepted, so that somebody does listen.
pub fn try_connect(path: &Path) -> Result<OwnedFd, SocketError> {
    connect_with(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn connect_with(path: &Path, flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    let socket = socket(flags)?;
    let address = SocketAddrUnix::new(path).map_err(system("connect"))?;
    retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(system("connect"))?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("socket"))
}

/// Who is at the other end of a connection.
///
/// # Errors
/// [`SocketError::System`] when the descriptor is not a connected Unix socket.
pub fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials, SocketError> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // Not through rustix: its process id cannot be zero, and a peer of another process namespace has zero here.
    // SAFETY: the option's type is ucred, and the kernel writes at most `bytes` bytes of it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        return Err(SocketError::System { call: "getsockopt(SO_PEERCRED)", errno });
    }
    let pid = u32::try_from(credentials.pid).ok().filter(|&pid| pid != 0);
    Ok(PeerCredentials { pid, uid: credentials.uid, gid: credentials.gid })
}

/// Sends one frame with descriptors, all or nothing. The descriptors stay the caller's.
///
/// # Errors
/// [`SocketError::Empty`], [`SocketError::Descriptors`] above [`FDS_MAX`], [`SocketError::Closed`],
/// [`SocketError::NotReady`], or [`SocketError::System`] (`EMSGSIZE`: longer than the socket's buffer).
pub fn send_frame(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
    if bytes.is_empty() {
        return Err(SocketError::Empty);
    }
    if fds.len() > FDS_MAX {
        return Err(SocketError::Descriptors { limit: FDS_MAX });
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "the space is for FDS_MAX descriptors");
    }
    // NOSIGNAL: a peer that went away is an error, not a signal to the whole process.
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    });
    sent.map(drop).map_err(system("sendmsg"))
}

/// Receives one frame into `buffer`, with at most `fds_max` descriptors.
///
/// # Errors
/// [`SocketError::Closed`] at the end; [`SocketError::Oversized`] and [`SocketError::Descriptors`] for a frame that does
/// not keep to the limits (it is consumed and its descriptors are closed; the connection should be, too);
/// [`SocketError::NotReady`], [`SocketError::System`].
pub fn recv_frame(socket: impl AsFd, buffer: &mut [u8], fds_max: usize) -> Result<Frame, SocketError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut *buffer)];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(system("recvmsg"))?;
    // Whatever arrived is owned from here on, so every return closes what it does not pass on.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            fds.extend(arrived);
        }
    }
    // The space has slack for alignment, so one more than FDS_MAX can arrive without CTRUNC.
    let limit = fds_max.min(FDS_MAX);
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > limit {
        return Err(SocketError::Descriptors { limit });
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(SocketError::Oversized { limit: buffer.len() });
    }
    if received.bytes == 0 {
        return Err(SocketError::Closed);
    }
    Ok(Frame { bytes: received.bytes, fds })
}

const fn system(call: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| match errno {
        Errno::AGAIN => SocketError::NotReady,
        Errno::PIPE | Errno::CONNRESET => SocketError::Closed,
        errno => SocketError::System { call, errno },
    }
}
