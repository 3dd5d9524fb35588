//! One process: started, waited for, stopped, killed; always reaped.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::wait::within;

/// How long a process may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How much of a log is shown.
const SHOWN_BYTES: u64 = 16 << 10;

/// A running process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where the log of this start begins: a restart appends.
    log_start: u64,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`, with both outputs appended to the file `log`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let log_start = file.metadata().map_or(0, |metadata| metadata.len());
        let errors = file.try_clone().expect("a second handle of the log");
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        Self { name: name.to_owned(), child, log: log.to_owned(), log_start, ended: None }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said since it was started.
    #[must_use]
    pub fn said(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.log_start))?;
            file.read_to_string(&mut text)
        });
        if let Err(error) = read {
            text = format!("({}: {error})", self.log.display());
        }
        text
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Sends a signal; nothing happens if it has ended.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_some() {
            return;
        }
        // It cannot be another process's id yet: it is not reaped.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it does not in time; it is killed then.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        if let Some(status) = within(limit, || self.ended()) {
            return status;
        }
        self.kill();
        panic!("{} did not end within {limit:?}; it said:\n{}", self.name, self.said());
    }

    /// Stops it with SIGTERM and says how it ended and how long that took.
    ///
    /// # Panics
    /// If it does not stop in time; it is killed then.
    pub fn stop(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        self.signal(Signal::TERM);
        // One that a test had stopped cannot hear.
        self.signal(Signal::CONT);
        (self.wait(STOP_LIMIT), start.elapsed())
    }

    /// Kills it with SIGKILL and reaps it.
    ///
    /// # Panics
    /// If it cannot be reaped.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        if self.ended.is_none() {
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    fn show_log(&self) {
        let text = self.said();
        let skipped = text.len().saturating_sub(usize::try_from(SHOWN_BYTES).unwrap_or(usize::MAX));
        let shown = text.char_indices().find(|(at, _)| *at >= skipped).map_or("", |(at, _)| &text[at..]);
        eprintln!("---- {} (pid {}) said ----\n{shown}", self.name, self.pid());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
            let _ = within(STOP_LIMIT, || self.ended());
        }
        let stopped = self.ended.is_some();
        if !stopped {
            self.kill();
        }
        if std::thread::panicking() {
            self.show_log();
        } else {
            assert!(stopped, "{} did not stop on SIGTERM within {STOP_LIMIT:?} and was killed", self.name);
        }
    }
}

/// How a command that ran to its end did.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started or does not end in time; it is killed then.
#[must_use]
pub fn run(command: &mut Command, limit: Duration) -> Ended {
    let text = format!("{command:?}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let file = |path: &Path| File::create(path).expect("a file in a temporary folder");
    let child = command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)).spawn();
    let child = child.unwrap_or_else(|error| panic!("{text} cannot be started: {error}"));
    let mut process = Process { name: text, child, log: err.clone(), log_start: 0, ended: None };
    let status = process.wait(limit);
    let read = |path: &Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ended { code: status.code(), out: read(&out), err: read(&err) }
}
