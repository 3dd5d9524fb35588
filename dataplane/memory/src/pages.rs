//! What the kernel says of its pages, read from `/proc` and `/sys`.

use std::fs;

use railhead_shm::memfd;

/// How much hugepages matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Reserved hugepages, locked, on the node; anything less is an error.
    Require,
    /// The best that is to be had; every step down is recorded.
    #[default]
    Prefer,
    /// Ordinary pages on purpose: no step down.
    Never,
}

/// The reserved hugepages of the default size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hugepages {
    /// Bytes of one.
    pub page_bytes: u64,
    /// Reserved in all.
    pub total: u64,
    /// Free and not promised to a mapping.
    pub free: u64,
}

impl Hugepages {
    /// Asks the kernel now; `None` when it has none of any size.
    #[must_use]
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(meminfo: &str) -> Option<Self> {
        let value = |name: &str| {
            let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let page_bytes = value("Hugepagesize:")?.checked_mul(1024).filter(|&bytes| bytes > 0)?;
        let (total, free) = (value("HugePages_Total:")?, value("HugePages_Free:")?);
        // Reserved pages are counted as free although they are promised.
        let promised = value("HugePages_Rsvd:").unwrap_or(0);
        Some(Self { page_bytes, total, free: free.saturating_sub(promised) })
    }
}

/// Whether anonymous memory may get transparent hugepages when it asks for them.
#[must_use]
pub fn transparent_allowed() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[madvise]") || text.contains("[always]"))
}

/// Bytes of a transparent hugepage; 2 MiB where the kernel does not say.
#[must_use]
pub fn transparent_bytes() -> usize {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|bytes: &usize| bytes.is_power_of_two())
        .unwrap_or(memfd::HUGE_PAGE_BYTES)
}

/// Bytes between two addresses that lie on transparent hugepages now. Whole mappings are counted: one that lies partly
/// outside counts as far as it could lie inside.
pub(crate) fn transparent_in(start: usize, end: usize) -> u64 {
    fs::read_to_string("/proc/self/smaps").map_or(0, |smaps| huge_bytes_in(&smaps, start, end))
}

fn huge_bytes_in(smaps: &str, start: usize, end: usize) -> u64 {
    let mut inside = 0;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = range_of(line) {
            inside = to.min(end).saturating_sub(from.max(start)) as u64;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kilobytes: u64 =
                rest.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
            sum += kilobytes.saturating_mul(1024).min(inside);
        }
    }
    sum
}

/// The range of a mapping's first line: `START-END perms ...`.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_pages_are_not_free() {
        let text = "MemFree: 1 kB\nHugePages_Total:      64\nHugePages_Free:       60\nHugePages_Rsvd:        8\n\
             HugePages_Surp:        0\nHugepagesize:       2048 kB\n";
        assert_eq!(Hugepages::parse(text), Some(Hugepages { page_bytes: 2 << 20, total: 64, free: 52 }));
    }

    #[test]
    fn kernel_without_hugetlb_has_none() {
        assert_eq!(Hugepages::parse("MemTotal: 1 kB\n"), None);
        assert_eq!(Hugepages::parse(""), None);
    }

    #[test]
    fn huge_bytes_are_those_of_mappings_in_the_range() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonHugePages:        4 kB\n\
                    3000-9000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:        16 kB\n\
                    VmFlags: rd wr\n9000-a000 rw-p 0 00:00 0\nAnonHugePages: 4 kB\n";
        assert_eq!(huge_bytes_in(text, 0x1000, 0x3000), 4096);
        assert_eq!(huge_bytes_in(text, 0x1000, 0x9000), 5 * 4096);
        assert_eq!(huge_bytes_in(text, 0xb000, 0xc000), 0);
        assert_eq!(huge_bytes_in(text, 0x3000, 0x4000), 4096, "never more than lies inside");
    }
}
