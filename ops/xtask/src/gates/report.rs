//! What the gates print: the table, the tails of what failed, the closing line.

use std::fmt;

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    /// With the reason.
    Failed(String),
    /// With what is absent here.
    Skipped(String),
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) seconds: f64,
    pub(crate) limit_s: u64,
    /// Tests run and ignored, when the stage counts tests.
    pub(crate) tests: Option<Tests>,
}

/// What `cargo test` said it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) run: u64,
    pub(crate) ignored: u64,
}

impl Tests {
    /// Adds up every `test result:` line of `output` (one per test binary).
    pub(crate) fn count(output: &str) -> Self {
        let mut sum = Self::default();
        for line in output.lines().filter(|line| line.starts_with("test result: ")) {
            sum.run += counted(line, " passed") + counted(line, " failed");
            sum.ignored += counted(line, " ignored");
        }
        sum
    }
}

/// The number that stands before `word` in `... 12 passed; 0 failed; ...`.
fn counted(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().filter(|before| before.len() < line.len());
    before.and_then(|text| text.rsplit(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(crate) const HEADER: &str = "stage          result    seconds   limit  note";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Skipped(_) => "skipped",
        };
        write!(f, "{:<14} {:<8} {:>8.1} {:>7}", self.name, result, self.seconds, self.limit_s)?;
        if let Some(tests) = self.tests {
            write!(f, "  {} tests", tests.run)?;
            if tests.ignored > 0 {
                write!(f, ", {} ignored", tests.ignored)?;
            }
        }
        match &self.verdict {
            Verdict::Ok => Ok(()),
            Verdict::Failed(reason) | Verdict::Skipped(reason) => write!(f, "  {reason}"),
        }
    }
}

/// The skipped stages with their reasons, then the closing line.
pub(crate) fn closing(rows: &[Row]) -> String {
    let mut text = String::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for row in rows {
        match &row.verdict {
            Verdict::Ok => passed += 1,
            Verdict::Failed(_) => failed += 1,
            Verdict::Skipped(reason) => {
                skipped += 1;
                text.push_str(&format!("skipped {}: {reason}\n", row.name));
            }
        }
    }
    text.push_str(&format!("{passed} passed, {failed} failed"));
    if skipped > 0 {
        text.push_str(&format!(", {skipped} skipped"));
    }
    text
}

/// The last `count` lines of `output`.
pub(crate) fn tail(output: &str, count: usize) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, verdict: Verdict) -> Row {
        Row { name: name.to_owned(), verdict, seconds: 1.0, limit_s: 60, tests: None }
    }

    #[test]
    fn closing_line_counts_stages() {
        let rows = [row("a", Verdict::Ok), row("b", Verdict::Failed("x".into())), row("c", Verdict::Ok)];
        assert_eq!(closing(&rows), "2 passed, 1 failed");
    }

    #[test]
    fn skipped_stages_are_named_with_the_reason_above_the_closing_line() {
        let rows = [row("a", Verdict::Ok), row("b", Verdict::Skipped("no strace".into()))];
        assert_eq!(closing(&rows), "skipped b: no strace\n1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn nothing_run_closes_with_zeroes() {
        assert_eq!(closing(&[]), "0 passed, 0 failed");
    }

    #[test]
    fn tests_are_summed_over_binaries() {
        let output = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
                      noise 9 passed\ntest result: FAILED. 10 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(Tests::count(output), Tests { run: 13, ignored: 1 });
    }

    #[test]
    fn no_result_line_is_no_test() {
        assert_eq!(Tests::count("error: no test target named `two_node`\n"), Tests::default());
        assert_eq!(Tests::count("test result: ok. 0 passed; 0 failed; 0 ignored\n"), Tests::default());
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("1\n2\n3\n", 2), "2\n3");
        assert_eq!(tail("1\n", 5), "1");
    }

    #[test]
    fn a_row_says_result_and_reason() {
        let mut failed = row("sim", Verdict::Failed("exit status 101".into()));
        failed.tests = Some(Tests { run: 7, ignored: 0 });
        let text = failed.to_string();
        assert!(
            text.contains("FAILED") && text.contains("7 tests") && text.ends_with("exit status 101"),
            "{text}"
        );
    }
}
