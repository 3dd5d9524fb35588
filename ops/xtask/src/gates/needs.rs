//! Whether a stage can run here.

use std::process::{Command, Stdio};

use crate::stages::Need;

/// Why `need` is not met here, or `None` when it is. Proved by doing.
pub(crate) fn missing(need: Need) -> Option<String> {
    match need {
        Need::Strace => does("strace", &["-e", "trace=none", "true"], "ptrace is restricted"),
    }
}

fn does(program: &str, arguments: &[&str], refused: &str) -> Option<String> {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => None,
        Ok(_) => Some(format!("{program} does not work here ({refused})")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Some(format!("{program} is not installed"))
        }
        Err(error) => Some(format!("{program} does not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::does;

    #[test]
    fn what_is_absent_or_refused_is_named() {
        assert_eq!(does("true", &[], "x"), None);
        assert!(does("false", &[], "ptrace is restricted").unwrap().contains("ptrace is restricted"));
        assert_eq!(
            does("railhead-no-such-program", &[], "x").unwrap(),
            "railhead-no-such-program is not installed"
        );
    }
}
