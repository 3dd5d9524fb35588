//! Where things lie: binaries, folders with short paths, keys, ports.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ports are taken from here: below what the kernel gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// The path of a release binary: of `RAILHEAD_BIN_DIR`, else of the workspace's target folder.
///
/// # Panics
/// If it is not built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let folder = std::env::var_os("RAILHEAD_BIN_DIR").map_or_else(target_release, PathBuf::from);
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not built: cargo build --workspace --release --bins", path.display());
    path
}

fn target_release() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(target).join("release")
}

/// Only one test of this process at a time: lanes that share cores with another test's lanes would measure it.
#[derive(Debug)]
pub struct Exclusive {
    _turn: MutexGuard<'static, ()>,
}

impl Exclusive {
    /// Waits for its turn.
    #[must_use]
    pub fn wait() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        // A test that failed leaves nothing behind under this lock.
        Self { _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// A folder for one test, with a path short enough for sockets.
#[derive(Debug)]
pub struct Folder {
    inner: tempfile::TempDir,
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// Makes one.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let inner =
            tempfile::Builder::new().prefix("rh-").tempdir_in("/tmp").expect("a temporary folder in /tmp");
        Self { inner }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inner.path()
    }

    /// The path of something in it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

/// Writes a cluster key of the digit `digit`, private to this user.
///
/// # Panics
/// If it cannot be written.
pub fn write_key(path: &Path, digit: char) {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    writeln!(file, "{}", digit.to_string().repeat(64)).expect("writing a key");
}

/// A TCP port of 127.0.0.1 that nobody listens on, and that this process did not give out before.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let count = u32::from(PORTS.end - PORTS.start);
    // Test binaries that run at the same time start at different places.
    let start = std::process::id().wrapping_mul(7919) % count;
    for _ in 0..count {
        let port = PORTS.start + u16::try_from((start + *next) % count).unwrap_or_default();
        *next += 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port of {PORTS:?}");
}
