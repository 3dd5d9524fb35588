//! One error, written for the person who has to correct the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use railhead_abi::Code;

use crate::outline::Outline;

/// What is wrong with a configuration, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The stable code.
    pub code: Code,
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1, when one line is to blame.
    pub line: Option<usize>,
    /// Dotted name of the field, empty when no field is to blame.
    pub field: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}\n  code:   {}\n  remedy: {}", self.what, self.code.name(), self.remedy)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Problem::new(Code::ConfigMissing, "", format!("cannot be read: {error}")).in_file(path)
    }

    pub(crate) fn state_dir(path: &Path, folder: &Path, error: &io::Error) -> Self {
        let what = format!("{} cannot be made: {error}", folder.display());
        Problem::new(Code::PathDenied, "node.state_dir", what).in_file(path)
    }
}

/// A problem whose place in the file is not looked up yet.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) field: String,
    pub(crate) what: String,
    pub(crate) remedy: String,
}

impl Problem {
    /// A problem with the code's own remedy.
    pub(crate) fn new(code: Code, field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { code, field: field.into(), what: what.into(), remedy: code.remedy().to_owned() }
    }

    /// Replaces the remedy by a closer one.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    pub(crate) fn at(self, path: &Path, outline: &Outline) -> ConfigError {
        let line = outline.line_of(&self.field);
        ConfigError { line, ..self.in_file(path) }
    }

    pub(crate) fn in_file(self, path: &Path) -> ConfigError {
        let Self { code, field, what, remedy } = self;
        ConfigError { code, file: path.to_owned(), line: None, field, what, remedy }
    }
}
