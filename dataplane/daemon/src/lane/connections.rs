//! Which connection of a lane is which.
//!
//! The numbers are the same on every lane, so a remote handle is installed on all of them alike:
//!
//! | connections | what |
//! |---|---|
//! | 0, 1 and 2, 3 | this node: the two ends of the latency class, then those of the bulk class |
//! | 4 + 2 (p - 1) + class | ours to peer p: its transfers are initiated here |
//! | from [`Map::target_first`] on | those of peers to us, given out as they come |

use railhead_abi::settings::LANES_MAX;
use railhead_abi::submission::CLASSES;
use railhead_core::port::ConnectionIndex;

use crate::tables::SELF;

/// Connections of the local fabric.
pub(crate) const LOCAL: u16 = 2 * CLASSES as u16;

/// Connections of all peers to one lane that are made room for: each takes memory from the start.
const TARGETS_MAX: usize = 256;
/// Of these, connections that each peer is sure of, however many others there are: two lanes of both classes.
const TARGETS_SURE: usize = 2 * CLASSES;

/// The connections by class that transfers to `peer` go out on.
pub(crate) const fn of_peer(peer: u32) -> [ConnectionIndex; CLASSES] {
    if peer == SELF {
        return [ConnectionIndex(0), ConnectionIndex(2)];
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 63 peers")]
    let first = LOCAL + (CLASSES as u16) * (peer as u16 - 1);
    [ConnectionIndex(first), ConnectionIndex(first + 1)]
}

/// How many connections each lane has, and where those of peers begin. Made for as many peers as there is room for: tables
/// never grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    peers: usize,
    most: usize,
}

impl Map {
    /// For up to `peers` peers and `lanes` lanes of this node.
    pub(crate) const fn new(peers: usize, lanes: usize) -> Self {
        // As many as a peer with the most lanes has for one of ours.
        Self { peers, most: LANES_MAX.div_ceil(lanes) * CLASSES }
    }

    /// Peers that there is room for.
    pub(crate) const fn peers(&self) -> usize {
        self.peers
    }

    /// First connection of peers to us.
    pub(crate) const fn target_first(&self) -> usize {
        LOCAL as usize + CLASSES * self.peers
    }

    /// Connections of peers to us.
    pub(crate) const fn targets(&self) -> usize {
        let wanted = self.peers * self.most;
        if wanted < TARGETS_MAX { wanted } else { TARGETS_MAX }
    }

    /// Of these, the most that one peer can have.
    pub(crate) const fn targets_most(&self) -> usize {
        self.most
    }

    /// Of these, connections that one peer can have whatever the others have.
    pub(crate) const fn targets_sure(&self) -> usize {
        if self.most < TARGETS_SURE { self.most } else { TARGETS_SURE }
    }

    /// All connections of a lane.
    pub(crate) const fn count(&self) -> usize {
        self.target_first() + self.targets()
    }

    /// Class of one of our own connections to a peer.
    pub(crate) fn class_of(&self, connection: ConnectionIndex) -> Option<u8> {
        let at = usize::from(connection.0);
        let is_ours = (usize::from(LOCAL)..self.target_first()).contains(&at);
        is_ours.then(|| u8::from(at % CLASSES == 1))
    }
}

#[cfg(test)]
mod tests {
    use railhead_abi::submission::{CLASS_BULK, CLASS_LATENCY};
    use railhead_core::engine::CONNECTIONS_MAX;

    use super::*;

    #[test]
    fn ranges_are_disjoint_and_classes_found_again() {
        let map = Map::new(3, 2);
        let mut seen = std::collections::HashSet::from([0, 1, 2, 3]);
        for peer in 1..=3 {
            for (class, connection) in [CLASS_LATENCY, CLASS_BULK].into_iter().zip(of_peer(peer)) {
                assert!(seen.insert(connection.0), "peer {peer} shares connection {}", connection.0);
                assert_eq!(map.class_of(connection), Some(class));
                assert!(usize::from(connection.0) < map.target_first());
            }
        }
        assert_eq!(seen.len(), map.target_first());
        assert_eq!(map.class_of(ConnectionIndex(3)), None);
        assert_eq!(map.class_of(ConnectionIndex(u16::try_from(map.target_first()).unwrap())), None);
        assert_eq!(of_peer(SELF), [ConnectionIndex(0), ConnectionIndex(2)]);
    }

    #[test]
    fn tables_stay_small() {
        assert_eq!(Map::new(0, 1).count(), 4);
        assert_eq!(Map::new(1, 1).targets(), 128, "all lanes that a peer can have, of both classes");
        assert_eq!(Map::new(1, 64).targets(), 2, "as many lanes as a peer can have: one each");
        for (peers, lanes) in (0..=63).flat_map(|peers| (1..=LANES_MAX).map(move |lanes| (peers, lanes))) {
            let map = Map::new(peers, lanes);
            assert!(map.count() <= CONNECTIONS_MAX, "{peers} peers, {lanes} lanes");
            assert!(map.targets() >= peers * map.targets_sure(), "{peers} peers, {lanes} lanes");
        }
    }
}
