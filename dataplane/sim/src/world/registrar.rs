//! The registrar's part of a world: connects with back-off, carries plans, reopens handles behind a fence.

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::settings::Plan;
use railhead_core::Notice;
use railhead_core::port::{ConnectionIndex, Nanos};
use railhead_core::tables::{ConnectionInfo, RemoteInfo, Role};

use super::session::{AreaIndex, Purpose};
use super::tables::Words;
use super::{World, draw_settings, first_target, peer_slot};
use crate::Window;

/// A connection that was made at some time: who holds its ends. Lanes are counted over all nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) initiator: (usize, ConnectionIndex),
    pub(super) target: (usize, ConnectionIndex),
    /// The target's engine has said that nothing of it is under way.
    pub(super) is_fenced: bool,
}

/// Bytes of a session's destination that a transfer of unknown outcome may still write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undefined {
    pub(super) area: AreaIndex,
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) window: Window,
}

/// A session's right to write to another's destination, on one lane.
#[derive(Debug, Default)]
pub(super) struct Handle {
    pub(super) generation: u32,
    pub(super) is_usable: bool,
    is_drained: bool,
    undefined: Vec<Undefined>,
}

/// What the registrar has to do and remember.
#[derive(Debug, Default)]
pub(super) struct Registrar {
    pairs: Vec<Pair>,
    connects: Vec<(Nanos, usize, ConnectionIndex)>,
    plans: Vec<(Nanos, usize, u32, [Plan; 2])>,
    settings: Vec<(Nanos, usize, u64)>,
    pub(super) is_shutting_down: bool,
}

/// Of a pair of local connections the even one initiates.
pub(super) fn local_pair(class: u8) -> (ConnectionIndex, ConnectionIndex) {
    let first = u16::from(class) * 2;
    (ConnectionIndex(first), ConnectionIndex(first + 1))
}

/// The connection that a lane initiates to a peer.
pub(super) fn initiator_connection(peer: u32, class: u8) -> ConnectionIndex {
    match peer {
        0 => local_pair(class).0,
        _ => ConnectionIndex(u16::try_from(4 + 2 * (peer - 1) + u32::from(class)).expect("few peers")),
    }
}

/// The connection on which a peer serves a lane's reads.
fn reader_connection(peer: u32, class: u8, nodes: usize) -> ConnectionIndex {
    match peer {
        0 => local_pair(class).0,
        _ => {
            let peers = u16::try_from(nodes - 1).expect("few nodes");
            ConnectionIndex(initiator_connection(peer, class).0 + 2 * peers)
        }
    }
}

/// Peer and class of a connection that a lane asks for, and whether it is one on which the peer serves reads.
fn meaning(connection: ConnectionIndex, nodes: usize) -> (u32, u8, bool) {
    let peers = u32::try_from(nodes - 1).expect("few nodes");
    match connection.0 {
        local @ 0..4 => (0, u8::from(local >= 2), false),
        other => {
            let at = u32::from(other - 4) / 2;
            (at % peers + 1, u8::from((other - 4) % 2 == 1), at >= peers)
        }
    }
}

impl World<'_> {
    /// The lane that `lane` talks to on the node with this peer slot.
    pub(super) fn target_lane(&self, lane: usize, peer: u32) -> usize {
        let from = &self.lanes[lane];
        let node = (from.node + peer as usize) % self.config.nodes;
        node * self.config.lanes + from.number % self.config.lanes
    }

    pub(super) fn take_notice(&mut self, lane: usize, notice: Notice<Words>) {
        let now = self.clock.now();
        match notice {
            Notice::ConnectionWanted { connection, .. } => {
                let due = now + self.rng.between(500, 100_000);
                self.registrar.connects.push((due, lane, connection));
            }
            Notice::ConnectionDown { connection, .. } => {
                assert!(
                    !self.network.has_connection(self.lanes[lane].id, connection),
                    "{connection:?} is not down"
                );
                if usize::from(connection.0) >= first_target(self.config.nodes) {
                    self.lanes[lane].free_targets.push(connection);
                }
                let fenced =
                    self.registrar.pairs.iter_mut().rev().find(|pair| pair.target == (lane, connection));
                if let Some(pair) = fenced {
                    pair.is_fenced = true;
                }
                self.downs += 1;
            }
            Notice::RemoteDrained { remote } => {
                let handle = self.handles.get_mut(&(lane, remote)).expect("a known handle");
                assert!(!handle.is_usable && !handle.is_drained);
                handle.is_drained = true;
            }
            Notice::PortClosed { port, .. } => self.port_closed(lane, port),
            Notice::RegionDrained { region } => self.region_drained(lane, region),
        }
    }

    /// Everything that is due.
    pub(super) fn run_registrar(&mut self) {
        let now = self.clock.now();
        for (due, lane, connection) in std::mem::take(&mut self.registrar.connects) {
            if due > now || self.registrar.is_shutting_down {
                self.registrar.connects.push((due, lane, connection));
            } else if !self.try_connect(lane, connection) {
                // Back-off.
                let later = now + self.rng.between(10_000, 500_000);
                self.registrar.connects.push((later, lane, connection));
            }
        }
        for (due, lane, peer, plans) in std::mem::take(&mut self.registrar.plans) {
            if due <= now {
                self.lanes[lane].engine.update_plan(peer, &plans[0]);
                self.lanes[lane].engine.update_read_plan(peer, &plans[1]);
                self.lanes[lane].is_rung = true;
            } else {
                self.registrar.plans.push((due, lane, peer, plans));
            }
        }
        for (due, lane, generation) in std::mem::take(&mut self.registrar.settings) {
            if due <= now {
                self.apply(lane, generation);
            } else {
                self.registrar.settings.push((due, lane, generation));
            }
        }
        let waiting: Vec<(usize, u32)> = self
            .handles
            .iter()
            .filter(|(_, handle)| !handle.is_usable && handle.is_drained)
            .map(|(key, _)| *key)
            .collect();
        for (lane, slot) in waiting {
            self.try_reopen(lane, slot);
        }
    }

    /// True if there is nothing more to do for this wish.
    fn try_connect(&mut self, lane: usize, connection: ConnectionIndex) -> bool {
        let now = self.clock.now();
        if self.switch.is_on() && self.is_faulty() && self.rng.chance(200_000) {
            if self.rng.chance(300_000) {
                self.lanes[lane].engine.connection_refused(connection, now);
                self.lanes[lane].is_rung = true;
                return true;
            }
            return false;
        }
        let (peer, class, serves) = meaning(connection, self.config.nodes);
        let target = self.target_lane(lane, peer);
        let inbound = if peer == 0 {
            let inbound = local_pair(class).1;
            // Half open: its Down has not come yet.
            if self.network.has_connection(self.lanes[target].id, inbound) {
                self.lanes[target].engine.close_connection(inbound, Code::ConnectionReset);
                self.lanes[target].is_rung = true;
                return false;
            }
            inbound
        } else {
            let Some(inbound) = self.lanes[target].free_targets.pop() else { return false };
            inbound
        };
        // The pool is that of the side that is written to.
        let info = |role, peer, written: usize| {
            let pool = &self.config.pools[self.lanes[written].node];
            ConnectionInfo {
                role,
                peer,
                class,
                serves,
                slots: self.config.slots,
                small_bytes: pool.small_bytes,
                large_bytes: pool.large_bytes,
                pool_epoch: self.pool_epoch(written),
            }
        };
        let (near, far) = (self.lanes[lane].node, self.lanes[target].node);
        let back = peer_slot(far, near, self.config.nodes);
        let (inbound_info, outbound_info) = if serves {
            (info(Role::Initiator, back, lane), info(Role::Target, peer, lane))
        } else {
            (info(Role::Target, back, target), info(Role::Initiator, peer, target))
        };
        // The target's engine may still be draining a connection of this index.
        if !self.lanes[target].engine.connection_up(inbound, inbound_info, now) {
            assert_eq!(peer, 0, "a free connection was refused");
            return false;
        }
        self.network.connect((self.lanes[lane].id, connection), (self.lanes[target].id, inbound));
        let taken = self.lanes[lane].engine.connection_up(connection, outbound_info, now);
        assert!(taken, "a wanted connection was refused");
        for lane in [lane, target] {
            self.lanes[lane].is_rung = true;
        }
        self.registrar.pairs.push(Pair {
            initiator: (lane, connection),
            target: (target, inbound),
            is_fenced: false,
        });
        self.connected += 1;
        true
    }

    /// A transfer's outcome is unknown: nobody may use the handle until the target's end is dead.
    pub(super) fn expire(&mut self, lane: usize, slot: u32, undefined: Undefined) {
        self.handles.get_mut(&(lane, slot)).expect("a known handle").undefined.push(undefined);
        self.close_handle(lane, slot);
    }

    /// Nobody may use a handle until it is opened again.
    pub(super) fn close_handle(&mut self, lane: usize, slot: u32) {
        let handle = self.handles.get_mut(&(lane, slot)).expect("a known handle");
        if handle.is_usable {
            handle.is_usable = false;
            handle.is_drained = false;
            self.lanes[lane].engine.remove_remote(slot);
            self.lanes[lane].is_rung = true;
        }
    }

    /// Whether this end of the pair is gone; its index may be in use again by a later pair.
    fn is_gone(&self, pair: usize, is_target: bool) -> bool {
        let end = |pair: &Pair| if is_target { pair.target } else { pair.initiator };
        let (lane, connection) = end(&self.registrar.pairs[pair]);
        let is_last = !self.registrar.pairs[pair + 1..].iter().any(|later| end(later) == (lane, connection));
        !is_last || !self.network.has_connection(self.lanes[lane].id, connection)
    }

    /// Reopens a handle once every connection that died under it is dead at the target, too.
    fn try_reopen(&mut self, lane: usize, slot: u32) {
        let session = self.handle_target(slot);
        let peer = self.peer_of(lane, session);
        let target = self.target_lane(lane, peer);
        let mut is_fenced = true;
        for pair in 0..self.registrar.pairs.len() {
            let Pair { initiator, target: end, is_fenced: is_over } = self.registrar.pairs[pair];
            if initiator.0 == lane && end.0 == target && self.is_gone(pair, false) && !is_over {
                is_fenced = false;
                self.lanes[target].engine.close_connection(end.1, Code::ConnectionReset);
                self.lanes[target].is_rung = true;
            }
        }
        if !is_fenced {
            return;
        }
        let handle = self.handles.get_mut(&(lane, slot)).expect("a known handle");
        for undefined in std::mem::take(&mut handle.undefined) {
            let area = &mut self.areas[undefined.area];
            area.memory.close(undefined.window);
            area.release(undefined.at, undefined.bytes);
        }
        self.install_handle(lane, slot);
    }

    /// Opens a handle of a session to another's region on one lane.
    pub(super) fn install_handle(&mut self, lane: usize, slot: u32) {
        let (session, target) = (self.handle_owner(slot), self.handle_target(slot));
        let peer = self.peer_of(lane, target);
        let generation = self.handles.get(&(lane, slot)).map_or(1, |handle| handle.generation + 1);
        let purpose = Self::handle_purpose(slot);
        let area = &self.areas[self.sessions[target].area(purpose)];
        let far = &self.lanes[self.target_lane(lane, peer)];
        let plan = |is_receive| Plan {
            direct_possible: area.info.direct_possible,
            ..Plan::of(&far.settings[&far.generation], far.generation, is_receive)
        };
        let nodes = self.config.nodes;
        let info = RemoteInfo {
            generation,
            session,
            peer,
            access: if purpose == Purpose::Source { ACCESS_READ } else { ACCESS_WRITE },
            connections: [initiator_connection(peer, 0), initiator_connection(peer, 1)],
            readers: [reader_connection(peer, 0, nodes), reader_connection(peer, 1, nodes)],
            one_sided: self.config.network.capabilities.reads,
            key: railhead_core::port::Key { index: area.info.region.0, epoch: area.info.generation },
            bytes: area.memory.len() as u64,
            plan: plan(true),
            read_plan: plan(false),
        };
        assert!(self.lanes[lane].engine.install_remote(slot, info), "the handle's slot is free");
        self.lanes[lane].is_rung = true;
        self.handles.insert((lane, slot), Handle { generation, is_usable: true, ..Handle::default() });
    }

    /// Publishes new settings on a node: each lane applies them at its own time, and peers hear of the plan later.
    pub(super) fn change_settings(&mut self) {
        let node = self.rng.index(self.config.nodes);
        let settings = draw_settings(&mut self.rng, self.config.pools[node].large_bytes);
        let generation = self.settings[node].len() as u64 + 1;
        self.settings[node].push(settings);
        let now = self.clock.now();
        for lane in 0..self.lanes.len() {
            let due = now + self.rng.below(50_000);
            if self.lanes[lane].node == node {
                self.registrar.settings.push((due, lane, generation));
            }
            let peer = peer_slot(self.lanes[lane].node, node, self.config.nodes);
            let plans = [true, false].map(|is_receive| Plan::of(&settings, generation, is_receive));
            self.registrar.plans.push((due, lane, peer, plans));
        }
    }

    fn apply(&mut self, lane: usize, generation: u64) {
        let at = usize::try_from(generation - 1).expect("few generations");
        let lane = &mut self.lanes[lane];
        let settings = self.settings[lane.node][at];
        if generation > lane.generation {
            lane.engine.apply(&settings, generation);
            lane.generation = generation;
            lane.settings.insert(generation, settings);
            lane.is_rung = true;
        }
    }

    /// Cuts a connection that is up, chosen at random.
    pub(super) fn cut_one(&mut self) {
        if self.registrar.pairs.is_empty() {
            return;
        }
        let pair = self.rng.index(self.registrar.pairs.len());
        if !self.is_gone(pair, false) {
            let (lane, connection) = self.registrar.pairs[pair].initiator;
            self.network.cut(self.lanes[lane].id, connection);
        }
    }

    /// Ends all connections; true once none is left.
    pub(super) fn close_all(&mut self) -> bool {
        let mut is_closed = true;
        for pair in 0..self.registrar.pairs.len() {
            let Pair { initiator, target, .. } = self.registrar.pairs[pair];
            for (is_target, (lane, connection)) in [(false, initiator), (true, target)] {
                if !self.is_gone(pair, is_target) {
                    is_closed = false;
                    self.lanes[lane].engine.close_connection(connection, Code::ConnectionReset);
                    self.lanes[lane].is_rung = true;
                }
            }
        }
        is_closed
    }
}
