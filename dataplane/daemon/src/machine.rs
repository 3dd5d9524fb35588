//! What the kernel lets this process do: cores, pins, limits, NUMA nodes.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use railhead_abi::Code;

use crate::error::StartError;

/// Words of a set of cores, as in settings and in the control segment.
pub(crate) const CORE_WORDS: usize = 16;

/// A set of cores: bit n of word n / 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cores(pub(crate) [u64; CORE_WORDS]);

impl Cores {
    /// The cores that this process may run on. Ask before any thread is pinned.
    pub(crate) fn allowed() -> Result<Self, StartError> {
        let set = sched_getaffinity(None)
            .map_err(|errno| StartError::new(Code::ConfigContradiction, "sched_getaffinity", errno))?;
        let mut words = [0; CORE_WORDS];
        for core in (0..64 * CORE_WORDS).filter(|core| *core < CpuSet::MAX_CPU && set.is_set(*core)) {
            words[core / 64] |= 1 << (core % 64);
        }
        Ok(Self(words))
    }

    /// Whether the set has `core`.
    pub(crate) fn has(&self, core: u64) -> bool {
        let word = usize::try_from(core / 64).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|bits| bits >> (core % 64) & 1 == 1)
    }

    /// How many cores are in the set.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Takes a core out of the set.
    pub(crate) fn remove(&mut self, core: u64) {
        if let Some(bits) = usize::try_from(core / 64).ok().and_then(|word| self.0.get_mut(word)) {
            *bits &= !(1 << (core % 64));
        }
    }

    /// The cores that are in both sets.
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// All cores of the NUMA node that a core is of, if the kernel says so.
    pub(crate) fn of_node_of(core: u64) -> Option<Self> {
        let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let node = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok()).next()?;
        Self::of_node(node)
    }

    /// All cores of a NUMA node, if the kernel says so.
    pub(crate) fn of_node(node: u32) -> Option<Self> {
        let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok()?;
        Self::parse(list.trim())
    }

    /// A list as the kernel writes it: `0-3,8,10-11`.
    fn parse(list: &str) -> Option<Self> {
        let mut words = [0; CORE_WORDS];
        for range in list.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            for core in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
                *words.get_mut(core / 64)? |= 1 << (core % 64);
            }
        }
        Some(Self(words))
    }

    /// The cores in order, as text for people.
    pub(crate) fn text(&self) -> String {
        let cores = (0..64 * CORE_WORDS as u64).filter(|core| self.has(*core));
        cores.map(|core| core.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// The calling thread's id for the kernel.
pub(crate) fn thread_id() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

/// Pins a thread of this process to one core, or lets it run on all of `allowed` again. From outside the thread.
pub(crate) fn pin(tid: u64, core: Option<u64>, allowed: &Cores) -> io::Result<()> {
    let mut set = CpuSet::new();
    for candidate in 0..CpuSet::MAX_CPU.min(64 * CORE_WORDS) {
        let number = candidate as u64;
        if core.map_or_else(|| allowed.has(number), |core| core == number) {
            set.set(candidate);
        }
    }
    let pid = i32::try_from(tid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(sched_setaffinity(Some(pid), &set)?)
}

/// NUMA nodes of this machine, at least 1.
pub(crate) fn numa_nodes() -> u32 {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 1 };
    let nodes = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    u32::try_from(nodes.count()).unwrap_or(1).max(1)
}

/// The NUMA nodes as settings are checked against them: bit n for node n.
pub(crate) fn numa_mask() -> u64 {
    1u64.checked_shl(numa_nodes()).map_or(u64::MAX, |bit| bit - 1)
}

/// The limit on locked memory in bytes; `None` means that there is none.
pub(crate) fn memlock_limit() -> Option<u64> {
    if has_ipc_lock() { None } else { getrlimit(Resource::Memlock).current }
}

/// Descriptors that this process may open; raised to the hard limit first, since sessions need a few each.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Refused only where a security module says so; then the old limit stays.
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether this process may lock memory without a limit (CAP_IPC_LOCK).
fn has_ipc_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Faults in everything private that the process has mapped: program, libraries, heap and stacks. A lane calls it last
/// before its seal, so that its first pass through a piece of code, or its first use of a table, is not a page fault.
/// Best effort: returns how many mappings could not be populated.
pub(crate) fn populate_private() -> usize {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return 1 };
    maps.lines().filter_map(PrivateMapping::parse).filter(|mapping| !mapping.populate()).count()
}

/// A private mapping that can be read.
struct PrivateMapping {
    start: usize,
    end: usize,
    writable: bool,
}

impl PrivateMapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.as_bytes();
        let name = fields.nth(3).unwrap_or_default();
        let wanted = rights.first() == Some(&b'r') && rights.get(3) == Some(&b'p');
        // [vdso], [vvar] and [vsyscall] are the kernel's and always there.
        if !wanted || name.starts_with("[v") {
            return None;
        }
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(Self { start: address(start)?, end: address(end)?, writable: rights.get(1) == Some(&b'w') })
    }

    fn populate(&self) -> bool {
        let advice = if self.writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let start = core::ptr::with_exposed_provenance_mut::<libc::c_void>(self.start);
        // SAFETY: populating faults pages in and changes no content; a range that has been unmapped meanwhile is an
        // error of the call.
        unsafe { libc::madvise(start, self.end - self.start, advice) == 0 }
    }
}

/// Faults and context switches of the calling thread so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadUsage {
    /// Page faults that needed no input or output.
    pub(crate) minor_faults: u64,
    /// Times that the thread gave its core away.
    pub(crate) voluntary_switches: u64,
}

impl ThreadUsage {
    /// Of the calling thread. One system call; lane-safe.
    pub(crate) fn now() -> Self {
        // SAFETY: a zeroed rusage is a valid value of this plain C struct.
        let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: `usage` is a live rusage that the kernel fills.
        if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
            return Self::default();
        }
        Self {
            minor_faults: usage.ru_minflt.unsigned_abs(),
            voluntary_switches: usage.ru_nvcsw.unsigned_abs(),
        }
    }
}

/// A random number, from the kernel.
pub(crate) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests;
