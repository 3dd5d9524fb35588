//! Noise: `NNpsk0` with the cluster key. No node has a key pair; holding the cluster key is what makes a node a member.

use core::fmt;
use std::net::TcpStream;

use railhead_abi::frame::FRAME_BYTES_MAX;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState, StatelessTransportState};

use super::deadline::{Deadline, Inbox, LENGTH_BYTES};
use super::error::ChannelError;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Mixed into every handshake, so that no other protocol with the same key can be confused with this one.
const PROLOGUE: &[u8] = b"railhead channel";
/// Bytes that sealing adds.
const TAG_BYTES: usize = 16;
/// A handshake message: an ephemeral public key and a tag.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// The largest message with its length in front.
pub(super) const MESSAGE_BYTES_MAX: usize = LENGTH_BYTES + FRAME_BYTES_MAX + TAG_BYTES;

/// The cluster keys that a node accepts. To change the key: give every node the new one as its second, then as its first
/// with the old one as its second, then alone.
#[derive(Clone)]
pub struct Keys {
    first: [u8; 32],
    second: Option<[u8; 32]>,
}

impl Keys {
    /// One key.
    #[must_use]
    pub const fn new(first: [u8; 32]) -> Self {
        Self { first, second: None }
    }

    /// Also accepts a second one from nodes that dial; this node dials with its first.
    #[must_use]
    pub const fn and(self, second: [u8; 32]) -> Self {
        Self { first: self.first, second: Some(second) }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keys").field("second", &self.second.is_some()).finish_non_exhaustive()
    }
}

/// Both directions' ciphers. Shared by the two halves, each with a count of its own.
pub(super) struct Transport {
    state: StatelessTransportState,
    pub(super) hash: [u8; 32],
    pub(super) is_initiator: bool,
}

impl fmt::Debug for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Transport").field("is_initiator", &self.is_initiator).finish_non_exhaustive()
    }
}

impl Transport {
    fn new(handshake: HandshakeState) -> Result<Self, ChannelError> {
        let is_initiator = handshake.is_initiator();
        let hash = handshake.get_handshake_hash().try_into().map_err(|_| ChannelError::Malformed)?;
        let state = handshake.into_stateless_transport_mode().map_err(|_| ChannelError::KeyMismatch)?;
        Ok(Self { state, hash, is_initiator })
    }

    /// Puts a sealed message with its length into `message`; returns its bytes.
    pub(super) fn seal(&self, nonce: u64, bytes: &[u8], message: &mut [u8]) -> Result<usize, ChannelError> {
        let sealed = self.state.write_message(nonce, bytes, &mut message[LENGTH_BYTES..]);
        let length = sealed.map_err(|_| ChannelError::Malformed)?;
        put_length(message, length);
        Ok(LENGTH_BYTES + length)
    }

    /// Opens a message; returns the bytes of what was in it.
    pub(super) fn open(&self, nonce: u64, message: &[u8], bytes: &mut [u8]) -> Result<usize, ChannelError> {
        self.state.read_message(nonce, message, bytes).map_err(|_| ChannelError::Malformed)
    }
}

fn put_length(message: &mut [u8], length: usize) {
    #[expect(clippy::cast_possible_truncation, reason = "at most MESSAGE_BYTES_MAX")]
    let length = length as u16;
    message[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn builder(key: &[u8; 32]) -> Builder<'_> {
    let params = PATTERN.parse().expect("the pattern is one that snow has");
    let builder = Builder::new(params).psk(0, key).and_then(|builder| builder.prologue(PROLOGUE));
    builder.expect("each is set once")
}

/// The dialler's side of the handshake.
pub(super) fn initiate(
    stream: &mut TcpStream,
    keys: &Keys,
    deadline: Deadline,
) -> Result<Transport, ChannelError> {
    let mut handshake = builder(&keys.first).build_initiator().expect("NN needs no key pair");
    let mut message = [0; LENGTH_BYTES + HANDSHAKE_BYTES];
    let length =
        handshake.write_message(&[], &mut message[LENGTH_BYTES..]).map_err(|_| ChannelError::Malformed)?;
    put_length(&mut message, length);
    deadline.write(stream, &message[..LENGTH_BYTES + length])?;
    let mut inbox = Inbox::new(MESSAGE_BYTES_MAX);
    let answer = match inbox.read(stream, deadline) {
        Ok(answer) => answer,
        // Whoever does not hold the key says nothing of the protocol.
        Err(ChannelError::Closed | ChannelError::Malformed) => return Err(ChannelError::KeyMismatch),
        Err(error) => return Err(error),
    };
    handshake.read_message(answer, &mut []).map_err(|_| ChannelError::KeyMismatch)?;
    Transport::new(handshake)
}

/// The acceptor's side, with the first bytes already read. Writes nothing before the other side has shown a key.
pub(super) fn respond(
    stream: &mut TcpStream,
    first: [u8; 4],
    keys: &Keys,
    deadline: Deadline,
) -> Result<Transport, ChannelError> {
    let mut inbox = Inbox::starting_with(LENGTH_BYTES + HANDSHAKE_BYTES, &first);
    let asked = match inbox.read(stream, deadline) {
        Err(ChannelError::Malformed) => return Err(ChannelError::KeyMismatch),
        asked => asked?,
    };
    let mut accepted = None;
    for key in [Some(keys.first), keys.second].into_iter().flatten() {
        let mut handshake = builder(&key).build_responder().expect("NN needs no key pair");
        if handshake.read_message(asked, &mut []).is_ok() {
            accepted = Some(handshake);
            break;
        }
    }
    let mut handshake = accepted.ok_or(ChannelError::KeyMismatch)?;
    let mut message = [0; LENGTH_BYTES + HANDSHAKE_BYTES];
    let length =
        handshake.write_message(&[], &mut message[LENGTH_BYTES..]).map_err(|_| ChannelError::Malformed)?;
    put_length(&mut message, length);
    deadline.write(stream, &message[..LENGTH_BYTES + length])?;
    Transport::new(handshake)
}

/// HMAC-BLAKE2s, from the same library as the handshake.
pub(super) fn keyed_digest(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("the handshake uses it too");
    let mut digest = [0; 32];
    hash.hmac(key, data, &mut digest);
    digest
}
