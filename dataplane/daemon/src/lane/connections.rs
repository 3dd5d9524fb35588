//! Which connection of a lane is which.
//!
//! The numbers are the same on every lane, so a remote handle is installed on all of them alike:
//!
//! | connections | what |
//! |---|---|
//! | 0, 1 and 2, 3 | this node: the two ends of the latency class, then those of the bulk class |
//! | 4 + 2 (p - 1) + class | ours to peer p: its transfers are initiated here |
//! | 4 + 2 P + 2 (p - 1) + class, of P peers | on these peer p serves our reads |
//! | from [`Map::target_first`] on | those of peers to us, given out as they come |
//! | from [`Map::rdma_first`] on | where there are NICs: ours to each peer over RDMA, by peer and class |
//! | from [`Map::rdma_target_first`] on | those of peers to us over RDMA, given out as they come |

use railhead_abi::settings::LANES_MAX;
use railhead_abi::submission::CLASSES;
use railhead_core::port::ConnectionIndex;

use crate::tables::SELF;

/// Connections of the local fabric.
pub(crate) const LOCAL: u16 = 2 * CLASSES as u16;

/// Connections of all peers to one lane that are made room for: each takes memory from the start.
const TARGETS_MAX: usize = 256;
/// Of these, connections that each peer is sure of, however many others there are: both classes of one lane, for writes and
/// for reads.
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
    has_rdma: bool,
}

impl Map {
    /// For up to `peers` peers and `lanes` lanes of this node.
    pub(crate) const fn new(peers: usize, lanes: usize) -> Self {
        // As many as a peer with the most lanes has for one of ours.
        Self { peers, most: LANES_MAX.div_ceil(lanes) * CLASSES, has_rdma: false }
    }

    /// With connections over RDMA, too.
    pub(crate) const fn with_rdma(self) -> Self {
        Self { has_rdma: true, ..self }
    }

    /// Peers that there is room for.
    pub(crate) const fn peers(&self) -> usize {
        self.peers
    }

    /// First connection of peers to us.
    pub(crate) const fn target_first(&self) -> usize {
        LOCAL as usize + 2 * CLASSES * self.peers
    }

    /// The connections by class that `peer` serves our reads on. This node reads its own memory as it writes it.
    pub(crate) fn readers_of_peer(&self, peer: u32) -> [ConnectionIndex; CLASSES] {
        let offset = if peer == SELF { 0 } else { CLASSES * self.peers };
        of_peer(peer).map(|ours| ConnectionIndex(ours.0 + u16::try_from(offset).unwrap_or(u16::MAX)))
    }

    /// Whether a peer serves our reads on one of our own connections.
    pub(crate) fn serves(&self, connection: ConnectionIndex) -> bool {
        let first = usize::from(LOCAL) + CLASSES * self.peers;
        (first..self.target_first()).contains(&usize::from(connection.0))
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

    /// First connection over RDMA; all behind it are.
    pub(crate) const fn rdma_first(&self) -> usize {
        self.target_first() + self.targets()
    }

    /// First connection of peers to us over RDMA.
    pub(crate) const fn rdma_target_first(&self) -> usize {
        if self.has_rdma { self.rdma_first() + CLASSES * self.peers } else { self.rdma_first() }
    }

    /// Connections over RDMA, in both directions.
    pub(crate) const fn rdma(&self) -> usize {
        if self.has_rdma { CLASSES * self.peers + self.targets() } else { 0 }
    }

    /// All connections of a lane.
    pub(crate) const fn count(&self) -> usize {
        self.rdma_first() + self.rdma()
    }

    /// The connections by class that transfers to `peer` go out on over RDMA.
    ///
    /// # Panics
    /// In tests, if there are none.
    pub(crate) fn of_peer_over_rdma(&self, peer: u32) -> [ConnectionIndex; CLASSES] {
        debug_assert!(self.has_rdma && peer != SELF, "only peers are reached over RDMA");
        let first = self.rdma_first() + CLASSES * (peer as usize).saturating_sub(1);
        [first, first + 1].map(|at| ConnectionIndex(u16::try_from(at).unwrap_or(u16::MAX)))
    }

    /// All connections of ours to `peer`.
    pub(crate) fn all_of_peer(&self, peer: u32) -> impl Iterator<Item = ConnectionIndex> + use<> {
        let over_rdma = (self.has_rdma && peer != SELF).then(|| self.of_peer_over_rdma(peer));
        let readers = (peer != SELF).then(|| self.readers_of_peer(peer));
        of_peer(peer).into_iter().chain(readers.into_iter().flatten()).chain(over_rdma.into_iter().flatten())
    }

    /// Whether a connection runs over RDMA.
    pub(crate) fn is_rdma(&self, connection: ConnectionIndex) -> bool {
        usize::from(connection.0) >= self.rdma_first()
    }

    /// Class of one of our own connections to a peer.
    pub(crate) fn class_of(&self, connection: ConnectionIndex) -> Option<u8> {
        let at = usize::from(connection.0);
        let over_rdma = self.rdma_first()..self.rdma_target_first();
        let class = if over_rdma.contains(&at) {
            at - over_rdma.start
        } else if (usize::from(LOCAL)..self.target_first()).contains(&at) {
            at
        } else {
            return None;
        };
        Some(u8::from(class % CLASSES == 1))
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
                assert_eq!((map.class_of(connection), map.serves(connection)), (Some(class), false));
                assert!(usize::from(connection.0) < map.target_first());
            }
            for (class, connection) in [CLASS_LATENCY, CLASS_BULK].into_iter().zip(map.readers_of_peer(peer))
            {
                assert!(seen.insert(connection.0), "peer {peer} shares connection {}", connection.0);
                assert_eq!((map.class_of(connection), map.serves(connection)), (Some(class), true));
                assert!(usize::from(connection.0) < map.target_first());
            }
        }
        assert_eq!(map.readers_of_peer(SELF), of_peer(SELF));
        assert_eq!(seen.len(), map.target_first());
        assert_eq!(map.class_of(ConnectionIndex(3)), None);
        assert_eq!(map.class_of(ConnectionIndex(u16::try_from(map.target_first()).unwrap())), None);
        assert_eq!(of_peer(SELF), [ConnectionIndex(0), ConnectionIndex(2)]);
    }

    #[test]
    fn connections_over_rdma_are_behind_all_others() {
        let plain = Map::new(3, 2);
        let map = plain.with_rdma();
        assert_eq!((plain.rdma(), plain.count()), (0, map.rdma_first()));
        assert!(!plain.is_rdma(ConnectionIndex(u16::try_from(plain.count() - 1).unwrap())));
        let mut seen = std::collections::HashSet::new();
        for peer in 1..=3 {
            for (class, connection) in
                [CLASS_LATENCY, CLASS_BULK].into_iter().zip(map.of_peer_over_rdma(peer))
            {
                assert!(seen.insert(connection.0) && map.is_rdma(connection));
                assert_eq!(map.class_of(connection), Some(class));
                assert!(usize::from(connection.0) < map.rdma_target_first());
            }
            assert_eq!(map.all_of_peer(peer).count(), 3 * CLASSES);
        }
        assert_eq!(map.all_of_peer(SELF).count(), CLASSES);
        let first_target = ConnectionIndex(u16::try_from(map.rdma_target_first()).unwrap());
        assert_eq!((map.class_of(first_target), map.is_rdma(first_target)), (None, true));
        assert_eq!(map.count() - map.rdma_target_first(), map.targets());
    }

    #[test]
    fn tables_stay_small() {
        assert_eq!(Map::new(0, 1).count(), 4);
        assert_eq!(Map::new(1, 1).targets(), 128, "all lanes that a peer can have, of both classes");
        assert_eq!(Map::new(1, 64).targets(), 2, "as many lanes as a peer can have: one each");
        for (peers, lanes) in (0..=63).flat_map(|peers| (1..=LANES_MAX).map(move |lanes| (peers, lanes))) {
            let map = Map::new(peers, lanes).with_rdma();
            assert!(map.count() <= CONNECTIONS_MAX, "{peers} peers, {lanes} lanes");
            assert!(map.targets() >= peers * map.targets_sure(), "{peers} peers, {lanes} lanes");
        }
    }
}
