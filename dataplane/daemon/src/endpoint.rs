//! The sockets in the file system: taken if nobody lives there, left clean behind.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use railhead_abi::Code;
use railhead_shm::socket::{self, SocketError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::StartError;

/// Connections that may wait to be accepted.
const BACKLOG: u16 = 64;

/// A socket that this process listens on. Its file goes when this is dropped, if it is still this one's.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The listener.
    pub(crate) listener: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl Endpoint {
    /// Listens at `path`, whose file then has `mode`. A file that a dead dataplane left behind is replaced.
    ///
    /// # Errors
    /// [`Code::PortTaken`] if something listens there; [`Code::PathDenied`].
    pub(crate) fn bind(field: &str, path: &Path, mode: u32) -> Result<Self, StartError> {
        let denied = |cause: &dyn core::fmt::Display| {
            StartError::new(Code::PathDenied, field, format!("{}: {cause}", path.display()))
        };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(denied(&error)),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(denied(&"there is a file that is no socket"));
            }
            Ok(_) => match socket::try_connect(path) {
                Err(SocketError::System { errno: Errno::CONNREFUSED, .. }) => {
                    fs::remove_file(path).map_err(|error| denied(&error))?;
                }
                // Gone since we looked.
                Err(SocketError::System { errno: Errno::NOENT, .. }) => {}
                Err(SocketError::System { errno: Errno::ACCESS, .. }) => {
                    return Err(denied(&"no permission"));
                }
                // Accepted, or its queue is full: somebody lives there.
                _ => {
                    let cause = format!("{}: a process listens there", path.display());
                    return Err(StartError::new(Code::PortTaken, field, cause));
                }
            },
        }
        let listener = socket::listen(path, BACKLOG).map_err(|error| denied(&error))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| denied(&error))?;
        let inode = fs::symlink_metadata(path).map_err(|error| denied(&error))?.ino();
        Ok(Self { listener, path: path.to_owned(), inode })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a socket's file could not be removed");
        }
    }
}

/// The state directory is this process's, until this is dropped.
#[derive(Debug)]
pub(crate) struct StateLock {
    _file: fs::File,
}

impl StateLock {
    /// Takes the state directory.
    ///
    /// # Errors
    /// [`Code::PortTaken`] if another dataplane has it; [`Code::PathDenied`].
    pub(crate) fn take(state_dir: &Path) -> Result<Self, StartError> {
        let path = state_dir.join("dataplane.lock");
        let denied = |cause: &dyn core::fmt::Display| {
            StartError::new(Code::PathDenied, "node.state_dir", format!("{}: {cause}", path.display()))
        };
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| denied(&error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => {
                let cause =
                    format!("{}: another dataplane runs with this state directory", state_dir.display());
                Err(StartError::new(Code::PortTaken, "node.state_dir", cause))
            }
            Err(errno) => Err(denied(&errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_socket_is_refused_and_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.sock");
        let first = Endpoint::bind("dataplane.session_socket", &path, 0o600).unwrap();
        let refused = Endpoint::bind("dataplane.session_socket", &path, 0o600).unwrap_err();
        assert_eq!((refused.code, refused.what.as_str()), (Code::PortTaken, "dataplane.session_socket"));
        // As a killed process leaves it: the file stays, nobody listens.
        let kept = folder.path().join("kept");
        fs::hard_link(&path, &kept).unwrap();
        drop(first);
        fs::rename(&kept, &path).unwrap();
        let second = Endpoint::bind("dataplane.session_socket", &path, 0o600).unwrap();
        drop(second);
        assert!(!path.exists(), "left behind");
    }

    #[test]
    fn listener_that_does_not_accept_is_alive_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.sock");
        let _first = Endpoint::bind("f", &path, 0o600).unwrap();
        let waiting: Vec<_> = (0..2 * BACKLOG).map_while(|_| socket::try_connect(&path).ok()).collect();
        assert!(waiting.len() < usize::from(2 * BACKLOG), "its queue is full");
        assert_eq!(Endpoint::bind("f", &path, 0o600).unwrap_err().code, Code::PortTaken);
    }

    #[test]
    fn other_files_are_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(Endpoint::bind("f", &path, 0o600).unwrap_err().code, Code::PathDenied);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(
            Endpoint::bind("f", &folder.path().join("no/such"), 0o600).unwrap_err().code,
            Code::PathDenied
        );
    }

    #[test]
    fn state_directory_has_one_dataplane() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateLock::take(folder.path()).unwrap();
        assert_eq!(StateLock::take(folder.path()).unwrap_err().code, Code::PortTaken);
        drop(first);
        StateLock::take(folder.path()).unwrap();
    }
}
