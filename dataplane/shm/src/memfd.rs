//! Sealed memory files: the only files that processes of this node share.
//!
//! A mapping of a file that its other holder can shrink is a SIGBUS at a time of that holder's choosing. So each file made
//! here is sealed against shrinking, growing and further sealing, and files made elsewhere are refused without the seals.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// `f_type` of hugetlbfs in `statfs(2)`; every `MFD_HUGETLB` file lives there.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Bytes of the hugepages that [`Huge::Default2M`] asks for.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Which pages back a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Huge {
    /// Ordinary pages.
    No,
    /// Reserved pages of 2 MiB. Creation succeeds even if none is free: the shortage shows when the file is populated.
    Default2M,
}

/// Why a memory file could not be made or is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemfdError {
    /// A file of no bytes, or of more than a file can have.
    #[error("a memory file cannot have {bytes} bytes")]
    Size {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The seals that keep the file from shrinking and growing are not all there.
    #[error(
        "memory file is not sealed against {missing}; seal it with F_SEAL_SHRINK and F_SEAL_GROW before passing it"
    )]
    Unsealed {
        /// Names of the missing seals.
        missing: &'static str,
    },
    /// The descriptor is not a memory file at all (it has no seals to ask for).
    #[error("descriptor is not a memory file ({0})")]
    NotMemory(Errno),
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The call, as its manual page names it.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl MemfdError {
    /// The error number behind this refusal, when there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NotMemory(errno) | Self::System { errno, .. } => Some(errno.raw_os_error()),
            Self::Size { .. } | Self::Unsealed { .. } => None,
        }
    }
}

/// What the kernel says of a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Bytes of one of its pages: mappings must be multiples of it.
    pub page_bytes: usize,
    /// Whether its pages come from the reserved hugepages.
    pub hugetlb: bool,
}

/// Bytes of an ordinary page of this machine.
#[must_use]
pub fn base_page_bytes() -> usize {
    rustix::param::page_size()
}

/// Makes a memory file of at least `bytes`, rounded up to its page, zeroed and sealed against shrinking, growing and
/// further seals. `name` is only a label in `/proc/PID/maps`.
///
/// # Errors
/// [`MemfdError::Size`] for no bytes or too many; [`MemfdError::System`] when the kernel refuses (for hugepages: not
/// built in, or no such page size).
pub fn create(name: &str, bytes: u64, huge: Huge) -> Result<OwnedFd, MemfdError> {
    let file = create_unsealed(name, bytes, huge)?;
    seal(&file, SealFlags::empty())?;
    Ok(file)
}

/// The file before its seals, for what has to be mapped in between.
pub(crate) fn create_unsealed(name: &str, bytes: u64, huge: Huge) -> Result<OwnedFd, MemfdError> {
    let page_bytes = match huge {
        Huge::No => base_page_bytes(),
        Huge::Default2M => HUGE_PAGE_BYTES,
    };
    let rounded = bytes
        .checked_next_multiple_of(page_bytes as u64)
        .filter(|&rounded| rounded > 0 && i64::try_from(rounded).is_ok())
        .ok_or(MemfdError::Size { bytes })?;
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge == Huge::Default2M {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let file = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
    rustix::fs::ftruncate(&file, rounded).map_err(system("ftruncate"))?;
    Ok(file)
}

/// Seals against shrinking, growing and further seals, and against `also`.
pub(crate) fn seal(file: &OwnedFd, also: SealFlags) -> Result<(), MemfdError> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | also;
    rustix::fs::fcntl_add_seals(file, seals).map_err(system("fcntl(F_ADD_SEALS)"))
}

/// Checks that the file can neither shrink nor grow any more. Seals cannot be taken back, so the answer stays true.
///
/// # Errors
/// [`MemfdError::Unsealed`] naming what is missing; [`MemfdError::NotMemory`] for anything that cannot carry seals.
pub fn require_seals(file: impl AsFd) -> Result<(), MemfdError> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(MemfdError::NotMemory)?;
    match (seals.contains(SealFlags::SHRINK), seals.contains(SealFlags::GROW)) {
        (true, true) => Ok(()),
        (false, true) => Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK" }),
        (true, false) => Err(MemfdError::Unsealed { missing: "F_SEAL_GROW" }),
        (false, false) => Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK and F_SEAL_GROW" }),
    }
}

/// Size and page size of a memory file.
///
/// # Errors
/// [`MemfdError::System`] when the kernel cannot say.
pub fn facts(file: impl AsFd) -> Result<Facts, MemfdError> {
    let stat = rustix::fs::fstat(&file).map_err(system("fstat"))?;
    let filesystem = rustix::fs::fstatfs(&file).map_err(system("fstatfs"))?;
    let hugetlb = u64::try_from(filesystem.f_type).is_ok_and(|magic| magic == HUGETLBFS_MAGIC);
    // st_blksize is the page only on hugetlbfs: with shmem_enabled=always an ordinary memfd reports a huge one too.
    let page_bytes =
        if hugetlb { usize::try_from(stat.st_blksize).unwrap_or(HUGE_PAGE_BYTES) } else { base_page_bytes() };
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(Facts { bytes, page_bytes, hugetlb })
}

/// Takes all pages of the file now, so that a shortage is an error here and not a SIGBUS at first use.
///
/// # Errors
/// [`MemfdError::System`]; `ENOSPC` or `ENOMEM` when there are not enough pages. Pages taken so far stay with the file.
pub fn populate(file: impl AsFd) -> Result<(), MemfdError> {
    let bytes = facts(&file)?.bytes;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).map_err(system("fallocate"))
}

const fn system(call: &'static str) -> impl Fn(Errno) -> MemfdError {
    move |errno| MemfdError::System { call, errno }
}
