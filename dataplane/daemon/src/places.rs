//! Where the memory of lanes lies, and moving it to other NUMA nodes while they run.
//!
//! The settings thread moves before it prepares the snapshot that asks for it: when a lane runs the new generation, its
//! memory is there. A move that fails is undone and the snapshot refused. A lane notices no more than that a page which it
//! touches is under way just then; nothing is drained, since no address changes. What the adapters hold besides the
//! tables and the pool (rings of some 100 KiB) stays, and what a NIC has registered cannot move.

use railhead_abi::settings::{LANE_NODE_WORD, LANE_POOL_NODE_WORD, Settings};
use railhead_memory::{Extent, MoveError, Placement};

/// The memory of one lane.
#[derive(Debug)]
pub(crate) struct LanePlaces {
    /// Its staging blocks.
    pub(crate) pool: Extent,
    /// Its engine's tables.
    pub(crate) tables: Vec<Extent>,
}

/// What was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Of which lane.
    pub(crate) lane: usize,
    /// `pool` or `tables`.
    pub(crate) what: &'static str,
    /// Where to.
    pub(crate) node: u32,
    /// How much.
    pub(crate) bytes: u64,
}

/// A move that could not be made; everything lies where it lay.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// The word of the setting that asked for it.
    pub(crate) word: usize,
    /// Why.
    pub(crate) error: MoveError,
}

/// The memory of all lanes.
#[derive(Debug)]
pub(crate) struct Places {
    lanes: Vec<LanePlaces>,
}

/// One move: the word that asks for it, and what goes where.
struct Wanted<'a> {
    word: usize,
    moved: Moved,
    extents: Vec<&'a Extent>,
}

impl Places {
    /// In the order of the lanes.
    pub(crate) fn new(lanes: Vec<LanePlaces>) -> Self {
        Self { lanes }
    }

    /// Moves what `after` wants elsewhere than `before` did.
    ///
    /// # Errors
    /// The first move that cannot be made; those before it are undone.
    pub(crate) fn follow(&self, before: &Settings, after: &Settings) -> Result<Vec<Moved>, Stuck> {
        let mut undo: Vec<(&Extent, u32)> = Vec::new();
        let mut done = Vec::new();
        for wanted in self.wanted(before, after) {
            for extent in wanted.extents {
                let from = extent.placement().ok().as_ref().and_then(main_node);
                if let Err(error) = extent.move_to(wanted.moved.node) {
                    for (extent, node) in undo.into_iter().rev() {
                        if let Err(error) = extent.move_to(node) {
                            tracing::error!(%error, "memory could not be moved back");
                        }
                    }
                    return Err(Stuck { word: wanted.word, error });
                }
                undo.extend(from.map(|from| (extent, from)));
            }
            done.push(wanted.moved);
        }
        Ok(done)
    }

    fn wanted(&self, before: &Settings, after: &Settings) -> Vec<Wanted<'_>> {
        let mut all = Vec::new();
        for (lane, places) in self.lanes.iter().enumerate() {
            let pool = (before.lane_pool_node(lane), after.lane_pool_node(lane));
            // Whichever of the two settings it follows.
            let own = after.words.get(LANE_POOL_NODE_WORD + lane).is_some_and(|word| *word != 0);
            let pool_word = if own { LANE_POOL_NODE_WORD } else { LANE_NODE_WORD } + lane;
            let tables = (before.lane_node(lane), after.lane_node(lane));
            for (what, word, (from, to), extents) in [
                ("pool", pool_word, pool, vec![&places.pool]),
                ("tables", LANE_NODE_WORD + lane, tables, places.tables.iter().collect()),
            ] {
                let Some(node) = to.filter(|_| from != to).and_then(|node| u32::try_from(node).ok()) else {
                    continue;
                };
                let bytes = extents.iter().map(|extent| extent.len() as u64).sum();
                all.push(Wanted { word, moved: Moved { lane, what, node, bytes }, extents });
            }
        }
        all
    }
}

/// The node that most of it lies on.
fn main_node(placement: &Placement) -> Option<u32> {
    placement.nodes.iter().max_by_key(|(_, pages)| *pages).map(|(node, _)| *node)
}

/// A node as the lanes' status has it: plus 1, or 0 if memory lies on more than one, or it cannot be said.
pub(crate) fn node_word(placement: Option<&Placement>) -> u64 {
    match placement.map(|placement| (placement.nodes.as_slice(), placement.absent)) {
        Some(([(node, _)], 0)) => u64::from(*node) + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
