//! Runs one command under a limit, in a process group of its own, and leaves no process behind.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

/// How long processes that the command left behind may take to end by themselves.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// How a command ended.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// Killed because the limit passed.
    TimedOut,
    /// Killed because this process was asked to stop.
    Interrupted,
    /// It ended, but these processes that it started had to be killed.
    LeftBehind(Vec<String>),
}

/// Processes whose parent died become children of this one, so that they are reaped and can be found. Call once,
/// from a process that runs nothing but commands given to [`run`].
pub(crate) fn adopt_orphans() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Runs `command` until it ends, `deadline` passes, or a message arrives on `stop`. Its output goes to `log`.
/// On every way out its process group and all that it started are gone.
///
/// # Errors
/// The command could not be started.
pub(crate) fn run(
    command: &mut Command,
    log: &File,
    deadline: Instant,
    stop: &Receiver<i32>,
) -> io::Result<End> {
    // The exit status is taken by `reap`, which reaps adopted processes as well; so never `Child::wait`.
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.ok_or_else(|| io::Error::other("process id out of range"))?;
    loop {
        if let Some(status) = reap(group) {
            return Ok(match sweep(ORPHAN_GRACE) {
                left if left.is_empty() => End::Exited(status),
                left => End::LeftBehind(left),
            });
        }
        let end = match stop.recv_timeout(POLL) {
            Ok(_) => End::Interrupted,
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => continue,
            Err(RecvTimeoutError::Timeout) => End::TimedOut,
            Err(RecvTimeoutError::Disconnected) => End::Interrupted,
        };
        // It can only fail because the group is gone already, which is what is wanted.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        sweep(Duration::ZERO);
        return Ok(end);
    }
}

/// Reaps every child that has ended; the status of `wanted` if it is among them.
fn reap(wanted: Pid) -> Option<ExitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == wanted {
            found = Some(ExitStatus::from_raw(status.as_raw()));
        }
    }
    found
}

/// Waits `grace` for the remaining children to end, then kills each by its id. Returns those it had to kill.
fn sweep(grace: Duration) -> Vec<String> {
    let deadline = Instant::now() + grace;
    let mut killed = Vec::new();
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let left = children();
        if left.is_empty() {
            return killed;
        }
        if Instant::now() >= deadline {
            for (pid, name) in left {
                let text = format!("{name} ({})", pid.as_raw_nonzero());
                // Killed twice is reported once: the next round may come before it is gone.
                if !killed.contains(&text) {
                    killed.push(text);
                }
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(POLL);
    }
}

/// The living children of this process, adopted ones included, with their names.
fn children() -> Vec<(Pid, String)> {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        if let Some((name, parent)) = name_and_parent(&entry.path())
            && parent == own
        {
            found.push((pid, name));
        }
    }
    found
}

/// From `/proc/PID/stat`: `pid (name) state parent ..`; the name may itself hold brackets and spaces.
fn name_and_parent(folder: &Path) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?;
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    // A zombie holds nothing and is reaped by the caller's loop.
    (state != "Z").then_some(())?;
    Some((name.to_owned(), fields.next()?.to_owned()))
}
