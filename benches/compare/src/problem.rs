//! Why something could not be measured.

use std::fmt::Display;

/// One sentence for people: what was tried, and what happened.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Problem(String);

impl Problem {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// Says what was tried when it fails.
pub(crate) trait Tried<T> {
    /// The value, or a problem that begins with `what`.
    fn tried(self, what: impl Display) -> Result<T, Problem>;
}

impl<T, E: Display> Tried<T> for Result<T, E> {
    fn tried(self, what: impl Display) -> Result<T, Problem> {
        self.map_err(|error| Problem(format!("{what}: {error}")))
    }
}
