//! Remote handles: regions of other sessions, here or at a peer, that a session may write to.

use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{Handle, NodeOpen, NodeOpened, Open, Text, name_words};
use railhead_abi::observe::EventCode;
use railhead_abi::settings::{Mode, Plan, Plans};
use railhead_core::port::Key;
use railhead_core::tables::RemoteInfo;
use railhead_verbs::RemoteMemory;

use super::regions::Refusal;
use super::{RELEASE_MAX, Registrar, named};
use crate::lane::connections;
use crate::lane::mail::Command;
use crate::tables::{RemoteEntry, SELF};

/// What the owner's node answered.
#[derive(Debug, Clone, Copy)]
struct Answered {
    key: Key,
    bytes: u64,
    page_bytes: u64,
    owner: u32,
    incarnation: u64,
    plans: Plans,
    /// How our NICs name it; `None` where the peer is reached over TCP.
    rdma: Option<RemoteMemory>,
}

impl Registrar {
    /// Opens a region for a session: afterwards every lane has the handle.
    pub(crate) fn open(&self, session: u32, open: &Open) -> Result<Handle, Refusal> {
        let (node, region) = (Text::of(&open.node), Text::of(&open.region));
        let (node, region) = (node.as_str(), region.as_str());
        let refuse = |code: Code| (code, format!("{node}/{region}"));
        let name = self.tables().session(session).map(|entry| entry.name.clone()).unwrap_or_default();
        // Kept until all is installed: a removal of the peer waits for it.
        let known = self.peers.find(node).filter(|_| !self.is_self(node));
        let (peer, answered) = match &known {
            Some(known) => (known.slot(), self.open_at(known.slot(), &name, region, open.access)),
            None if self.is_self(node) => (SELF, self.open_here(session, &name, region, open.access)),
            None => return Err(refuse(Code::PeerUnknown)),
        };
        let answered = answered.map_err(refuse)?;
        let (key, incarnation) = (answered.key, answered.incarnation);
        let entry = RemoteEntry { session, peer, key, incarnation, is_going: false, lanes: 0 };
        let added = self.tables().add_remote(entry);
        let (index, generation) = added.map_err(|code| {
            self.give_back(peer, key, incarnation);
            (code, "remote handles".to_owned())
        })?;
        // Its owner may have withdrawn it before it was in the tables, where a withdrawal looks.
        if known.as_ref().is_some_and(|known| known.was_revoked(key)) {
            self.forget_remote(index);
            return Err(refuse(Code::RegionUnknown));
        }
        let over_rdma = answered.rdma.is_some();
        let map = self.peers.map();
        let info = RemoteInfo {
            generation,
            session,
            peer,
            access: open.access,
            connections: if over_rdma { map.of_peer_over_rdma(peer) } else { connections::of_peer(peer) },
            readers: map.readers_of_peer(peer),
            one_sided: over_rdma,
            key,
            bytes: answered.bytes,
            plan: answered.plans.receive,
            read_plan: answered.plans.send,
        };
        let all = self.all_lanes();
        self.tables().remote_lanes(index, |lanes| *lanes = all);
        let (lanes, installed) =
            self.lanes.ask_all(|_| Command::InstallRemote { remote: index, info, rdma: answered.rdma });
        if let Err(code) = installed {
            self.tables().remote_lanes(index, |has| *has &= lanes);
            self.remove_remote(index);
            return Err((code, "a lane did not take the handle".to_owned()));
        }
        // A withdrawal may have come to the lanes before the handle did: they have not heard of it then.
        if self.tables().remote(index).is_some_and(|remote| remote.is_going) {
            self.remove_from_lanes(index);
            self.wait_for_remote(index);
            self.forget_remote(index);
            return Err(refuse(Code::RegionUnknown));
        }
        self.catch_up(peer, answered.plans.generation());
        let (bytes, page_bytes) = (answered.bytes, answered.page_bytes);
        Ok(Handle { index, generation, bytes, page_bytes, peer, session: answered.owner })
    }

    fn open_here(&self, session: u32, name: &str, region: &str, access: u32) -> Result<Answered, Code> {
        let opened = self.tables().open(region, access, (SELF, &self.node, name), Some(session))?;
        let plans = self.current.plans();
        let (key, bytes, page_bytes, owner) = (opened.key, opened.bytes, opened.page_bytes, opened.session);
        Ok(Answered { key, bytes, page_bytes, owner, incarnation: self.incarnation, plans, rdma: None })
    }

    fn open_at(&self, peer: u32, name: &str, region: &str, access: u32) -> Result<Answered, Code> {
        let open =
            NodeOpen { region: name_words(region), session: name_words(name), access, ..NodeOpen::default() };
        let (opened, incarnation) = self.peers.open(peer, open)?;
        let plan = |mode: u8, direct_from_bytes| Plan {
            mode: mode_of(u64::from(mode)),
            direct_from_bytes,
            generation: opened.plan_generation,
            direct_possible: opened.direct_possible != 0,
        };
        let plans = Plans {
            receive: plan(opened.mode, opened.direct_from_bytes),
            send: plan(opened.send_mode, opened.send_direct_from_bytes),
        };
        let key = Key { index: opened.index, epoch: opened.epoch };
        let rdma = self.reaches_over_rdma(peer).then(|| memory_of(&opened));
        Ok(Answered {
            key,
            bytes: opened.bytes,
            page_bytes: 0,
            owner: opened.session,
            incarnation,
            plans,
            rdma,
        })
    }

    /// Whether both this node and a peer have NICs that are used.
    fn reaches_over_rdma(&self, peer: u32) -> bool {
        let theirs = self.peers.get(peer).and_then(|peer| peer.link()).map_or(0, |link| link.hello.rails);
        theirs > 0 && self.rdma.as_ref().is_some_and(|rdma| rdma.rails() > 0)
    }

    /// A plan that came between the answer and the installation has missed the new handle: say it again.
    fn catch_up(&self, peer: u32, generation: u64) {
        let newest = if peer == SELF { Some(self.current.plans()) } else { self.peers.plans(peer) };
        if let Some(plans) = newest.filter(|plans| plans.generation() > generation)
            && let Err(code) = self.lanes.call_all(|_| Command::UpdatePlans { peer, plans })
        {
            tracing::warn!(code = code.name(), peer, "a lane did not take a peer's plans");
        }
    }

    /// Opens a region of this node for a session of a peer. Afterwards the peer may write it.
    pub(crate) fn open_for_peer(
        &self,
        peer: u32,
        node: &str,
        open: &NodeOpen,
    ) -> Result<crate::tables::Opened, Code> {
        let (region, session) = (Text::of(&open.region), Text::of(&open.session));
        let opened = self.tables().open(region.as_str(), open.access, (peer, node, session.as_str()), None);
        let opened = opened.inspect_err(|code| match code {
            Code::GrantMissing => {
                let event = named(EventCode::GrantRefused, region.as_str()).reason(*code);
                self.emit(event.figures(u64::from(peer), 0));
            }
            // Asked for too early, as programs do that wait for each other: no news.
            _ => {
                tracing::debug!(peer, region = region.as_str(), code = code.name(), "a region was not opened")
            }
        })?;
        if let Err(code) = self.allow_peers(opened.key) {
            self.peer_closed(peer, opened.key);
            return Err(code);
        }
        self.emit(named(EventCode::RegionOpened, region.as_str()).figures(u64::from(peer), 0));
        Ok(opened)
    }

    /// Gives a remote handle back on its session's wish.
    pub(crate) fn close_remote(&self, session: u32, index: u32, generation: u32) -> Result<(), Code> {
        self.tables().remote_of(session, index, generation)?;
        self.begin_remote_end(index);
        if !self.wait_until(RELEASE_MAX, |tables| tables.remote(index).is_none_or(|remote| remote.lanes == 0))
        {
            return Err(Code::RegionBusy);
        }
        self.forget_remote(index);
        Ok(())
    }

    /// Ends a remote handle whose session is gone.
    pub(super) fn remove_remote(&self, index: u32) {
        self.begin_remote_end(index);
        self.wait_for_remote(index);
        self.forget_remote(index);
    }

    fn wait_for_remote(&self, index: u32) {
        self.wait_for_ever("remote handle", |tables| {
            tables.remote(index).is_none_or(|remote| remote.lanes == 0)
        });
    }

    /// Ends the lanes' use of the handles that `peer` gave, all or those of one key; true when it has ended in time. The
    /// slots stay their sessions', who have to give them back.
    pub(crate) fn withdraw_remotes(&self, peer: u32, key: Option<Key>, limit: Duration) -> bool {
        let meant = self.tables().remotes_of_peer(peer, key);
        meant.iter().for_each(|remote| self.begin_remote_end(*remote));
        self.wait_until(limit, |tables| {
            meant.iter().all(|remote| tables.remote(*remote).is_none_or(|remote| remote.lanes == 0))
        })
    }

    /// Ends the lanes' use of the handles of one key, whose owner wants it back: they take no more transfers, those under
    /// way may end by themselves for a quarter of the time, then they are stopped. True when all has ended in time.
    pub(crate) fn give_up_remotes(&self, peer: u32, key: Key, limit: Duration) -> bool {
        let patience = limit / 4;
        if self.withdraw_remotes(peer, Some(key), patience) {
            return true;
        }
        let meant = self.tables().remotes_of_peer(peer, Some(key));
        for remote in meant {
            let stopped = self.lanes.call_all(|_| Command::StopRemote { remote, cause: Code::Revoked });
            if let Err(code) = stopped {
                tracing::error!(code = code.name(), remote, "a lane did not stop the transfers of a handle");
            }
        }
        self.withdraw_remotes(peer, Some(key), limit - patience)
    }

    fn begin_remote_end(&self, index: u32) {
        if self.tables().close_remote(index) {
            self.remove_from_lanes(index);
        }
    }

    fn remove_from_lanes(&self, index: u32) {
        if let Err(code) = self.lanes.call_all(|_| Command::RemoveRemote { remote: index }) {
            tracing::error!(code = code.name(), index, "a lane did not begin the end of a remote handle");
        }
    }

    fn forget_remote(&self, index: u32) {
        let removed = self.tables().remove_remote(index);
        if let Some(remote) = removed {
            self.give_back(remote.peer, remote.key, remote.incarnation);
        }
    }

    /// Tells the owner of a key that one handle less is open.
    fn give_back(&self, peer: u32, key: Key, incarnation: u64) {
        if peer == SELF { self.peer_closed(SELF, key) } else { self.peers.close(peer, key, incarnation) }
    }
}

/// A mode by its number; anything odd is `Auto`.
pub(crate) const fn mode_of(number: u64) -> Mode {
    match number {
        1 => Mode::Staged,
        2 => Mode::Direct,
        _ => Mode::Auto,
    }
}

/// How NICs name a peer's region, from its answer.
const fn memory_of(opened: &NodeOpened) -> RemoteMemory {
    const fn low(word: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        {
            word as u32
        }
    }
    let [first, second] = opened.keys;
    let keys = [low(first), low(first >> 32), low(second), low(second >> 32)];
    let NodeOpened { epoch, access, address, bytes, .. } = *opened;
    RemoteMemory { epoch, access, address, bytes, keys }
}
