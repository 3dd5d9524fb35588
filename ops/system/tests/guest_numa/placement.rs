//! What is asked for is where it lies.

use railhead_client::Write;
use railhead_system::{Cluster, guest, procfs};
use serde_json::json;

use crate::support::*;
use crate::{assert_pool_on, on_node};

const REGION_BYTES: u64 = 1 << 20;

/// Each node's NIC is on the NUMA node that the lab says, and so are the pool, and the lane's core.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net numa"]
fn pool_lane_and_nic_are_on_one_node() {
    guest::needs("numa");
    let cluster = Cluster::start(vec![on_node("a", 0), on_node("b", 1)]);
    for (numa_node, node) in cluster.nodes.iter().enumerate() {
        assert_eq!(guest::rdma_numa_node(&format!("rxe{numa_node}")), numa_node);
        let core = guest::cores_of_node(numa_node)[0];
        node.rest().set(&json!({"lanes.0.core": core}));
        assert_eq!(procfs::affinity(lane_tids(node)[0]), [core]);
        assert_pool_on(node, numa_node);
        assert!(!node.has_event("numa_not_bound"));
        assert!(!node.has_event("hugepages_stepped_down"));
    }
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, destination) =
        (region(&sender, "", REGION_BYTES), region(&receiver, "destination", REGION_BYTES));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let data = pattern(3, usize::try_from(REGION_BYTES).unwrap());
    source.copy_in(0, &data).unwrap();
    for (send_leg, receive_leg) in ROUTES {
        destination.fill(0, REGION_BYTES, POISON).unwrap();
        transfer_ok(&mut port, &Write { send_leg, receive_leg, ..write(1, &source, &remote, REGION_BYTES) });
        assert_bytes(&read(&destination, 0, REGION_BYTES), &data, "from node to node");
    }
    // Blocks were used by then, and lie where they lay.
    assert_pool_on(cluster.a(), 0);
    assert_pool_on(cluster.b(), 1);
    drop((port, source, destination, sender, receiver));
    cluster.stop();
}
