//! The peers file in the state directory: what peers were added and removed live, so that a restart does not lose it.
//!
//! Only control writes it, replaced whole like the settings file; the dataplane reads it at start in place of `[[peer]]`.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Peer;
use crate::settings_file::replace;

/// Name of the file in the state directory.
pub const FILE_NAME: &str = "peers.json";
/// Version of the file's form.
const FORMAT: u32 = 1;

/// Why the file could not be used. The dataplane then starts with the peers of its TOML, with an event.
#[derive(Debug, thiserror::Error)]
pub enum PeersFileError {
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
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u32,
    peers: Vec<FormPeer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormPeer {
    name: String,
    address: String,
}

/// Reads the file of a state directory; `None` if there is none. Check the peers against the rest of the configuration
/// ([`crate::Config::check_peers`]) before use.
///
/// # Errors
/// [`PeersFileError`].
pub fn load(state_dir: &Path) -> Result<Option<Vec<Peer>>, PeersFileError> {
    let path = state_dir.join(FILE_NAME);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(PeersFileError::Io { path, source }),
    };
    let form = |what: String| PeersFileError::Form { path: path.clone(), what };
    let file: Form = serde_json::from_str(&text).map_err(|error| form(error.to_string()))?;
    if file.format != FORMAT {
        return Err(form(format!("format {} is not {FORMAT}", file.format)));
    }
    let peers = file.peers.into_iter().map(|FormPeer { name, address }| Peer { name, address });
    Ok(Some(peers.collect()))
}

/// Replaces the file of a state directory. When this returns, the new content survives a power failure.
///
/// # Errors
/// [`PeersFileError::Io`]; the old content is then still there.
pub fn save(state_dir: &Path, peers: &[Peer]) -> Result<(), PeersFileError> {
    let path = state_dir.join(FILE_NAME);
    let peers = peers.iter().cloned().map(|Peer { name, address }| FormPeer { name, address });
    let file = Form { format: FORMAT, peers: peers.collect() };
    let mut text = serde_json::to_vec_pretty(&file)
        .map_err(|error| PeersFileError::Form { path: path.clone(), what: error.to_string() })?;
    text.push(b'\n');
    replace(state_dir, &path, &text).map_err(|source| PeersFileError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer { name: name.to_owned(), address: format!("{name}.example:7410") }
    }

    #[test]
    fn what_was_saved_is_read_and_nothing_is_no_list() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()).unwrap(), None);
        for peers in [vec![peer("a"), peer("b")], vec![]] {
            save(folder.path(), &peers).unwrap();
            assert_eq!(load(folder.path()).unwrap(), Some(peers));
        }
    }

    #[test]
    fn another_form_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        for text in
            ["", "{}", "[]", r#"{"format": 2, "peers": []}"#, r#"{"format": 1, "peers": [{"name": "a"}]}"#]
        {
            std::fs::write(folder.path().join(FILE_NAME), text).unwrap();
            let error = load(folder.path()).unwrap_err();
            assert!(error.to_string().contains(FILE_NAME), "{error}");
        }
    }
}
