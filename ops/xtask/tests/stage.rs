//! The rules that every stage runs under, seen from outside: `xtask stage LIMIT_S COMMAND..`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All of them write the log of one stage.
static LOG: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn xtask() -> Command {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
}

fn stage(limit_s: &str, command: &[&str]) -> Output {
    xtask().args(["stage", limit_s]).args(command).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a process whose arguments hold `mark` lives.
fn lives(mark: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).any(|line| {
        // Not this test, nor the shell that was asked to start it.
        line.starts_with(b"sleep\0") && String::from_utf8_lossy(&line).contains(mark)
    })
}

#[test]
fn a_command_that_succeeds_passes() {
    let _guard = lock();
    let output = stage("10", &["sh", "-c", "echo hidden"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.ends_with("\n1 passed, 0 failed\n") && !text.contains("hidden"), "{text}");
}

#[test]
fn a_command_that_fails_shows_the_end_of_its_output() {
    let _guard = lock();
    let output = stage("10", &["sh", "-c", "seq 1000; echo on the error stream >&2; exit 3"]);
    let text = text(&output);
    assert!(!output.status.success());
    assert!(text.contains("exit status: 3") && text.contains("\n1000\non the error stream\n"), "{text}");
    assert!(!text.contains("\n900\n"), "{text}");
    assert!(text.ends_with("\n0 passed, 1 failed\n"), "{text}");
}

#[test]
fn the_limit_ends_a_command_and_all_that_it_started() {
    let _guard = lock();
    let start = Instant::now();
    let output = stage("1", &["sh", "-c", "sleep 301.5 & setsid sleep 301.5 & wait"]);
    let text = text(&output);
    assert!(!output.status.success() && text.contains("killed after its limit of 1 s"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(!lives("301.5"));
}

#[test]
fn a_process_left_behind_is_a_failure_and_is_ended() {
    let _guard = lock();
    let output = stage("30", &["sh", "-c", "setsid sleep 302.5 & exit 0"]);
    let text = text(&output);
    assert!(!output.status.success() && text.contains("left processes behind: sleep"), "{text}");
    assert!(!lives("302.5"));
}

#[test]
fn a_process_that_ends_soon_after_is_none() {
    let _guard = lock();
    let output = stage("30", &["sh", "-c", "setsid sleep 0.2 & exit 0"]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn being_told_to_stop_ends_the_command_and_closes_the_report() {
    let _guard = lock();
    let mut child =
        xtask().args(["stage", "60", "sh", "-c", "sleep 303.5"]).stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !lives("303.5") {
        assert!(Instant::now() < deadline, "the command did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut text = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(text.contains("interrupted") && text.ends_with("\n0 passed, 1 failed\n"), "{text}");
    assert!(!lives("303.5"));
}

#[test]
fn a_command_that_does_not_start_is_named() {
    let _guard = lock();
    let output = stage("10", &["railhead-no-such-program"]);
    assert!(!output.status.success());
    assert!(text(&output).contains("railhead-no-such-program does not start"), "{}", text(&output));
}

/// A `cargo` that prints `result` and succeeds.
fn with_cargo(result: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cargo");
    std::fs::write(&path, format!("#!/bin/sh\necho '{result}'\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    xtask().args(["stage", "10", "cargo", "test", "--test", "x"]).env("PATH", paths).output().unwrap()
}

#[test]
fn a_test_run_without_a_test_fails() {
    let _guard = lock();
    let some = with_cargo("test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out");
    assert!(some.status.success() && text(&some).contains("3 tests, 2 ignored"), "{}", text(&some));
    let none = with_cargo("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out");
    assert!(
        !none.status.success() && text(&none).contains("no test ran: cargo test --test x"),
        "{}",
        text(&none)
    );
}

#[test]
fn the_seed_is_printed_and_can_be_given() {
    let _guard = lock();
    let output = xtask()
        .args(["stage", "10", "sh", "-c", "test \"$RAILHEAD_SEED\" = 77"])
        .env("RAILHEAD_SEED", "77")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let listed = xtask().args(["test", "--list"]).output().unwrap();
    let first = listed.stdout.lines().next().unwrap().unwrap();
    assert!(first.starts_with("fmt "), "{first}");
}
