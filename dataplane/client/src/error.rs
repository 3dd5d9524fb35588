//! What can go wrong, each with the code that REST, CLI and documentation use and with what to do.

use std::path::PathBuf;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{Refused, Text};
use railhead_abi::submission::{Completion, SIDE_FABRIC, SIDE_LOCAL, SIDE_REMOTE};
use railhead_shm::MapError;
use railhead_shm::memfd::MemfdError;
use railhead_shm::socket::SocketError;

/// Why a call on a session failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// An argument cannot be right, whatever the dataplane says.
    #[error("{argument}: {problem}; {}", code.remedy())]
    Argument {
        /// Which one.
        argument: &'static str,
        /// What is wrong with it.
        problem: String,
        /// The code that the dataplane would have refused with.
        code: Code,
    },
    /// Nobody answers at the session socket.
    #[error("no dataplane at {}: {source}; {}", path.display(), absent_remedy(source))]
    Absent {
        /// The path that was tried.
        path: PathBuf,
        /// Why connecting failed.
        source: SocketError,
    },
    /// The dataplane said no.
    #[error("the dataplane refused{}: {code}", if detail.is_empty() { String::new() } else { format!(" ({detail})") })]
    Refused {
        /// Why.
        code: Code,
        /// A figure that belongs to the code.
        figure: u64,
        /// The field or the cause.
        detail: String,
    },
    /// The dataplane said no with a number that this version does not know.
    #[error(
        "the dataplane refused with the unknown code {number} ({detail}); use the client library of the dataplane's version"
    )]
    RefusedUnknown {
        /// The number.
        number: u16,
        /// The field or the cause.
        detail: String,
    },
    /// The dataplane speaks another version, or something else listens there.
    #[error(
        "the answer on the session socket is not understood ({code}); this library speaks version {}",
        railhead_abi::ABI_VERSION
    )]
    Version {
        /// [`Code::VersionMismatch`] or [`Code::FrameMalformed`].
        code: Code,
    },
    /// The dataplane's answer contradicts itself.
    #[error("the dataplane's answer is wrong: {what}; use builds of the same version")]
    Answer {
        /// What is wrong.
        what: &'static str,
    },
    /// The dataplane is gone; so are all handles.
    #[error("the dataplane is gone; attach again, then register and open regions again")]
    DataplaneLost,
    /// No answer came in time. The session takes no further requests; transfers go on.
    #[error("no answer from the dataplane within {0:?}; see its log, then attach again")]
    TimedOut(Duration),
    /// A socket call failed.
    #[error("session socket: {0}")]
    Socket(#[source] SocketError),
    /// Memory could not be made.
    #[error("region memory of {bytes} bytes: {source}; ask for fewer bytes, or free memory")]
    Memory {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        source: MemfdError,
    },
    /// Hugepages were required and cannot be had.
    #[error(
        "hugepages were required for {bytes} bytes: {source}; reserve more (vm.nr_hugepages), or use Pages::PREFER_HUGE"
    )]
    Hugepages {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        source: MemfdError,
    },
    /// Memory could not be mapped into this process.
    #[error("mapping {what}: {source}; check vm.max_map_count and the address space limit of this process")]
    Map {
        /// What was mapped.
        what: &'static str,
        /// Why not.
        source: MapError,
    },
}

impl SessionError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Argument { code, .. } | Self::Refused { code, .. } | Self::Version { code } => *code,
            Self::Absent { .. } => Code::DataplaneAbsent,
            Self::RefusedUnknown { .. } => Code::VersionMismatch,
            Self::Answer { .. } => Code::FrameMalformed,
            Self::DataplaneLost | Self::TimedOut(_) | Self::Socket(_) => Code::DataplaneLost,
            Self::Memory { .. } | Self::Hugepages { .. } => Code::MemoryShort,
            Self::Map { .. } => Code::MappingFailed,
        }
    }

    pub(crate) fn refused(refused: &Refused) -> Self {
        let detail = Text::of(&refused.detail).as_str().to_owned();
        match Code::from_number(refused.code) {
            Some(code) => Self::Refused { code, figure: refused.figure, detail },
            None => Self::RefusedUnknown { number: refused.code, detail },
        }
    }

    pub(crate) fn argument(argument: &'static str, code: Code, problem: impl Into<String>) -> Self {
        Self::Argument { argument, problem: problem.into(), code }
    }
}

const fn absent_remedy(source: &SocketError) -> &'static str {
    match source {
        SocketError::System { errno: rustix::io::Errno::ACCESS, .. } => {
            "give this user access to the socket's folder and write permission on the socket"
        }
        _ => "start railhead-dataplane, or correct the path (dataplane.session_socket of its configuration)",
    }
}

/// How a transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{}", match code { Some(code) => format!("{code}"), None => format!("unknown code {number}") }, side_text(*side), if *retry { " (a retry may succeed)" } else { "" })]
pub struct Failure {
    /// The code; `None` if this version does not know its number.
    pub code: Option<Code>,
    /// The code's number.
    pub number: u16,
    /// `SIDE_NONE` .. `SIDE_FABRIC` of the abi.
    pub side: u8,
    /// Whether the same submission may succeed when made again.
    pub retry: bool,
}

const fn side_text(side: u8) -> &'static str {
    match side {
        SIDE_LOCAL => " [this node]",
        SIDE_REMOTE => " [the peer]",
        SIDE_FABRIC => " [the path between the nodes]",
        _ => "",
    }
}

/// How a transfer ended.
///
/// # Errors
/// [`Failure`] for every status but success.
pub fn outcome(completion: &Completion) -> Result<(), Failure> {
    if completion.status == Code::Ok.number() {
        return Ok(());
    }
    Err(Failure {
        code: Code::from_number(completion.status),
        number: completion.status,
        side: completion.side,
        retry: completion.retry != 0,
    })
}
