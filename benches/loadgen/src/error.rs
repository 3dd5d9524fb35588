//! What can go wrong, always with the argument or the cause, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use railhead_client::{Failure, SessionError};

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{argument}: {problem}; {remedy}")]
    Argument { argument: &'static str, problem: String, remedy: &'static str },
    #[error("{doing}: {source}")]
    Session { doing: String, source: SessionError },
    #[error("{}: {source}; check the path and its permissions", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {problem}; give a whole .safetensors file, or make one with `railhead-bench make-model`", path.display())]
    Model { path: PathBuf, problem: String },
    #[error("{doing}: {failure}")]
    Transfer { doing: String, failure: Failure },
    #[error("the serving program at {node} refused: {text}")]
    Refused { node: String, text: String },
    #[error(
        "no answer from {node} within {after:?}: {what}; see that `railhead-bench serve` runs there and is not stuck, or give a longer --timeout"
    )]
    Silent { node: String, what: &'static str, after: Duration },
    #[error(
        "{in_flight} transfers did not complete within {after:?}; see `railhead events` and the dataplane's log"
    )]
    Stalled { in_flight: usize, after: Duration },
    #[error("the answer of the serving program is wrong: {0}; use builds of the same version on both nodes")]
    Answer(&'static str),
    #[error("{0}")]
    Wrong(String),
}

impl BenchError {
    /// For `map_err`: names what was being done.
    pub(crate) fn session(doing: impl Into<String>) -> impl FnOnce(SessionError) -> Self {
        let doing = doing.into();
        move |source| Self::Session { doing, source }
    }

    /// For `map_err`: names the file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

pub(crate) type Result<T> = core::result::Result<T, BenchError>;
