//! What NICs say unasked: links and addresses that come and go.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use railhead_ring::Word;
use railhead_verbs::{Event as NicEvent, Nic};

use super::Rdma;
use crate::events::{Event, EventLog};

/// How long a thread waits before it looks whether the node stops.
const LOOK: Duration = Duration::from_millis(250);

impl Rdma {
    /// Starts one thread for each NIC, until `stopping` is not 0.
    ///
    /// # Errors
    /// No threads left.
    pub(crate) fn watch(&self, events: &Arc<EventLog>, stopping: &Arc<Word>) -> std::io::Result<()> {
        for (rail, nic) in self.nics.iter().enumerate() {
            let (nic, events, stopping) = (Arc::clone(nic), Arc::clone(events), Arc::clone(stopping));
            let thread = thread::Builder::new().name(format!("railhead-nic-{rail}"));
            drop(thread.spawn(move || watch(rail, &nic, &events, &stopping))?);
        }
        Ok(())
    }
}

fn watch(rail: usize, nic: &Nic, events: &EventLog, stopping: &Word) {
    while stopping.load_acquire() == 0 {
        let event = match nic.wait_event(LOOK) {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(rail, %error, "a NIC says nothing any more");
                thread::sleep(LOOK);
                continue;
            }
        };
        let emit = |code, reason, text: String| {
            events.emit(Event::new(code).reason(reason).figures(rail as u64, 0).text(text));
        };
        let name = nic.device().name();
        match event {
            NicEvent::PortDown { port } => {
                emit(EventCode::RailDown, Code::DeviceError, format!("{name} port {port}"));
            }
            NicEvent::PortUp { .. } | NicEvent::Addresses { .. } => match nic.refresh() {
                Ok(()) => emit(EventCode::RailUp, Code::Ok, format!("{name} {}", nic.gid().gid)),
                Err(error) => emit(EventCode::RailDown, Code::DeviceError, error.to_string()),
            },
            NicEvent::DeviceLost | NicEvent::CompletionsLost => {
                emit(
                    EventCode::RailDown,
                    Code::DeviceError,
                    format!("{name} is lost: restart the dataplane"),
                );
            }
            NicEvent::QueuePair { number } => tracing::debug!(rail, number, "a queue pair failed"),
            NicEvent::Other(number) => tracing::debug!(rail, number, "a NIC's event of no interest"),
        }
    }
}
