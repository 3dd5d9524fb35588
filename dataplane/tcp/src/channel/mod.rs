//! The authenticated channel between two nodes, and the sockets of data connections that are bound to it.
//!
//! One TCP stream per pair of nodes carries Noise `NNpsk0` keyed with the cluster key: whoever does not hold it is cut
//! off after the first message and is sent nothing. Inside travel frames of [`railhead_abi::frame`]. Data connections are
//! streams of their own; each begins with a [`DataHello`](railhead_abi::frame::DataHello) whose code only the two ends of
//! a channel can compute, and which is accepted once. Their payload is *not* encrypted.
//!
//! Blocking code for ordinary threads, never for a lane. Every call has a deadline.
//!
//! ```text
//! dialler:  dial(address, keys)                    -> Channel -> greet -> split
//! acceptor: admit(stream) -> Incoming::Channel(k)  -> k.accept(keys) -> Channel -> greet -> split
//!                         -> Incoming::Data(d)     -> DataVerifier::verify(d.hello()) -> d.ready() -> socket
//! dialler:  DataSigner::sign(lane, ...) -> dial_data(address, hello) -> socket
//! ```

mod data;
mod deadline;
mod error;
mod noise;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use railhead_abi::frame::{FRAME_BYTES_MAX, Frame, NodeHello, Refused};
use railhead_abi::{Code, PROTOCOL_MAJOR};

pub use data::{DataKnock, DataSigner, DataVerifier, dial_data};
pub use error::ChannelError;
pub use noise::Keys;

use deadline::{Deadline, Inbox};
use noise::{MESSAGE_BYTES_MAX, Transport};

#[cfg(test)]
mod tests;

/// First bytes of a frame of ours; a handshake begins with a length that can never be these.
const FRAME_MAGIC: [u8; 4] = railhead_abi::frame::MAGIC.to_le_bytes();

/// Connects to the first address that answers.
fn connect(address: &str, deadline: Deadline) -> Result<TcpStream, ChannelError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs().map_err(ChannelError::Connect)? {
        match TcpStream::connect_timeout(&address, deadline.left()?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(ChannelError::Connect(last))
}

/// Opens a channel to the node at `address` (`HOST:PORT`; a name is resolved by the system, which has time limits of its
/// own) with the first of `keys`.
///
/// # Errors
/// [`ChannelError::Connect`], [`ChannelError::Timeout`], or [`ChannelError::KeyMismatch`] when the other side does not
/// answer as a holder of the key.
pub fn dial(address: &str, keys: &Keys, timeout: Duration) -> Result<Channel, ChannelError> {
    let deadline = Deadline::after(timeout);
    let mut stream = connect(address, deadline)?;
    let transport = noise::initiate(&mut stream, keys, deadline)?;
    Channel::new(stream, transport)
}

/// What came in at the node's address.
#[derive(Debug)]
pub enum Incoming {
    /// Somebody who wants a channel and has yet to show that it holds the key.
    Channel(ChannelKnock),
    /// A data connection whose code has yet to be verified.
    Data(DataKnock),
}

/// Reads the first bytes of an accepted stream, and tells what it wants to be.
///
/// # Errors
/// [`ChannelError::Timeout`], [`ChannelError::Closed`], [`ChannelError::Malformed`]: drop the stream, say nothing.
pub fn admit(mut stream: TcpStream, timeout: Duration) -> Result<Incoming, ChannelError> {
    let deadline = Deadline::after(timeout);
    // Linux does not hand the listener's mode on; others do.
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut first = [0; 4];
    deadline.read(&mut stream, &mut first)?;
    if first == FRAME_MAGIC {
        Ok(Incoming::Data(DataKnock::read(stream, first, deadline)?))
    } else {
        Ok(Incoming::Channel(ChannelKnock { stream, first }))
    }
}

/// Accepts one stream and, if it is one, its channel: for tests and simple callers. See [`admit`].
///
/// # Errors
/// As [`admit`] and [`ChannelKnock::accept`]; [`ChannelError::Malformed`] for a data connection.
pub fn accept(listener: &TcpListener, keys: &Keys, timeout: Duration) -> Result<Channel, ChannelError> {
    let (stream, _) = listener.accept()?;
    match admit(stream, timeout)? {
        Incoming::Channel(knock) => knock.accept(keys, timeout),
        Incoming::Data(_) => Err(ChannelError::Malformed),
    }
}

/// Somebody who wants a channel.
#[derive(Debug)]
pub struct ChannelKnock {
    stream: TcpStream,
    first: [u8; 4],
}

impl ChannelKnock {
    /// Answers the handshake if the other side holds one of `keys`; else drops the stream without a word.
    ///
    /// That the other side is alive, and not a replay of an old first message, is shown by its first frame: send nothing
    /// that matters before it came ([`Channel::greet`] does that).
    ///
    /// # Errors
    /// [`ChannelError::KeyMismatch`], [`ChannelError::Timeout`], [`ChannelError::Closed`].
    pub fn accept(mut self, keys: &Keys, timeout: Duration) -> Result<Channel, ChannelError> {
        let transport = noise::respond(&mut self.stream, self.first, keys, Deadline::after(timeout))?;
        Channel::new(self.stream, transport)
    }
}

/// A channel whose other end holds the cluster key.
#[derive(Debug)]
pub struct Channel {
    sender: Sender,
    receiver: Receiver,
}

impl Channel {
    fn new(stream: TcpStream, transport: Transport) -> Result<Self, ChannelError> {
        let transport = Arc::new(transport);
        let second = stream.try_clone()?;
        let sender = Sender { stream: second, transport: Arc::clone(&transport), nonce: 0, is_broken: false };
        let receiver = Receiver { stream, transport, nonce: 0, inbox: Inbox::new(MESSAGE_BYTES_MAX) };
        Ok(Self { sender, receiver })
    }

    /// Sends a frame. See [`Sender::send`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send(&mut self, frame: &Frame, timeout: Duration) -> Result<(), ChannelError> {
        self.sender.send(frame, timeout)
    }

    /// Waits for a frame. See [`Receiver::recv`].
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub fn recv(&mut self, timeout: Duration) -> Result<Frame, ChannelError> {
        self.receiver.recv(timeout)
    }

    /// Digest of the handshake: the same at both ends, different on every channel, and not to be computed without the
    /// cluster key.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        self.sender.transport.hash
    }

    /// Whether this end dialled.
    #[must_use]
    pub fn is_initiator(&self) -> bool {
        self.sender.transport.is_initiator
    }

    /// The other end's address.
    ///
    /// # Errors
    /// The error of `getpeername(2)`.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.receiver.stream.peer_addr()
    }

    /// Exchanges hellos, the dialler's first, and checks versions. `judge` looks at the other side's hello; a
    /// refusal is sent there.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] by either side, with [`Code::MajorMismatch`] for another major version; else as
    /// [`Receiver::recv`].
    pub fn greet(
        &mut self,
        ours: &NodeHello,
        timeout: Duration,
        judge: impl FnOnce(&NodeHello) -> Option<Refused>,
    ) -> Result<NodeHello, ChannelError> {
        let deadline = Deadline::after(timeout);
        if self.is_initiator() {
            self.send(&Frame::NodeHello(*ours), deadline.left()?)?;
        }
        let theirs = match self.recv(deadline.left()?) {
            Ok(Frame::NodeHello(hello)) if hello.major == PROTOCOL_MAJOR => hello,
            Ok(Frame::NodeHello(hello)) => {
                return Err(self.refuse_version(PROTOCOL_MAJOR, hello.major, deadline));
            }
            Ok(Frame::Refused(refused)) => return Err(ChannelError::Refused(Box::new(refused))),
            Ok(_) => return Err(ChannelError::Malformed),
            Err(ChannelError::Version { theirs }) => {
                return Err(self.refuse_version(theirs, theirs, deadline));
            }
            Err(error) => return Err(error),
        };
        if let Some(refused) = judge(&theirs) {
            self.send(&Frame::Refused(refused), deadline.left()?)?;
            return Err(ChannelError::Refused(Box::new(refused)));
        }
        if !self.is_initiator() {
            self.send(&Frame::NodeHello(*ours), deadline.left()?)?;
        }
        Ok(theirs)
    }

    /// Says no in the version that the other side's frame had: prefix and refusal have the same layout in every version.
    fn refuse_version(&mut self, framed: u16, theirs: u16, deadline: Deadline) -> ChannelError {
        let mut refused = Refused::because(Code::MajorMismatch, "version");
        refused.figure = u64::from(PROTOCOL_MAJOR);
        let sent =
            deadline.left().and_then(|left| self.sender.send_as(framed, &Frame::Refused(refused), left));
        refused.figure = u64::from(theirs);
        // If it cannot be told, it is not told; ours is the same outcome.
        sent.map_or_else(|error| error, |()| ChannelError::Refused(Box::new(refused)))
    }

    /// Makes data connections to the other end, whose hello held `token`.
    #[must_use]
    pub fn data_signer(&self, token: u64) -> DataSigner {
        DataSigner::new(self.hash(), token, self.is_initiator())
    }

    /// Verifies data connections from the other end, which was sent `token` in our hello.
    #[must_use]
    pub fn data_verifier(&self, token: u64) -> DataVerifier {
        DataVerifier::new(self.hash(), token, !self.is_initiator())
    }

    /// The two directions, for two threads.
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a channel.
#[derive(Debug)]
pub struct Sender {
    stream: TcpStream,
    transport: Arc<Transport>,
    nonce: u64,
    is_broken: bool,
}

impl Sender {
    /// Sends a frame, whole or not at all: after an error the channel is of no more use.
    ///
    /// # Errors
    /// [`ChannelError::Timeout`], [`ChannelError::Closed`], [`ChannelError::Io`].
    pub fn send(&mut self, frame: &Frame, timeout: Duration) -> Result<(), ChannelError> {
        self.send_as(PROTOCOL_MAJOR, frame, timeout)
    }

    fn send_as(&mut self, version: u16, frame: &Frame, timeout: Duration) -> Result<(), ChannelError> {
        if self.is_broken {
            return Err(ChannelError::Closed);
        }
        let (bytes, length) = frame.encode(version);
        let mut message = [0; MESSAGE_BYTES_MAX];
        let length = self.transport.seal(self.nonce, &bytes[..length], &mut message)?;
        self.nonce += 1;
        let sent = Deadline::after(timeout).write(&mut self.stream, &message[..length]);
        // Part of the message may be on its way: nothing can follow it.
        self.is_broken = sent.is_err();
        sent
    }

    /// Ends the channel in both directions; wakes a thread that waits in [`Receiver::recv`].
    pub fn shutdown(&self) {
        // Fails only when it has ended already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Drop for Sender {
    /// So that the other half's thread, and the other node, notice.
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The receiving half of a channel.
#[derive(Debug)]
pub struct Receiver {
    stream: TcpStream,
    transport: Arc<Transport>,
    nonce: u64,
    inbox: Inbox,
}

impl Receiver {
    /// Waits for a frame. A timeout loses nothing: part of a message is kept for the next call.
    ///
    /// # Errors
    /// [`ChannelError::Timeout`]; [`ChannelError::Closed`] after which nothing more comes; [`ChannelError::Version`] and
    /// [`ChannelError::Malformed`] for a frame that this version does not know, or bytes that nobody with the key sent.
    pub fn recv(&mut self, timeout: Duration) -> Result<Frame, ChannelError> {
        let message = self.inbox.read(&mut self.stream, Deadline::after(timeout))?;
        let mut bytes = [0; FRAME_BYTES_MAX];
        let length = self.transport.open(self.nonce, message, &mut bytes)?;
        self.nonce += 1;
        self.inbox.clear();
        decode(&bytes[..length])
    }
}

/// Reads a frame that came from another node.
fn decode(bytes: &[u8]) -> Result<Frame, ChannelError> {
    match Frame::decode(PROTOCOL_MAJOR, bytes) {
        Ok(frame) => Ok(frame),
        Err(Code::VersionMismatch) => {
            Err(ChannelError::Version { theirs: u16::from_le_bytes([bytes[4], bytes[5]]) })
        }
        Err(_) => Err(ChannelError::Malformed),
    }
}
