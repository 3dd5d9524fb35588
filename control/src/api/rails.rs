//! RDMA rails and the cache of registrations, as answers show them.

use std::net::Ipv6Addr;

use railhead_abi::segment::{LaneRail, RAIL_UP, RailStatus};
use serde_json::{Value as Json, json};

use crate::segment::Segment;
use crate::text;

/// A rail's counter: its name in answers and metrics, what it counts, how to read it.
pub(super) type RailCounter = (&'static str, &'static str, fn(&LaneRail) -> u64);

/// What is counted for each lane and rail.
pub(super) const RAIL_COUNTERS: [RailCounter; 13] = [
    ("rail_doorbells_total", "calls that handed requests to the NIC", |rail| rail.doorbells),
    ("rail_requests_total", "work requests handed to the NIC", |rail| rail.requests),
    ("rail_signalled_total", "requests whose completion was asked for", |rail| rail.signalled),
    ("rail_inline_total", "requests that carried their payload themselves", |rail| rail.inline),
    ("rail_bytes_written_total", "bytes of RDMA writes", |rail| rail.bytes_written),
    ("rail_bytes_read_total", "bytes of RDMA reads", |rail| rail.bytes_read),
    ("rail_confirms_total", "one-byte reads behind writes at peers", |rail| rail.confirms),
    ("rail_flush_reads_total", "one-byte reads of this node's own memory", |rail| rail.flush_reads),
    ("rail_messages_total", "messages that arrived", |rail| rail.messages),
    ("rail_completions_total", "completions taken", |rail| rail.completions),
    ("rail_errors_total", "completions that were errors", |rail| rail.errors),
    (
        "rail_refused_total",
        "posts that ended in this node, because key, range or right did not hold",
        |rail| rail.refused,
    ),
    ("rail_downs_total", "RDMA connections that ended", |rail| rail.downs),
];

/// `rdma` of `/v1/node`.
pub(super) fn rdma(segment: &Segment) -> Json {
    let rails: Vec<Json> = segment.rails().map(|(at, rail)| rail_json(segment, at, &rail)).collect();
    let cache = segment.registrations();
    json!({
        "rails": rails,
        "registrations": {
            "hits": cache.hits,
            "misses": cache.misses,
            "evictions": cache.evictions,
            "invalidations": cache.invalidations,
            "over_budget": cache.over_budget,
            "saved_us": cache.saved_us,
            "entries": cache.entries,
            "bytes": cache.bytes,
            "pinned_bytes": cache.pinned_bytes,
            "pinned_bytes_max": cache.pinned_bytes_max,
            "pinned_keys": cache.pinned_keys,
        },
    })
}

fn rail_json(segment: &Segment, at: usize, rail: &RailStatus) -> Json {
    let lanes = || (0..segment.lanes()).map(|lane| segment.lane_rail(lane, at));
    let counters = RAIL_COUNTERS.iter().map(|(name, _, value)| {
        let name = name.trim_start_matches("rail_").to_owned();
        (name, Json::from(lanes().map(|lane| value(&lane)).sum::<u64>()))
    });
    json!({
        "rail": at,
        "device": text::words(&rail.device),
        "port": rail.port,
        "state": if rail.state == RAIL_UP { "up" } else { "down" },
        "link": if rail.is_ethernet == 1 { "roce_v2" } else { "infiniband" },
        "gid": gid(rail.gid),
        "gid_index": rail.gid_index,
        "mtu_bytes": rail.mtu_bytes,
        "reads_max": rail.reads_max,
        "numa_node": text::less_one(rail.numa_node.into()),
        "queue_pairs": lanes().map(|lane| lane.connections).sum::<u64>(),
        "counters": counters.collect::<serde_json::Map<String, Json>>(),
    })
}

/// An address, an IPv4 one as such.
fn gid(halves: [u64; 2]) -> String {
    let bytes: [u8; 16] = core::array::from_fn(|at| halves[at / 8].to_le_bytes()[at % 8]);
    let address = Ipv6Addr::from(bytes);
    address.to_ipv4_mapped().map_or_else(|| address.to_string(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_their_family() {
        let halves = |address: &str| {
            let octets = address.parse::<Ipv6Addr>().unwrap().octets();
            let half = |from: usize| u64::from_le_bytes(octets[from..from + 8].try_into().unwrap());
            [half(0), half(8)]
        };
        assert_eq!(gid(halves("::ffff:10.8.0.1")), "10.8.0.1");
        assert_eq!(gid(halves("fe80::1")), "fe80::1");
    }
}
