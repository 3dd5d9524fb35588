//! What the kernel says of a process.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

/// Figures of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Minor page faults since its start.
    pub minor_faults: u64,
    /// Times that it gave up its core by itself.
    pub voluntary_switches: u64,
    /// CPU time in clock ticks.
    pub cpu_ticks: u64,
}

/// The figures of thread `tid` of process `pid`.
///
/// # Panics
/// If there is no such thread.
#[must_use]
pub fn thread(pid: u32, tid: u64) -> ThreadFacts {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/task/{tid}/{file}");
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (stat, status) = (read("stat"), read("status"));
    // The name in parentheses may hold anything, so fields are counted from its end: state is number 3.
    let after = stat.rsplit_once(") ").expect("a name in parentheses").1;
    let field = |number: usize| -> u64 {
        after.split(' ').nth(number - 3).and_then(|text| text.parse().ok()).expect("a number in stat")
    };
    let switches = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|text| text.trim().parse().ok())
        .expect("voluntary_ctxt_switches in status");
    ThreadFacts { minor_faults: field(10), voluntary_switches: switches, cpu_ticks: field(14) + field(15) }
}

/// The cores that a thread may run on.
///
/// # Panics
/// If there is no such thread.
#[must_use]
pub fn affinity(tid: u64) -> Vec<usize> {
    let pid = i32::try_from(tid).ok().and_then(Pid::from_raw).expect("a thread id");
    let set = rustix::thread::sched_getaffinity(Some(pid)).expect("the affinity of a living thread");
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// What a process holds open, as `/proc/PID/fd` names it, sorted.
#[must_use]
pub fn open_files(pid: u32) -> Vec<String> {
    let mut targets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    targets.sort();
    targets
}

/// How many memory files a process has mapped: one for each mapping.
#[must_use]
pub fn mapped_memory_files(pid: u32) -> usize {
    mappings(pid).iter().filter(|mapping| mapping.path.starts_with("/memfd:")).count()
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingFacts {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What is mapped; empty if it is anonymous.
    pub path: String,
    /// Inode of what is mapped.
    pub inode: u64,
}

impl MappingFacts {
    /// Whether a range lies in it.
    #[must_use]
    pub const fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.start && address + bytes <= self.end
    }
}

/// The mappings of a process.
#[must_use]
pub fn mappings(pid: u32) -> Vec<MappingFacts> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    text.lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<MappingFacts> {
    let mut parts = line.splitn(6, ' ');
    let (start, end) = parts.next()?.split_once('-')?;
    let inode = parts.nth(3)?.parse().ok()?;
    Some(MappingFacts {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        path: parts.next().unwrap_or_default().trim_start().to_owned(),
        inode,
    })
}

/// Threads of a process with their names.
#[must_use]
pub fn threads(pid: u32) -> Vec<(u64, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let mut found: Vec<(u64, String)> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            Some((tid, name.trim().to_owned()))
        })
        .collect();
    found.sort();
    found
}

/// Bytes of memory that could be given out without swapping.
#[must_use]
pub fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    kib.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Whether a process of this id exists.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether every thread of a process is stopped by a signal: SIGSTOP takes effect some time after it was sent.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let threads = threads(pid);
    let is_stopped = |tid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    !threads.is_empty() && threads.iter().all(|(tid, _)| is_stopped(tid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_parsed() {
        let line = "7f12a0000000-7f12a0400000 rw-s 00000000 00:0f 1234    /memfd:railhead-region (deleted)";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.inode), (0x7f12_a000_0000, 0x7f12_a040_0000, 1234));
        assert_eq!(mapping.path, "/memfd:railhead-region (deleted)");
        assert!(mapping.holds(0x7f12_a03f_ffff, 1) && !mapping.holds(0x7f12_a03f_ffff, 2));
        let anonymous = parse_mapping("7f12a0000000-7f12a0400000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.path.as_str(), anonymous.inode), ("", 0));
    }

    #[test]
    fn own_thread_is_found() {
        let pid = std::process::id();
        let (tid, _) = threads(pid)[0];
        assert!(thread(pid, tid).minor_faults > 0 && !affinity(tid).is_empty() && exists(pid));
        assert!(available_bytes() > 0 && !open_files(pid).is_empty());
    }
}
