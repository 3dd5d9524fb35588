//! The end of a peer while the dataplane runs.
//!
//! In this order: nobody finds it any more; its handles take no more transfers, and those under way may end by themselves
//! for a while, in which it also gives up what it holds of ours; it is told which handles come back, and its channel ends; its connections end, and with them the transfers
//! that were left; what it held is not held any more; its threads end; its slot is free.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::observe::EventCode;

use super::Peers;
use super::peer::Peer;
use crate::events::Event;

/// How long the ends of a peer's connections, transfers and threads may take between two complaints in the log.
const END_MAX: Duration = Duration::from_secs(10);

impl Peers {
    /// Removes a peer; its transfers may end by themselves for `drain`. Returns, with its slot, when nothing of it is left.
    ///
    /// # Errors
    /// [`Code::PeerUnknown`], also when its removal has begun before.
    pub(crate) fn remove(&self, name: &str, drain: Duration) -> Result<u32, Code> {
        let (registrar, directory) = (&self.registrar, &self.registrar.peers);
        let peer = directory.find(name).filter(|peer| peer.leave()).ok_or(Code::PeerUnknown)?;
        let slot = peer.slot();
        let until = Instant::now() + drain;
        let held = registrar.tables().held_by(slot);
        let asked: Vec<_> = held.into_iter().filter_map(|key| peer.revoke(key, drain)).collect();
        if !registrar.withdraw_remotes(slot, None, drain) {
            tracing::info!(peer = name, "transfers to a peer that is removed are ended");
        }
        // What it has not given up by then ends with its connections.
        for given_up in asked {
            let _ = given_up.recv_deadline(until);
        }
        let keys = registrar.tables().keys_of_peer(slot);
        keys.into_iter().for_each(|(key, incarnation)| peer.close(key, incarnation));
        peer.end();
        directory.close_ours(slot, Code::PeerRemoved);
        directory.close_targets(slot, Code::PeerRemoved);
        registrar.peer_gone(slot);
        while !self.has_ended(&peer) {
            tracing::warn!(peer = name, "something of a peer that is removed has not ended yet");
        }
        registrar.tables().orphan_remotes(slot);
        directory.vacate(&peer);
        let event = Event::new(EventCode::PeerRemoved).text(name);
        registrar.events.emit(event.figures(u64::from(slot), 0));
        Ok(slot)
    }

    /// Whether all of a peer ends in time: its connections and handles on every lane, and whoever works with it.
    fn has_ended(&self, peer: &Arc<Peer>) -> bool {
        let directory = &self.registrar.peers;
        let until = Instant::now() + END_MAX;
        if !directory.wait_for_ours(peer.slot(), END_MAX) {
            return false;
        }
        // What a thread had begun before the removal did may have come after the closing above.
        if !directory.close_targets(peer.slot(), Code::PeerRemoved) {
            return false;
        }
        // One share is the directory's and one the caller's; any other is of a thread that works with it.
        while Arc::strong_count(peer) > 2 {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Nobody is left who would add to these or take them.
        for wanted in peer.wanted.1.try_iter() {
            directory.refuse_connection(wanted.lane, wanted.connection);
        }
        self.registrar.withdraw_remotes(peer.slot(), None, END_MAX)
            && directory.wait_for_ours(peer.slot(), END_MAX)
            && directory.close_targets(peer.slot(), Code::PeerRemoved)
    }
}
