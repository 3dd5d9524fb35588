//! What was published when, by whom, and what it changed: for people, and for going back.
//!
//! Kept in memory and, a line each, in a file of the state directory. The settings file is what counts at a restart, so
//! a line that is lost or spoilt here costs a line of history and nothing else.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use railhead_abi::settings::Settings;
use railhead_config::setting::difference;
use railhead_config::settings_file::{from_map, to_map};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use crate::patch::value_json;

/// Entries kept.
pub const ENTRIES: usize = 256;
/// The file is rewritten when it has this many lines.
const LINES_MAX: usize = 4 * ENTRIES;
const FILE_NAME: &str = "settings-history.jsonl";

/// One published snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its generation.
    pub generation: u64,
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Who.
    pub author: String,
    /// What it changed.
    pub changed: Json,
    /// All settings.
    pub settings: Settings,
}

/// What two snapshots differ in, as JSON: `[{"name", "from", "to"}]`.
#[must_use]
pub fn changes(from: &Settings, to: &Settings) -> Json {
    difference(from, to)
        .map(|key| {
            json!({"name": key.name(), "from": value_json(key.read(from)), "to": value_json(key.read(to)), "unit": key.unit()})
        })
        .collect()
}

/// The history of a state directory.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    entries: VecDeque<Entry>,
    lines: usize,
}

#[derive(Serialize, Deserialize)]
struct Line {
    generation: u64,
    unix_ns: u64,
    author: String,
    changed: Json,
    settings: Map<String, Json>,
}

impl Entry {
    fn line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(&Line {
            generation: self.generation,
            unix_ns: self.unix_ns,
            author: self.author.clone(),
            changed: self.changed.clone(),
            settings: to_map(&self.settings),
        })?;
        line.push(b'\n');
        Ok(line)
    }

    fn parse(line: &str) -> Option<Self> {
        let Line { generation, unix_ns, author, changed, settings } = serde_json::from_str(line).ok()?;
        Some(Self { generation, unix_ns, author, changed, settings: from_map(&settings).ok()? })
    }
}

impl History {
    /// Reads what an earlier control left. What cannot be read is left out.
    #[must_use]
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE_NAME);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().count();
        let mut entries: VecDeque<Entry> =
            text.lines().rev().take(ENTRIES).filter_map(Entry::parse).collect();
        entries.make_contiguous().reverse();
        Self { path, entries, lines }
    }

    /// Adds an entry. An error is told to the log, not to the caller: the change itself is made.
    pub fn add(&mut self, entry: Entry) {
        if self.entries.len() == ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
        if let Err(error) = self.write() {
            tracing::warn!(path = %self.path.display(), %error, "the history could not be written");
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.lines >= LINES_MAX {
            let temporary = self.path.with_extension("jsonl.new");
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            for entry in &self.entries {
                file.write_all(&entry.line()?)?;
            }
            std::fs::rename(&temporary, &self.path)?;
            self.lines = self.entries.len();
            return Ok(());
        }
        let Some(entry) = self.entries.back() else { return Ok(()) };
        // One write of a whole line, so that a crash spoils at most the last line.
        let line = entry.line()?;
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?.write_all(&line)?;
        self.lines += 1;
        Ok(())
    }

    /// The entries, newest first.
    pub fn newest(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// The newest entry of a generation.
    #[must_use]
    pub fn find(&self, generation: u64) -> Option<&Entry> {
        self.newest().find(|entry| entry.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railhead_abi::settings::Setting;

    fn entry(generation: u64) -> Entry {
        let mut settings = Settings::default();
        settings.set(Setting::PipelineDepth, 1 + generation % 64);
        let changed = changes(&Settings::default(), &settings);
        Entry { generation, unix_ns: generation, author: "a\nb".to_owned(), changed, settings }
    }

    #[test]
    fn entries_survive_a_restart_and_spoilt_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::load(folder.path());
        assert_eq!(history.newest().count(), 0);
        (1..=3).for_each(|generation| history.add(entry(generation)));
        let path = folder.path().join(FILE_NAME);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"generation\":");
        std::fs::write(&path, text).unwrap();
        let history = History::load(folder.path());
        assert_eq!(history.newest().cloned().collect::<Vec<_>>(), [entry(3), entry(2), entry(1)]);
        assert_eq!(history.find(2), Some(&entry(2)));
        assert_eq!(history.find(4), None);
    }

    #[test]
    fn file_and_memory_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::load(folder.path());
        for generation in 1..=(2 * LINES_MAX as u64) {
            history.add(entry(generation));
            assert!(history.entries.len() <= ENTRIES && history.lines <= LINES_MAX);
        }
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(text.lines().count(), history.lines);
        let again = History::load(folder.path());
        assert_eq!(again.entries, history.entries);
    }

    #[test]
    fn changes_name_both_values() {
        let mut to = Settings::default();
        to.set(Setting::SendMode, 2);
        to.set_lane_core(0, Some(1));
        assert_eq!(
            changes(&Settings::default(), &to),
            json!([
                {"name": "send.mode", "from": "auto", "to": "direct", "unit": ""},
                {"name": "lanes.0.core", "from": null, "to": 1, "unit": "core"},
            ])
        );
    }
}
