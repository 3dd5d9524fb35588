//! Reading and writing against one deadline: a stranger that sends a byte a second gets no more time than one that
//! sends none.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::error::ChannelError;

/// When a call has to be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout beyond what a clock can say is as good as a day.
        Self(now.checked_add(timeout).unwrap_or(now + Duration::from_secs(86_400)))
    }

    /// Time left, never zero.
    pub(super) fn left(self) -> Result<Duration, ChannelError> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ChannelError::Timeout) } else { Ok(left) }
    }

    /// Reads some bytes.
    fn read_some(self, stream: &mut TcpStream, bytes: &mut [u8]) -> Result<usize, ChannelError> {
        loop {
            stream.set_read_timeout(Some(self.left()?))?;
            match stream.read(bytes) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Fills `bytes`.
    pub(super) fn read(self, stream: &mut TcpStream, bytes: &mut [u8]) -> Result<(), ChannelError> {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.read_some(stream, &mut bytes[filled..])?;
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub(super) fn write(self, stream: &mut TcpStream, bytes: &[u8]) -> Result<(), ChannelError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            stream.set_write_timeout(Some(self.left()?))?;
            match stream.write(rest) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Bytes of the length in front of each message.
pub(super) const LENGTH_BYTES: usize = 2;

/// A message being received: its length, then itself. Keeps what has come when time runs out.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    filled: usize,
}

impl core::fmt::Debug for Inbox {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Inbox").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl Inbox {
    /// For messages of up to `bytes_max`, length included.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: vec![0; bytes_max].into(), filled: 0 }
    }

    /// Starts with bytes that were read before.
    pub(super) fn starting_with(bytes_max: usize, first: &[u8]) -> Self {
        let mut inbox = Self::new(bytes_max);
        inbox.bytes[..first.len()].copy_from_slice(first);
        inbox.filled = first.len();
        inbox
    }

    /// Reads until a message is whole, and not a byte more. [`Inbox::clear`] makes room for the next.
    pub(super) fn read(&mut self, stream: &mut TcpStream, deadline: Deadline) -> Result<&[u8], ChannelError> {
        loop {
            let wanted = if self.filled < LENGTH_BYTES {
                LENGTH_BYTES
            } else {
                LENGTH_BYTES + usize::from(u16::from_le_bytes([self.bytes[0], self.bytes[1]]))
            };
            if wanted > self.bytes.len()
                || wanted == LENGTH_BYTES && self.filled >= LENGTH_BYTES
                || self.filled > wanted
            {
                return Err(ChannelError::Malformed);
            }
            if self.filled == wanted {
                return Ok(&self.bytes[LENGTH_BYTES..wanted]);
            }
            self.filled += deadline.read_some(stream, &mut self.bytes[self.filled..wanted])?;
        }
    }

    /// Forgets the message.
    pub(super) const fn clear(&mut self) {
        self.filled = 0;
    }
}
