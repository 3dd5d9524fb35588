//! Two nodes over real verbs, in a guest: `ops/lab/run-tests --net veth -- railhead-system/guest_rdma`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod bad_wire;
mod ends;
mod reads;
mod routes;

use railhead_system::guest;
use railhead_system::{Cluster, NodeConfig};

/// Two nodes, one at each end of the guest's wire.
fn pair() -> Cluster {
    guest::needs("veth");
    Cluster::start(vec![node("a", "rxe0"), node("b", "rxe1")])
}

/// A node that does not start without its NIC.
fn node(name: &str, device: &str) -> NodeConfig {
    NodeConfig { rdma: format!("use = \"require\"\ndevices = [\"{device}\"]\n"), ..NodeConfig::new(name) }
}
