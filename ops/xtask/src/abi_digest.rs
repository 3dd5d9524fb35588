//! The shared layouts against the committed table: a change of layout without a new ABI version is refused.

use std::path::Path;
use std::process::Command;

use crate::Result;

const COMMITTED: &str = "dataplane/abi/layout.txt";
/// Lines of a difference that are shown.
const SHOWN: usize = 40;

/// Compares the layouts of the code with the committed ones, or with `write` commits those of the code.
/// `unreleased` lets `write` change them under the same version: only for a version that nobody has been given.
///
/// # Errors
/// They differ, railhead-abi does not compile, or a write is refused.
pub(crate) fn run(root: &Path, write: bool, unreleased: bool) -> Result<()> {
    let now = layouts(root)?;
    let path = root.join(COMMITTED);
    let committed = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("{COMMITTED}: {error}").into()),
    };
    match (judge(committed.as_deref(), &now)?, write) {
        (Change::None, _) => {}
        (Change::SameVersion, true) if !unreleased => return Err(refusal(committed.as_deref(), &now).into()),
        (_, true) => std::fs::write(&path, &now)?,
        (Change::SameVersion, false) => return Err(refusal(committed.as_deref(), &now).into()),
        (Change::NewVersion, false) => {
            return Err(format!(
                "{COMMITTED} is not of this ABI version; run cargo xtask abi-digest --write"
            )
            .into());
        }
        (Change::Older, false) => return Err(format!("ABI_VERSION is below that of {COMMITTED}").into()),
    }
    println!("abi-digest: ok ({})", now.lines().next().unwrap_or_default());
    Ok(())
}

/// The layouts of the code, from an example of this crate: so this binary does not need railhead-abi to compile.
fn layouts(root: &Path) -> Result<String> {
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--package", "railhead-xtask", "--example", "abi_layout"])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("railhead-abi does not give its layouts".into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    /// Another layout under the same version: what must not happen.
    SameVersion,
    /// A higher version, or nothing committed so far.
    NewVersion,
    Older,
}

fn judge(committed: Option<&str>, now: &str) -> Result<Change> {
    let Some(committed) = committed else { return Ok(Change::NewVersion) };
    let (before, after) = (version(committed)?, version(now)?);
    Ok(match after.cmp(&before) {
        _ if committed == now => Change::None,
        std::cmp::Ordering::Equal => Change::SameVersion,
        std::cmp::Ordering::Greater => Change::NewVersion,
        std::cmp::Ordering::Less => Change::Older,
    })
}

/// The N of the first line, `abi_version N`.
fn version(text: &str) -> Result<u32> {
    let first = text.lines().next().unwrap_or_default();
    let number = first.strip_prefix("abi_version ").and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("the layouts begin with {first:?}, not with abi_version N").into())
}

fn refusal(committed: Option<&str>, now: &str) -> String {
    format!(
        "the shared layouts changed, but ABI_VERSION did not:\n{}\nRaise railhead_abi::ABI_VERSION, then run \
         cargo xtask abi-digest --write (add --unreleased instead if nobody has been given this version)",
        difference(committed.unwrap_or_default(), now)
    )
}

/// The lines between the common beginning and the common end.
fn difference(before: &str, after: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = before.iter().zip(&after).take_while(same).count();
    let rest = before.len().min(after.len()) - head;
    let tail = before.iter().rev().zip(after.iter().rev()).take(rest).take_while(same).count();
    let removed = before[head..before.len() - tail].iter().map(|line| format!("-{line}"));
    let added = after[head..after.len() - tail].iter().map(|line| format!("+{line}"));
    let lines: Vec<String> = removed.take(SHOWN).chain(added.take(SHOWN)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "abi_version 1\nheader 64\n  magic 0 8\n  layout 8 8\nrecord 128\n";

    #[test]
    fn the_same_layout_is_no_change() {
        assert_eq!(judge(Some(ONE), ONE).unwrap(), Change::None);
    }

    #[test]
    fn a_changed_layout_needs_a_higher_version() {
        let changed = ONE.replace("layout 8 8", "layout 16 8");
        assert_eq!(judge(Some(ONE), &changed).unwrap(), Change::SameVersion);
        assert_eq!(judge(Some(ONE), &changed.replace("version 1", "version 2")).unwrap(), Change::NewVersion);
        assert_eq!(judge(Some(&ONE.replace("version 1", "version 2")), &changed).unwrap(), Change::Older);
        assert_eq!(judge(None, ONE).unwrap(), Change::NewVersion);
    }

    #[test]
    fn a_text_without_version_is_refused() {
        assert!(judge(Some("header 64\n"), ONE).is_err());
        assert!(judge(Some(ONE), "").is_err());
    }

    #[test]
    fn the_difference_is_what_changed_and_the_remedy_is_named() {
        let changed = ONE.replace("layout 8 8", "layout 16 8");
        assert_eq!(difference(ONE, &changed), "-  layout 8 8\n+  layout 16 8");
        assert_eq!(difference("a\na\n", "a\na\na\n"), "+a");
        let text = refusal(Some(ONE), &changed);
        assert!(
            text.contains("+  layout 16 8") && text.contains("Raise railhead_abi::ABI_VERSION"),
            "{text}"
        );
    }
}
