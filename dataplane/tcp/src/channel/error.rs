//! How a channel can fail.

use std::io;

use railhead_abi::Code;
use railhead_abi::frame::{Refused, Text};

/// Why a call on a channel failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Nobody answers at the address.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The stream failed.
    #[error("connection failed: {0}")]
    Io(#[source] io::Error),
    /// The time given was not enough.
    #[error("the other node did not answer in time")]
    Timeout,
    /// The other side has ended the stream.
    #[error("the other node has closed the connection")]
    Closed,
    /// The other side does not hold the key.
    #[error("{}", Code::KeyMismatch)]
    KeyMismatch,
    /// What came is not of this protocol.
    #[error("{}", Code::ProtocolViolation)]
    Malformed,
    /// A frame of another major version.
    #[error("the other node speaks major version {theirs}; {}", Code::MajorMismatch.remedy())]
    Version {
        /// The version that it speaks.
        theirs: u16,
    },
    /// One side said no, and why.
    #[error("refused: {}", describe(.0))]
    Refused(Box<Refused>),
}

fn describe(refused: &Refused) -> String {
    let detail = Text::of(&refused.detail);
    match Code::from_number(refused.code) {
        Some(code) if detail.as_str().is_empty() => code.to_string(),
        Some(code) => format!("{code} ({})", detail.as_str()),
        None => format!("code {} ({})", refused.code, detail.as_str()),
    }
}

impl ChannelError {
    /// The code to report.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Connect(_) => Code::ConnectRefused,
            Self::Io(_) | Self::Closed => Code::ConnectionReset,
            Self::Timeout => Code::HeartbeatLost,
            Self::KeyMismatch => Code::KeyMismatch,
            Self::Malformed => Code::ProtocolViolation,
            Self::Version { .. } => Code::MajorMismatch,
            Self::Refused(refused) => Code::from_number(refused.code).unwrap_or(Code::ProtocolViolation),
        }
    }
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof, WouldBlock,
        };
        match error.kind() {
            WouldBlock | TimedOut => Self::Timeout,
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}
