//! Why the dataplane does not start: one code, the field or thing that it is about, and the cause.

use core::fmt;

use railhead_abi::Code;

/// A refusal to start. Shown to people as `CODE: what: cause; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// Which of the frozen codes.
    pub code: Code,
    /// The configuration field, path or address that it is about.
    pub what: String,
    /// What was found, for people; may be empty.
    pub cause: String,
}

impl StartError {
    /// A refusal about `what`.
    #[must_use]
    pub fn new(code: Code, what: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { code, what: what.into(), cause: cause.to_string() }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}: {}", self.code.name(), self.what, self.code.text())?;
        if !self.cause.is_empty() {
            write!(formatter, " ({})", self.cause)?;
        }
        write!(formatter, "; {}", self.code.remedy())
    }
}

impl core::error::Error for StartError {}
