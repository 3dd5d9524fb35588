//! Which of a port's addresses to use.
//!
//! On RoCE only version 2 is routed and used here: an IPv4-mapped address first, then a global IPv6 one, then a link-local
//! one. Never a fixed index: tables differ between nodes and change while the system runs.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::Path;

use rdma_core_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_ah_attr, ibv_gid, ibv_gid_entry,
    ibv_global_route,
};

use crate::device::Device;
use crate::domain::Domain;
use crate::error::VerbsError;

#[cfg(test)]
mod tests;

/// A global identifier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    fn address(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address().to_ipv4_mapped() {
            Some(address) => address.fmt(f),
            None => self.address().fmt(f),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How packets to an address look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE version 1: not routed, never used.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

/// An entry of a port's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in this node's table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// How it is used.
    pub kind: GidKind,
}

/// How much an entry is wanted, less is better; `None` if it cannot be used.
fn rank(entry: &GidEntry, is_ethernet: bool) -> Option<u32> {
    if entry.gid.is_zero() {
        return None;
    }
    let address = entry.gid.address();
    match (entry.kind, is_ethernet) {
        (GidKind::Infiniband, false) => Some(0),
        (GidKind::RoceV2, true) if address.to_ipv4_mapped().is_some() => Some(0),
        (GidKind::RoceV2, true) if !address.is_unicast_link_local() => Some(1),
        (GidKind::RoceV2, true) => Some(2),
        _ => None,
    }
}

/// The usable entries of a table, the most wanted first, those of one kind in the table's order.
#[must_use]
pub fn candidates(table: &[GidEntry], is_ethernet: bool) -> Vec<GidEntry> {
    let mut found: Vec<(u32, GidEntry)> =
        table.iter().filter_map(|entry| Some((rank(entry, is_ethernet)?, *entry))).collect();
    found.sort_by_key(|(rank, entry)| (*rank, entry.index));
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Reads the table of a port. Entries that cannot be read (they are of another container, or empty) are left out.
///
/// # Errors
/// That of the port's query.
pub fn table(device: &Device, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    let gids = device.port(port)?.gids;
    let by_library = |index| {
        let query = device.library.ibv_query_gid_ex?;
        let mut entry = ibv_gid_entry::default();
        let bytes = size_of::<ibv_gid_entry>();
        // SAFETY: a live context, and an entry of the size that is said.
        let code = unsafe { query(device.context.as_ptr(), port.into(), index, &mut entry, 0, bytes) };
        if code != 0 {
            return None;
        }
        let kind = match entry.gid_type {
            IBV_GID_TYPE_IB => GidKind::Infiniband,
            IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => return None,
        };
        Some(GidEntry { index, gid: Gid(entry.gid.raw), kind })
    };
    let entries: Vec<GidEntry> = (0..gids).filter_map(by_library).collect();
    // A library without the query, or a kernel without its answer: sysfs says the same.
    Ok(if entries.is_empty() { sysfs_table(device.sysfs(), port, gids) } else { entries })
}

/// Reads the table of a port from its device's sysfs folder.
fn sysfs_table(sysfs: &Path, port: u8, gids: u32) -> Vec<GidEntry> {
    let folder = sysfs.join("ports").join(port.to_string());
    let entry = |index: u32| {
        let gid = std::fs::read_to_string(folder.join("gids").join(index.to_string())).ok()?;
        let gid = Gid(gid.trim().parse::<Ipv6Addr>().ok()?.octets());
        // EINVAL where the entry's network interface is in another namespace.
        let kind = std::fs::read_to_string(folder.join("gid_attrs/types").join(index.to_string())).ok()?;
        let kind = match kind.trim() {
            "IB/RoCE v1" => GidKind::RoceV1,
            "RoCE v2" => GidKind::RoceV2,
            _ => return None,
        };
        Some(GidEntry { index, gid, kind })
    };
    (0..gids).filter_map(entry).collect()
}

/// The address of a port to use: the first candidate that an address handle can be made with.
///
/// # Errors
/// [`VerbsError::NoGid`], or that of the port's query.
pub fn choose(domain: &Domain, port: u8) -> Result<GidEntry, VerbsError> {
    let device = domain.device();
    let state = device.port(port)?;
    let mut table = table(device, port)?;
    if !state.is_ethernet {
        // sysfs cannot tell the first version of RoCE from InfiniBand; the link can.
        for entry in table.iter_mut().filter(|entry| entry.kind == GidKind::RoceV1) {
            entry.kind = GidKind::Infiniband;
        }
    }
    let found = candidates(&table, state.is_ethernet).into_iter().find(|entry| works(domain, port, entry));
    found.ok_or_else(|| VerbsError::NoGid { name: device.name().into(), port })
}

/// Whether an address handle to the entry's own address can be made.
fn works(domain: &Domain, port: u8, entry: &GidEntry) -> bool {
    let Ok(sgid_index) = u8::try_from(entry.index) else { return false };
    let dgid = ibv_gid { raw: entry.gid.0, align: [] };
    let grh = ibv_global_route { dgid, flow_label: 0, sgid_index, hop_limit: 64, traffic_class: 0 };
    let mut attr = ibv_ah_attr { grh, is_global: 1, port_num: port, ..ibv_ah_attr::default() };
    let library = domain.device().library;
    // SAFETY: a live protection domain and whole attributes.
    let handle = unsafe { (library.ibv_create_ah)(domain.as_ptr(), &mut attr) };
    if handle.is_null() {
        // What has no address handles at all is believed.
        return matches!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::ENOSYS)
        );
    }
    // SAFETY: made above, used by nothing.
    unsafe { (library.ibv_destroy_ah)(handle) };
    true
}
