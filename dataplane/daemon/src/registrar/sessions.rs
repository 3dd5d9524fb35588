//! The beginning and the end of a session on the lanes.

use railhead_abi::Code;
use railhead_abi::frame::Hello;
use railhead_abi::segment::{PORT_ENTRIES_DEFAULT, PORT_ENTRIES_MAX, PORTS_PER_LANE_MAX, SessionShape};
use railhead_core::tables::PortIndex;

use super::Registrar;
use super::regions::Refusal;
use crate::lane::mail::{Answer, Command};
use crate::session::memory::SessionMemory;

impl Registrar {
    /// Makes a session's memory and gives it and its ports to the lanes. On a refusal nothing of it is left.
    pub(crate) fn begin_session(
        &self,
        session: u32,
        name: &str,
        hello: &Hello,
    ) -> Result<SessionMemory, Refusal> {
        let lanes = self.lanes.count();
        let ports = hello.ports as usize;
        let entries = if hello.entries == 0 { PORT_ENTRIES_DEFAULT } else { hello.entries as usize };
        if !entries.is_power_of_two() || entries > PORT_ENTRIES_MAX {
            return Err((Code::QuotaExceeded, format!("entries: a power of two up to {PORT_ENTRIES_MAX}")));
        }
        if ports > lanes * PORTS_PER_LANE_MAX {
            return Err((Code::PortsFull, "ports".to_owned()));
        }
        self.tables().reserve_ports(ports).map_err(|code| (code, "ports".to_owned()))?;
        let shape = SessionShape { lanes, ports, entries };
        let begun = SessionMemory::create(name, shape, self.incarnation).and_then(|memory| {
            let given = self.give_to_lanes(session, &memory);
            given.map_err(|code| (code, "a lane did not take the session".to_owned())).map(|()| memory)
        });
        begun.inspect_err(|_| {
            self.take_session(session);
            self.tables().unreserve_ports(ports);
        })
    }

    fn give_to_lanes(&self, session: u32, memory: &SessionMemory) -> Result<(), Code> {
        let lanes = self.lanes.count();
        for lane in 0..lanes {
            let parts = memory.session_parts(lane).map_err(|_| Code::MappingFailed)?;
            self.lanes.call(lane, Command::AttachSession { session, parts })?;
            self.lanes.get(lane).watch(memory.doorbell(lane)).map_err(|_| Code::MappingFailed)?;
        }
        for port in 0..memory.shape().ports {
            let parts = memory.port_parts(port).map_err(|_| Code::MappingFailed)?;
            let lane = port % lanes;
            if let Answer::Port(index) = self.lanes.call(lane, Command::AttachPort { session, parts })? {
                self.tables().add_port(session, lane, index.0);
            }
        }
        Ok(())
    }

    /// Ends a session in order: its transfers stop and complete, its handles and regions go, then its memory.
    pub(crate) fn end_session(&self, session: u32, memory: Option<&SessionMemory>) {
        let (regions, remotes) = self.tables().close_session(session);
        // Somebody may wait for its names.
        self.ended.notify_all();
        if let Some(memory) = memory {
            self.close_ports(session);
            // Nobody but its own transfers uses a session's handles.
            remotes.into_iter().for_each(|remote| self.remove_remote(remote));
            regions.into_iter().for_each(|region| self.remove_region(region));
            if let Some(rdma) = &self.rdma {
                rdma.forget_session(session);
            }
            for lane in 0..self.lanes.count() {
                self.lanes.get(lane).unwatch(memory.doorbell(lane));
            }
            self.detach(session);
            self.tables().unreserve_ports(memory.shape().ports);
        }
        self.tables().remove_session(session);
    }

    /// Takes from the lanes whatever they got of a session.
    fn take_session(&self, session: u32) {
        self.close_ports(session);
        self.detach(session);
    }

    fn close_ports(&self, session: u32) {
        let ports = self.tables().session(session).map(|entry| entry.ports.clone()).unwrap_or_default();
        for (lane, port) in ports {
            if let Err(code) = self.lanes.call(lane, Command::AbandonPort { port: PortIndex(port) }) {
                tracing::error!(code = code.name(), lane, port, "a lane did not begin the end of a port");
            }
        }
        self.wait_for_ever("port", |tables| {
            tables.session(session).is_none_or(|entry| entry.ports.is_empty())
        });
    }

    fn detach(&self, session: u32) {
        if let Err(code) = self.lanes.call_all(|_| Command::CloseSession { session }) {
            tracing::error!(code = code.name(), session, "a lane did not give a session's memory back");
        }
    }
}
