//! Transfers, notifications, and the promise of exactly one completion.
#![allow(clippy::unwrap_used, reason = "a failed setup fails the test")]

mod fake;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fake::{Command, Fake};
use railhead_client::{
    AttachOptions, Class, Code, Completion, Events, Full, Leg, Notify, Port, Region, RegionOptions, Remote,
    Session, SessionError, SessionEvent, Write, outcome,
};

const LONG: Duration = Duration::from_secs(20);
const BYTES: u64 = 1 << 20;

/// A sender on node `a` and a receiver on node `b`.
struct Pair {
    fake: Fake,
    sender: Session,
    source: Region,
    target: Region,
    remote: Remote,
    events: Events,
    receiver: Session,
}

fn pair(ports: u32, entries: u32) -> Pair {
    let fake = Fake::start(&["a", "b"], 2);
    let attach = |node, name| {
        Session::attach(fake.path(node), &AttachOptions { name, ports, entries, ..AttachOptions::default() })
            .unwrap()
    };
    let (sender, receiver) = (attach("a", "sender"), attach("b", "receiver"));
    let options = RegionOptions { bytes: BYTES, ..RegionOptions::default() };
    let source = sender.create_region(&options).unwrap();
    let target = receiver.create_region(&RegionOptions { name: "target", grant: "a/*", ..options }).unwrap();
    let remote = sender.open("b", "target").unwrap();
    let events = receiver.take_events().unwrap();
    Pair { fake, sender, source, target, remote, events, receiver }
}

impl Pair {
    fn write(&self, cookie: u64, offset: u64, bytes: u64) -> Write {
        Write {
            cookie,
            local: self.source.handle(),
            local_offset: offset,
            remote: self.remote.handle(),
            remote_offset: offset,
            bytes,
            ..Write::default()
        }
    }
}

/// All completions, until nothing is in flight.
fn finish(port: &mut Port) -> Vec<Completion> {
    let start = Instant::now();
    let mut all = Vec::new();
    let mut some = [Completion::default(); 7];
    while port.in_flight() > 0 {
        assert!(start.elapsed() < LONG, "{} still in flight", port.in_flight());
        port.wait(Duration::from_millis(100));
        let count = port.poll(&mut some);
        all.extend_from_slice(&some[..count]);
    }
    all
}

#[test]
fn bytes_arrive_and_the_completion_says_how() {
    let pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    pair.source.copy_in(100, b"railhead").unwrap();
    let write = Write {
        remote_offset: 5,
        class: Class::LATENCY,
        send_leg: Leg::DIRECT,
        receive_leg: Leg::STAGED,
        ..pair.write(u64::MAX, 100, 8)
    };
    port.submit(&write).unwrap();
    assert_eq!(port.ring(), 1);
    let done = finish(&mut port);
    assert_eq!(done.len(), 1);
    assert_eq!(outcome(&done[0]), Ok(()));
    assert_eq!((done[0].cookie, done[0].bytes), (u64::MAX, 8));
    assert_eq!((Leg(done[0].send_leg), Leg(done[0].receive_leg)), (Leg::DIRECT, Leg::STAGED));
    let mut bytes = [0; 8];
    pair.target.copy_out(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"railhead");
}

#[test]
fn every_submission_is_completed_once_in_any_order_and_with_any_cookies() {
    let pair = pair(2, 16);
    pair.fake.tell(Command::Reverse);
    let mut ports = [pair.sender.take_port().unwrap(), pair.sender.take_port().unwrap()];
    let mut submitted = Vec::new();
    let mut completed = Vec::new();
    let mut some = [Completion::default(); 3];
    for round in 0..2000_u64 {
        let port = &mut ports[round as usize % 2];
        // Few different cookies, so that equal ones are in flight together.
        let cookie = (round * round) % 11;
        let write = pair.write(cookie, round, round % 50);
        while port.submit(&write) == Err(Full) {
            assert_eq!((port.in_flight(), port.room()), (16, 0));
            port.wait(LONG);
            let count = port.poll(&mut some);
            completed.extend(some[..count].iter().map(|completion| completion.cookie));
        }
        submitted.push(cookie);
        if round % 5 == 0 {
            port.ring();
        }
    }
    for port in &mut ports {
        completed.extend(finish(port).iter().map(|completion| completion.cookie));
        assert_eq!((port.in_flight(), port.strays()), (0, 0));
    }
    submitted.sort_unstable();
    completed.sort_unstable();
    assert_eq!(submitted, completed);
}

#[test]
fn completions_that_nobody_asked_for_are_dropped_and_counted() {
    let pair = pair(1, 64);
    pair.fake.tell(Command::Strays);
    let mut port = pair.sender.take_port().unwrap();
    for cookie in 0..10 {
        port.submit(&pair.write(cookie, 0, 1)).unwrap();
    }
    let cookies: BTreeSet<u64> = finish(&mut port).iter().map(|completion| completion.cookie).collect();
    assert_eq!(cookies, (0..10).collect());
    for _ in 0..1000 {
        port.poll(&mut [Completion::default(); 4]);
        if port.strays() == 10 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} strays", port.strays());
}

#[test]
fn failures_say_which_code_which_side_and_whether_to_retry() {
    let pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    port.submit(&pair.write(1, BYTES - 4, 8)).unwrap();
    let failure = outcome(&finish(&mut port)[0]).unwrap_err();
    assert_eq!((failure.code, failure.retry), (Some(Code::LocalRange), false));
    assert!(failure.to_string().contains(Code::LocalRange.remedy()), "{failure}");
    pair.fake.tell(Command::Fail(0, Code::PeerDown));
    port.submit(&pair.write(1, 0, 8)).unwrap();
    let failure = outcome(&finish(&mut port)[0]).unwrap_err();
    assert_eq!((failure.code, failure.retry), (Some(Code::PeerDown), true));
    assert!(failure.to_string().contains("the peer") && failure.to_string().contains("retry"), "{failure}");
    let unknown = Completion { status: 9999, ..Completion::default() };
    assert!(outcome(&unknown).unwrap_err().to_string().contains("9999"));
}

#[test]
fn a_sleeping_lane_is_rung() {
    let pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    for _ in 0..20 {
        // The fake sleeps for 20 s unless a doorbell wakes it.
        pair.fake.wait_asleep();
        let start = Instant::now();
        port.submit(&pair.write(1, 0, 1)).unwrap();
        assert_eq!(finish(&mut port).len(), 1);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_sleeping_client_is_woken() {
    let pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    port.set_spin(Duration::ZERO);
    pair.fake.tell(Command::Hold(true));
    port.submit(&pair.write(1, 0, 1)).unwrap();
    port.ring();
    let waiter = std::thread::spawn(move || {
        let start = Instant::now();
        assert!(port.wait(LONG));
        (port, start.elapsed())
    });
    std::thread::sleep(Duration::from_millis(150));
    pair.fake.tell(Command::Hold(false));
    let (mut port, waited) = waiter.join().unwrap();
    assert!(waited >= Duration::from_millis(100) && waited < LONG);
    assert_eq!(finish(&mut port).len(), 1);
}

#[test]
fn a_wait_ends_in_time_and_at_once_with_nothing_in_flight() {
    let pair = pair(1, 64);
    pair.fake.tell(Command::Hold(true));
    let mut port = pair.sender.take_port().unwrap();
    let start = Instant::now();
    assert!(!port.wait(LONG));
    assert!(start.elapsed() < Duration::from_secs(5));
    port.submit(&pair.write(1, 0, 1)).unwrap();
    let start = Instant::now();
    assert!(!port.wait(Duration::from_millis(120)));
    assert!(start.elapsed() >= Duration::from_millis(120) && start.elapsed() < Duration::from_secs(5));
}

#[test]
fn when_the_dataplane_dies_what_is_open_completes_as_lost_after_what_it_did() {
    let mut pair = pair(1, 16);
    pair.fake.tell(Command::Hold(true));
    let mut port = pair.sender.take_port().unwrap();
    for cookie in 0..16 {
        port.submit(&pair.write(cookie, 0, 1)).unwrap();
    }
    port.ring();
    // The fake takes them all, completes five, and dies.
    pair.fake.wait_asleep();
    pair.fake.tell(Command::Let(5));
    pair.fake.wait_asleep();
    pair.fake.kill();
    let start = Instant::now();
    let done = finish(&mut port);
    assert!(start.elapsed() < Duration::from_secs(2), "seen within a stated time");
    let cookies: Vec<u64> = done.iter().map(|completion| completion.cookie).collect();
    assert_eq!(&cookies[..5], [0, 1, 2, 3, 4]);
    assert_eq!(cookies.iter().copied().collect::<BTreeSet<_>>(), (0..16).collect());
    assert_eq!(cookies.len(), 16);
    assert!(done[..5].iter().all(|completion| outcome(completion).is_ok()));
    let lost = Code::DataplaneLost.number();
    assert!(done[5..].iter().all(|completion| completion.status == lost));
    // Later submissions are accepted and complete the same way, more than the ring holds.
    for round in 0..40 {
        port.submit(&pair.write(round, 0, 1)).unwrap();
        let done = finish(&mut port);
        assert_eq!((done.len(), done[0].cookie, done[0].status), (1, round, lost));
    }
}

#[test]
fn a_sleeping_client_notices_the_dataplanes_death() {
    let mut pair = pair(1, 16);
    pair.fake.tell(Command::Hold(true));
    let mut port = pair.sender.take_port().unwrap();
    port.submit(&pair.write(3, 0, 1)).unwrap();
    port.ring();
    let waiter = std::thread::spawn(move || {
        let start = Instant::now();
        let done = finish(&mut port);
        (done, start.elapsed())
    });
    std::thread::sleep(Duration::from_millis(120));
    pair.fake.kill();
    let (done, waited) = waiter.join().unwrap();
    assert_eq!((done.len(), done[0].status), (1, Code::DataplaneLost.number()));
    assert!(waited < Duration::from_secs(5));
}

#[test]
fn a_completion_ring_that_makes_no_sense_is_the_dataplanes_end() {
    let pair = pair(1, 16);
    pair.fake.tell(Command::Hold(true));
    let mut port = pair.sender.take_port().unwrap();
    port.submit(&pair.write(3, 0, 1)).unwrap();
    port.ring();
    pair.fake.tell(Command::SpoilRings);
    let done = finish(&mut port);
    assert_eq!((done.len(), done[0].status), (1, Code::DataplaneLost.number()));
    assert!(pair.sender.is_lost());
}

#[test]
fn signals_add_up_and_wake() {
    let mut pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    assert_eq!(pair.receiver.signal(3), Some(0));
    assert_eq!(pair.receiver.signal(64), None);
    assert!(!pair.events.wait_signal(3, 1, Duration::from_millis(10)).unwrap());
    for value in 1..=3 {
        port.submit(&Write { notify: Notify::signal(3, value), ..pair.write(0, 0, 0) }).unwrap();
    }
    port.ring();
    assert!(pair.events.wait_signal(3, 6, LONG).unwrap());
    assert_eq!(pair.receiver.signal(3), Some(6));
    finish(&mut port);
    let error = pair.events.wait_signal(64, 1, LONG).unwrap_err();
    assert!(matches!(error, SessionError::Argument { argument: "index", .. }), "{error}");
}

#[test]
fn events_come_in_order_after_their_data_and_wait_for_room() {
    let mut pair = pair(1, 1024);
    let mut port = pair.sender.take_port().unwrap();
    // More than an event ring holds.
    let count = 700;
    for value in 0..count {
        pair.source.copy_in(8 * value, &value.to_le_bytes()).unwrap();
        port.submit(&Write { notify: Notify::event(value), ..pair.write(value, 8 * value, 8) }).unwrap();
    }
    port.ring();
    let mut next = 0;
    let mut some = [SessionEvent::default(); 10];
    while next < count {
        assert!(pair.events.wait(LONG).unwrap(), "no event {next}");
        let taken = pair.events.poll(&mut some);
        for event in &some[..taken] {
            assert_eq!((event.value, event.offset, event.bytes), (next, 8 * next, 8));
            assert_eq!(event.region_index, pair.target.handle().index);
            assert_eq!(event.region_generation, pair.target.handle().generation);
            let mut bytes = [0; 8];
            pair.target.copy_out(event.offset, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), next);
            next += 1;
        }
    }
    assert_eq!(finish(&mut port).len(), count as usize);
    assert!(!pair.events.wait(Duration::from_millis(10)).unwrap());
}

#[test]
fn waiting_for_events_of_a_dead_dataplane_is_an_error() {
    let mut pair = pair(1, 64);
    let mut port = pair.sender.take_port().unwrap();
    port.submit(&Write { notify: Notify::event(9), ..pair.write(0, 0, 0) }).unwrap();
    finish(&mut port);
    pair.fake.kill();
    // What came before the end can still be taken.
    assert!(pair.events.wait(LONG).unwrap());
    let mut some = [SessionEvent::default(); 10];
    assert_eq!(pair.events.poll(&mut some), 1);
    assert!(matches!(pair.events.wait(LONG), Err(SessionError::DataplaneLost)));
}

#[test]
fn ports_move_between_threads_and_work_side_by_side() {
    let pair = pair(4, 32);
    let ports: Vec<Port> = std::iter::from_fn(|| pair.sender.take_port()).collect();
    assert_eq!(ports.len(), 4);
    let template = pair.write(0, 0, 64);
    let threads: Vec<_> = ports
        .into_iter()
        .map(|mut port| {
            std::thread::spawn(move || {
                let mut done = 0;
                for cookie in 0..500 {
                    let offset = 64 * port.index() as u64;
                    let write = Write { cookie, local_offset: offset, remote_offset: offset, ..template };
                    while port.submit(&write) == Err(Full) {
                        port.wait(LONG);
                        done += port.poll(&mut [Completion::default(); 32]);
                    }
                    port.ring();
                }
                done + finish(&mut port).len()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 500);
    }
}
