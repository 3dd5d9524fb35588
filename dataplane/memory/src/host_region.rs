//! Regions: memory that a client shares with the dataplane, in a sealed memory file.

use std::os::fd::OwnedFd;

use railhead_shm::memfd::{self, Huge, MemfdError};
use railhead_shm::{Access, MapError, Mapping};

use crate::arena::{ArenaError, Steps, memory};
use crate::pages::{Hugepages, Policy};
use crate::step::{Backing, Reason, StepDown};

#[cfg(test)]
mod tests;

/// Why no region was made.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The request makes no sense, a step down was not allowed, or there is no memory at all.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The file could not be made.
    #[error(transparent)]
    File(#[from] MemfdError),
    /// The file could not be mapped to take its pages.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A new region.
#[derive(Debug)]
pub struct HostRegion {
    /// The memory file: sized, sealed, with all pages taken. To be mapped by its users and passed to the dataplane.
    pub file: OwnedFd,
    /// Bytes of the file: at least what was asked for.
    pub bytes: u64,
    /// Bytes of its pages.
    pub page_bytes: usize,
    /// The pages that it lies on.
    pub backing: Backing,
    /// What was not to be had, in the order in which it was tried.
    pub steps: Vec<StepDown>,
}

/// Makes a region of at least `bytes`, anywhere on the machine. `name` is only a label in `/proc/PID/maps`.
///
/// # Errors
/// [`RegionError`]; with [`Policy::Prefer`] only when there is not even ordinary memory.
pub fn create(bytes: u64, name: &str, huge: Policy) -> Result<HostRegion, RegionError> {
    create_on(bytes, name, huge, None)
}

/// Makes a region whose pages lie on a NUMA node.
///
/// # Errors
/// As [`create`]; [`ArenaError::NoSuchNode`] when there is none.
pub fn create_on(bytes: u64, name: &str, huge: Policy, node: Option<u32>) -> Result<HostRegion, RegionError> {
    if let Some(node) = node.filter(|&node| !memory::node_exists(node)) {
        return Err(ArenaError::NoSuchNode { node }.into());
    }
    let mut steps = Steps { taken: Vec::new(), policy: huge };
    let mut file = None;
    if huge != Policy::Never {
        file = hugetlb(bytes, name, node, &mut steps)?;
    }
    let (file, backing) = match file {
        Some(file) => (file, Backing::Hugetlb),
        None => (small(bytes, name, node, &mut steps)?, Backing::Small),
    };
    let facts = memfd::facts(&file)?;
    Ok(HostRegion { file, bytes: facts.bytes, page_bytes: facts.page_bytes, backing, steps: steps.taken })
}

/// `None` after a step down.
fn hugetlb(
    bytes: u64,
    name: &str,
    node: Option<u32>,
    steps: &mut Steps,
) -> Result<Option<OwnedFd>, RegionError> {
    let Some(pages) = Hugepages::read() else {
        steps.down(Reason::HugetlbAbsent, None)?;
        return Ok(None);
    };
    let file = match memfd::create(name, bytes, Huge::Default2M) {
        Ok(file) => file,
        Err(error @ MemfdError::Size { .. }) => return Err(error.into()),
        // No pool of 2 MiB pages: the default is another size, or hugetlb files are not built in.
        Err(error) => {
            steps.down(Reason::HugepageSize { bytes: pages.page_bytes }, error.errno())?;
            return Ok(None);
        }
    };
    let needed = bytes.div_ceil(memfd::HUGE_PAGE_BYTES as u64);
    let short = Reason::HugepagesShort { needed, free: pages.free };
    // Mapping is what reserves the pages; unmapped again at the end, while the file keeps them.
    let mapping = match Mapping::of_sealed(&file, Access::ReadWrite) {
        Ok(mapping) => mapping,
        Err(MapError::Map(error)) => {
            steps.down(short, error.raw_os_error())?;
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    bind(&mapping, node, steps)?;
    match mapping.populate() {
        Ok(()) => Ok(Some(file)),
        Err(error) => {
            steps.down(node.map_or(short, |node| Reason::NodeShort { node }), error.raw_os_error())?;
            Ok(None)
        }
    }
}

fn small(bytes: u64, name: &str, node: Option<u32>, steps: &mut Steps) -> Result<OwnedFd, RegionError> {
    let file = memfd::create(name, bytes, Huge::No)?;
    if node.is_some() {
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite)?;
        bind(&mapping, node, steps)?;
        mapping.populate().map_err(|error| ArenaError::System {
            call: "madvise(MADV_POPULATE_WRITE)",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
    } else {
        memfd::populate(&file)?;
    }
    Ok(file)
}

fn bind(mapping: &Mapping, node: Option<u32>, steps: &mut Steps) -> Result<(), RegionError> {
    let Some(node) = node else { return Ok(()) };
    if let Err(errno) = memory::bind(mapping.address(), mapping.len(), node) {
        steps.down(Reason::NodeUnbound { node }, Some(errno))?;
    }
    Ok(())
}
