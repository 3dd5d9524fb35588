//! Local regions and remote handles.

use crate::port::{ConnectionIndex, Key};
use railhead_abi::settings::Plan;
use railhead_abi::submission::CLASSES;

/// What the registrar says of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInfo {
    /// Generation of the slot: clients' handles and peers' keys carry it.
    pub generation: u32,
    /// Bytes.
    pub bytes: u64,
    /// [`railhead_abi::frame::ACCESS_READ`] | [`railhead_abi::frame::ACCESS_WRITE`].
    pub access: u32,
    /// Session that owns it.
    pub session: u32,
    /// Inbound direct writes need a flush before they may be announced.
    pub flush: bool,
    /// Direct is possible.
    pub direct_possible: bool,
    /// Peers that may write, one bit each; bit 0 is this node.
    pub peers: u64,
    /// Peers that may read, likewise.
    pub readers: u64,
}

/// A local region.
#[derive(Debug, Clone, Copy, Default)]
pub struct Region {
    /// None if the slot is free.
    pub info: Option<RegionInfo>,
    /// Transfers and copies that use it.
    pub uses: u32,
    /// No new use; reported when `uses` is 0.
    pub is_closing: bool,
}

/// What the registrar says of a remote region that a session opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteInfo {
    /// Generation of the handle.
    pub generation: u32,
    /// Session that opened it.
    pub session: u32,
    /// Slot of the peer table; 0 is this node.
    pub peer: u32,
    /// [`railhead_abi::frame::ACCESS_READ`] | [`railhead_abi::frame::ACCESS_WRITE`]: what it was opened for.
    pub access: u32,
    /// Connections by class.
    pub connections: [ConnectionIndex; CLASSES],
    /// Connections by class on which the peer serves our reads.
    pub readers: [ConnectionIndex; CLASSES],
    /// The fabric of `connections` can read ([`crate::port::Capabilities::reads`]).
    pub one_sided: bool,
    /// The key at the target.
    pub key: Key,
    /// Bytes.
    pub bytes: u64,
    /// Receive plan.
    pub plan: Plan,
    /// Plan of the send leg of reads.
    pub read_plan: Plan,
}

/// A remote region that a session opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Remote {
    /// None if the slot is free.
    pub info: Option<RemoteInfo>,
    /// Transfers that use it.
    pub uses: u32,
    /// A transfer's end is unknown, or its owner closed it: refused until reopened.
    pub is_stale: bool,
    /// No new use; reported when `uses` is 0.
    pub is_closing: bool,
}
