//! The list of files and functions that are too long today. It may only shrink: what is listed may not grow, what
//! has shrunk must be lowered, and what is not listed may not be too long at all.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Result;

/// Lines by path, or by `path::function`.
pub(crate) type Lengths = BTreeMap<String, usize>;

/// Limits of one kind of thing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    /// Longer needs an entry in the list.
    pub(crate) listed_above: usize,
    /// Longer fails, listed or not.
    pub(crate) never_above: usize,
}

pub(crate) const FILE: Limit = Limit { what: "file", listed_above: 500, never_above: 800 };
pub(crate) const FUNCTION: Limit = Limit { what: "function", listed_above: 70, never_above: 140 };

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ratchet {
    pub(crate) files: Lengths,
    pub(crate) functions: Lengths,
}

impl Ratchet {
    /// # Errors
    /// Not TOML, or not tables of numbers.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse()?;
        let lengths = |name: &str| -> Result<Lengths> {
            let Some(value) = table.get(name) else { return Ok(Lengths::new()) };
            let entries = value.as_table().ok_or_else(|| format!("{name} is not a table"))?;
            let mut lengths = Lengths::new();
            for (key, value) in entries {
                let lines = value.as_integer().and_then(|n| usize::try_from(n).ok());
                lengths.insert(key.clone(), lines.ok_or_else(|| format!("{name}.{key:?} is not a number"))?);
            }
            Ok(lengths)
        };
        Ok(Self { files: lengths("files")?, functions: lengths("functions")? })
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::from(
            "# Files above 500 lines and functions above 70, with their lengths. This list may only shrink:\n\
             # `cargo xtask tidy --write` lowers and removes entries, nothing adds or raises one.\n",
        );
        for (name, lengths) in [("files", &self.files), ("functions", &self.functions)] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\n[{name}]");
            for (key, lines) in lengths {
                let _ = writeln!(text, "{key:?} = {lines}");
            }
        }
        text
    }

    /// The list after `--write`: each entry at most as long as now, entries no longer needed gone.
    pub(crate) fn lowered(&self, now: &Self) -> Self {
        let lower = |listed: &Lengths, now: &Lengths, limit: Limit| {
            let kept = listed.iter().filter_map(|(key, lines)| {
                let now = *now.get(key).filter(|now| **now > limit.listed_above)?;
                Some((key.clone(), now.min(*lines)))
            });
            kept.collect()
        };
        Self {
            files: lower(&self.files, &now.files, FILE),
            functions: lower(&self.functions, &now.functions, FUNCTION),
        }
    }

    /// Every way in which the tree (`now`) does not keep to this list.
    pub(crate) fn check(&self, now: &Self) -> Vec<String> {
        let mut findings = compare(FILE, &self.files, &now.files);
        findings.extend(compare(FUNCTION, &self.functions, &now.functions));
        findings
    }
}

fn compare(limit: Limit, listed: &Lengths, now: &Lengths) -> Vec<String> {
    let Limit { what, listed_above, never_above } = limit;
    let mut findings = Vec::new();
    for (key, lines) in now {
        match listed.get(key) {
            _ if *lines > never_above => {
                findings.push(format!("{key}: {what} of {lines} lines, {never_above} at most; split it"));
            }
            Some(allowed) if lines > allowed => {
                findings.push(format!("{key}: {what} grew from {allowed} to {lines} lines; split it"));
            }
            None if *lines > listed_above => {
                findings.push(format!("{key}: {what} of {lines} lines, {listed_above} at most; split it"));
            }
            _ => {}
        }
    }
    for (key, allowed) in listed {
        let lines = now.get(key).copied().unwrap_or(0);
        if lines < *allowed {
            findings.push(format!(
                "tidy-ratchet.toml: {key} is {lines} lines now, {allowed} listed; run cargo xtask tidy --write"
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, usize)]) -> Ratchet {
        let files = entries.iter().map(|(key, lines)| ((*key).to_owned(), *lines)).collect();
        Ratchet { files, functions: Lengths::new() }
    }

    #[test]
    fn lengths_within_the_limit_need_no_entry() {
        assert!(Ratchet::default().check(&files(&[("a.rs", 500)])).is_empty());
        assert_eq!(Ratchet::default().check(&files(&[("a.rs", 501)])).len(), 1);
    }

    #[test]
    fn a_listed_file_may_not_grow_nor_hide_that_it_shrank() {
        let listed = files(&[("a.rs", 600)]);
        assert!(listed.check(&files(&[("a.rs", 600)])).is_empty());
        assert!(listed.check(&files(&[("a.rs", 601)]))[0].contains("grew"));
        assert!(listed.check(&files(&[("a.rs", 599)]))[0].contains("--write"));
        assert!(listed.check(&files(&[]))[0].contains("--write"));
    }

    #[test]
    fn no_entry_excuses_the_upper_limit() {
        assert_eq!(files(&[("a.rs", 900)]).check(&files(&[("a.rs", 801)])).len(), 2);
    }

    #[test]
    fn writing_only_lowers() {
        let listed = files(&[("a.rs", 600), ("b.rs", 700), ("c.rs", 550), ("gone.rs", 510)]);
        let now = files(&[("a.rs", 650), ("b.rs", 620), ("c.rs", 400), ("new.rs", 777)]);
        assert_eq!(listed.lowered(&now), files(&[("a.rs", 600), ("b.rs", 620)]));
    }

    #[test]
    fn the_file_format_round_trips() {
        let mut ratchet = files(&[("dataplane/core/src/engine.rs", 700)]);
        ratchet.functions.insert("control/src/lib.rs::route".to_owned(), 80);
        assert_eq!(Ratchet::parse(&ratchet.render()).unwrap(), ratchet);
        assert!(Ratchet::parse("[files]\n\"a\" = \"x\"\n").is_err());
    }
}
