//! What a world looks like; usually drawn from its seed.

use railhead_abi::settings::{Limits, Setting, Settings};
use railhead_core::pool::PoolShape;
use railhead_core::port::Capabilities;

use crate::{CopierConfig, FaultPlan, Latency, NetworkConfig, Rng};

/// The shape of a world.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// Nodes, from 1; each has [`WorldConfig::lanes`] lanes.
    pub nodes: usize,
    /// Lanes of each node.
    pub lanes: usize,
    /// Sessions of each node.
    pub sessions: usize,
    /// Transfers that each session makes while faults are on.
    pub transfers: usize,
    /// Transfers that a session has in flight at most.
    pub in_flight: usize,
    /// Pool of each node's lanes, by node.
    pub pools: Vec<PoolShape>,
    /// Settings of each node at the start.
    pub settings: Vec<Settings>,
    /// Slots of each connection.
    pub slots: u16,
    /// Entries of each port's rings, a power of two.
    pub port_entries: usize,
    /// Entries of each event ring, a power of two.
    pub event_entries: usize,
    /// Transfers that a lane can hold.
    pub lane_transfers: usize,
    /// Chunks that a lane can hold.
    pub lane_chunks: usize,
    /// The network.
    pub network: NetworkConfig,
    /// Copy engines.
    pub copier: CopierConfig,
    /// Faults of the fabrics.
    pub fabric_faults: FaultPlan,
    /// Faults of the copy engines.
    pub copier_faults: FaultPlan,
    /// Cuts of connections, per million steps.
    pub cuts: u32,
    /// Changes of settings, per million steps.
    pub changes: u32,
    /// Regions that are taken back and registered again, per million steps.
    pub deregistrations: u32,
    /// Deaths of a client on one lane, per million steps.
    pub deaths: u32,
    /// Share of transfers with a short deadline, per million.
    pub deadlines: u32,
    /// Share of submissions that must be refused, per million.
    pub bad: u32,
}

/// Connections that may come in to a lane at once, its own included.
const INBOUND_MAX: u64 = 2 + super::TARGETS as u64 + 4;

fn pool(rng: &mut Rng) -> PoolShape {
    let small_bytes = 4096;
    let large_bytes = 4096 * rng.between(2, 8);
    let mut count = |low: u64, high: u64| u32::try_from(rng.between(low, high)).unwrap_or(1);
    PoolShape {
        large_bytes,
        small_bytes,
        large_send: count(1, 6),
        large_receive: count(1, 6),
        small_send: count(1, 6),
        // Two for each connection that may come in: standing credits are never taken back from a live one.
        small_receive: count(2 * INBOUND_MAX, 3 * INBOUND_MAX),
    }
}

/// Draws settings that are valid for a node with this pool.
///
/// # Panics
/// If what it draws is not valid: a bug here.
#[must_use]
pub fn draw_settings(rng: &mut Rng, large_bytes: u64) -> Settings {
    let mut settings = Settings::default();
    let mut set = |setting, value| settings.set(setting, value);
    for mode in [Setting::SendMode, Setting::ReceiveMode] {
        set(mode, rng.below(3));
    }
    for from in [Setting::SendDirectFromBytes, Setting::ReceiveDirectFromBytes] {
        set(from, *rng.pick(&[0, 1, 4096, 20_000, 1 << 20]));
    }
    set(Setting::ChunkBytes, rng.between(4096, large_bytes));
    set(Setting::PipelineDepth, rng.between(1, 8));
    set(Setting::PressureWaitUs, *rng.pick(&[0, 50, 2_000]));
    set(Setting::QuiesceMaxMs, rng.between(1, 4));
    set(Setting::LatencySharePercent, rng.between(1, 99));
    let limits = Limits { large_block_bytes: large_bytes, lanes: 64, cores: [0; 16], numa_nodes: 1 };
    assert_eq!(settings.validate(&limits), Ok(()));
    settings
}

impl WorldConfig {
    /// Draws a world. Every third seed has no faults at all: then everything has to succeed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let (nodes, lanes) = *rng.pick(&[(1, 1), (1, 2), (2, 1), (2, 1), (2, 2), (3, 1), (3, 2)]);
        let pools: Vec<PoolShape> = (0..nodes).map(|_| pool(&mut rng)).collect();
        let settings = pools.iter().map(|pool| draw_settings(&mut rng, pool.large_bytes)).collect();
        let capabilities = Capabilities {
            write_bytes_max: *rng.pick(&[8 << 10, 64 << 10, 1 << 20]),
            posts_max: *rng.pick(&[2, 8, 64]),
            records_max: *rng.pick(&[2, 16, 64]),
            flush_needed: rng.chance(400_000),
            reads: rng.chance(500_000),
            acknowledged: rng.chance(400_000),
            windows: rng.chance(700_000),
        };
        let is_faulty = !seed.is_multiple_of(3);
        let faults = |rng: &mut Rng, fatal: u64, close: u64| {
            let mut rate =
                |most: u64| if is_faulty { u32::try_from(rng.below(most)).unwrap_or(0) } else { 0 };
            FaultPlan {
                full: rate(200_000),
                error: rate(5_000),
                fatal: rate(fatal),
                close: rate(close),
                silent: rate(2_000),
                silence: Some(Latency { min: 5_000, max: 400_000 }),
            }
        };
        let latency = Latency { min: 200, max: *rng.pick(&[2_000, 20_000]) };
        Self {
            nodes,
            lanes,
            sessions: rng.index(2) + 1,
            transfers: 60,
            in_flight: rng.index(16) + 1,
            pools,
            settings,
            slots: *rng.pick(&[1, 3, 16, 256]),
            port_entries: *rng.pick(&[4, 16, 64]),
            event_entries: *rng.pick(&[2, 16]),
            lane_transfers: *rng.pick(&[3, 16, 64]),
            lane_chunks: *rng.pick(&[4, 64]),
            network: NetworkConfig {
                latency,
                down_latency: Latency { min: 1_000, max: 1_000_000 },
                pieces_max: rng.index(4) + 1,
                capabilities,
                reorder_done: rng.chance(500_000),
            },
            copier: CopierConfig {
                queues: rng.index(3) + 1,
                queue_copies_max: rng.index(6) + 1,
                latency: Latency { min: 100, max: 8_000 },
            },
            fabric_faults: faults(&mut rng, 2_000, 200),
            copier_faults: faults(&mut rng, 2_000, 0),
            cuts: if is_faulty { *rng.pick(&[0, 200, 2_000]) } else { 0 },
            changes: *rng.pick(&[0, 500, 5_000]),
            deregistrations: if is_faulty { *rng.pick(&[0, 500, 4_000]) } else { 0 },
            deaths: if is_faulty { *rng.pick(&[0, 500, 4_000]) } else { 0 },
            deadlines: *rng.pick(&[0, 0, 300_000]),
            bad: 30_000,
        }
    }
}
