//! Moved from one NUMA node to the other by REST, with transfers in flight: nothing fails, nothing is lost.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use railhead_client::{Completion, Port, Region, Remote, Write};
use railhead_system::{Cluster, Node, guest, procfs, until};
use serde_json::{Value as Json, json};

use crate::support::*;
use crate::{assert_pool_on, on_node};

const SLOTS: u64 = 4;
const SLOT_BYTES: u64 = 512 << 10;
const MOVES: usize = 10;

/// Keeps [`SLOTS`] transfers in flight, of all routes and many sizes, until told to stop; every byte of each is checked.
/// Returns how many there were.
fn load(port: &mut Port, source: &Region, destination: &Region, remote: &Remote, stop: &Receiver<()>) -> u64 {
    let mut number = 0;
    let mut writes = vec![(0, Write::default()); usize::try_from(SLOTS).unwrap()];
    let mut submit = |port: &mut Port, slot: u64| {
        number += 1;
        let (send_leg, receive_leg) = ROUTES[usize::try_from(number % 4).unwrap()];
        let bytes = mix(number, 1) % (SLOT_BYTES - 2 * GUARD_BYTES);
        let at = slot * SLOT_BYTES + GUARD_BYTES;
        source.copy_in(at, &pattern(number, usize::try_from(bytes).unwrap())).unwrap();
        poison(destination, at, bytes);
        let places = Write { local_offset: at, remote_offset: at, ..write(slot, source, remote, bytes) };
        let write = Write { send_leg, receive_leg, ..places };
        port.submit(&write).unwrap();
        port.ring();
        (number, write)
    };
    for slot in 0..SLOTS {
        writes[usize::try_from(slot).unwrap()] = submit(port, slot);
    }
    let mut some = [Completion::default(); 4];
    let mut done = 0;
    while port.in_flight() > 0 {
        let stopping = !matches!(stop.try_recv(), Err(TryRecvError::Empty));
        assert!(port.wait(LIMIT), "stuck with {} in flight", port.in_flight());
        let count = port.poll(&mut some);
        for completion in &some[..count] {
            let slot = usize::try_from(completion.cookie).unwrap();
            let (seed, write) = writes[slot];
            assert_ok(completion, &write);
            let data = pattern(seed, usize::try_from(write.bytes).unwrap());
            assert_landed(destination, write.remote_offset, &data, &format!("{write:?}"));
            done += 1;
            if !stopping {
                writes[slot] = submit(port, completion.cookie);
            }
        }
    }
    done
}

/// Runs `moves` on both nodes while [`load`] runs from `a` to `b`.
fn under_load(moves: impl FnOnce(&Cluster)) {
    let cluster = Cluster::start(vec![on_node("a", 0), on_node("b", 1)]);
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let bytes = SLOTS * SLOT_BYTES;
    let (source, destination) = (region(&sender, "", bytes), region(&receiver, "destination", bytes));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let (stop, stopped) = channel();
    std::thread::scope(|scope| {
        let (port, source, destination, remote) = (&mut port, &source, &destination, &remote);
        let loaded = scope.spawn(move || load(port, source, destination, remote, &stopped));
        moves(&cluster);
        drop(stop);
        let done = loaded.join().unwrap();
        assert!(done > SLOTS, "{done} transfers while things moved");
        println!("{done} transfers, all verified");
    });
    drop((port, source, destination, sender, receiver));
    for node in &cluster.nodes {
        assert_blocks_home(node, 1);
    }
    cluster.stop();
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net numa"]
fn the_core_of_a_lane_moves_from_node_to_node() {
    guest::needs("numa");
    under_load(|cluster| {
        for round in 0..MOVES {
            for (index, node) in cluster.nodes.iter().enumerate() {
                let core = guest::cores_of_node((round + index) % 2)[0];
                node.rest().set(&json!({"lanes.0.core": core}));
                assert_eq!(procfs::affinity(lane_tids(node)[0]), [core]);
            }
        }
    });
}

/// Changes settings and waits until all lanes have them: memory moves slowly on an emulated processor, and REST answers
/// before that.
fn set(node: &Node, patch: &Json) {
    let answer = node.rest().patch_text("/v1/settings", &patch.to_string(), &[]);
    assert!(matches!(answer.status, 200 | 202), "{patch}: {}", answer.text);
    until("the change is applied", LIMIT, || {
        let now = node.rest().get("/v1/settings").expect(200);
        (now.json["state"] == "applied").then_some(())
    });
}

/// Pool, tables and thread of each lane, to the other NUMA node and back, each by a setting of its own.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net numa"]
fn the_memory_of_a_lane_moves_from_node_to_node() {
    guest::needs("numa");
    under_load(|cluster| {
        for round in 0..MOVES {
            for (index, node) in cluster.nodes.iter().enumerate() {
                let to = (round + index + 1) % 2;
                set(node, &json!({"lanes.0.pool_numa_node": to}));
                assert_pool_on(node, to);
                set(node, &json!({"lanes.0.numa_node": to}));
                assert_eq!(procfs::affinity(lane_tids(node)[0]), guest::cores_of_node(to));
            }
        }
        for node in &cluster.nodes {
            let moved = node.events().iter().filter(|event| event["event"] == "memory_moved").count();
            assert_eq!(moved, 2 * MOVES, "the pool and the tables, each time");
        }
    });
}
