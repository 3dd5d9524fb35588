//! The checks of the tree's text that neither rustc nor clippy makes.

mod ratchet;
mod rules;
mod source;

use std::path::Path;

use ratchet::{FILE, FUNCTION, Ratchet};
use rules::Text;

use crate::Result;

const RATCHET: &str = "ops/xtask/tidy-ratchet.toml";

/// Checks every text file below `root`; with `write`, first lowers the ratchet list to the lengths of today.
///
/// # Errors
/// There was a finding, or the tree or the list could not be read.
pub(crate) fn run(root: &Path, write: bool) -> Result<()> {
    let texts = read_tree(root)?;
    let path = root.join(RATCHET);
    let mut listed = Ratchet::parse(&std::fs::read_to_string(&path)?)?;
    let now = lengths(&texts);
    if write {
        listed = listed.lowered(&now);
        std::fs::write(&path, listed.render())?;
    }
    let mut findings: Vec<String> = texts.iter().flat_map(rules::check).collect();
    findings.extend(rules::adr_numbers(texts.iter().map(|text| text.path.as_str())));
    findings.extend(listed.check(&now));
    crate::conclude("tidy", &findings)
}

/// The lengths of everything that is above its limit or may be in the list.
fn lengths(texts: &[Text]) -> Ratchet {
    let mut now = Ratchet::default();
    for text in texts.iter().filter(|text| text.is_rust() && !text.is_test()) {
        let Some(source) = &text.source else { continue };
        let tests = source.test_modules();
        let file = source.raw.len() - tests.iter().map(|(from, to)| to - from).sum::<usize>();
        if file > FILE.listed_above {
            now.files.insert(text.path.clone(), file);
        }
        for (at, name, lines) in source.functions() {
            let in_tests = tests.iter().any(|(from, to)| (*from..*to).contains(&at));
            if lines > FUNCTION.listed_above && !in_tests {
                // Two of one name in one file share an entry: the longest counts.
                let longest = now.functions.entry(format!("{}::{name}", text.path)).or_default();
                *longest = lines.max(*longest);
            }
        }
    }
    now
}

/// Every text file below `root`, in a stable order, without build outputs and version control.
fn read_tree(root: &Path) -> Result<Vec<Text>> {
    let mut texts = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if name != ".git" && name != "target" && !name.starts_with("target-") {
                    folders.push(entry.path());
                }
            } else if kind.is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(root)?.to_string_lossy().into_owned();
                // What is not UTF-8 is not text.
                if let Ok(body) = String::from_utf8(std::fs::read(&path)?) {
                    texts.push(Text::new(relative, body));
                }
            }
        }
    }
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(texts)
}

#[cfg(test)]
mod tests;
