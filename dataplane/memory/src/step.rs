//! Steps down: what was not to be had, and why.

use core::fmt;

/// The pages that memory lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Reserved hugepages.
    Hugetlb,
    /// Ordinary memory that the kernel backs with transparent hugepages.
    Transparent,
    /// Ordinary pages.
    Small,
}

impl Backing {
    /// The name used in events and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hugetlb => "hugetlb",
            Self::Transparent => "transparent_hugepages",
            Self::Small => "small_pages",
        }
    }
}

/// Why memory is less than what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The kernel has no hugetlb support (no `Hugepagesize` in `/proc/meminfo`).
    HugetlbAbsent,
    /// Fewer free hugepages than needed.
    HugepagesShort {
        /// Pages needed.
        needed: u64,
        /// Pages free and not promised to others.
        free: u64,
    },
    /// There are enough hugepages, but not on the wanted node.
    NodeShort {
        /// The wanted node.
        node: u32,
    },
    /// The default hugepage is not the 2 MiB page that shared regions use.
    HugepageSize {
        /// Its bytes.
        bytes: u64,
    },
    /// Transparent hugepages are switched off on this machine.
    TransparentOff,
    /// The kernel found huge pages for only a part of the memory.
    TransparentPartial {
        /// Bytes on huge pages.
        huge_bytes: u64,
        /// Bytes in all.
        bytes: u64,
    },
    /// The memory could not be bound to its node, so it lies where the kernel put it.
    NodeUnbound {
        /// The wanted node.
        node: u32,
    },
    /// `RLIMIT_MEMLOCK` is too low: the memory can be swapped out.
    MemlockLimit {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes to lock.
        bytes: u64,
    },
    /// The memory could not be locked for another reason.
    Unlocked,
    /// Pages could not be taken in advance: they are found, or missed, at first use.
    Unpopulated,
}

impl Reason {
    /// The name used in events and reports; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HugetlbAbsent => "hugetlb_absent",
            Self::HugepagesShort { .. } => "hugepages_short",
            Self::NodeShort { .. } => "node_short",
            Self::HugepageSize { .. } => "hugepage_size",
            Self::TransparentOff => "transparent_off",
            Self::TransparentPartial { .. } => "transparent_partial",
            Self::NodeUnbound { .. } => "node_unbound",
            Self::MemlockLimit { .. } => "memlock_limit",
            Self::Unlocked => "unlocked",
            Self::Unpopulated => "unpopulated",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HugetlbAbsent => write!(formatter, "this kernel has no hugetlb pages"),
            Self::HugepagesShort { needed, free } => {
                write!(formatter, "{needed} hugepages needed, {free} free; raise vm.nr_hugepages")
            }
            Self::NodeShort { node } => {
                write!(formatter, "node {node} has too few free hugepages; raise its nr_hugepages")
            }
            Self::HugepageSize { bytes } => write!(formatter, "hugepages of {bytes} bytes, not 2 MiB"),
            Self::TransparentOff => write!(formatter, "transparent hugepages are off"),
            Self::TransparentPartial { huge_bytes, bytes } => {
                write!(formatter, "only {huge_bytes} of {bytes} bytes on transparent hugepages")
            }
            Self::NodeUnbound { node } => write!(formatter, "memory cannot be bound to node {node}"),
            Self::MemlockLimit { limit_bytes, bytes } => {
                write!(formatter, "RLIMIT_MEMLOCK is {limit_bytes} bytes, {bytes} to lock; raise it")
            }
            Self::Unlocked => write!(formatter, "memory cannot be locked"),
            Self::Unpopulated => write!(formatter, "pages cannot be taken in advance"),
        }
    }
}

/// One step down, as an event reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepDown {
    /// Why.
    pub reason: Reason,
    /// The kernel's error number, where a call failed.
    pub errno: Option<i32>,
}

impl fmt::Display for StepDown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.reason.name(), self.reason)?;
        match self.errno {
            Some(errno) => write!(formatter, " ({})", std::io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}
