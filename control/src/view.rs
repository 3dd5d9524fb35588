//! The published settings, and what they still wait for.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use railhead_abi::frame::Text;
use railhead_abi::segment::PEER_UP;
use railhead_abi::settings::Settings;
use railhead_config::settings_file::Saved;

use crate::link::Attachment;

/// What a published snapshot still waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The dataplane has prepared it.
    pub prepared: bool,
    /// Lanes that do not apply it yet.
    pub lanes: Vec<usize>,
}

/// The published settings.
#[derive(Debug, Clone)]
pub struct View {
    /// Where they are published.
    pub attachment: Arc<Attachment>,
    /// Their generation.
    pub generation: u64,
    /// All of them.
    pub settings: Settings,
    /// Who published them.
    pub author: String,
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Newest generation that changed how data comes in: peers are told of it.
    pub(crate) receive_generation: u64,
}

impl View {
    /// The entity tag: it names this snapshot of this start of the dataplane.
    #[must_use]
    pub fn etag(&self) -> String {
        format!("\"{}-{:08x}\"", self.generation, self.attachment.incarnation() >> 32)
    }

    pub(crate) fn to_saved(&self) -> Saved {
        let Self { generation, settings, unix_ns, .. } = *self;
        Saved { generation, author: self.author.clone(), unix_ns, settings }
    }

    /// What the snapshot still waits for, if anything.
    #[must_use]
    pub fn pending(&self) -> Option<Pending> {
        let segment = &self.attachment.segment;
        let lanes: Vec<usize> =
            (0..segment.lanes()).filter(|lane| segment.acknowledged(*lane) < self.generation).collect();
        let prepared = segment.prepared().prepared_generation >= self.generation;
        (!lanes.is_empty() || !prepared).then_some(Pending { prepared, lanes })
    }

    /// Connected peers that do not use the newest receive plan yet.
    #[must_use]
    pub fn peers_pending(&self) -> Vec<String> {
        let behind = |planned| planned < self.receive_generation;
        let peers = self.attachment.segment.peers();
        peers
            .filter(|(_, peer)| peer.state == PEER_UP && behind(peer.planned_generation))
            .map(|(_, peer)| Text::of(&peer.name).as_str().to_owned())
            .collect()
    }
}

/// The wall clock, nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
