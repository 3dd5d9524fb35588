//! What the SIGBUS guard does to a whole process: each case runs in a child, because the process ends.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use railhead_shm::{Access, Mapping, guard};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Runs one of the ignored tests of this file in a process of its own.
fn child(test: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

/// A mapping whose only page is gone.
fn lost() -> std::sync::Arc<Mapping> {
    let file = memfd_create("lost", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 4096).unwrap();
    let mapping = Mapping::of_unsealed(&file, Access::ReadWrite).unwrap();
    ftruncate(&file, 0).unwrap();
    mapping
}

#[test]
fn fault_outside_all_guarded_ranges_still_ends_the_process() {
    assert_eq!(child("child_faults_outside").signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "run by the test of the same name, in a process of its own"]
fn child_faults_outside() {
    guard::install().unwrap();
    let guarded = guard::protect(&lost()).unwrap();
    guarded.span().fill(0, 1, 1).unwrap();
    assert!(guarded.poisoned());
    // Not registered: must be fatal although a registered range was survived.
    lost().span().fill(0, 1, 1).unwrap();
}

#[test]
fn range_is_no_longer_guarded_after_its_guard_is_dropped() {
    assert_eq!(child("child_faults_after_drop").signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "run by the test of the same name, in a process of its own"]
fn child_faults_after_drop() {
    guard::install().unwrap();
    let mapping = lost();
    drop(guard::protect(&mapping).unwrap());
    mapping.span().fill(0, 1, 1).unwrap();
}

#[test]
fn handler_that_was_there_before_still_gets_its_faults() {
    assert_eq!(child("child_has_a_handler").code(), Some(42));
}

#[test]
#[ignore = "run by the test of the same name, in a process of its own"]
fn child_has_a_handler() {
    extern "C" fn leave(_signal: libc::c_int) {
        // SAFETY: _exit is async-signal-safe and does not return.
        unsafe { libc::_exit(42) };
    }
    let handler: extern "C" fn(libc::c_int) = leave;
    // SAFETY: the handler is async-signal-safe.
    unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    guard::install().unwrap();
    lost().span().fill(0, 1, 1).unwrap();
}

#[test]
fn sent_signal_ends_a_process_without_a_handler() {
    assert_eq!(child("child_is_sent_the_signal").signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "run by the test of the same name, in a process of its own"]
fn child_is_sent_the_signal() {
    // SAFETY: the default action; replaces the handler of the language's run time.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    guard::install().unwrap();
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGBUS) };
}

#[test]
fn unguarded_process_refuses_to_protect() {
    // This process never installs the guard: only its children do.
    let mapping = Mapping::anonymous(4096).unwrap();
    assert!(matches!(guard::protect(&mapping), Err(guard::GuardError::NotInstalled)));
}
