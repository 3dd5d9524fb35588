//! CPU time of other processes.

use std::fs;
use std::io;
use std::time::Duration;

use crate::error::{BenchError, Result};

/// CPU time that these processes have used since they began, all threads together.
pub(crate) fn used(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|&pid| of_process(pid)).sum()
}

fn of_process(pid: u32) -> Result<Duration> {
    let problem = |error: io::Error| BenchError::Argument {
        argument: "--cpu-of",
        problem: format!("process {pid}: {error}"),
        remedy: "give process ids of running dataplanes of this machine",
    };
    let mut used = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(problem)? {
        // In nanoseconds, where /proc/PID/stat counts ticks of 10 ms. A thread that just ended is left out.
        let Ok(line) = fs::read_to_string(task.map_err(problem)?.path().join("schedstat")) else { continue };
        let first = line.split_whitespace().next().and_then(|word| word.parse().ok());
        let nanoseconds = first.ok_or_else(|| problem(io::Error::other("schedstat is not understood")))?;
        used += Duration::from_nanos(nanoseconds);
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn work_shows_and_an_absent_process_is_named() {
        let before = used(&[std::process::id()]).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            core::hint::spin_loop();
        }
        assert!(used(&[std::process::id()]).unwrap() > before);
        let error = used(&[u32::MAX]).unwrap_err().to_string();
        assert!(error.contains("--cpu-of") && error.contains("4294967295"), "{error}");
    }
}
