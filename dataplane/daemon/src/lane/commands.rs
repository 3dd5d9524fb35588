//! What the registrar asks of a lane, carried out between two turns.
//!
//! Memory that a command brings or takes always has another owner at the registrar, so dropping a share of it here frees
//! nothing.

use std::os::fd::OwnedFd;

use railhead_abi::Code;
use railhead_core::port::{ConnectionIndex, Fabric, Nanos, RegionIndex};
use railhead_core::tables::{ConnectionInfo, RegionInfo, RemoteInfo, Role};
use railhead_shm::OwnedSpan;
use railhead_tcp::{AttachInfo, RegionEntry};
use railhead_verbs::{Ready, RemoteMemory, VerbsFabric};

use super::Lane;
use super::mail::{Answer, Command};

impl Lane<'_> {
    /// Carries out one command.
    pub(super) fn execute(&mut self, command: Command, now: Nanos) -> Answer {
        match command {
            Command::AttachSession { session, parts } => {
                done_if(self.engine.attach_session(session, parts).is_ok(), Code::SessionsFull)
            }
            Command::CloseSession { session } => {
                drop(self.engine.detach_session(session));
                Answer::Done
            }
            Command::AttachPort { session, parts } => {
                let attached = self.engine.attach_port(session, parts);
                attached.map_or(Answer::Refused(Code::PortsFull), Answer::Port)
            }
            Command::AbandonPort { port } => {
                self.engine.abandon_port(port, now);
                Answer::Done
            }
            Command::InstallRegion { region, info, span, rdma } => {
                self.install_region(region, info, &span, rdma)
            }
            Command::AllowPeers { region, epoch, peers, readers } => {
                self.allow_peers(region, epoch, peers, readers)
            }
            Command::RemoveRegion { region } => {
                self.engine.remove_region(region);
                Answer::Done
            }
            Command::InstallRemote { remote, info, rdma } => self.install_remote(remote, info, rdma),
            Command::RemoveRemote { remote } => {
                self.engine.remove_remote(remote);
                Answer::Done
            }
            Command::StopRemote { remote, cause } => {
                self.engine.stop_remote(remote, cause, now);
                Answer::Done
            }
            Command::UpdatePlans { peer, plans } => {
                self.engine.update_plan(peer, &plans.receive);
                self.engine.update_read_plan(peer, &plans.send);
                Answer::Done
            }
            Command::ExpireRemotes { peer } => {
                self.engine.expire_remotes(peer);
                if let (Some(verbs), Ok(peer)) = (self.verbs(), u8::try_from(peer)) {
                    verbs.forget_peer(peer);
                }
                Answer::Done
            }
            Command::AttachConnection { connection, socket, info } => {
                self.attach(connection, socket, info, now)
            }
            Command::AttachQueuePair { ready, attach, info } => {
                self.attach_queue_pair(ready, attach, info, now)
            }
            Command::CloseConnection { connection, cause } => {
                self.engine.close_connection(connection, cause);
                Answer::Done
            }
            Command::RefuseConnection { connection } => {
                self.engine.connection_refused(connection, now);
                Answer::Done
            }
            Command::Stop => {
                self.is_stopping = true;
                Answer::Done
            }
        }
    }

    /// Engine and adapter each refuse what the other would let through; a region that is gone needs nothing.
    fn allow_peers(&mut self, region: RegionIndex, epoch: u32, peers: u64, readers: u64) -> Answer {
        if self.engine.fabric_mut().second.first.set_peers(region, epoch, peers) {
            self.engine.grant_region(region, peers, readers);
        }
        Answer::Done
    }

    /// Adapters first: the engine may use a region as soon as it knows it.
    fn install_region(
        &mut self,
        region: RegionIndex,
        info: RegionInfo,
        span: &OwnedSpan,
        rdma: Option<railhead_verbs::RegionEntry>,
    ) -> Answer {
        let epoch = info.generation;
        drop(self.engine.copier_mut().install(region, span.clone()));
        let fabric = self.engine.fabric_mut();
        drop(fabric.first.install(region, epoch, span.clone(), info.access));
        let entry = RegionEntry { span: span.clone(), epoch, access: info.access, peers: info.peers };
        drop(fabric.second.first.install(region, entry));
        if let (Some(verbs), Some(entry)) = (&mut fabric.second.second, rdma) {
            drop(verbs.install(region, entry));
        }
        done_if(self.engine.install_region(region, info), Code::RegionsFull)
    }

    fn install_remote(&mut self, remote: u32, info: RemoteInfo, rdma: Option<RemoteMemory>) -> Answer {
        if let (Some(memory), Some(verbs), Ok(peer)) = (rdma, self.verbs(), u8::try_from(info.peer)) {
            // Stays when the handle closes: others of the key may be open, and without one nothing names it.
            verbs.install_remote(peer, info.key.index, memory);
        }
        done_if(self.engine.install_remote(remote, info), Code::RegionsFull)
    }

    const fn verbs(&mut self) -> Option<&mut VerbsFabric> {
        self.engine.fabric_mut().second.second.as_mut()
    }

    fn attach_queue_pair(
        &mut self,
        ready: Ready,
        attach: railhead_verbs::AttachInfo,
        info: ConnectionInfo,
        now: Nanos,
    ) -> Answer {
        let connection = ready.connection();
        let (is_attached, left) = match self.verbs() {
            None => (false, Some(ready)),
            Some(verbs) => match verbs.attach(ready, attach) {
                Ok(left) => (true, left),
                Err(error) => (false, Some(error.ready)),
            },
        };
        if let Some(left) = left {
            self.send_home(left);
        }
        if !is_attached {
            return Answer::Refused(Code::RdmaRefused);
        }
        if self.engine.connection_up(connection, info, now) {
            return Answer::Done;
        }
        self.engine.fabric_mut().close(connection);
        Answer::Refused(Code::RdmaRefused)
    }

    fn attach(
        &mut self,
        connection: ConnectionIndex,
        socket: OwnedFd,
        info: ConnectionInfo,
        now: Nanos,
    ) -> Answer {
        let Ok(peer) = u8::try_from(info.peer) else { return Answer::Refused(Code::PeerUnknown) };
        let fabric = &mut self.engine.fabric_mut().second.first;
        let takes_writes = info.role == Role::Target;
        if fabric.attach(connection, socket, AttachInfo { peer, takes_writes }).is_err() {
            return Answer::Refused(Code::DeviceError);
        }
        if self.engine.connection_up(connection, info, now) {
            return Answer::Done;
        }
        self.engine.fabric_mut().close(connection);
        Answer::Refused(Code::DeviceError)
    }
}

fn done_if(is_done: bool, refusal: Code) -> Answer {
    if is_done { Answer::Done } else { Answer::Refused(refusal) }
}
