//! In a guest with two NUMA nodes, each with a core, memory and a NIC: `ops/lab/run-tests --net numa --hugepages 128 --
//! railhead-system/guest_numa`. Where things lie is the kernel's word: `numa_maps` and thread affinity.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod moves;
mod placement;
#[path = "../support/mod.rs"]
mod support;

use railhead_system::{Node, NodeConfig, guest};

/// Bytes of the hugepages that pools lie on.
const PAGE_BYTES: u64 = 2 << 20;

/// A node whose pool lies on hugepages of a NUMA node.
fn on_node(name: &str, numa_node: usize) -> NodeConfig {
    let pool = format!(
        "hugepages = \"require\"\nnuma_node = {numa_node}\n\
         small_send = 16\nsmall_receive = 32\nlarge_send = 8\nlarge_receive = 8\n"
    );
    NodeConfig { pool, ..NodeConfig::new(name) }
}

/// Asserts that all of a node's pool, and nothing else on hugepages, lies on a NUMA node.
#[track_caller]
fn assert_pool_on(node: &Node, numa_node: usize) {
    let answer = node.rest().get("/v1/pools").expect(200);
    assert_eq!(answer.json["pools"][0]["numa_node"], numa_node, "{}", answer.text);
    let pages = guest::pages_by_node(node.dataplane_pid(), |line| line.contains(" huge"));
    let bytes = answer.json["bytes"].as_u64().unwrap_or_else(|| panic!("no bytes: {}", answer.text));
    assert_eq!(
        pages.into_iter().collect::<Vec<_>>(),
        [(numa_node, bytes.div_ceil(PAGE_BYTES))],
        "{}",
        answer.text
    );
}
