//! Why the dataplane does not start: one code, the field or thing that it is about, the cause and the remedy.

use core::fmt;

use railhead_abi::Code;

/// A refusal to start, written for the person who has to do something about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// Which of the frozen codes.
    pub code: Code,
    /// The configuration field, path or address that it is about.
    pub what: String,
    /// What was found; may be empty.
    pub cause: String,
    /// What to do.
    pub remedy: String,
}

impl StartError {
    /// A refusal about `what`, with the code's own remedy.
    #[must_use]
    pub fn new(code: Code, what: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { code, what: what.into(), cause: cause.to_string(), remedy: code.remedy().to_owned() }
    }

    /// Replaces the remedy by a closer one.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.code.text())?;
        if !self.cause.is_empty() {
            write!(formatter, " ({})", self.cause)?;
        }
        write!(formatter, "\n  code:   {}\n  remedy: {}", self.code.name(), self.remedy)
    }
}

impl core::error::Error for StartError {}
