//! Clients that come and go: regions that are registered again, ports whose client dies.

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::submission::Completion;
use railhead_core::port::RegionIndex;
use railhead_core::tables::{PortIndex, RegionInfo};

use super::session::{self, Area, AreaIndex, AreaInfo, Purpose};
use super::{AREA_BYTES, World, peer_slot};

impl World<'_> {
    /// Registers a new region of a session on all lanes of its node.
    pub(super) fn register(&mut self, info: AreaInfo) -> AreaIndex {
        let area = Area::new(info, AREA_BYTES, &mut self.rng);
        let (access, peers, readers) = match info.purpose {
            Purpose::Source => (ACCESS_READ, 0, u64::MAX),
            Purpose::Destination => (ACCESS_READ | ACCESS_WRITE, u64::MAX, 0),
            Purpose::Sink => (ACCESS_WRITE, 0, 0),
        };
        // Nobody's key opens a sink, where a window does.
        let has_windows = self.config.network.capabilities.windows;
        let keys = if info.purpose == Purpose::Sink && has_windows { 0 } else { access };
        let session = &self.sessions[info.session];
        for lane in self.lanes.iter_mut().filter(|lane| lane.node == session.node) {
            lane.regions.install(info.region, info.generation, &area.memory, keys);
            let region = RegionInfo {
                generation: info.generation,
                bytes: AREA_BYTES as u64,
                access,
                session: session.slot,
                flush: info.flush,
                direct_possible: info.direct_possible,
                peers,
                readers,
            };
            assert!(lane.engine.install_region(info.region, region), "the region's slot is free");
            lane.is_rung = true;
        }
        self.areas.push(area);
        self.areas.len() - 1
    }

    /// A session takes one of its regions back, whatever uses it; it registers a new one when all lanes are done with it.
    pub(super) fn deregister_one(&mut self) {
        let session = self.rng.index(self.sessions.len());
        let client = &self.sessions[session];
        let area = *self.rng.pick(&client.areas);
        if self.areas[area].is_leaving {
            return;
        }
        self.areas[area].is_leaving = true;
        if self.rng.chance(400_000) {
            // The client has punched a hole into it: that is why it goes.
            self.areas[area].memory.lose();
        }
        self.trace(&format!("deregisters {:?}", self.areas[area].info));
        let (node, region) = (client.node, self.areas[area].info.region);
        if self.rng.chance(500_000) {
            self.revoke(session, self.areas[area].info.purpose);
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.node == node) {
            lane.engine.remove_region(region);
            lane.is_rung = true;
        }
        self.leaving.push((area, self.config.lanes));
    }

    /// Has the holders of a session's region stop using it.
    fn revoke(&mut self, session: usize, purpose: Purpose) {
        let held = self.handles_to(session, purpose);
        let now = self.clock.now();
        for (lane, slot) in held {
            self.close_handle(lane, slot);
            self.lanes[lane].engine.stop_remote(slot, Code::Revoked, now);
            self.lanes[lane].is_rung = true;
        }
    }

    /// A lane says that nothing of it uses a region any more.
    pub(super) fn region_drained(&mut self, lane: usize, region: RegionIndex) {
        self.lanes[lane].regions.remove(region);
        let node = self.lanes[lane].node;
        let found = self.leaving.iter().position(|(area, _)| {
            let info = self.areas[*area].info;
            info.region == region && self.sessions[info.session].node == node
        });
        let found = found.expect("a region that is being deregistered");
        self.leaving[found].1 -= 1;
        if self.leaving[found].1 > 0 {
            return;
        }
        let (old, _) = self.leaving.swap_remove(found);
        // Its owner may unmap it now: whoever touches it from here on would fault.
        self.areas[old].memory.close_all();
        let info = self.areas[old].info;
        self.trace(&format!("drained {info:?}"));
        let new = self.register(AreaInfo { generation: info.generation + 1, ..info });
        self.sessions[info.session].areas[info.purpose as usize] = new;
        for (lane, slot) in self.handles_to(info.session, info.purpose) {
            self.close_handle(lane, slot);
        }
    }

    /// The handles to a session's region, with their lanes.
    fn handles_to(&self, session: usize, purpose: Purpose) -> Vec<(usize, u32)> {
        let is_meant =
            |slot: u32| self.handle_target(slot) == session && Self::handle_purpose(slot) == purpose;
        self.handles.keys().filter(|(_, slot)| is_meant(*slot)).copied().collect()
    }

    /// A client dies on one lane: nobody collects its completions, and its transfers are stopped.
    pub(super) fn abandon_one(&mut self) {
        let (session, number) = (self.rng.index(self.sessions.len()), self.rng.index(self.config.lanes));
        let client = &mut self.sessions[session];
        let port = &mut client.ports[number];
        if port.is_abandoned {
            return;
        }
        port.is_abandoned = true;
        let index = port.index;
        self.trace(&format!("session {session} dies on its lane {number}, port {index:?}"));
        let client = &self.sessions[session];
        let lane = client.node * self.config.lanes + number;
        for pending in self.pending.values_mut() {
            pending.is_abandoned |= pending.session == session && pending.lane == lane;
        }
        let now = self.clock.now();
        self.lanes[lane].engine.abandon_port(index, now);
        self.lanes[lane].is_rung = true;
    }

    /// The last completion of an abandoned port was written: what it took and what it did not take is settled now.
    pub(super) fn port_closed(&mut self, lane: usize, index: PortIndex) {
        let (node, number) = (self.lanes[lane].node, self.lanes[lane].number);
        let session = self.sessions.iter().position(|session| {
            session.node == node && session.ports[number].is_abandoned && session.ports[number].index == index
        });
        let session = session.expect("an abandoned port");
        while let Some(words) = self.sessions[session].ports[number].completions.pop().expect("a sound ring")
        {
            self.complete(session, &Completion::decode(&words));
        }
        let never: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.session == session && pending.lane == lane)
            .map(|(cookie, _)| *cookie)
            .collect();
        for cookie in never {
            self.never_taken(cookie);
        }
        let slot = self.sessions[session].slot;
        let (mut client, parts) = session::port(self.config.port_entries);
        client.index = self.lanes[lane].engine.attach_port(slot, parts).expect("a free port");
        self.lanes[lane].is_rung = true;
        self.sessions[session].ports[number] = client;
    }

    /// Takes a session's memories, with fresh contents, at the start.
    pub(super) fn register_session(&mut self, session: usize) -> [AreaIndex; 3] {
        let slot = self.sessions[session].slot;
        let flush = self.config.network.capabilities.flush_needed && self.rng.chance(700_000);
        Purpose::ALL.map(|purpose| {
            let number = purpose as u32;
            let region = RegionIndex(1 + 3 * slot + number);
            let direct_possible = self.rng.chance(850_000);
            let flush = flush && purpose != Purpose::Source;
            self.register(AreaInfo {
                session,
                region,
                generation: 3 + number,
                purpose,
                direct_possible,
                flush,
            })
        })
    }

    /// Whether `lane` and the session's node are the same or peers, as a peer slot.
    pub(super) fn peer_of(&self, lane: usize, session: usize) -> u32 {
        peer_slot(self.lanes[lane].node, self.sessions[session].node, self.config.nodes)
    }
}
