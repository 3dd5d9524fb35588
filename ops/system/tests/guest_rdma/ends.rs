//! Processes that die, and what the kernel then holds of them.

use railhead_client::{Leg, Write, outcome};
use railhead_system::{guest, until};

use crate::support::*;

/// Queue pairs, memory keys and the rest go with the process, whichever end is killed, and the survivor's of it too.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn nothing_is_left_of_a_killed_dataplane() {
    let mut cluster = crate::pair();
    let sender = attach(cluster.a(), "sender", 1);
    let source = region(&sender, "", 1 << 20);
    let mut port = sender.take_port().unwrap();
    let mut held = None;
    for round in 1..=5 {
        let receiver = attach(cluster.b(), "receiver", 1);
        let _destination = region(&receiver, "destination", 1 << 20);
        let remote = open(&sender, "b", "destination");
        let write = Write {
            send_leg: Leg::DIRECT,
            receive_leg: Leg::DIRECT,
            ..write(round, &source, &remote, 1 << 20)
        };
        transfer_ok(&mut port, &write);
        let now = guest::rdma_resources();
        assert_eq!(*held.get_or_insert_with(|| now.clone()), now, "round {round}");
        // Killed with transfers on their way: each ends once, and none is told to have succeeded that did not.
        for cookie in 0..8 {
            port.submit(&Write { cookie: 100 + cookie, ..write }).unwrap();
        }
        cluster.nodes[1].kill_dataplane();
        let ended = drain(&mut port, LIMIT);
        assert_eq!(ended.len(), 8);
        for completion in &ended {
            // Nothing else than these: what was written is there, or its end is not known, or it was not begun.
            if let Err(failure) = outcome(completion) {
                let code = failure.code;
                assert!(
                    matches!(code, Some(railhead_client::Code::Unknown | railhead_client::Code::PeerDown)),
                    "{completion:?}"
                );
            }
        }
        drop((receiver, remote));
        cluster.nodes[1].start_dataplane();
        cluster.await_connected();
    }
    until("the resources of the first round", LIMIT, || {
        let now = guest::rdma_resources();
        (held.as_ref().is_some_and(|held| held.keys().eq(now.keys()))).then_some(())
    });
    drop(port);
    cluster.stop();
}

/// A region that goes takes its memory keys along, so that nobody who held one can use it; one that nobody else can open is
/// found registered when the same memory comes again.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn keys_that_others_had_end_with_their_region() {
    let cluster = crate::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let source = region(&sender, "", 1 << 20);
    let mut port = sender.take_port().unwrap();
    let keys = || guest::rdma_resources()["rxe1"]["mr"];
    let mut before = None;
    for round in 1..=3 {
        let destination = region(&receiver, "destination", 1 << 20);
        let remote = open(&sender, "b", "destination");
        let write = Write { receive_leg: Leg::DIRECT, ..write(round, &source, &remote, 1 << 20) };
        transfer_ok(&mut port, &write);
        let held = keys();
        // Its holder still has it open, and is told to give it up.
        destination.release().unwrap();
        until("the region's keys are gone", LIMIT, || (keys() < held).then_some(()));
        assert_eq!(*before.get_or_insert(keys()), keys(), "round {round}");
    }
    let rdma = || cluster.b().rest().get("/v1/node").expect(200).json["rdma"]["registrations"].clone();
    assert_eq!(rdma()["hits"], 0, "what others could open is not found again: {}", rdma());
    drop(port);
    cluster.stop();
}
