//! `/v1/node`, `/v1/lanes`, `/v1/pools`: what the dataplane is and how its parts are.

use axum::Json as Body;
use axum::extract::State;
use railhead_abi::observe::Counter;
use railhead_abi::segment::{
    COPY_THREAD_OFF, COPY_THREAD_ON, COPY_THREAD_SHORT, LANE_SEALED, LANE_STARTING, LANE_STOPPED, LaneStatus,
    PEER_UP, PeerStatus,
};
use railhead_abi::settings::Setting;
use railhead_abi::{ABI_VERSION, Code, PROTOCOL_MAJOR, PROTOCOL_MINOR};
use railhead_config::setting::{Key, Value};
use serde_json::{Map, Value as Json, json};

use super::Api;
use super::params::{Params, Raw};
use crate::patch::value_json;
use crate::problem::Problem;
use crate::segment::Segment;
use crate::text;
use crate::view::unix_ns;

pub(super) async fn node(State(api): State<Api>, query: Raw) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let attachment = api.attached()?;
    let header = attachment.segment.header();
    let peers: Vec<Json> = attachment.segment.peers().map(|(slot, peer)| peer_json(slot, &peer)).collect();
    let view = api.writer.view();
    Ok(Body(json!({
        "name": text::words(&header.node),
        "incarnation": text::hex(header.incarnation),
        "pid": header.pid,
        "started": text::rfc3339(header.started_unix_ns),
        "uptime_ms": unix_ns().saturating_sub(header.started_unix_ns) / 1_000_000,
        "listen": text::words(&header.listen),
        "lanes": header.lanes,
        "cores": cores(&header.cores),
        "numa_nodes": header.numa_nodes,
        "pool": {
            "bytes": header.pool_bytes,
            "page_bytes": header.pool_page_bytes,
            "small_bytes": header.small_bytes,
            "large_bytes": header.large_bytes,
        },
        "settings": view.as_ref().map(|view| json!({"generation": view.generation, "pending": view.pending().is_some()})),
        "peers": peers,
        "rdma": super::rails::rdma(&attachment.segment),
        "features": [],
        "versions": {
            "railhead": env!("CARGO_PKG_VERSION"),
            "abi": ABI_VERSION,
            "protocol": format!("{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"),
        },
        "control": {"pid": std::process::id()},
    })))
}

/// The set bits of the mask.
fn cores(mask: &[u64; 16]) -> Vec<usize> {
    (0..64 * mask.len()).filter(|core| mask[core / 64] >> (core % 64) & 1 == 1).collect()
}

/// A peer as answers show it.
pub(super) fn peer_json(slot: usize, peer: &PeerStatus) -> Json {
    let up = peer.state == PEER_UP;
    let cause = Code::from_number(peer.cause).filter(|code| !up && *code != Code::Ok);
    json!({
        "slot": slot,
        "name": text::words(&peer.name),
        "address": text::words(&peer.address),
        "state": if up { "up" } else { "down" },
        "code": cause.map(Code::name),
        "cause": cause.map(Code::text),
        "remedy": cause.map(Code::remedy),
        "incarnation": if up { Json::from(text::hex(peer.incarnation)) } else { Json::Null },
        "lanes": peer.lanes,
        "ups": peer.ups,
        "downs": peer.downs,
        "plan": {
            "ours_in_use_there": peer.planned_generation,
            "theirs_in_use_here": peer.plan_generation,
            "receive_mode": mode_json(peer.receive_mode),
            "receive_direct_from_bytes": peer.receive_direct_from_bytes,
        },
    })
}

fn mode_json(mode: u32) -> Json {
    match Key::Fixed(Setting::ReceiveMode).value_of(u64::from(mode)) {
        Value::Name(name) => Json::from(name),
        other => value_json(other),
    }
}

pub(super) async fn lanes(State(api): State<Api>, query: Raw) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let lanes: Vec<Json> = (0..segment.lanes()).map(|lane| lane_json(segment, lane)).collect();
    Ok(Body(json!({ "lanes": lanes })))
}

fn lane_json(segment: &Segment, lane: usize) -> Json {
    let status = segment.lane_status(lane);
    let counters: Map<String, Json> = Counter::ALL
        .iter()
        .map(|counter| (counter.name().to_owned(), Json::from(segment.counter(lane, *counter))))
        .collect();
    json!({
        "lane": lane,
        "state": state_name(status.state),
        "tid": status.tid,
        "core_wanted": text::less_one(status.core_wanted),
        "core": text::less_one(status.core_pinned),
        "copies": copies_name(status.copy_thread),
        "copy_tid": if status.copy_tid == 0 { Json::Null } else { Json::from(status.copy_tid) },
        "copy_core": text::less_one(status.copy_core),
        "generation": status.acknowledged,
        "ports": status.ports,
        "connections": status.connections,
        "in_flight": status.in_flight,
        "inbound": status.inbound,
        "minor_faults": status.minor_faults,
        "voluntary_switches": status.voluntary_switches,
        "counters": counters,
    })
}

/// The name of a lane's state.
pub(super) const fn state_name(state: u64) -> &'static str {
    match state {
        LANE_STARTING => "starting",
        LANE_SEALED => "running",
        LANE_STOPPED => "stopped",
        _ => "unknown",
    }
}

/// Who does a lane's larger copies, and why.
const fn copies_name(copy_thread: u64) -> &'static str {
    match copy_thread {
        COPY_THREAD_OFF => "lane",
        COPY_THREAD_ON => "thread",
        COPY_THREAD_SHORT => "lane_cores_short",
        _ => "unknown",
    }
}

/// The four kinds of blocks of a lane: class, direction, bytes of a block, all, free.
pub(super) fn blocks(
    segment: &Segment,
    status: &LaneStatus,
) -> [(&'static str, &'static str, u64, u64, u64); 4] {
    let header = segment.header();
    let (small, large) = (header.small_bytes, header.large_bytes);
    [
        ("small", "send", small, status.small_send, status.small_send_free),
        ("small", "receive", small, status.small_receive, status.small_receive_free),
        ("large", "send", large, status.large_send, status.large_send_free),
        ("large", "receive", large, status.large_receive, status.large_receive_free),
    ]
}

pub(super) async fn pools(State(api): State<Api>, query: Raw) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let pools: Vec<Json> = (0..segment.lanes())
        .map(|lane| {
            let status = segment.lane_status(lane);
            let blocks: Vec<Json> = blocks(segment, &status)
                .iter()
                .map(|(class, leg, bytes, all, free)| {
                    json!({"class": class, "leg": leg, "block_bytes": bytes, "blocks": all, "free": free})
                })
                .collect();
            json!({
                "lane": lane,
                "page_bytes": status.page_bytes,
                "numa_node": text::less_one(status.numa_node),
                "blocks": blocks,
            })
        })
        .collect();
    let header = segment.header();
    Ok(Body(json!({ "bytes": header.pool_bytes, "page_bytes": header.pool_page_bytes, "pools": pools })))
}
