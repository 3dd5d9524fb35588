//! Whether a stage can run here.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use crate::stages::Need;

/// Why `need` is not met here, or `None` when it is.
pub(crate) fn missing(need: &Need) -> Option<String> {
    let program = need.program;
    let status = Command::new(program)
        .args(need.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => None,
        Ok(_) => Some(format!("{program} does not work here ({})", need.refused)),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{program} is not installed")),
        Err(error) => Some(format!("{program} does not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(program: &'static str) -> Option<String> {
        missing(&Need { program, arguments: &[], refused: "ptrace is restricted" })
    }

    #[test]
    fn what_is_absent_or_refused_is_named() {
        assert_eq!(need("true"), None);
        assert_eq!(need("false").unwrap(), "false does not work here (ptrace is restricted)");
        assert_eq!(need("railhead-no-such-program").unwrap(), "railhead-no-such-program is not installed");
    }
}
