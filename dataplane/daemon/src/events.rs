//! What happened, for people: one call writes the registrar's event log and a line on the log output.
//!
//! For registrar threads only: it locks and formats. Lanes have logs of their own, which the engine writes.

use core::fmt::Display;
use std::sync::{Mutex, PoisonError};

use railhead_abi::Code;
use railhead_abi::frame::text_words;
use railhead_abi::observe::{EventCode, EventEntry, SEVERITY_ERROR, SEVERITY_INFO};
use railhead_abi::segment::REGISTRAR_EVENT_ENTRIES;
use railhead_ring::LogWriter;
use railhead_shm::Words;

use crate::clock;

/// One event under construction.
#[derive(Debug)]
pub(crate) struct Event {
    entry: EventEntry,
    code: EventCode,
    reason: Code,
    text: String,
}

impl Event {
    /// An event without reason, figures and text.
    pub(crate) fn new(code: EventCode) -> Self {
        Self { entry: EventEntry::default(), code, reason: Code::Ok, text: String::new() }
    }

    /// Why it happened.
    pub(crate) fn reason(mut self, reason: Code) -> Self {
        self.reason = reason;
        self
    }

    /// The lane that it is about.
    pub(crate) fn lane(mut self, lane: usize) -> Self {
        self.entry.lane = u16::try_from(lane + 1).unwrap_or(u16::MAX);
        self
    }

    /// The two figures; [`EventCode::text`] says what they are.
    pub(crate) fn figures(mut self, first: u64, second: u64) -> Self {
        (self.entry.first, self.entry.second) = (first, second);
        self
    }

    /// A name, path or cause.
    pub(crate) fn text(mut self, text: impl Display) -> Self {
        self.text = text.to_string();
        self
    }
}

/// The registrar's event log.
#[derive(Debug)]
pub(crate) struct EventLog {
    writer: Mutex<LogWriter<Words, { EventEntry::WORDS }>>,
}

impl EventLog {
    /// A log over the segment's words for it.
    pub(crate) fn new(words: Words) -> Self {
        let writer =
            LogWriter::new(words, REGISTRAR_EVENT_ENTRIES).expect("the segment was made for this log");
        Self { writer: Mutex::new(writer) }
    }

    /// Writes the event.
    pub(crate) fn emit(&self, event: Event) {
        let entry = EventEntry {
            event: event.code as u16,
            severity: event.code.severity(),
            code: event.reason.number(),
            unix_ns: clock::unix_ns(),
            text: text_words(&event.text),
            ..event.entry
        };
        // A panic between two words of an entry cannot happen, so a poisoned lock guards a sound log.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).append(&entry.encode());
        print(&event, &entry);
    }
}

fn print(event: &Event, entry: &EventEntry) {
    let (name, meaning, reason) = (event.code.name(), event.code.text(), event.reason.name());
    let (first, second, text, lane) = (entry.first, entry.second, &event.text, u64::from(entry.lane));
    match event.code.severity() {
        SEVERITY_INFO => tracing::info!(event = name, reason, first, second, lane, text, "{meaning}"),
        SEVERITY_ERROR => tracing::error!(event = name, reason, first, second, lane, text, "{meaning}"),
        _ => tracing::warn!(event = name, reason, first, second, lane, text, "{meaning}"),
    }
}

#[cfg(test)]
mod tests {
    use railhead_abi::frame::Text;
    use railhead_abi::segment::ControlShape;
    use railhead_ring::{Entry, LogReader};
    use railhead_shm::Mapping;

    use super::*;

    #[test]
    fn event_can_be_read_back() {
        let words = ControlShape::REGISTRAR_EVENTS_WORDS;
        let words = Mapping::anonymous(8 * words).unwrap().words(0, words).unwrap();
        let log = EventLog::new(words.clone());
        log.emit(
            Event::new(EventCode::PinFailed).reason(Code::NotPermitted).lane(2).figures(7, 22).text("core 7"),
        );
        let reader = LogReader::<_, { EventEntry::WORDS }>::new(words, REGISTRAR_EVENT_ENTRIES).unwrap();
        let Entry::Found(found) = reader.read(0) else { panic!("no entry") };
        let entry = EventEntry::decode(&found);
        assert_eq!((entry.event, entry.lane), (EventCode::PinFailed as u16, 3));
        assert_eq!((entry.first, entry.second, entry.code), (7, 22, Code::NotPermitted.number()));
        assert_eq!(Text::of(&entry.text).as_str(), "core 7");
        assert!(entry.unix_ns > 0);
    }
}
