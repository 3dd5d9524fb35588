//! Worlds: nodes with whole engines over simulated devices, clients that submit at random, a registrar, faults, and an
//! oracle that knows what must come of everything. One seed makes one world, always the same.
//!
//! A world has three parts. First clients submit while connections are cut, devices fail and settings change; every
//! submission must complete exactly once and keep what its outcome promises. Then the faults stop, and everything must
//! succeed. At last all connections are closed, and every block and slot must be home.

use std::collections::BTreeMap;

use railhead_abi::frame::ACCESS_WRITE;
use railhead_abi::settings::Settings;
use railhead_core::port::{ConnectionIndex, Nanos, RegionIndex};
use railhead_core::storage::Bounds;
use railhead_core::{Engine, EngineConfig};

use crate::{FaultSwitch, Faulty, Network, Rng, SimClock, SimCopier, SimMemory, Window};

mod churn;
mod client;
mod config;
mod lane;
mod oracle;
mod registrar;
mod session;
pub mod tables;

pub use config::{WorldConfig, draw_settings};

use lane::Lane;
use oracle::{Past, Pending};
use registrar::{Handle, Registrar};
use session::{Area, AreaIndex, Purpose, Session};
use tables::Tables;

/// Bytes of a session's source and of its destination.
const AREA_BYTES: usize = 512 << 10;
/// Connections of a lane that peers may open.
const TARGETS: usize = 16;
/// Transfers of each session after the faults have stopped.
const QUIET_TRANSFERS: usize = 15;
/// Steps without any completion after which a world is stuck.
const STUCK_STEPS: u64 = 400_000;

/// What a world came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Completions by the name of their code.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Successes by route: staged or direct send, times staged or direct receive.
    pub routes: [u64; 4],
    /// The same of reads.
    pub read_routes: [u64; 4],
    /// Connections made and lost.
    pub connected: u64,
    /// Ends of connections that went down.
    pub downs: u64,
    /// Steps.
    pub steps: u64,
    /// Simulated time.
    pub nanos: Nanos,
}

impl Report {
    /// Adds another world's.
    pub fn add(&mut self, other: &Report) {
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name).or_default() += count;
        }
        for (mine, theirs) in self.routes.iter_mut().zip(other.routes) {
            *mine += theirs;
        }
        for (mine, theirs) in self.read_routes.iter_mut().zip(other.read_routes) {
            *mine += theirs;
        }
        self.connected += other.connected;
        self.downs += other.downs;
        self.steps += other.steps;
        self.nanos += other.nanos;
    }
}

/// The slot of node `other` in node `node`'s peer table; 0 is the node itself.
fn peer_slot(node: usize, other: usize, nodes: usize) -> u32 {
    u32::try_from((other + nodes - node) % nodes).expect("few nodes")
}

/// The first of the connections that peers may open: behind those of a lane to itself, those to peers, and those on which
/// peers serve its reads.
const fn first_target(nodes: usize) -> usize {
    4 + 4 * (nodes - 1)
}

#[derive(Debug)]
struct World<'s> {
    config: WorldConfig,
    clock: SimClock,
    rng: Rng,
    network: Network,
    switch: FaultSwitch,
    /// Every lane of every node, node by node.
    lanes: Vec<Lane<'s>>,
    arenas: Vec<SimMemory>,
    /// Every session of every node, node by node.
    sessions: Vec<Session>,
    /// Every region that was ever registered.
    areas: Vec<Area>,
    /// Regions that are being deregistered, and how many lanes still use each.
    leaving: Vec<(AreaIndex, usize)>,
    /// By lane and slot.
    handles: BTreeMap<(usize, u32), Handle>,
    registrar: Registrar,
    /// Every snapshot of each node, from generation 1.
    settings: Vec<Vec<Settings>>,
    /// By cookie.
    pending: BTreeMap<u64, Pending>,
    past: BTreeMap<u64, Past>,
    /// Sources of reads that failed: their owners may still be reading them.
    lingering: Vec<(AreaIndex, usize, usize, Window)>,
    cookies: u64,
    /// The faults have stopped, and nothing that they began is under way.
    is_quiet: bool,
    is_traced: bool,
    outcomes: BTreeMap<&'static str, u64>,
    routes: [u64; 4],
    read_routes: [u64; 4],
    connected: u64,
    downs: u64,
    steps: u64,
}

/// Runs a world to its end.
///
/// # Panics
/// If anything is not as it must be.
#[must_use]
pub fn run(config: &WorldConfig, seed: u64) -> Report {
    let connections = first_target(config.nodes) + TARGETS;
    let sessions = config.nodes * config.sessions;
    let mut tables: Vec<Tables> = (0..config.nodes * config.lanes)
        .map(|lane| {
            Tables::new(&Bounds {
                transfers: config.lane_transfers,
                chunks: config.lane_chunks,
                connections,
                regions: 1 + 3 * config.sessions,
                remotes: 2 * config.sessions * sessions,
                sessions: config.sessions,
                ports: config.sessions,
                pool: config.pools[lane / config.lanes],
            })
        })
        .collect();
    let mut world = World::new(config, seed, &mut tables);
    world.play();
    Report {
        outcomes: world.outcomes,
        routes: world.routes,
        read_routes: world.read_routes,
        connected: world.connected,
        downs: world.downs,
        steps: world.steps,
        nanos: world.clock.now(),
    }
}

impl<'s> World<'s> {
    fn new(config: &WorldConfig, seed: u64, tables: &'s mut [Tables]) -> Self {
        let mut rng = Rng::new(seed);
        let network = Network::new(config.network, rng.fork());
        let switch = FaultSwitch::new(true);
        let mut world = Self {
            config: config.clone(),
            clock: SimClock::new(),
            network,
            switch,
            lanes: Vec::new(),
            arenas: Vec::new(),
            sessions: Vec::new(),
            areas: Vec::new(),
            leaving: Vec::new(),
            handles: BTreeMap::new(),
            registrar: Registrar::default(),
            settings: config.settings.iter().map(|settings| vec![*settings]).collect(),
            pending: BTreeMap::new(),
            past: BTreeMap::new(),
            lingering: Vec::new(),
            cookies: 0,
            is_quiet: false,
            is_traced: std::env::var_os("RAILHEAD_TRACE").is_some(),
            outcomes: BTreeMap::new(),
            routes: [0; 4],
            read_routes: [0; 4],
            connected: 0,
            downs: 0,
            steps: 0,
            rng,
        };
        if world.is_traced {
            world.network.trace();
        }
        for (at, tables) in tables.iter_mut().enumerate() {
            world.add_lane(at, tables);
        }
        for session in 0..config.nodes * config.sessions {
            world.add_session(session);
        }
        for lane in 0..world.lanes.len() {
            for session in 0..world.sessions.len() {
                if world.sessions[session].node == world.lanes[lane].node {
                    for target in 0..world.sessions.len() {
                        for is_read in [false, true] {
                            world.install_handle(lane, world.handle_slot(session, target, is_read));
                        }
                    }
                }
            }
        }
        world
    }

    /// Each lane's pool has an epoch of its own, so that a key of another lane never fits.
    fn pool_epoch(&self, lane: usize) -> u32 {
        u32::try_from(lane).expect("few lanes") + 100
    }

    fn add_lane(&mut self, at: usize, tables: &'s mut Tables) {
        let (node, number) = (at / self.config.lanes, at % self.config.lanes);
        let pool = self.config.pools[node];
        let id = self.network.add_lane();
        let regions = self.network.regions(id);
        let arena =
            SimMemory::new(&format!("arena {at}"), usize::try_from(pool.bytes()).expect("a small pool"));
        regions.install(RegionIndex::ARENA, self.pool_epoch(at), &arena, ACCESS_WRITE);
        self.arenas.push(arena);
        let fabric = Faulty::new(
            self.network.fabric(id),
            self.config.fabric_faults,
            self.switch.clone(),
            self.rng.fork(),
        );
        let copier = SimCopier::new(regions.clone(), self.config.copier, self.rng.fork());
        let copier = Faulty::new(copier, self.config.copier_faults, self.switch.clone(), self.rng.fork());
        let engine_config = EngineConfig {
            lane: u16::try_from(at).expect("few lanes"),
            unix_offset_ns: 0,
            pool,
            pool_epoch: self.pool_epoch(at),
            settings: self.config.settings[node],
            generation: 1,
        };
        let engine = Engine::new(engine_config, tables.storage(), tables::observe(), fabric, copier);
        let mut lane = Lane::new((node, number), id, engine, regions, self.config.settings[node]);
        let first = first_target(self.config.nodes);
        lane.free_targets = (first..first + TARGETS)
            .map(|index| ConnectionIndex(u16::try_from(index).expect("few connections")))
            .collect();
        self.lanes.push(lane);
    }

    fn add_session(&mut self, at: usize) {
        let (node, slot) = (at / self.config.sessions, at % self.config.sessions);
        let slot = u32::try_from(slot).expect("few sessions");
        self.sessions.push(Session::new((node, slot), self.config.transfers));
        let areas = self.register_session(at);
        let session = &mut self.sessions[at];
        session.areas = areas;
        for lane in self.lanes.iter_mut().filter(|lane| lane.node == node) {
            let parts = session.parts(self.config.event_entries);
            assert!(lane.engine.attach_session(slot, parts).is_ok());
            let (mut client, parts) = session::port(self.config.port_entries);
            client.index = lane.engine.attach_port(slot, parts).expect("a free port");
            session.ports.push(client);
        }
    }

    /// The slot of a session's handle to another's destination, or to the source that it may read; the same on all lanes.
    fn handle_slot(&self, session: usize, target: usize, is_read: bool) -> u32 {
        let pair = self.sessions[session].slot * u32::try_from(self.sessions.len()).expect("few sessions")
            + u32::try_from(target).expect("few sessions");
        2 * pair + u32::from(is_read)
    }

    /// What a handle is for.
    const fn handle_purpose(slot: u32) -> Purpose {
        if slot % 2 == 1 { Purpose::Source } else { Purpose::Destination }
    }

    /// The session, by its slot on its node, that a handle belongs to.
    fn handle_owner(&self, slot: u32) -> u32 {
        slot / 2 / u32::try_from(self.sessions.len()).expect("few sessions")
    }

    /// The session whose region a handle names.
    fn handle_target(&self, slot: u32) -> usize {
        slot as usize / 2 % self.sessions.len()
    }

    /// Whether this world ever injects faults.
    fn is_faulty(&self) -> bool {
        let plan = self.config.fabric_faults;
        self.config.cuts > 0
            || plan.error + plan.fatal + plan.close + plan.full > 0
            || self.config.deadlines > 0
    }

    /// Whether transfers may fail for other reasons than their own deadline. Those that stop for a deadline may have
    /// to end a connection that does not answer in time, and others with it.
    fn may_fail(&self) -> bool {
        self.is_faulty()
    }

    fn step(&mut self) {
        self.steps += 1;
        let everyone_sleeps = self.lanes.iter().all(Lane::is_asleep);
        let most = if everyone_sleeps { 4_000 } else { 1_000 };
        let nanos = self.rng.between(100, most);
        let now = self.clock.pass(nanos);
        self.run_registrar();
        if self.switch.is_on() {
            if self.rng.chance(self.config.cuts) {
                self.cut_one();
            }
            if self.rng.chance(self.config.changes) {
                self.change_settings();
            }
            if self.rng.chance(self.config.deregistrations) {
                self.deregister_one();
            }
            if self.rng.chance(self.config.deaths) {
                self.abandon_one();
            }
        }
        for session in 0..self.sessions.len() {
            self.run_client(session);
        }
        let first = self.rng.index(self.lanes.len());
        for at in 0..self.lanes.len() {
            let at = (first + at) % self.lanes.len();
            self.lanes[at].run(now, &self.network, &mut self.rng, self.switch.is_on());
            while let Some(word) = self.lanes[at].engine.next_wake().cloned() {
                self.wake(&word);
            }
            while let Some(notice) = self.lanes[at].engine.next_notice() {
                self.take_notice(at, notice);
            }
        }
        if self.steps.is_multiple_of(64) {
            self.check_violations();
        }
    }

    /// Steps until `done`; stuck if nothing completes for long.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let (mut last, mut since) = (self.past.len(), self.steps);
        while !done(self) {
            self.step();
            if self.past.len() != last {
                (last, since) = (self.past.len(), self.steps);
            }
            if self.steps - since > STUCK_STEPS {
                self.panic_stuck(what);
            }
        }
    }

    fn panic_stuck(&self, what: &str) -> ! {
        for (cookie, pending) in &self.pending {
            let Pending { session, target, lane, slot, submission, .. } = pending;
            eprintln!(
                "open: {cookie} session {session} -> {target}, lane {lane} handle {slot}: {submission:?}"
            );
        }
        for (key, handle) in self.handles.iter().filter(|(_, handle)| !handle.is_usable) {
            eprintln!("closed: {key:?} {handle:?}");
        }
        for (at, lane) in self.lanes.iter().enumerate() {
            let engine = &lane.engine;
            eprintln!(
                "lane {at}: asleep {}, {} in flight, {} inbound, {} connections",
                lane.is_asleep(),
                engine.in_flight(),
                engine.inbound_in_flight(),
                engine.connections_up()
            );
        }
        if std::env::var_os("RAILHEAD_DUMP").is_some() {
            for lane in &self.lanes {
                eprintln!("{:?}", lane.engine);
            }
        }
        eprintln!("{:?}", self.registrar);
        panic!("stuck until {what} at {} ns", self.clock.now());
    }

    fn play(&mut self) {
        let is_done = |world: &mut Self| {
            world.pending.is_empty() && world.sessions.iter().all(|session| session.left == 0)
        };
        self.until("everything with faults has completed", is_done);
        self.switch.set(false);
        // What the faults began may still end badly: wait until connections that died unheard are dead everywhere.
        let settle_until = self.clock.now() + 8 * self.config.network.down_latency.max + 1_000_000;
        self.until("the faults are over", |world| {
            world.clock.now() > settle_until
                && world.leaving.is_empty()
                && world.handles.values().all(|handle| handle.is_usable)
        });
        self.is_quiet = true;
        self.end_lingering();
        for session in &mut self.sessions {
            session.left = QUIET_TRANSFERS;
        }
        self.until("everything succeeds without faults", is_done);
        self.registrar.is_shutting_down = true;
        self.until("all connections are closed", Self::close_all);
        let downs = |world: &mut Self| world.downs == 2 * world.connected;
        self.until("all connections are drained", downs);
        self.check_end();
    }
}
