//! Whether a stage can run here.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::stages::Need;

/// Why `need` is not met here, or `None` when it is. The last words of a program that fails are the reason; one that
/// says nothing has that of the table.
pub(crate) fn missing(root: &Path, need: &Need) -> Option<String> {
    let program = need.program;
    let output = Command::new(program).args(need.arguments).current_dir(root).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(need.refused);
            Some(format!("{program} does not work here ({reason})"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{program} is not installed")),
        Err(error) => Some(format!("{program} does not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(program: &'static str) -> Option<String> {
        missing(Path::new("."), &Need { program, arguments: &[], refused: "ptrace is restricted" })
    }

    #[test]
    fn what_is_absent_or_refused_is_named() {
        assert_eq!(need("true"), None);
        assert_eq!(need("false").unwrap(), "false does not work here (ptrace is restricted)");
        assert_eq!(need("railhead-no-such-program").unwrap(), "railhead-no-such-program is not installed");
    }

    #[test]
    fn the_last_words_of_a_program_are_the_reason() {
        let arguments = &["-c", "echo trying >&2; echo no kernel >&2; echo >&2; exit 1"];
        let need = Need { program: "sh", arguments, refused: "ptrace is restricted" };
        assert_eq!(missing(Path::new("."), &need).unwrap(), "sh does not work here (no kernel)");
    }
}
