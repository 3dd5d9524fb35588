//! CPU time of processes and of the whole machine, from /proc, and pinning.

use std::fs;

use rustix::thread::CpuSet;

use crate::problem::{Problem, Tried};

/// Clock ticks of /proc/stat: fixed at 100 a second in the kernel's interface.
const TICKS_PER_S: f64 = 100.0;

/// CPU seconds that a process has used, all its living threads together, to the nanosecond.
pub(crate) fn process_s(pid: u32) -> Result<f64, Problem> {
    let folder = format!("/proc/{pid}/task");
    let mut total_ns = 0;
    for thread in fs::read_dir(&folder).tried(&folder)? {
        let thread = thread.tried(&folder)?;
        // A thread that ends between the two calls takes its time with it; those of a node do not end.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        total_ns += first_number(&text);
    }
    Ok(total_ns as f64 / 1e9)
}

/// CPU seconds of this process, ended threads included, and of the children that it has waited for: in steps of a
/// clock tick.
pub(crate) fn own_s() -> f64 {
    stat_s(11, 4)
}

/// CPU seconds of the children that this process has waited for, in steps of a clock tick.
pub(crate) fn children_s() -> f64 {
    stat_s(13, 2)
}

/// Sums fields of /proc/self/stat, counted from the one after the name: user and system time of this process are 11 and
/// 12, those of its children follow.
fn stat_s(first: usize, count: usize) -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name stands in parentheses and may hold anything.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(first).take(count).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

/// CPU seconds that the calling thread has used.
pub(crate) fn thread_s() -> f64 {
    first_number(&fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default()) as f64 / 1e9
}

/// CPU seconds that anybody on this machine has used.
pub(crate) fn machine_s() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal: all but idle and iowait.
    ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(at, _)| !matches!(at, 3 | 4))
        .map(|(_, ticks)| ticks)
        .sum::<f64>()
        / TICKS_PER_S
}

/// Keeps the calling thread on the `place`-th of the cores that it may use, counted round.
pub(crate) fn pin(allowed: &[usize], place: usize) -> Result<(), Problem> {
    let mut set = CpuSet::new();
    set.set(allowed[place % allowed.len()]);
    rustix::thread::sched_setaffinity(None, &set).tried("pinning a thread")
}

/// The cores that this process may use.
pub(crate) fn allowed() -> Result<Vec<usize>, Problem> {
    let set = rustix::thread::sched_getaffinity(None).tried("reading the affinity")?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or_default()
}
