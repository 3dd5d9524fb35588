//! A lane: an engine with its simulated devices, and the loop around it that sleeps and wakes.

use std::collections::BTreeMap;

use railhead_abi::settings::Settings;
use railhead_core::Engine;
use railhead_core::port::{ConnectionIndex, Nanos};

use super::tables::Words;
use crate::{Faulty, LaneId, Network, Rng, SimCopier, SimFabric, SimRegions};

/// The engine as a world runs it.
pub(super) type SimEngine<'s> = Engine<'s, Faulty<SimFabric>, Faulty<SimCopier>, Words>;

#[derive(Debug)]
pub(super) struct Lane<'s> {
    pub(super) node: usize,
    /// Number in its node.
    pub(super) number: usize,
    pub(super) id: LaneId,
    pub(super) engine: SimEngine<'s>,
    pub(super) regions: SimRegions,
    /// Connections that peers' transfers may come in on and that are not in use.
    pub(super) free_targets: Vec<ConnectionIndex>,
    /// Every snapshot that was applied, by generation.
    pub(super) settings: BTreeMap<u64, Settings>,
    pub(super) generation: u64,
    /// Its doorbell was rung, or the registrar has handed it something.
    pub(super) is_rung: bool,
    is_asleep: bool,
    wake_at: Option<Nanos>,
}

impl<'s> Lane<'s> {
    pub(super) fn new(
        (node, number): (usize, usize),
        id: LaneId,
        engine: SimEngine<'s>,
        regions: SimRegions,
        settings: Settings,
    ) -> Self {
        let settings = BTreeMap::from([(1, settings)]);
        let (free_targets, generation) = (Vec::new(), 1);
        let (is_rung, is_asleep, wake_at) = (false, false, None);
        Self {
            node,
            number,
            id,
            engine,
            regions,
            free_targets,
            settings,
            generation,
            is_rung,
            is_asleep,
            wake_at,
        }
    }

    pub(super) const fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// One turn, unless it sleeps and nothing that would wake a real lane has happened. `is_faulty`: a queue may have
    /// been full for no reason, and then no event tells when it is no more.
    pub(super) fn run(&mut self, now: Nanos, network: &Network, rng: &mut Rng, is_faulty: bool) {
        network.advance(now);
        let stirred = network.take_stir(self.id) || self.engine.fabric().holds_events();
        let due = self.wake_at.is_some_and(|at| at <= now);
        let spurious = is_faulty && rng.chance(50_000);
        if self.is_asleep && !(stirred || due || self.is_rung || spurious) {
            return;
        }
        self.is_rung = false;
        let turn = self.engine.turn(now);
        self.is_asleep = !turn.is_busy && self.engine.may_sleep();
        self.wake_at = turn.wake_at;
    }
}
