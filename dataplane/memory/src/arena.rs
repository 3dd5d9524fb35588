//! Staging arenas: private memory of one lane, reserved before the seal.

use std::fmt;
use std::sync::Arc;

use railhead_shm::{OwnedSpan, memfd};

use crate::extent::Extent;
use crate::pages::{self, Hugepages, Policy};
use crate::step::{Backing, Reason, StepDown};
use memory::Memory;

pub(crate) mod memory;
#[cfg(test)]
mod tests;

/// What to reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Bytes; rounded up to whole pages.
    pub bytes: u64,
    /// How much hugepages matter.
    pub huge: Policy,
    /// The NUMA node that the memory must lie on; anywhere without.
    pub numa_node: Option<u32>,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// No bytes, or more than an address can name.
    #[error("an arena cannot have {bytes} bytes")]
    Size {
        /// What was asked for.
        bytes: u64,
    },
    /// The machine has no such node, or the node has no memory.
    #[error("NUMA node {node} does not exist or has no memory")]
    NoSuchNode {
        /// The node that was asked for.
        node: u32,
    },
    /// [`Policy::Require`] allows no step down, and one was needed.
    #[error("required memory is not to be had: {0}")]
    Required(StepDown),
    /// A system call failed, and there is nothing left to step down to.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The call, as its manual page names it.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Where the pages of an arena lie, as the kernel says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Pages by node, in the order of the nodes' numbers.
    pub nodes: Vec<(u32, u64)>,
    /// Pages that lie nowhere yet.
    pub absent: u64,
}

impl Placement {
    /// Whether every page lies on `node`.
    #[must_use]
    pub fn all_on(&self, node: u32) -> bool {
        self.absent == 0 && self.nodes.iter().all(|&(at, _)| at == node)
    }

    fn count(&mut self, node: u32) {
        match self.nodes.binary_search_by_key(&node, |&(at, _)| at) {
            Ok(found) => self.nodes[found].1 += 1,
            Err(place) => self.nodes.insert(place, (node, 1)),
        }
    }
}

/// Reserved memory with all its pages taken; given back when the arena and all its spans are gone.
pub struct Arena {
    memory: Arc<Memory>,
    backing: Backing,
    page_bytes: usize,
    locked: bool,
    config: ArenaConfig,
    steps: Vec<StepDown>,
}

impl Arena {
    /// Reserves memory: hugepages, else transparent hugepages, else ordinary pages, as far as the policy allows; bound to
    /// the node, with every page taken, then locked. Slow; not for lanes.
    ///
    /// # Errors
    /// [`ArenaError::Required`] where [`Policy::Require`] would need a step down; otherwise only when there is not even
    /// ordinary memory, or the request makes no sense.
    pub fn reserve(config: ArenaConfig) -> Result<Self, ArenaError> {
        let bytes = usize::try_from(config.bytes)
            .ok()
            .filter(|&bytes| bytes > 0 && bytes <= isize::MAX as usize - (1 << 40))
            .ok_or(ArenaError::Size { bytes: config.bytes })?;
        if let Some(node) = config.numa_node.filter(|&node| !memory::node_exists(node)) {
            return Err(ArenaError::NoSuchNode { node });
        }
        let mut steps = Steps { taken: Vec::new(), policy: config.huge };
        let node = config.numa_node;
        let (memory, backing, page_bytes) = obtain(bytes, node, &mut steps)?;
        let locked = match memory.lock() {
            Ok(()) => true,
            Err(errno) => {
                steps.down(memory::lock_reason(memory.len()), Some(errno))?;
                false
            }
        };
        Ok(Self { memory: Arc::new(memory), backing, page_bytes, locked, config, steps: steps.taken })
    }

    /// What was not to be had, in the order in which it was tried. Empty: all as asked for.
    #[must_use]
    pub fn steps(&self) -> &[StepDown] {
        &self.steps
    }

    /// The pages that it lies on.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Bytes of the pages that all of it lies on.
    #[must_use]
    pub const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Whether it is kept from being swapped out by a lock. (Hugepages never are; for them a lock that is refused says
    /// that registering the memory with a device will be, too.)
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.locked
    }

    /// The node that was asked for.
    #[must_use]
    pub const fn numa_node(&self) -> Option<u32> {
        self.config.numa_node
    }

    /// Bytes reserved: at least what was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Always false: empty arenas are refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All bytes. The start is aligned to 2 MiB whatever the pages are, so a block that is aligned in the arena is
    /// aligned in memory, up to that.
    #[must_use]
    pub fn span(&self) -> OwnedSpan {
        // SAFETY: the memory is mapped readable and writable for its whole length until its last owner drops it; it is
        // private to this crate, which never forms references into it; what several threads do with it is the lanes'
        // division into blocks.
        unsafe { OwnedSpan::from_owner(self.memory.start(), self.memory.len(), self.memory.clone()) }
    }

    /// Its memory, for moving it to another node while it is used.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent::of_arena(self.memory.clone(), self.page_bytes)
    }

    /// Asks the kernel where every page lies.
    ///
    /// # Errors
    /// [`ArenaError::System`]: `ENOSYS` or `EPERM` where this process may not ask.
    pub fn verify(&self) -> Result<Placement, ArenaError> {
        memory::placement(self.memory.start().addr().get(), self.memory.len(), self.page_bytes)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Arena")
            .field("bytes", &self.len())
            .field("backing", &self.backing)
            .field("page_bytes", &self.page_bytes)
            .field("locked", &self.locked)
            .field("numa_node", &self.config.numa_node)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

/// The steps down so far, and whether any is allowed.
pub(crate) struct Steps {
    pub(crate) taken: Vec<StepDown>,
    pub(crate) policy: Policy,
}

impl Steps {
    /// Records a step down.
    pub(crate) fn down(&mut self, reason: Reason, errno: Option<i32>) -> Result<(), ArenaError> {
        let step = StepDown { reason, errno };
        if self.policy == Policy::Require {
            return Err(ArenaError::Required(step));
        }
        self.taken.push(step);
        Ok(())
    }
}

/// Populated memory, what backs it and the page size that all of it has.
type Obtained = (Memory, Backing, usize);

fn obtain(bytes: usize, node: Option<u32>, steps: &mut Steps) -> Result<Obtained, ArenaError> {
    if steps.policy != Policy::Never {
        if let Some(obtained) = hugetlb(bytes, node, steps)? {
            return Ok(obtained);
        }
        if let Some(obtained) = transparent(bytes, node, steps)? {
            return Ok(obtained);
        }
    }
    small(bytes, node, steps)
}

/// `None` after a step down.
fn hugetlb(bytes: usize, node: Option<u32>, steps: &mut Steps) -> Result<Option<Obtained>, ArenaError> {
    let Some(pages) = Hugepages::read() else {
        steps.down(Reason::HugetlbAbsent, None)?;
        return Ok(None);
    };
    let needed = pages_for(bytes, pages.page_bytes);
    // Only the allocation decides: the kernel may make more pages on demand than are free now.
    let memory = match Memory::hugetlb(bytes, pages) {
        Ok(memory) => memory,
        Err(errno) => {
            steps.down(Reason::HugepagesShort { needed, free: pages.free }, Some(errno))?;
            return Ok(None);
        }
    };
    bind(&memory, node, steps)?;
    match memory.populate() {
        Ok(()) => {}
        // A kernel before 5.14. The pages are promised, so only a shortage on the node is left to chance.
        Err(libc::EINVAL) => steps.down(Reason::Unpopulated, Some(libc::EINVAL))?,
        Err(errno) => {
            let short = Reason::HugepagesShort { needed, free: pages.free };
            steps.down(node.map_or(short, |node| Reason::NodeShort { node }), Some(errno))?;
            return Ok(None);
        }
    }
    let page_bytes = usize::try_from(pages.page_bytes).unwrap_or(memfd::HUGE_PAGE_BYTES);
    Ok(Some((memory, Backing::Hugetlb, page_bytes)))
}

fn pages_for(bytes: usize, page_bytes: u64) -> u64 {
    (bytes as u64).div_ceil(page_bytes)
}

/// `None` after a step down.
fn transparent(bytes: usize, node: Option<u32>, steps: &mut Steps) -> Result<Option<Obtained>, ArenaError> {
    if !pages::transparent_allowed() {
        steps.down(Reason::TransparentOff, None)?;
        return Ok(None);
    }
    let huge_bytes = pages::transparent_bytes();
    let memory = Memory::anonymous(bytes, huge_bytes)?;
    bind(&memory, node, steps)?;
    if let Err(errno) = memory.ask_huge(true) {
        steps.down(Reason::TransparentOff, Some(errno))?;
        return Ok(None);
    }
    take_pages(&memory, steps)?;
    let start = memory.start().addr().get();
    let found = pages::transparent_in(start, start + memory.len());
    if found == memory.len() as u64 {
        return Ok(Some((memory, Backing::Transparent, huge_bytes)));
    }
    steps.down(Reason::TransparentPartial { huge_bytes: found, bytes: memory.len() as u64 }, None)?;
    let backing = if found == 0 { Backing::Small } else { Backing::Transparent };
    Ok(Some((memory, backing, memfd::base_page_bytes())))
}

fn small(bytes: usize, node: Option<u32>, steps: &mut Steps) -> Result<Obtained, ArenaError> {
    let memory = Memory::anonymous(bytes, memfd::base_page_bytes())?;
    bind(&memory, node, steps)?;
    // Refused only where there are no transparent hugepages to switch off.
    let _ = memory.ask_huge(false);
    take_pages(&memory, steps)?;
    Ok((memory, Backing::Small, memfd::base_page_bytes()))
}

/// Takes all pages of ordinary memory: here a shortage has nothing left to step down to.
fn take_pages(memory: &Memory, steps: &mut Steps) -> Result<(), ArenaError> {
    match memory.populate() {
        Ok(()) => Ok(()),
        Err(libc::EINVAL) => steps.down(Reason::Unpopulated, Some(libc::EINVAL)),
        Err(errno) => Err(ArenaError::System { call: "madvise(MADV_POPULATE_WRITE)", errno }),
    }
}

fn bind(memory: &Memory, node: Option<u32>, steps: &mut Steps) -> Result<(), ArenaError> {
    let Some(node) = node else { return Ok(()) };
    match memory::bind(memory.start().addr().get(), memory.len(), node) {
        Ok(()) => Ok(()),
        Err(errno) => steps.down(Reason::NodeUnbound { node }, Some(errno)),
    }
}
