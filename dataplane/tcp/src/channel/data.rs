//! Data connections: a stream of its own for each, bound to a channel by a code that is good once.
//!
//! The code is HMAC-BLAKE2s over all that the hello says, keyed with the handshake digest of the channel. The digest
//! depends on the cluster key, so whoever only watched the handshake cannot compute it.

use std::net::TcpStream;
use std::time::Duration;

use railhead_abi::frame::{DataHello, Empty, FRAME_BYTES_MAX, Frame, PREFIX_WORDS, Refused};
use railhead_abi::{Code, PROTOCOL_MAJOR};

use super::deadline::Deadline;
use super::error::ChannelError;
use super::{connect, decode, noise};

/// Bytes of the frozen prefix.
const PREFIX_BYTES: usize = 8 * PREFIX_WORDS;
/// Words of the hello in front of its code.
const SIGNED_WORDS: usize = 4;
/// So that this digest can never be taken for another one made with the same key.
const DOMAIN: &[u8; 16] = b"railhead data 1\0";

fn code_of(hash: &[u8; 32], hello: &DataHello, by_initiator: bool) -> [u64; 4] {
    let unsigned = DataHello { mac: [0; 4], ..*hello };
    let mut data = [0; DOMAIN.len() + 8 * SIGNED_WORDS + 1];
    data[..DOMAIN.len()].copy_from_slice(DOMAIN);
    for (chunk, word) in data[DOMAIN.len()..].chunks_exact_mut(8).zip(&unsigned.encode()[..SIGNED_WORDS]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    // Each direction has codes of its own, so that none can be sent back to its maker.
    data[DOMAIN.len() + 8 * SIGNED_WORDS] = u8::from(by_initiator);
    let digest = noise::keyed_digest(hash, &data);
    let mut code = [0; 4];
    for (word, chunk) in code.iter_mut().zip(digest.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    code
}

/// Makes hellos for data connections to the other end of a channel.
#[derive(Debug)]
pub struct DataSigner {
    hash: [u8; 32],
    token: u64,
    by_initiator: bool,
    attempt: u32,
}

impl DataSigner {
    pub(super) const fn new(hash: [u8; 32], token: u64, by_initiator: bool) -> Self {
        Self { hash, token, by_initiator, attempt: 0 }
    }

    /// A hello for one attempt; each call makes another one. `serves`: the connection is for reads of who dials.
    ///
    /// # Panics
    /// After four billion attempts on one channel.
    pub fn sign(&mut self, lane: u32, target_lane: u32, class: u32, serves: bool) -> DataHello {
        self.attempt = self.attempt.checked_add(1).expect("fewer attempts than u32 counts");
        let (token, attempt) = (self.token, self.attempt);
        let serves = u32::from(serves);
        let mut hello = DataHello { token, lane, target_lane, class, attempt, serves, mac: [0; 4] };
        hello.mac = code_of(&self.hash, &hello, self.by_initiator);
        hello
    }
}

/// Attempts behind the newest that may still come, since attempts are made side by side.
const WINDOW: u32 = 128;

/// Verifies hellos of data connections from the other end of a channel.
#[derive(Debug)]
pub struct DataVerifier {
    hash: [u8; 32],
    token: u64,
    by_initiator: bool,
    newest: u32,
    /// Bit n: attempt `newest - n` was used.
    used: u128,
}

impl DataVerifier {
    pub(super) const fn new(hash: [u8; 32], token: u64, by_initiator: bool) -> Self {
        Self { hash, token, by_initiator, newest: 0, used: 1 }
    }

    /// The token that says which channel a hello belongs to.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Whether this hello was made by the other end of this channel and was not verified before.
    ///
    /// # Errors
    /// [`Code::KeyMismatch`]: drop the stream, say nothing.
    pub fn verify(&mut self, hello: &DataHello) -> Result<(), Code> {
        let expected = code_of(&self.hash, hello, self.by_initiator);
        // All words are looked at, so that time tells nothing about the first that differs.
        let difference = expected.iter().zip(&hello.mac).fold(0, |sum, (ours, theirs)| sum | (ours ^ theirs));
        if core::hint::black_box(difference) != 0 || hello.token != self.token {
            return Err(Code::KeyMismatch);
        }
        self.use_up(hello.attempt)
    }

    fn use_up(&mut self, attempt: u32) -> Result<(), Code> {
        if let Some(ahead) = attempt.checked_sub(self.newest).filter(|ahead| *ahead > 0) {
            self.used = self.used.checked_shl(ahead).unwrap_or(0) | 1;
            self.newest = attempt;
            return Ok(());
        }
        let behind = self.newest - attempt;
        if behind >= WINDOW || self.used >> behind & 1 == 1 {
            return Err(Code::KeyMismatch);
        }
        self.used |= 1 << behind;
        Ok(())
    }
}

/// Opens a data connection with a fresh hello; the returned stream is where the first frame of either fabric goes.
///
/// # Errors
/// [`ChannelError::Connect`], [`ChannelError::Timeout`], [`ChannelError::Closed`] when the hello was not accepted,
/// [`ChannelError::Refused`] when it was, and the connection not.
pub fn dial_data(address: &str, hello: &DataHello, timeout: Duration) -> Result<TcpStream, ChannelError> {
    let deadline = Deadline::after(timeout);
    let mut stream = connect(address, deadline)?;
    write_frame(&mut stream, &Frame::DataHello(*hello), deadline)?;
    match read_frame(&mut stream, &[], deadline)? {
        Frame::DataReady(_) => Ok(stream),
        Frame::Refused(refused) => Err(ChannelError::Refused(Box::new(refused))),
        _ => Err(ChannelError::Malformed),
    }
}

/// A data connection that has said its hello.
#[derive(Debug)]
pub struct DataKnock {
    stream: TcpStream,
    hello: DataHello,
}

impl DataKnock {
    pub(super) fn read(
        mut stream: TcpStream,
        first: [u8; 4],
        deadline: Deadline,
    ) -> Result<Self, ChannelError> {
        match read_frame(&mut stream, &first, deadline)? {
            Frame::DataHello(hello) => Ok(Self { stream, hello }),
            _ => Err(ChannelError::Malformed),
        }
    }

    /// What it says. Find the [`DataVerifier`] by its token, and let that judge.
    #[must_use]
    pub const fn hello(&self) -> &DataHello {
        &self.hello
    }

    /// Accepts it, after it was verified: tells the other side, and gives the stream for a fabric.
    ///
    /// # Errors
    /// [`ChannelError::Timeout`], [`ChannelError::Closed`].
    pub fn ready(mut self, timeout: Duration) -> Result<TcpStream, ChannelError> {
        write_frame(&mut self.stream, &Frame::DataReady(Empty::default()), Deadline::after(timeout))?;
        Ok(self.stream)
    }

    /// Says no, after it was verified. A stranger is not told anything: drop it instead.
    pub fn refuse(mut self, refused: &Refused, timeout: Duration) {
        // If it cannot be told, the end of the stream says it.
        let _ = write_frame(&mut self.stream, &Frame::Refused(*refused), Deadline::after(timeout));
    }
}

fn write_frame(stream: &mut TcpStream, frame: &Frame, deadline: Deadline) -> Result<(), ChannelError> {
    let (bytes, length) = frame.encode(PROTOCOL_MAJOR);
    deadline.write(stream, &bytes[..length])
}

/// Reads one frame and not a byte more; `first` was read before.
fn read_frame(stream: &mut TcpStream, first: &[u8], deadline: Deadline) -> Result<Frame, ChannelError> {
    let mut bytes = [0; FRAME_BYTES_MAX];
    bytes[..first.len()].copy_from_slice(first);
    deadline.read(stream, &mut bytes[first.len()..PREFIX_BYTES])?;
    let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if !(PREFIX_BYTES..=FRAME_BYTES_MAX).contains(&length) {
        return Err(ChannelError::Malformed);
    }
    deadline.read(stream, &mut bytes[PREFIX_BYTES..length])?;
    decode(&bytes[..length])
}
