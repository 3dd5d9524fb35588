//! The settings in the form that a lane uses.

use crate::pool::PoolShape;
use crate::port::Nanos;
use railhead_abi::settings::{Plan, Setting, Settings};

/// What a snapshot says to a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active {
    pub(super) generation: u64,
    pub(super) send: Plan,
    /// Of reads.
    pub(super) receive: Plan,
    pub(super) chunk_bytes: u64,
    pub(super) depth: u16,
    /// Large blocks in use at once, for each connection and leg.
    pub(super) window_blocks: u16,
    pub(super) latency_share: i64,
    pub(super) pressure_wait: Nanos,
    pub(super) deadline: Nanos,
    pub(super) quiesce_max: Nanos,
}

impl Active {
    pub(super) fn of(settings: &Settings, generation: u64, pool: &PoolShape) -> Self {
        let window = settings.get(Setting::StagingWindowBytes) / pool.large_bytes;
        Self {
            window_blocks: u16::try_from(window).unwrap_or(u16::MAX).max(1),
            generation,
            send: Plan::of(settings, generation, false),
            receive: Plan::of(settings, generation, true),
            chunk_bytes: settings.get(Setting::ChunkBytes),
            depth: u16::try_from(settings.get(Setting::PipelineDepth)).unwrap_or(u16::MAX),
            latency_share: i64::try_from(settings.get(Setting::LatencySharePercent)).unwrap_or(99),
            pressure_wait: settings.get(Setting::PressureWaitUs) * 1000,
            deadline: settings.get(Setting::DeadlineMs) * 1_000_000,
            quiesce_max: settings.get(Setting::QuiesceMaxMs) * 1_000_000,
        }
    }
}
