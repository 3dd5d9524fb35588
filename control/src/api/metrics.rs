//! `/metrics`: the segment as Prometheus text, read when it is asked for.

use std::fmt::{Display, Write};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use railhead_abi::observe::Counter;
use railhead_abi::segment::{LaneStatus, PEER_UP, RAIL_UP};

use super::Api;
use super::node::blocks;
use super::rails::RAIL_COUNTERS;
use crate::segment::Segment;
use crate::text;

pub(super) async fn metrics(State(api): State<Api>) -> Response {
    let mut page = Page::default();
    let attached = api.attached().ok();
    page.one("up", "gauge", "1 while a dataplane is attached", u8::from(attached.is_some()));
    if let Some(attachment) = attached {
        let segment = &attachment.segment;
        if let Some(view) = api.writer.view() {
            page.one("settings_generation", "gauge", "generation of the published settings", view.generation);
            let pending = view.pending().map_or(0, |pending| pending.lanes.len());
            page.one(
                "settings_pending_lanes",
                "gauge",
                "lanes that do not apply the published settings yet",
                pending,
            );
        }
        node(&mut page, segment);
        lanes(&mut page, segment);
        rails(&mut page, segment);
        peers(&mut page, segment);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.text).into_response()
}

fn node(page: &mut Page, segment: &Segment) {
    let header = segment.header();
    page.head("node_info", "gauge", "1, with facts of the node as labels");
    let name = text::words(&header.node);
    let version = env!("CARGO_PKG_VERSION");
    page.line(
        "node_info",
        &[("node", &name), ("incarnation", &text::hex(header.incarnation)), ("version", &version)],
        1,
    );
    #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in floating-point seconds")]
    let started = header.started_unix_ns as f64 / 1e9;
    page.one("start_time_seconds", "gauge", "when the dataplane started, seconds since 1970", started);
    page.one("pool_bytes", "gauge", "bytes of all staging arenas", header.pool_bytes);
}

/// A figure of a lane: name, help, value.
type Figure = (&'static str, &'static str, fn(&LaneStatus) -> u64);

fn lanes(page: &mut Page, segment: &Segment) {
    let status: Vec<LaneStatus> = (0..segment.lanes()).map(|lane| segment.lane_status(lane)).collect();
    for counter in Counter::ALL {
        page.head(counter.name(), "counter", counter.text());
        for lane in 0..segment.lanes() {
            page.line(counter.name(), &[("lane", &lane)], segment.counter(lane, *counter));
        }
    }
    let gauges: [Figure; 6] = [
        ("lane_generation", "generation of the settings that the lane applies", |lane| lane.acknowledged),
        ("lane_running", "1 while the lane is sealed and runs", |lane| {
            u64::from(lane.state == railhead_abi::segment::LANE_SEALED)
        }),
        ("lane_ports", "ports attached", |lane| lane.ports),
        ("lane_connections", "data connections that are up", |lane| lane.connections),
        ("transfers_in_flight", "transfers of this node in flight", |lane| lane.in_flight),
        ("inbound_in_flight", "transfers of peers in flight", |lane| lane.inbound),
    ];
    for (name, help, value) in gauges {
        page.head(name, "gauge", help);
        for (lane, status) in status.iter().enumerate() {
            page.line(name, &[("lane", &lane)], value(status));
        }
    }
    let counters: [Figure; 2] = [
        ("minor_faults_total", "minor page faults of the lane's thread since the seal", |lane| {
            lane.minor_faults
        }),
        ("voluntary_switches_total", "voluntary context switches since the seal", |lane| {
            lane.voluntary_switches
        }),
    ];
    for (name, help, value) in counters {
        page.head(name, "counter", help);
        for (lane, status) in status.iter().enumerate() {
            page.line(name, &[("lane", &lane)], value(status));
        }
    }
    for (name, help, free) in [
        ("pool_blocks", "staging blocks of the lane", false),
        ("pool_blocks_free", "staging blocks that nothing uses", true),
    ] {
        page.head(name, "gauge", help);
        for (lane, status) in status.iter().enumerate() {
            for (class, leg, _, all, unused) in blocks(segment, status) {
                let labels: [(&str, &dyn Display); 3] = [("lane", &lane), ("class", &class), ("leg", &leg)];
                page.line(name, &labels, if free { unused } else { all });
            }
        }
    }
}

fn peers(page: &mut Page, segment: &Segment) {
    page.head("peer_up", "gauge", "1 while the peer is connected");
    for (_, peer) in segment.peers() {
        page.line("peer_up", &[("peer", &text::words(&peer.name))], u8::from(peer.state == PEER_UP));
    }
    page.head("peer_downs_total", "counter", "times that the peer went down");
    for (_, peer) in segment.peers() {
        page.line("peer_downs_total", &[("peer", &text::words(&peer.name))], peer.downs);
    }
}

fn rails(page: &mut Page, segment: &Segment) {
    page.head("rail_up", "gauge", "1 while the RDMA NIC carries traffic");
    for (at, rail) in segment.rails() {
        let device = text::words(&rail.device);
        page.line("rail_up", &[("rail", &at), ("device", &device)], u8::from(rail.state == RAIL_UP));
    }
    for (name, help, value) in RAIL_COUNTERS {
        page.head(name, "counter", help);
        for ((at, _), lane) in
            segment.rails().flat_map(|rail| (0..segment.lanes()).map(move |lane| (rail, lane)))
        {
            page.line(name, &[("rail", &at), ("lane", &lane)], value(&segment.lane_rail(lane, at)));
        }
    }
    let cache = segment.registrations();
    for (name, help, value) in [
        ("registration_hits_total", "registrations that were found", cache.hits),
        ("registration_misses_total", "registrations that had to be made", cache.misses),
        ("registration_evictions_total", "registrations given up to make room", cache.evictions),
        ("registration_over_budget_total", "registrations refused for want of budget", cache.over_budget),
        ("registration_saved_us_total", "microseconds that found registrations saved", cache.saved_us),
    ] {
        page.one(name, "counter", help, value);
    }
    page.one(
        "registered_bytes",
        "gauge",
        "bytes of clients' regions that are registered",
        cache.pinned_bytes,
    );
}

/// The text under construction. Writing to a String cannot fail.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP railhead_{name} {help}\n# TYPE railhead_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = write!(self.text, "railhead_{name}");
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }
}
