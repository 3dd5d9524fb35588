//! Events: the logs of the registrar and of all lanes as one stream, with a cursor to go on from.

use std::fmt;
use std::str::FromStr;

use railhead_abi::Code;
use railhead_abi::observe::{EventCode, EventEntry, SEVERITY_ERROR, SEVERITY_WARNING};
use railhead_ring::Entry;
use serde_json::{Value as Json, json};

use crate::segment::{Log, Segment};
use crate::text;

/// Where a reader is: the next position in each log of one start of the dataplane. As text, `incarnation:p.p.p` in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The start of the dataplane.
    pub incarnation: u64,
    /// The registrar's log, then one of each lane.
    positions: Vec<u64>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.incarnation)?;
        for (at, position) in self.positions.iter().enumerate() {
            write!(f, "{}{position:x}", if at == 0 { ':' } else { '.' })?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a cursor is what `next` or the id of an earlier event says";
        let (incarnation, positions) = text.split_once(':').ok_or(WRONG)?;
        let parse = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| WRONG);
        Ok(Self {
            incarnation: parse(incarnation)?,
            positions: positions.split('.').map(parse).collect::<Result<_, _>>()?,
        })
    }
}

/// Events read from a cursor on.
#[derive(Debug, Default)]
pub struct Batch {
    /// The events, oldest first, each with the cursor behind it.
    pub events: Vec<(EventEntry, Cursor)>,
    /// Events that were overwritten before they could be read.
    pub lost: u64,
}

impl Cursor {
    /// Before the oldest event that may still be there.
    #[must_use]
    pub fn oldest(segment: &Segment) -> Self {
        let positions = logs(segment).iter().map(Log::oldest_position).collect();
        Self { incarnation: segment.header().incarnation, positions }
    }

    /// Behind the newest event.
    #[must_use]
    pub fn newest(segment: &Segment) -> Self {
        let positions = logs(segment).iter().map(Log::next_position).collect();
        Self { incarnation: segment.header().incarnation, positions }
    }

    /// Reads all events of at least `severity` and goes behind them. A cursor of another start of the dataplane, or of
    /// another shape, starts at the oldest event.
    pub fn read(&mut self, segment: &Segment, severity: u8) -> Batch {
        let logs = logs(segment);
        if self.incarnation != segment.header().incarnation || self.positions.len() != logs.len() {
            *self = Self::oldest(segment);
        }
        let mut batch = Batch::default();
        let mut heads: Vec<Option<EventEntry>> = vec![None; logs.len()];
        loop {
            for ((head, position), log) in heads.iter_mut().zip(&mut self.positions).zip(&logs) {
                if head.is_none() {
                    *head = next(log, position, &mut batch.lost);
                }
            }
            // Each log is in order; between logs the wall clock decides.
            let oldest =
                heads.iter().enumerate().filter_map(|(at, head)| head.map(|head| (head.unix_ns, at))).min();
            let Some((_, at)) = oldest else { return batch };
            let Some(entry) = heads[at].take() else { return batch };
            self.positions[at] += 1;
            if entry.severity >= severity {
                batch.events.push((entry, self.clone()));
            }
        }
    }
}

fn logs(segment: &Segment) -> Vec<Log<{ EventEntry::WORDS }>> {
    std::iter::once(segment.registrar_events())
        .chain((0..segment.lanes()).map(|lane| segment.lane_events(lane)))
        .collect()
}

/// The entry at a position, or at the oldest one that is left.
fn next(log: &Log<{ EventEntry::WORDS }>, position: &mut u64, lost: &mut u64) -> Option<EventEntry> {
    // A writer that laps this reader twice in a row writes faster than anyone can read: try again later.
    for _ in 0..2 {
        match log.read(*position) {
            Entry::Found(words) => return Some(EventEntry::decode(&words)),
            Entry::NotYet => return None,
            Entry::Overwritten => {
                let oldest = log.oldest_position().max(*position + 1);
                *lost += oldest - *position;
                *position = oldest;
            }
        }
    }
    None
}

/// The name of a severity.
#[must_use]
pub const fn severity_name(severity: u8) -> &'static str {
    match severity {
        SEVERITY_ERROR => "error",
        SEVERITY_WARNING => "warning",
        _ => "info",
    }
}

/// An event as JSON.
#[must_use]
pub fn to_json(entry: &EventEntry) -> Json {
    let event = EventCode::from_number(entry.event);
    let code = Code::from_number(entry.code).filter(|code| *code != Code::Ok);
    json!({
        "time": text::rfc3339(entry.unix_ns),
        "unix_ns": entry.unix_ns,
        "severity": severity_name(entry.severity),
        "event": event.map_or("unknown", EventCode::name),
        "number": entry.event,
        "lane": text::less_one(u64::from(entry.lane)),
        "code": code.map(Code::name),
        "reason": code.map(Code::text),
        "remedy": code.map(Code::remedy),
        "first": entry.first,
        "second": entry.second,
        "text": text::words(&entry.text),
        "message": message(event, entry),
    })
}

/// The event in words: the code's text, its figures by their labels, the text.
fn message(event: Option<EventCode>, entry: &EventEntry) -> String {
    let Some(event) = event else { return format!("event {} of a newer version", entry.event) };
    let text = text::words(&entry.text);
    let (what, legend) = event.text().split_once(" [").unwrap_or((event.text(), ""));
    let (figures, label) =
        legend.trim_end_matches(']').split_once(';').unwrap_or((legend.trim_end_matches(']'), ""));
    let values = [entry.first, entry.second];
    let mut parts: Vec<String> = figures
        .split(',')
        .map(str::trim)
        .zip(values)
        .filter(|(label, _)| !label.is_empty())
        .filter_map(|(label, value)| figure(label, value))
        .collect();
    if !text.is_empty() {
        let label = label.trim();
        parts.push(if label.is_empty() { text } else { format!("{label} {text}") });
    }
    if parts.is_empty() { what.to_owned() } else { format!("{what}: {}", parts.join(", ")) }
}

fn figure(label: &str, value: u64) -> Option<String> {
    Some(match label {
        "errno" if value == 0 => return None,
        "errno" => match i32::try_from(value) {
            Ok(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            Err(_) => format!("errno {value}"),
        },
        "ticket" | "incarnation" | "ticket or connection" => format!("{label} {value:#x}"),
        "bytes" => text::bytes(value),
        label => match label.strip_suffix("bytes") {
            Some(prefix) => format!("{prefix}{}", text::bytes(value)),
            None if label.contains("bytes") => format!("{label} {}", text::bytes(value)),
            None => format!("{label} {value}"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use railhead_abi::frame::text_words;

    fn shown(event: EventCode, first: u64, second: u64, text: &str) -> String {
        let entry = EventEntry {
            event: event as u16,
            first,
            second,
            text: text_words(text),
            ..EventEntry::default()
        };
        message(Some(event), &entry)
    }

    #[test]
    fn messages_name_their_figures() {
        assert_eq!(
            shown(EventCode::Started, 2, 64 << 20, "a"),
            "the dataplane started: lanes 2, pool 64.0 MiB, node a"
        );
        assert_eq!(shown(EventCode::PeerDown, 0, 0, "b"), "a peer is gone: name b");
        assert_eq!(
            shown(EventCode::PinFailed, 3, 22, ""),
            "a lane could not be pinned: core 3, Invalid argument (os error 22)"
        );
        assert_eq!(
            shown(EventCode::TransferFailed, 255, 4096, ""),
            "a transfer failed: ticket 0xff, 4.0 KiB"
        );
        assert_eq!(
            shown(EventCode::HugepagesSteppedDown, 1 << 20, 4096, "no free hugepages"),
            "memory is on smaller pages than asked: 1.0 MiB, page bytes now 4.0 KiB, cause no free hugepages"
        );
    }

    #[test]
    fn every_event_has_a_message_without_brackets() {
        for event in EventCode::ALL {
            let message = shown(*event, 1, 2, "x");
            assert!(!message.contains(['[', ']']), "{message}");
        }
    }

    #[test]
    fn cursors_survive_their_text() {
        let cursor = Cursor { incarnation: u64::MAX, positions: vec![0, 17, u64::MAX] };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", ":", "1", "1:", "1:x", "x:1", "1:1.", "1:1..2", "-1:1"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}
