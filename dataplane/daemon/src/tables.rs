//! What the registrar knows: sessions, regions, remote handles. Data only: no lane, socket or mapping is touched here.
//!
//! Slots are the numbers that lanes, clients and peers use. A slot is given to another owner only after everything that
//! used it has ended, and with a new generation.

use std::collections::HashMap;

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE, is_name};
use railhead_abi::segment::{PORTS_PER_LANE_MAX, SESSIONS_MAX};
use railhead_core::port::Key;
use railhead_shm::OwnedSpan;
use railhead_verbs::RemoteMemory;

use crate::grants::Grant;
use crate::rdma::Registered;

mod slots;

use slots::Slots;

/// Slots of the region table; slot 0 is the lanes' staging arenas.
pub(crate) const REGIONS: usize = 4096;
/// Slots of the table of remote handles.
pub(crate) const REMOTES: usize = 4096;
/// Regions, and remote handles, of one session.
pub(crate) const PER_SESSION_MAX: usize = 1024;
/// Bytes of all regions of one session: what it makes this process map.
pub(crate) const SESSION_BYTES_MAX: u64 = 1 << 40;
/// Bytes of all regions.
pub(crate) const BYTES_MAX: u64 = 8 << 40;
/// This node in the table of peers.
pub(crate) const SELF: u32 = 0;
/// In a remote handle: its peer was removed.
pub(crate) const NO_PEER: u32 = u32::MAX;

/// A session.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    /// Its name; empty until it said hello and once it is closing, so that the name is free at once.
    pub(crate) name: String,
    /// Ports that lanes have, as lane and slot.
    pub(crate) ports: Vec<(usize, u8)>,
}

/// How far a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionState {
    /// Lanes do not all have it yet.
    Coming,
    /// In use.
    Live,
    /// Its end has begun: nobody finds it any more, and its name is free.
    Going,
}

/// A region.
#[derive(Debug)]
pub(crate) struct RegionEntry {
    /// How far it is.
    pub(crate) state: RegionState,
    /// Session that owns it.
    pub(crate) session: u32,
    /// Its name; empty if nobody else can open it.
    pub(crate) name: String,
    /// Who may open it.
    pub(crate) grant: Grant,
    /// What transfers may do.
    pub(crate) access: u32,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Bytes of the pages that it lies on.
    pub(crate) page_bytes: u64,
    /// Direct is possible: where NICs are used, they have it.
    pub(crate) direct_possible: bool,
    /// Its memory, once it is mapped; kept until the region is drained on every lane.
    pub(crate) span: Option<OwnedSpan>,
    /// Its registration with the NICs; kept as long.
    pub(crate) rdma: Option<Registered>,
    /// Its memory was taken away, and that has been reported.
    pub(crate) is_lost: bool,
    /// Handles open at each peer.
    pub(crate) holds: HashMap<u32, Held>,
    /// Lanes that have it, one bit each.
    pub(crate) lanes: u64,
}

impl RegionEntry {
    /// The peers that hold it for this access, one bit each. This node always does.
    pub(crate) fn peers(&self, access: u32) -> u64 {
        let holders = self.holds.iter().filter(|(_, held)| held.access & access != 0);
        holders.fold(1 << SELF, |bits, (peer, _)| bits | 1 << (peer % 64))
    }
}

/// What a peer holds of a region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Handles open.
    pub(crate) count: u32,
    /// What any of them was opened for; kept until the last one is given back.
    pub(crate) access: u32,
}

/// A remote handle.
#[derive(Debug, Clone)]
pub(crate) struct RemoteEntry {
    /// Session that opened it.
    pub(crate) session: u32,
    /// Where it is.
    pub(crate) peer: u32,
    /// Its key there.
    pub(crate) key: Key,
    /// Incarnation of the peer that gave the key: to another one it means nothing.
    pub(crate) incarnation: u64,
    /// Its end has begun: lanes were told to forget it.
    pub(crate) is_going: bool,
    /// Lanes that have it, one bit each.
    pub(crate) lanes: u64,
}

/// What a peer or a session gets when it opens a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The key.
    pub(crate) key: Key,
    /// Bytes of the region.
    pub(crate) bytes: u64,
    /// Bytes of its pages.
    pub(crate) page_bytes: u64,
    /// Session that owns it.
    pub(crate) session: u32,
    /// Direct is possible.
    pub(crate) direct_possible: bool,
    /// How NICs of peers name it; zeroes where it is not registered.
    pub(crate) rdma: RemoteMemory,
}

/// All tables of the registrar. Guarded by one lock that is held for look-ups and changes only.
#[derive(Debug)]
pub(crate) struct Tables {
    sessions: Slots<SessionEntry>,
    regions: Slots<RegionEntry>,
    remotes: Slots<RemoteEntry>,
    sessions_max: usize,
    /// Ports reserved on each lane.
    ports: Vec<usize>,
}

impl Tables {
    /// Empty tables for up to `sessions_max` sessions on `lanes` lanes. Generations count from `seed`, a random number, so
    /// that a handle or key from before a restart is not taken for one of today.
    pub(crate) fn new(sessions_max: usize, lanes: usize, seed: u32) -> Self {
        Self {
            sessions: Slots::new(SESSIONS_MAX, 0, 0),
            regions: Slots::new(REGIONS, 1, seed),
            remotes: Slots::new(REMOTES, 0, seed),
            sessions_max,
            ports: vec![0; lanes],
        }
    }

    /// Takes a session slot for a client that has not said hello yet.
    ///
    /// # Errors
    /// [`Code::SessionsFull`].
    pub(crate) fn add_session(&mut self) -> Result<u32, Code> {
        if self.sessions.iter().count() >= self.sessions_max {
            return Err(Code::SessionsFull);
        }
        let added = self.sessions.insert(SessionEntry { name: String::new(), ports: Vec::new() });
        added.map(|(slot, _)| slot).ok_or(Code::SessionsFull)
    }

    /// Gives a session its name.
    ///
    /// # Errors
    /// [`Code::NameInvalid`], [`Code::NameTaken`].
    pub(crate) fn name_session(&mut self, session: u32, name: &str) -> Result<(), Code> {
        if !is_name(name) {
            return Err(Code::NameInvalid);
        }
        if self.sessions.iter().any(|(_, other)| other.name == name) {
            return Err(Code::NameTaken);
        }
        if let Some(entry) = self.sessions.get_mut(session) {
            name.clone_into(&mut entry.name);
        }
        Ok(())
    }

    /// Reserves `ports` ports, port `p` on lane `p mod lanes`, before any memory is made for them.
    ///
    /// # Errors
    /// [`Code::PortsFull`]; nothing is reserved then.
    pub(crate) fn reserve_ports(&mut self, ports: usize) -> Result<(), Code> {
        let lanes = self.ports.len();
        let wanted = |lane: usize| ports / lanes + usize::from(lane < ports % lanes);
        if (0..lanes).any(|lane| self.ports[lane] + wanted(lane) > PORTS_PER_LANE_MAX) {
            return Err(Code::PortsFull);
        }
        (0..lanes).for_each(|lane| self.ports[lane] += wanted(lane));
        Ok(())
    }

    /// Gives reserved ports back.
    pub(crate) fn unreserve_ports(&mut self, ports: usize) {
        let lanes = self.ports.len();
        (0..lanes).for_each(|lane| self.ports[lane] -= ports / lanes + usize::from(lane < ports % lanes));
    }

    /// A lane has a port of the session.
    pub(crate) fn add_port(&mut self, session: u32, lane: usize, port: u8) {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.ports.push((lane, port));
        }
    }

    /// A lane has given a port of the session back. The slot of the port alone would not tell whose it was: the lane may
    /// have given it to the next session before this one heard of it.
    pub(crate) fn remove_port(&mut self, session: u32, lane: usize, port: u8) {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.ports.retain(|open| *open != (lane, port));
        }
    }

    /// The session in a slot.
    pub(crate) fn session(&self, session: u32) -> Option<&SessionEntry> {
        self.sessions.get(session)
    }

    /// Frees the names of a session that ends, so that it may attach again at once. Returns what it owns.
    pub(crate) fn close_session(&mut self, session: u32) -> (Vec<u32>, Vec<u32>) {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.name.clear();
        }
        let regions: Vec<u32> = self
            .regions
            .iter()
            .filter(|(_, region)| region.session == session)
            .map(|(slot, _)| slot)
            .collect();
        for slot in &regions {
            if let Some(region) = self.regions.get_mut(*slot) {
                region.state = RegionState::Going;
            }
        }
        let remotes =
            self.remotes.iter().filter(|(_, remote)| remote.session == session).map(|(slot, _)| slot);
        (regions, remotes.collect())
    }

    /// Frees a session's slot: everything that it owned has been removed.
    pub(crate) fn remove_session(&mut self, session: u32) {
        self.sessions.remove(session);
    }

    /// Takes a region slot and counts its bytes; its memory is mapped next, lanes get it, then [`Self::region_ready`]. Returns slot and generation.
    ///
    /// # Errors
    /// [`Code::NameInvalid`], [`Code::NameTaken`], [`Code::QuotaExceeded`], [`Code::RegionsFull`].
    pub(crate) fn add_region(&mut self, entry: RegionEntry) -> Result<(u32, u32), Code> {
        if !entry.name.is_empty() && !is_name(&entry.name) {
            return Err(Code::NameInvalid);
        }
        let is_same = |other: &RegionEntry| other.state != RegionState::Going && other.name == entry.name;
        if !entry.name.is_empty() && self.regions.iter().any(|(_, other)| is_same(other)) {
            return Err(Code::NameTaken);
        }
        let (mut count, mut own, mut all) = (0, entry.bytes, entry.bytes);
        for (_, other) in self.regions.iter() {
            all = all.saturating_add(other.bytes);
            if other.session == entry.session {
                count += 1;
                own = own.saturating_add(other.bytes);
            }
        }
        if count >= PER_SESSION_MAX || own > SESSION_BYTES_MAX || all > BYTES_MAX {
            return Err(Code::QuotaExceeded);
        }
        self.regions.insert(entry).ok_or(Code::RegionsFull)
    }

    /// The region's memory is mapped.
    pub(crate) fn region_mapped(
        &mut self,
        region: u32,
        span: OwnedSpan,
        direct_possible: bool,
        rdma: Option<Registered>,
    ) {
        if let Some(entry) = self.regions.get_mut(region) {
            entry.span = Some(span);
            entry.direct_possible = direct_possible;
            entry.rdma = rdma;
        }
    }

    /// All lanes have the region: it can be opened.
    pub(crate) fn region_ready(&mut self, region: u32) {
        if let Some(entry) = self.regions.get_mut(region) {
            entry.state = RegionState::Live;
        }
    }

    /// Regions whose memory was taken away since the last call, as session and name.
    pub(crate) fn take_losses(&mut self) -> Vec<(u32, String)> {
        let is_news =
            |region: &RegionEntry| !region.is_lost && region.span.as_ref().is_some_and(OwnedSpan::poisoned);
        let lost: Vec<u32> =
            self.regions.iter().filter(|(_, region)| is_news(region)).map(|(slot, _)| slot).collect();
        let mut news = Vec::new();
        for slot in lost {
            if let Some(region) = self.regions.get_mut(slot) {
                region.is_lost = true;
                news.push((region.session, region.name.clone()));
            }
        }
        news
    }

    /// Notes which lanes have a region.
    pub(crate) fn region_lanes(&mut self, region: u32, change: impl FnOnce(&mut u64)) {
        if let Some(entry) = self.regions.get_mut(region) {
            change(&mut entry.lanes);
        }
    }

    /// Notes which lanes have a remote handle.
    pub(crate) fn remote_lanes(&mut self, remote: u32, change: impl FnOnce(&mut u64)) {
        if let Some(entry) = self.remotes.get_mut(remote) {
            change(&mut entry.lanes);
        }
    }

    /// The region in a slot.
    pub(crate) fn region(&self, region: u32) -> Option<&RegionEntry> {
        self.regions.get(region)
    }

    /// Begins the end of a region of `session`.
    ///
    /// # Errors
    /// [`Code::LocalHandleStale`].
    pub(crate) fn close_region(&mut self, session: u32, index: u32, generation: u32) -> Result<(), Code> {
        let entry = self.regions.current(index, generation).filter(|entry| entry.session == session);
        let entry = entry.filter(|entry| entry.state != RegionState::Coming).ok_or(Code::LocalHandleStale)?;
        entry.state = RegionState::Going;
        Ok(())
    }

    /// Frees a region's slot: it is drained on every lane and out of every adapter.
    pub(crate) fn remove_region(&mut self, region: u32) -> Option<RegionEntry> {
        self.regions.remove(region)
    }

    /// The key of a region, as its holders know it.
    pub(crate) fn key(&self, region: u32) -> Key {
        Key { index: region, epoch: self.regions.generation(region) }
    }

    /// Opens a region by name for `session_name` on `node`, which is `peer` in our table. An owner may open its own.
    ///
    /// # Errors
    /// [`Code::RegionUnknown`]; [`Code::GrantMissing`], also for access that the region does not give.
    pub(crate) fn open(
        &mut self,
        name: &str,
        access: u32,
        (peer, node, session_name): (u32, &str, &str),
        local_session: Option<u32>,
    ) -> Result<Opened, Code> {
        let found = self.regions.iter().find(|(_, region)| !name.is_empty() && region.name == name);
        let (index, _) =
            found.filter(|(_, region)| region.state == RegionState::Live).ok_or(Code::RegionUnknown)?;
        let key = self.key(index);
        let region = self.regions.get_mut(index).ok_or(Code::RegionUnknown)?;
        let is_owner = local_session == Some(region.session);
        let wanted = access & (ACCESS_READ | ACCESS_WRITE);
        if !(is_owner || region.grant.allows(node, session_name)) || region.access & wanted != wanted {
            return Err(Code::GrantMissing);
        }
        let held = region.holds.entry(peer).or_default();
        held.count += 1;
        held.access |= wanted;
        let rdma = region.rdma.as_ref().map(|registered| registered.remote);
        Ok(Opened {
            key,
            bytes: region.bytes,
            page_bytes: region.page_bytes,
            session: region.session,
            direct_possible: region.direct_possible,
            rdma: rdma.unwrap_or_default(),
        })
    }

    /// A holder gave one handle back. True if that was its last one.
    pub(crate) fn unhold(&mut self, key: Key, peer: u32) -> bool {
        let Some(region) = self.regions.current(key.index, key.epoch) else { return false };
        let Some(held) = region.holds.get_mut(&peer) else { return false };
        held.count -= 1;
        if held.count > 0 {
            return false;
        }
        region.holds.remove(&peer);
        true
    }

    /// The keys of what `peer` holds.
    pub(crate) fn held_by(&self, peer: u32) -> Vec<Key> {
        let held = self.regions.iter().filter(|(_, region)| region.holds.contains_key(&peer));
        held.map(|(slot, _)| self.key(slot)).collect()
    }

    /// Everything that `peer` held is gone with its last start. Returns what that was.
    pub(crate) fn unhold_all(&mut self, peer: u32) -> Vec<Key> {
        let held = self.held_by(peer);
        for key in &held {
            if let Some(region) = self.regions.get_mut(key.index) {
                region.holds.remove(&peer);
            }
        }
        held
    }

    /// Takes a slot for a remote handle. Returns slot and generation.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::RegionsFull`].
    pub(crate) fn add_remote(&mut self, entry: RemoteEntry) -> Result<(u32, u32), Code> {
        if self.remotes.iter().filter(|(_, other)| other.session == entry.session).count() >= PER_SESSION_MAX
        {
            return Err(Code::QuotaExceeded);
        }
        self.remotes.insert(entry).ok_or(Code::RegionsFull)
    }

    /// The remote handle in a slot.
    pub(crate) fn remote(&self, remote: u32) -> Option<&RemoteEntry> {
        self.remotes.get(remote)
    }

    /// Checks that a remote handle is one of `session`.
    ///
    /// # Errors
    /// [`Code::RemoteHandleStale`].
    pub(crate) fn remote_of(&mut self, session: u32, index: u32, generation: u32) -> Result<(), Code> {
        let entry = self.remotes.current(index, generation).filter(|entry| entry.session == session);
        entry.map(|_| ()).ok_or(Code::RemoteHandleStale)
    }

    /// Begins the end of one remote handle. False if it had begun before.
    pub(crate) fn close_remote(&mut self, remote: u32) -> bool {
        self.remotes.get_mut(remote).is_some_and(|entry| !core::mem::replace(&mut entry.is_going, true))
    }

    /// The handles that `peer` gave, all or those of one key. Those whose end has begun as well: lanes may still use them.
    pub(crate) fn remotes_of_peer(&self, peer: u32, key: Option<Key>) -> Vec<u32> {
        let is_meant = |remote: &RemoteEntry| remote.peer == peer && key.is_none_or(|key| remote.key == key);
        self.remotes.iter().filter(|(_, remote)| is_meant(remote)).map(|(slot, _)| slot).collect()
    }

    /// The keys of all handles that a peer gave, each with the incarnation that gave it.
    pub(crate) fn keys_of_peer(&self, peer: u32) -> Vec<(Key, u64)> {
        let given = self.remotes.iter().filter(|(_, remote)| remote.peer == peer);
        given.map(|(_, remote)| (remote.key, remote.incarnation)).collect()
    }

    /// Parts the handles that a peer gave from its slot, which another one may get: no lane has them, and their sessions
    /// have to give them back all the same.
    pub(crate) fn orphan_remotes(&mut self, peer: u32) {
        for slot in self.remotes_of_peer(peer, None) {
            if let Some(remote) = self.remotes.get_mut(slot) {
                remote.peer = NO_PEER;
            }
        }
    }

    /// Frees a remote handle's slot: no lane uses it.
    pub(crate) fn remove_remote(&mut self, remote: u32) -> Option<RemoteEntry> {
        self.remotes.remove(remote)
    }
}

#[cfg(test)]
mod tests;
