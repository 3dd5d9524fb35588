//! Shows that the loom suite can fail: it passes as it is, and fails under each named weakening of an ordering.

use std::path::Path;
use std::process::{Command, Output};

use crate::Result;
use crate::stages::{LOOM_COMMAND, LOOM_ENVIRONMENT};

const NAMES: &str = "dataplane/ring/mutants.txt";
/// Names the ordering that railhead-ring weakens, in builds for loom only.
const MUTANT: &str = "RAILHEAD_MUTANT";

/// Runs the suite once as it is and once per mutant.
///
/// # Errors
/// The suite fails as it is, or passes under a mutant, or cannot be run.
pub(crate) fn run(root: &Path) -> Result<()> {
    let text = std::fs::read_to_string(root.join(NAMES)).map_err(|error| format!("{NAMES}: {error}"))?;
    let names = parse(&text)?;
    match judge(&suite(root, None)?) {
        Suite::Passed => {}
        other => return Err(format!("the suite without a mutant: {other:?}").into()),
    }
    let mut findings = Vec::new();
    for name in &names {
        match judge(&suite(root, Some(name))?) {
            Suite::Failed => println!("{name}: killed"),
            Suite::Passed => findings.push(format!("{name}: survived, no loom test needs this ordering")),
            Suite::NotRun => findings.push(format!("{name}: the suite did not run")),
        }
    }
    println!("{} mutants", names.len());
    crate::conclude("loom-mutants", &findings)
}

/// One name per line; `#` begins a comment.
fn parse(text: &str) -> Result<Vec<&str>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let names: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    if names.is_empty() {
        return Err(format!("{NAMES}: no mutant, so nothing shows that the suite can fail").into());
    }
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, name)) => Err(format!("{NAMES}: {name} twice").into()),
        None => Ok(names),
    }
}

fn suite(root: &Path, mutant: Option<&str>) -> Result<Output> {
    let mut command = Command::new(LOOM_COMMAND[0]);
    command
        .args(&LOOM_COMMAND[1..])
        .envs(LOOM_ENVIRONMENT.iter().copied())
        .current_dir(root)
        .env_remove(MUTANT);
    if let Some(name) = mutant {
        command.env(MUTANT, name);
    }
    Ok(command.output()?)
}

/// What a run of the suite shows. A build that fails has tested nothing, and must not pass for a killed mutant.
#[derive(Debug, PartialEq, Eq)]
enum Suite {
    Passed,
    Failed,
    NotRun,
}

fn judge(output: &Output) -> Suite {
    let text = String::from_utf8_lossy(&output.stdout);
    // railhead-ring's answer to a name that it does not know: every model fails, and none was weakened.
    if text.contains("names no site") {
        return Suite::NotRun;
    }
    // A model that aborts prints no result line, but cargo names the signal.
    let aborted = String::from_utf8_lossy(&output.stderr).contains("(signal: ");
    let ran =
        text.lines().any(|line| line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed"));
    match (output.status.success(), ran) {
        (true, true) => Suite::Passed,
        (false, true) if text.contains("test result: FAILED") || aborted => Suite::Failed,
        (false, false) if aborted => Suite::Failed,
        _ => Suite::NotRun,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.as_bytes().to_vec(),
            stderr: stderr.as_bytes().to_vec(),
        }
    }

    #[test]
    fn only_a_failed_test_kills_a_mutant() {
        let ok = "test result: ok. 4 passed; 0 failed; 0 ignored\n";
        let failed = "test result: FAILED. 3 passed; 1 failed; 0 ignored\n";
        assert_eq!(judge(&output(0, ok, "")), Suite::Passed);
        assert_eq!(judge(&output(101, failed, "")), Suite::Failed);
        assert_eq!(judge(&output(101, "running 4 tests\n", "(signal: 6, SIGABRT)")), Suite::Failed);
        assert_eq!(judge(&output(101, "", "error[E0308]: mismatched types")), Suite::NotRun);
        assert_eq!(judge(&output(0, "test result: ok. 0 passed; 0 failed; 0 ignored\n", "")), Suite::NotRun);
        assert_eq!(judge(&output(0, "", "")), Suite::NotRun);
        let unknown = format!("{MUTANT}=x names no site\n{failed}");
        assert_eq!(judge(&output(101, &unknown, "")), Suite::NotRun);
    }

    #[test]
    fn names_are_read_and_an_empty_list_is_refused() {
        assert_eq!(parse("# all\nspsc_tail\n\ncell_fence # both\n").unwrap(), ["spsc_tail", "cell_fence"]);
        assert!(parse("# none\n").is_err());
        assert!(parse("a\na\n").is_err());
    }
}
