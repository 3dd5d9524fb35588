//! Several clients, several lanes, more lanes than cores.

use railhead_client::{Class, Completion, Notify, Port, Region, Remote, Write};
use railhead_system::{Cluster, NodeConfig};

use crate::support::*;

const CLIENTS: u64 = 3;
const SLOT_BYTES: u64 = 1 << 20;
const SLOTS: u64 = 4;
const ROUNDS: u64 = 60;

/// One thread of one client: keeps all its slots busy, checks each that comes back.
fn client(port: &mut Port, source: &Region, destination: &Region, remote: &Remote, first_slot: u64) {
    let mut round = vec![0; usize::try_from(SLOTS).unwrap()];
    let mut writes = vec![Write::default(); usize::try_from(SLOTS).unwrap()];
    let submit = |port: &mut Port, slot: u64, round: u64| {
        let seed = (first_slot + slot) * 1000 + round;
        let (send_leg, receive_leg) = ROUTES[usize::try_from(mix(seed, 1) % 4).unwrap()];
        let at = (first_slot + slot) * SLOT_BYTES + GUARD_BYTES + mix(seed, 2) % 5000;
        let bytes = match mix(seed, 3) % 3 {
            0 => mix(seed, 4) % 4096,
            1 => mix(seed, 4) % 70_000,
            _ => mix(seed, 4) % (SLOT_BYTES - 2 * GUARD_BYTES - 5000),
        };
        let class = if mix(seed, 5).is_multiple_of(2) { Class::LATENCY } else { Class::BULK };
        source.copy_in(at, &pattern(seed, usize::try_from(bytes).unwrap())).unwrap();
        poison(destination, at, bytes);
        let notify = Notify::signal(u32::try_from(first_slot).unwrap(), 1);
        let write = Write {
            class,
            send_leg,
            receive_leg,
            local_offset: at,
            remote_offset: at,
            notify,
            ..write(slot, source, remote, bytes)
        };
        port.submit(&write).unwrap();
        port.ring();
        write
    };
    for slot in 0..SLOTS {
        writes[usize::try_from(slot).unwrap()] = submit(port, slot, 0);
    }
    let mut some = [Completion::default(); 4];
    while port.in_flight() > 0 {
        assert!(port.wait(LIMIT), "stuck with {} in flight", port.in_flight());
        let count = port.poll(&mut some);
        for completion in &some[..count] {
            let slot = usize::try_from(completion.cookie).unwrap();
            let write = writes[slot];
            assert_ok(completion, &write);
            let seed = (first_slot + completion.cookie) * 1000 + round[slot];
            let data = pattern(seed, usize::try_from(write.bytes).unwrap());
            assert_landed(destination, write.remote_offset, &data, &format!("{write:?}"));
            round[slot] += 1;
            if round[slot] < ROUNDS {
                writes[slot] = submit(port, completion.cookie, round[slot]);
            }
        }
    }
}

fn many_clients(lanes_a: usize, lanes_b: usize, target: &str) {
    let config = |name, lanes| NodeConfig { lanes, ..NodeConfig::new(name) };
    let cluster = Cluster::start(vec![config("a", lanes_a), config("b", lanes_b)]);
    let node = if target == "b" { cluster.b() } else { cluster.a() };
    let ports = u32::try_from(lanes_a).unwrap();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let cluster = &cluster;
            scope.spawn(move || {
                let sender = attach(cluster.a(), &format!("sender-{number}"), ports);
                let receiver = attach(node, &format!("receiver-{number}"), 1);
                let name = format!("destination-{number}");
                let bytes = u64::from(ports) * SLOTS * SLOT_BYTES;
                let (source, destination) = (region(&sender, "", bytes), region(&receiver, &name, bytes));
                let remote = open(&sender, target, &name);
                let lanes: Vec<Port> = (0..ports).map(|_| sender.take_port().unwrap()).collect();
                std::thread::scope(|scope| {
                    for (mut port, index) in lanes.into_iter().zip(0..) {
                        let (source, destination, remote) = (&source, &destination, &remote);
                        scope.spawn(move || client(&mut port, source, destination, remote, index * SLOTS));
                    }
                });
                for index in 0..u64::from(ports) {
                    let signal = usize::try_from(index * SLOTS).unwrap();
                    assert_eq!(receiver.signal(signal), Some(SLOTS * ROUNDS), "one signal for each transfer");
                }
            });
        }
    });
    let moved: u64 =
        lanes(cluster.a()).iter().filter(|lane| lane["counters"]["transfers_done_total"] != 0).count() as u64;
    assert_eq!(moved, u64::from(ports), "every lane moved something");
    assert_blocks_home(cluster.a(), lanes_b as u64);
    assert_blocks_home(cluster.b(), lanes_a as u64);
    cluster.stop();
}

#[test]
fn three_clients_on_one_lane() {
    many_clients(1, 1, "b");
}

#[test]
fn three_clients_on_two_lanes_to_a_peer_of_one() {
    many_clients(2, 1, "b");
}

#[test]
fn three_clients_on_one_lane_to_a_peer_of_three() {
    many_clients(1, 3, "b");
}

#[test]
fn three_clients_on_two_lanes_of_the_node_itself() {
    many_clients(2, 1, "self");
}

#[test]
fn more_lanes_than_cores_work_and_are_told_of() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let config = NodeConfig { lanes: cores + 2, ..NodeConfig::new("a") };
    let cluster = Cluster::start(vec![config, NodeConfig::new("b")]);
    let events = cluster.a().events();
    let event = events.iter().find(|event| event["event"] == "lanes_exceed_cores");
    let event = event.unwrap_or_else(|| panic!("no lanes_exceed_cores among {events:?}"));
    assert_eq!(event["severity"], "warning");
    assert!(!cluster.b().has_event("lanes_exceed_cores"));
    let ports = u32::try_from(cores + 2).unwrap();
    let (sender, receiver) = (attach(cluster.a(), "sender", ports), attach(cluster.b(), "receiver", 1));
    let (source, destination) = (region(&sender, "", 1 << 20), region(&receiver, "destination", 1 << 20));
    let remote = open(&sender, "b", "destination");
    for number in 0..u64::from(ports) {
        let mut port = sender.take_port().unwrap();
        assert_eq!(port.lane() as u64, number);
        let data = pattern(number, 1 << 20);
        source.copy_in(0, &data).unwrap();
        destination.fill(0, 1 << 20, POISON).unwrap();
        transfer_ok(&mut port, &write(number, &source, &remote, 1 << 20));
        assert_bytes(&read(&destination, 0, 1 << 20), &data, "moved by each lane");
    }
    drop((source, destination));
    cluster.stop();
}
