//! What the command prints, and how it fails.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::Value as Json;

/// Why the command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: u8,
    what: String,
    remedy: Option<String>,
    /// The problem as control sent it, for `--json`.
    problem: Option<Json>,
}

impl Failure {
    /// Control refused: its problem says why.
    pub(crate) fn refused(problem: Json, json: bool) -> Self {
        let text = |name: &str| problem[name].as_str().unwrap_or_default();
        let mut what = text("code").to_owned();
        for part in [text("field"), text("detail")] {
            if !part.is_empty() {
                what = format!("{what}: {part}");
            }
        }
        let remedy = Some(text("remedy")).filter(|remedy| !remedy.is_empty()).map(str::to_owned);
        // Control without its dataplane can do nothing either.
        let exit = if problem["code"] == "dataplane_absent" { 3 } else { 1 };
        Self { exit, what, remedy, problem: json.then_some(problem) }
    }

    pub(crate) fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit: 2, what: what.into(), remedy: Some(remedy.into()), problem: None }
    }

    pub(crate) fn unreachable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit: 3, what: what.into(), remedy: Some(remedy.into()), problem: None }
    }

    /// Something that should not happen.
    pub(crate) fn broken(what: impl Into<String>) -> Self {
        Self { exit: 3, what: what.into(), remedy: None, problem: None }
    }

    /// Says it on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        if let Some(problem) = &self.problem {
            // Whoever asked for JSON reads standard output.
            let _ = print(&format!("{problem:#}\n"));
        }
        eprintln!("railhead: {}", self.what);
        if let Some(remedy) = &self.remedy {
            eprintln!("  remedy: {remedy}");
        }
        ExitCode::from(self.exit)
    }
}

/// Writes to standard output. A reader that has enough (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::broken(format!("standard output: {error}")))
        }
        Err(_) => std::process::exit(0),
        Ok(()) => Ok(()),
    }
}

/// An answer as it is.
pub(crate) fn print_json(body: &Json) -> Result<(), Failure> {
    print(&format!("{body:#}\n"))
}

/// How a piece of text stands out on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

impl Tone {
    /// The tone of an event's severity.
    pub(crate) fn of_severity(severity: &str) -> Self {
        match severity {
            "error" => Self::Bad,
            "warning" => Self::Warning,
            _ => Self::Faint,
        }
    }

    /// The text in this tone: with colours on a terminal that wants them, else as it is.
    pub(crate) fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
        };
        if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn colours() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
