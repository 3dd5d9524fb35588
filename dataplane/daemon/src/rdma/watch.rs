//! What NICs say unasked: links and addresses that come and go.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::name_words;
use railhead_abi::observe::EventCode;
use railhead_abi::segment::{RAIL_DOWN, RAIL_UP, RailStatus, Registrations};
use railhead_ring::Word;
use railhead_shm::Words;
use railhead_verbs::{Event as NicEvent, Nic};

use super::Rdma;
use crate::events::{Event, EventLog};
use crate::segment::{ControlSegment, write_words};

/// How long a thread waits before it looks whether the node stops.
const LOOK: Duration = Duration::from_millis(250);

impl Rdma {
    /// Starts one thread for each NIC, until `stopping` is not 0.
    ///
    /// # Errors
    /// No threads left.
    pub(crate) fn watch(
        self: &Arc<Self>,
        segment: &Arc<ControlSegment>,
        events: &Arc<EventLog>,
        stopping: &Arc<Word>,
    ) -> std::io::Result<()> {
        for rail in 0..self.nics.len() {
            let (rdma, segment) = (Arc::clone(self), Arc::clone(segment));
            let (events, stopping) = (Arc::clone(events), Arc::clone(stopping));
            let thread = thread::Builder::new().name(format!("railhead-nic-{rail}"));
            drop(thread.spawn(move || rdma.watch_rail(rail, &segment, &events, &stopping))?);
        }
        Ok(())
    }

    fn watch_rail(&self, rail: usize, segment: &ControlSegment, events: &EventLog, stopping: &Word) {
        let nic = &self.nics[rail];
        let mut state = RAIL_UP;
        write_rail(&segment.rail(rail), nic, state);
        while stopping.load_acquire() == 0 {
            if rail == 0 {
                self.write_registrations(&segment.registrations());
            }
            if let Some(now) = next_state(rail, nic, state, events) {
                state = now;
                write_rail(&segment.rail(rail), nic, state);
            }
        }
    }

    fn write_registrations(&self, words: &Words) {
        let (cache, (pinned_bytes, pinned_keys)) = (self.cache.counters(), self.budget.taken());
        let now = Registrations {
            hits: cache.hits,
            misses: cache.misses,
            evictions: cache.evictions,
            invalidations: cache.invalidations,
            over_budget: cache.over_budget,
            saved_us: cache.saved_us,
            entries: cache.entries,
            bytes: cache.bytes,
            pinned_bytes,
            pinned_bytes_max: self.pinned_bytes_max,
            pinned_keys,
        };
        write_words(words, &now.encode());
    }
}

/// Says what a rail is, for others to look at.
fn write_rail(words: &Words, nic: &Nic, state: u32) {
    let (port, gid) = (nic.port(), nic.gid());
    let (low, high) = gid.gid.0.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let status = RailStatus {
        device: name_words(nic.device().name()),
        gid: [half(low), half(high)],
        state,
        port: nic.config().port.into(),
        is_ethernet: port.is_ethernet.into(),
        mtu_bytes: nic.mtu_bytes(),
        numa_node: nic.device().numa_node().map_or(0, |node| node + 1),
        reads_max: nic.device().limits().reads_made.min(nic.config().reads_max).into(),
        gid_index: gid.index,
    };
    write_words(words, &status.encode());
}

/// Waits for what a NIC says next, for a moment; its state if that may have changed.
fn next_state(rail: usize, nic: &Nic, state: u32, events: &EventLog) -> Option<u32> {
    let event = match nic.wait_event(LOOK) {
        Ok(event) => event?,
        Err(error) => {
            tracing::warn!(rail, %error, "a NIC says nothing any more");
            thread::sleep(LOOK);
            return None;
        }
    };
    let emit = |code, reason, text: String| {
        events.emit(Event::new(code).reason(reason).figures(rail as u64, 0).text(text));
    };
    let name = nic.device().name();
    match event {
        NicEvent::PortDown { port } => {
            emit(EventCode::RailDown, Code::DeviceError, format!("{name} port {port}"));
            Some(RAIL_DOWN)
        }
        NicEvent::PortUp { .. } | NicEvent::Addresses { .. } => match (nic.gid(), nic.refresh()) {
            // Tables change for many reasons: no news.
            (before, Ok(())) if state == RAIL_UP && nic.gid().gid == before.gid => Some(RAIL_UP),
            (_, Ok(())) => {
                emit(EventCode::RailUp, Code::Ok, format!("{name} {}", nic.gid().gid));
                Some(RAIL_UP)
            }
            (_, Err(error)) => {
                emit(EventCode::RailDown, Code::DeviceError, error.to_string());
                Some(RAIL_DOWN)
            }
        },
        NicEvent::DeviceLost | NicEvent::CompletionsLost => {
            emit(EventCode::RailDown, Code::DeviceError, format!("{name} is lost: restart the dataplane"));
            Some(RAIL_DOWN)
        }
        NicEvent::QueuePair { number } => {
            tracing::debug!(rail, number, "a queue pair failed");
            None
        }
        NicEvent::Other(number) => {
            tracing::debug!(rail, number, "a NIC's event of no interest");
            None
        }
    }
}
