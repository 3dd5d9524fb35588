//! The settings file in the state directory: what control last published, so that a restart does not lose it.
//!
//! Only control writes it; the dataplane reads it at start over its TOML. It is replaced whole (temporary file, fsync,
//! rename, fsync of the folder), so a reader sees the old content or the new one, never a mixture.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use railhead_abi::settings::{LANES_MAX, Settings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::setting::{Given, Key, Refused, Value};

/// Name of the file in the state directory.
pub const FILE_NAME: &str = "settings.json";
/// Version of the file's form.
const FORMAT: u32 = 1;

/// A saved snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its generation: a dataplane that starts from this file goes on counting from here.
    pub generation: u64,
    /// Who made it.
    pub author: String,
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// All settings.
    pub settings: Settings,
}

/// Why the file could not be used. The dataplane then starts from its TOML, with an event.
#[derive(Debug, thiserror::Error)]
pub enum SettingsFileError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not JSON of this form.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A name or a value in it is not one of this version.
    #[error("{path}: {refused}")]
    Setting {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        refused: Refused,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u32,
    generation: u64,
    author: String,
    unix_ns: u64,
    settings: Map<String, Json>,
}

/// Reads the file of a state directory; `None` if there is none. The values are within their own bounds; validate them
/// against the node ([`Settings::validate`]) before use.
///
/// # Errors
/// [`SettingsFileError`].
pub fn load(state_dir: &Path) -> Result<Option<Saved>, SettingsFileError> {
    let path = state_dir.join(FILE_NAME);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SettingsFileError::Io { path, source }),
    };
    let form = |what: String| SettingsFileError::Form { path: path.clone(), what };
    let file: Form = serde_json::from_str(&text).map_err(|error| form(error.to_string()))?;
    if file.format != FORMAT {
        return Err(form(format!("format {} is not {FORMAT}", file.format)));
    }
    let settings = from_map(&file.settings)
        .map_err(|refused| SettingsFileError::Setting { path: path.clone(), refused })?;
    Ok(Some(Saved { generation: file.generation, author: file.author, unix_ns: file.unix_ns, settings }))
}

/// Replaces the file of a state directory. When this returns, the new content survives a power failure.
///
/// # Errors
/// [`SettingsFileError::Io`]; the old content is then still there.
pub fn save(state_dir: &Path, saved: &Saved) -> Result<(), SettingsFileError> {
    let path = state_dir.join(FILE_NAME);
    let file = Form {
        format: FORMAT,
        generation: saved.generation,
        author: saved.author.clone(),
        unix_ns: saved.unix_ns,
        settings: to_map(&saved.settings),
    };
    let mut text = serde_json::to_vec_pretty(&file)
        .map_err(|error| SettingsFileError::Form { path: path.clone(), what: error.to_string() })?;
    text.push(b'\n');
    replace(state_dir, &path, &text).map_err(|source| SettingsFileError::Io { path, source })
}

/// Replaces a file of the state directory whole.
pub(crate) fn replace(folder: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    // Before the rename: else a power failure could leave the new name with no content.
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

/// All settings by dotted name; lanes that are not pinned are left out.
#[must_use]
pub fn to_map(settings: &Settings) -> Map<String, Json> {
    Key::all(LANES_MAX)
        .filter_map(|key| {
            let value = match key.read(settings) {
                Value::Number(number) => Json::from(number),
                Value::Name(name) => Json::from(name),
                Value::Unset => return None,
            };
            Some((key.name(), value))
        })
        .collect()
}

/// Settings of dotted names, the defaults where a name is missing.
///
/// # Errors
/// The first name or value that is not one of this version.
pub fn from_map(values: &Map<String, Json>) -> Result<Settings, Refused> {
    let mut settings = Settings::default();
    for (name, value) in values {
        let key = Key::parse(name)?;
        settings.words[key.word()] = key.word_of(given(value))?;
    }
    Ok(settings)
}

/// A JSON value as a setting's value.
#[must_use]
pub fn given(value: &Json) -> Given<'_> {
    match value {
        Json::Number(number) => {
            number.as_i128().map_or(Given::Other("a number with a fraction"), Given::Number)
        }
        Json::String(text) => Given::Text(text),
        Json::Null => Given::Nothing,
        Json::Bool(_) => Given::Other("true or false"),
        Json::Array(_) => Given::Other("a list"),
        Json::Object(_) => Given::Other("an object"),
    }
}

#[cfg(test)]
mod tests;
