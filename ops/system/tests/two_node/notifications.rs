//! Signals and events: the data can be read when they are seen.

use std::time::Duration;

use railhead_client::{Code, Notify, SessionEvent, Write, outcome};
use railhead_system::{Cluster, until};

use crate::support::*;

const BYTES: u64 = 300_000;

#[test]
fn a_signal_comes_after_the_data_by_every_route() {
    let cluster = Cluster::pair();
    for (target, node) in [("b", cluster.b()), ("self", cluster.a())] {
        let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(node, "receiver", 1));
        let (source, destination) = (region(&sender, "", BYTES), region(&receiver, "destination", BYTES));
        let remote = open(&sender, target, "destination");
        let mut port = sender.take_port().unwrap();
        let mut events = receiver.take_events().unwrap();
        let mut total = 0;
        for round in 0..40_u64 {
            let (send_leg, receive_leg) = ROUTES[usize::try_from(round).unwrap() % 4];
            let data = pattern(round, usize::try_from(BYTES).unwrap());
            source.copy_in(0, &data).unwrap();
            destination.fill(0, BYTES, POISON).unwrap();
            let notify = Notify::signal(5, round + 1);
            let write = Write { send_leg, receive_leg, notify, ..write(round, &source, &remote, BYTES) };
            port.submit(&write).unwrap();
            port.ring();
            total += round + 1;
            assert!(events.wait_signal(5, total, LIMIT).unwrap(), "no signal in round {round}");
            assert_bytes(&read(&destination, 0, BYTES), &data, "the data behind a signal");
            assert_ok(&one(&mut port), &write);
            assert_eq!(receiver.signal(5), Some(total));
        }
        assert_eq!(receiver.signal(4), Some(0));
        assert_eq!(sender.signal(5), Some(0), "the signal belongs to the session that was written to");
    }
    cluster.stop();
}

#[test]
fn events_carry_value_region_and_range_in_order() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, destination) = (region(&sender, "", BYTES), region(&receiver, "destination", BYTES));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let mut events = receiver.take_events().unwrap();
    for round in 0..100_u64 {
        let bytes = [0, 1, 5000, 200_001][usize::try_from(round).unwrap() % 4];
        let (send_leg, receive_leg) = ROUTES[usize::try_from(round / 4).unwrap() % 4];
        let data = pattern(round, usize::try_from(bytes).unwrap());
        source.copy_in(3, &data).unwrap();
        let write = Write {
            send_leg,
            receive_leg,
            local_offset: 3,
            remote_offset: round,
            notify: Notify::event(1000 + round),
            ..write(round, &source, &remote, bytes)
        };
        port.submit(&write).unwrap();
        port.ring();
        assert!(events.wait(LIMIT).unwrap());
        let mut some = [SessionEvent::default(); 4];
        assert_eq!(events.poll(&mut some), 1);
        let expected = SessionEvent {
            value: 1000 + round,
            region_index: destination.handle().index,
            region_generation: destination.handle().generation,
            offset: round,
            bytes,
        };
        assert_eq!(some[0], expected);
        assert_bytes(&read(&destination, round, bytes), &data, "the data behind an event");
        assert_ok(&one(&mut port), &write);
    }
    drop((port, events));
    cluster.stop();
}

/// A target that takes no events holds up its senders; it loses nothing and nobody fails.
#[test]
fn a_full_event_ring_is_back_pressure() {
    const COUNT: u64 = 700;
    let cluster = Cluster::pair();
    let (sender, receiver) =
        (attach_with(cluster.a(), "sender", 1, 1024), attach(cluster.b(), "receiver", 1));
    let (source, _destination) = (region(&sender, "", 4096), region(&receiver, "destination", 4096));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let mut events = receiver.take_events().unwrap();
    for value in 0..COUNT {
        port.submit(&Write { notify: Notify::event(value), ..write(value, &source, &remote, 0) }).unwrap();
    }
    port.ring();
    until("the event ring is full", LIMIT, || {
        (cluster.b().rest().counter("event_waits_total") > 0).then_some(())
    });
    let mut values = Vec::new();
    let mut some = [SessionEvent::default(); 50];
    while values.len() < usize::try_from(COUNT).unwrap() {
        assert!(events.wait(LIMIT).unwrap(), "{} of {COUNT} events came", values.len());
        let count = events.poll(&mut some);
        values.extend(some[..count].iter().map(|event| event.value));
    }
    values.sort_unstable();
    assert_eq!(values, (0..COUNT).collect::<Vec<_>>());
    let completions = drain(&mut port, LIMIT);
    assert_eq!(completions.len(), usize::try_from(COUNT).unwrap());
    assert!(completions.iter().all(|completion| outcome(completion).is_ok()));
    assert!(!events.wait(Duration::from_millis(50)).unwrap(), "an event came twice");
    drop((port, events));
    cluster.stop();
}

#[test]
fn a_signal_word_that_the_target_does_not_have_is_refused() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, _destination) = (region(&sender, "", 4096), region(&receiver, "destination", 4096));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let completion =
        transfer(&mut port, &Write { notify: Notify::signal(64, 1), ..write(1, &source, &remote, 8) });
    let code = outcome(&completion).unwrap_err().code;
    assert!(matches!(code, Some(Code::NotificationUnknown | Code::NotificationRefused)), "{completion:?}");
    transfer_ok(&mut port, &Write { notify: Notify::signal(63, 1), ..write(2, &source, &remote, 8) });
    assert_eq!(receiver.signal(63), Some(1));
    drop(port);
    cluster.stop();
}
