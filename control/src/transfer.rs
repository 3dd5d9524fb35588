//! Flight records: what happened to the last transfers, and why.

use railhead_abi::observe::Flight;
use railhead_abi::segment::ControlHeader;
use railhead_abi::submission::{CLASS_LATENCY, LEG_DIRECT, LEG_STAGED, OPERATION_READ};
use railhead_abi::{Code, Reason};
use railhead_ring::Entry;
use serde_json::{Value as Json, json};

use crate::segment::Segment;
use crate::text;

/// A flight record and the lane that wrote it.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// The lane.
    pub lane: usize,
    /// What it wrote.
    pub flight: Flight,
}

/// The newest records of all lanes that `keep` wants, newest first.
pub fn newest(segment: &Segment, limit: usize, keep: impl Fn(&Flight) -> bool) -> Vec<Record> {
    let mut records: Vec<Record> = (0..segment.lanes())
        .flat_map(|lane| {
            records(segment, lane).filter(|record| keep(&record.flight)).take(limit).collect::<Vec<_>>()
        })
        .collect();
    records.sort_by_key(|record| std::cmp::Reverse(end_ns(&record.flight)));
    records.truncate(limit);
    records
}

/// The newest record of a ticket.
#[must_use]
pub fn find(segment: &Segment, ticket: u64) -> Option<Record> {
    newest(segment, 1, |flight| flight.ticket == ticket).first().copied()
}

/// A lane's records, newest first, as far as they are still there.
fn records(segment: &Segment, lane: usize) -> impl Iterator<Item = Record> {
    let log = segment.flights(lane);
    (log.oldest_position()..log.next_position()).rev().map_while(move |position| match log.read(position) {
        Entry::Found(words) => Some(Record { lane, flight: Flight::decode(&words) }),
        // Whatever is older is overwritten, too.
        Entry::Overwritten | Entry::NotYet => None,
    })
}

const fn end_ns(flight: &Flight) -> u64 {
    flight.intake_ns.saturating_add(flight.total_ns)
}

/// The wall clock at a transfer's intake.
const fn intake_unix_ns(header: &ControlHeader, flight: &Flight) -> u64 {
    header.started_unix_ns.saturating_add(flight.intake_ns.saturating_sub(header.started_ns))
}

const fn leg_name(leg: u8) -> &'static str {
    match leg {
        LEG_STAGED => "staged",
        LEG_DIRECT => "direct",
        _ => "none",
    }
}

const fn is_read(flight: &Flight) -> bool {
    flight.operation == OPERATION_READ
}

/// A record as JSON.
#[must_use]
pub fn to_json(segment: &Segment, record: &Record) -> Json {
    let Record { lane, flight } = record;
    let status = Code::from_number(flight.status);
    let peer = peer_name(segment, flight.peer);
    let intake = intake_unix_ns(segment.header(), flight);
    json!({
        "ticket": text::hex(flight.ticket),
        "lane": lane,
        "time": text::rfc3339(intake),
        "unix_ns": intake,
        "cookie": flight.cookie,
        "operation": if is_read(flight) { "read" } else { "write" },
        "bytes": flight.bytes,
        "status": status.map_or("unknown_code", Code::name),
        "class": if flight.class == CLASS_LATENCY { "latency" } else { "bulk" },
        "session": flight.session,
        "session_name": text::words(&flight.session_name),
        "peer": peer,
        "route": format!("{}-{}", leg_name(flight.send_leg), leg_name(flight.receive_leg)),
        "send": leg(flight.send_leg, flight.send_reason, flight.send_threshold),
        "receive": leg(flight.receive_leg, flight.receive_reason, flight.receive_threshold),
        "generation": flight.generation,
        "plan_generation": flight.plan_generation,
        "replans": flight.replans,
        "chunks": flight.chunks,
        "ns": {
            "wait": flight.wait_ns,
            "post": flight.post_ns,
            "confirm": flight.total_ns.saturating_sub(flight.wait_ns).saturating_sub(flight.post_ns),
            "copy": flight.copy_ns,
            "receive": flight.receive_ns,
            "total": flight.total_ns,
            "predicted": if flight.predicted_ns == 0 { Json::Null } else { Json::from(flight.predicted_ns) },
        },
    })
}

fn leg(leg: u8, reason: u8, threshold: u64) -> Json {
    let reason = Reason::from_number(reason);
    json!({
        "leg": leg_name(leg),
        "reason": reason.map_or("unknown", Reason::name),
        "direct_from_bytes": threshold,
    })
}

/// The peer of a slot: its name, `self`, or null.
fn peer_name(segment: &Segment, slot: u32) -> Json {
    // Slots beyond the table stand for the node itself.
    let name = usize::try_from(slot).ok().filter(|slot| *slot < railhead_abi::segment::PEERS_MAX);
    match name.map(|slot| text::words(&segment.peer(slot).name)) {
        None => Json::from("self"),
        Some(name) if name.is_empty() => Json::Null,
        Some(name) => Json::from(name),
    }
}

/// Why the transfer went as it did, a sentence for each leg and for its end.
#[must_use]
pub fn why(record: &Record) -> Json {
    let flight = &record.flight;
    let send = sentence("send", "sent", flight.send_leg, flight.send_reason, flight.send_threshold, flight);
    let receive = sentence(
        "receive",
        "received",
        flight.receive_leg,
        flight.receive_reason,
        flight.receive_threshold,
        flight,
    );
    json!({ "send": send, "receive": receive, "outcome": outcome(flight) })
}

fn sentence(name: &str, done: &str, leg: u8, reason: u8, threshold: u64, flight: &Flight) -> String {
    let bytes = text::grouped(flight.bytes);
    let threshold = text::grouped(threshold);
    let leg = leg_name(leg);
    // Each node decides its own leg: of a read the send leg is the peer's.
    let (generation, whose) = match (name == "send", is_read(flight)) {
        (true, false) | (false, true) => (flight.generation, "settings"),
        (false, false) => (flight.plan_generation, "the peer's receive plan"),
        (true, true) => (flight.plan_generation, "the peer's plan for reads"),
    };
    let why = match Reason::from_number(reason) {
        None => format!("reason {reason} of a newer version"),
        Some(Reason::Mode) => format!("{name}.mode says so in generation {generation} of {whose}"),
        Some(Reason::BelowThreshold) => format!(
            "{bytes} bytes are fewer than {name}.direct_from_bytes = {threshold} in generation {generation} of {whose}"
        ),
        Some(Reason::FromThreshold) => format!(
            "{bytes} bytes reach {name}.direct_from_bytes = {threshold} in generation {generation} of {whose}"
        ),
        Some(reason) => reason.text().to_owned(),
    };
    if leg == "none" { format!("not {done}: {why}") } else { format!("{done} {leg}: {why}") }
}

fn outcome(flight: &Flight) -> String {
    let status = match Code::from_number(flight.status) {
        None => format!("ended with code {} of a newer version", flight.status),
        Some(Code::Ok) => "done".to_owned(),
        Some(code) => format!("{}; {}", code.text(), code.remedy()),
    };
    match flight.replans {
        0 => status,
        count => format!("{status}; planned again {count} time(s) on the peer's demand"),
    }
}
