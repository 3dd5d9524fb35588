//! Regions, remote handles, sessions and ports: what the registrar installs and takes away.

use super::Engine;
use crate::notice::Notice;
use crate::port::{CopyEngine, Fabric, Nanos, RegionIndex};
use crate::tables::{
    Phase, Port, PortIndex, PortParts, Region, RegionInfo, Remote, RemoteInfo, SessionParts,
};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::settings::Plan;
use railhead_abi::submission::SIDE_LOCAL;
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Puts a region into a free slot; the adapters have it already. False if the slot is not free.
    pub fn install_region(&mut self, region: RegionIndex, info: RegionInfo) -> bool {
        let Some(entry) = self.regions.get_mut(region.0 as usize) else { return false };
        if region == RegionIndex::ARENA || entry.info.is_some() {
            return false;
        }
        *entry = Region { info: Some(info), ..Region::default() };
        true
    }

    /// Sets which peers may write into a region and read from it: new transfers of others are refused.
    pub fn grant_region(&mut self, region: RegionIndex, peers: u64, readers: u64) {
        if let Some(info) = self.regions.get_mut(region.0 as usize).and_then(|entry| entry.info.as_mut()) {
            info.peers = peers;
            info.readers = readers;
        }
    }

    /// No new use of the region; [`Notice::RegionDrained`] follows.
    pub fn remove_region(&mut self, region: RegionIndex) {
        if let Some(entry) = self.regions.get_mut(region.0 as usize)
            && entry.info.is_some()
            && !entry.is_closing
        {
            entry.is_closing = true;
            self.settle_region(region.0);
        }
    }

    /// A use of a region ended.
    pub(super) fn release_region(&mut self, index: u32) {
        self.regions[index as usize].uses -= 1;
        self.settle_region(index);
    }

    fn settle_region(&mut self, index: u32) {
        let entry = &mut self.regions[index as usize];
        if entry.is_closing && entry.uses == 0 && entry.info.is_some() {
            *entry = Region::default();
            self.notices.push(Notice::RegionDrained { region: RegionIndex(index) });
        }
    }

    /// Puts a remote handle into a free slot. False if the slot is not free.
    pub fn install_remote(&mut self, remote: u32, info: RemoteInfo) -> bool {
        let Some(entry) = self.remotes.get_mut(remote as usize) else { return false };
        if entry.info.is_some() {
            return false;
        }
        *entry = Remote { info: Some(info), ..Remote::default() };
        true
    }

    /// No new use of the handle; [`Notice::RemoteDrained`] follows.
    pub fn remove_remote(&mut self, remote: u32) {
        if let Some(entry) = self.remotes.get_mut(remote as usize)
            && entry.info.is_some()
            && !entry.is_closing
        {
            entry.is_closing = true;
            self.settle_remote(remote);
        }
    }

    pub(super) fn settle_remote(&mut self, remote: u32) {
        let entry = &mut self.remotes[remote as usize];
        if entry.is_closing && entry.uses == 0 && entry.info.is_some() {
            *entry = Remote::default();
            self.notices.push(Notice::RemoteDrained { remote });
        }
    }

    /// Uses a peer's new receive plan for all transfers taken from now on.
    pub fn update_plan(&mut self, peer: u32, plan: &Plan) {
        for info in self.remotes.iter_mut().filter_map(|remote| remote.info.as_mut()) {
            // Two threads of a registrar may tell an older plan after a newer one.
            if info.peer == peer && plan.generation >= info.plan.generation {
                let direct_possible = info.plan.direct_possible;
                info.plan = Plan { direct_possible, ..*plan };
            }
        }
    }

    /// Uses a peer's new plan for the send leg of all reads taken from now on.
    pub fn update_read_plan(&mut self, peer: u32, plan: &Plan) {
        for info in self.remotes.iter_mut().filter_map(|remote| remote.info.as_mut()) {
            if info.peer == peer && plan.generation >= info.read_plan.generation {
                let direct_possible = info.read_plan.direct_possible;
                info.read_plan = Plan { direct_possible, ..*plan };
            }
        }
    }

    /// Refuses all handles of a peer until they are reopened: it was restarted, its keys mean nothing.
    pub fn expire_remotes(&mut self, peer: u32) {
        for remote in self.remotes.iter_mut() {
            remote.is_stale |= remote.info.is_some_and(|info| info.peer == peer);
        }
    }

    /// Lets transfers notify a session.
    pub fn attach_session(&mut self, session: u32, parts: SessionParts<M>) -> Result<(), SessionParts<M>> {
        match self.sessions.get_mut(session as usize) {
            Some(entry @ None) => {
                *entry = Some(parts);
                Ok(())
            }
            _ => Err(parts),
        }
    }

    /// Takes a session's memory back. Its ports must have been closed before.
    pub fn detach_session(&mut self, session: u32) -> Option<SessionParts<M>> {
        self.sessions_to_wake[session as usize / 64] &= !(1 << (session % 64));
        self.sessions.get_mut(session as usize)?.take()
    }

    /// Attaches a port; gives its rings back if there is no free slot.
    pub fn attach_port(&mut self, session: u32, parts: PortParts<M>) -> Result<PortIndex, PortParts<M>> {
        let Some(at) = self.ports.iter().position(Option::is_none) else { return Err(parts) };
        self.ports_used |= 1 << at;
        self.ports[at] = Some(Port { parts, session, in_flight: 0, is_closing: false });
        Ok(PortIndex(u8::try_from(at).unwrap_or(u8::MAX)))
    }

    /// Ports attached.
    #[must_use]
    pub fn ports_attached(&self) -> usize {
        self.ports_used.count_ones() as usize
    }

    /// No more intake; [`Notice::PortClosed`] follows the last completion. Its transfers go on; see
    /// [`Engine::abandon_port`].
    pub fn close_port(&mut self, index: PortIndex) {
        let Some(port) = self.ports.get_mut(usize::from(index.0)).and_then(Option::as_mut) else { return };
        if !port.is_closing {
            port.is_closing = true;
            if port.in_flight == 0 {
                self.finish_port(index);
            }
        }
    }

    /// Closes a port whose client is gone, and stops its transfers.
    pub fn abandon_port(&mut self, index: PortIndex, now: Nanos) {
        self.close_port(index);
        for at in 0..super::to_u32(self.transfers.len()) {
            let transfer = &self.transfers[at as usize];
            if transfer.phase != Phase::Free && transfer.port == index {
                self.stop(at, Code::SessionClosed, SIDE_LOCAL, now);
            }
        }
    }

    pub(super) fn finish_port(&mut self, index: PortIndex) {
        let at = usize::from(index.0);
        if let Some(mut port) = self.ports[at].take() {
            port.parts.submissions.release();
            port.parts.completions.publish();
            self.ports_used &= !(1 << at);
            self.ports_dirty &= !(1 << at);
            self.ports_to_wake &= !(1 << at);
            self.notices.push(Notice::PortClosed { session: port.session, port: index, parts: port.parts });
        }
    }
}
