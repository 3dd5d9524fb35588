//! Real verbs when things go wrong: keys that the NIC refuses, links that lose packets and go down, addresses that change.

mod common;

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{EPOCH, Harness, PEER, Setup, TARGET, down, status};
use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_core::port::{Fabric, FabricEvent};
use railhead_sim::conformance::{End, FabricHarness, fabric};
use railhead_verbs::{
    CacheKey, DmaBuf, Event, MemoryAccess, MemoryRegion, Nic, PinBudget, RegistrationCache, RemoteMemory,
};

/// All of these share one wire.
static WIRE: Mutex<()> = Mutex::new(());

fn guest() -> (MutexGuard<'static, ()>, Setup) {
    let network = std::env::var("RAILHEAD_LAB").unwrap_or_default();
    assert_eq!(network, "veth", "this test needs a guest: ops/lab/run-tests --net veth");
    let alone = WIRE.lock().unwrap_or_else(PoisonError::into_inner);
    mend();
    (alone, Setup::installed(["rxe0".into(), "rxe1".into()]))
}

/// Makes the wire as it was, whatever a failed test has left of it.
fn mend() {
    for command in [
        "ip link set va up",
        "ip link set vb up",
        "tc qdisc del dev va root",
        "tc qdisc del dev vb root",
        "ip addr add 10.8.0.1/24 dev va",
        "ip addr del 10.8.0.77/16 dev va",
    ] {
        let mut words = command.split(' ');
        // Most of it is as it was, and says so.
        let _ = Command::new(words.next().expect("a program")).args(words).output();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let mut call = Command::new(words.next().expect("a program"));
    common::run(call.args(words));
}

fn both_down(said: &[Vec<FabricEvent>; 2]) -> bool {
    said.iter().all(|said| down(said).is_some())
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn the_nic_refuses_what_its_owner_did_not_register() {
    let (_alone, setup) = guest();
    let mut harness = Harness::with_memory(&setup, 65_536);
    let address = harness.span(End::Target, TARGET).address() as u64;
    // A wrong key, a range that goes on past the registration, and one that was given up.
    for (key_changes, bytes) in [(0x5500, 65_536), (0, 1 << 30)] {
        let key = harness.remote_key(TARGET) ^ key_changes;
        let memory =
            RemoteMemory { epoch: EPOCH, access: ACCESS_WRITE, address, bytes, keys: [key, 0, 0, 0] };
        assert!(harness.nodes[0].fabric.install_remote(PEER[0], TARGET.0, memory));
        let offset = if key_changes == 0 { 65_536 + 8192 } else { 0 };
        harness.write_from_start(7, offset, 4096).unwrap();
        let said = harness.until("both are down", both_down);
        assert_eq!(status(&said[0], 7), Some(Code::RemoteRefused));
        assert_eq!(down(&said[0]), Some(Code::RemoteRefused));
        let near = harness.near();
        let fault = harness.nodes[0].fabric.fault(near).unwrap();
        assert!(fault.to_string().starts_with("the peer refused"), "{fault}");
        harness.connect(0);
    }
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn random_work_and_ends() {
    let (_alone, setup) = guest();
    let (writes, downs) = common::world::run(&setup, 0..6, 800);
    assert!(writes > 200 && downs > 4, "only {writes} writes and {downs} ends were seen");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn what_a_soft_nic_cannot_register_is_said() {
    let (_alone, setup) = guest();
    let harness = Harness::new(&setup);
    let domain = harness.nodes[0].nic.domain();
    assert!(!railhead_verbs::dma_buf_works(domain));
    let file = tempfile::tempfile().unwrap();
    let buffer = DmaBuf { file: file.as_fd(), offset: 0, bytes: 4096, address: 0 };
    let error = MemoryRegion::register_dma_buf(domain, buffer, MemoryAccess::default()).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
}

/// Takes the right to pin without limit from this thread, and sets the limit of its process.
fn limit_pinning(bytes: libc::rlim_t) {
    const VERSION: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 1 << 14;
    let head = [VERSION, 0];
    // Effective, permitted, inheritable; the low and then the high words.
    let mut rights = [0u32; 6];
    // SAFETY: head and rights have the layout of capget(2), version 3.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, head.as_ptr(), rights.as_mut_ptr()), 0);
        rights[0] &= !IPC_LOCK;
        assert_eq!(libc::syscall(libc::SYS_capset, head.as_ptr(), rights.as_ptr()), 0);
    }
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a whole limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn too_little_to_pin_is_said_with_the_remedy() {
    let (_alone, setup) = guest();
    let harness = Harness::with_memory(&setup, 4 << 20);
    let (domain, memory) = (harness.nodes[0].nic.domain(), harness.span(End::Initiator, common::SOURCE));
    limit_pinning(6 << 20);
    let refused = MemoryRegion::register(domain, memory, MemoryAccess::default()).unwrap_err().to_string();
    limit_pinning(libc::RLIM_INFINITY);
    let expected = "4194304 bytes cannot be pinned: RLIMIT_MEMLOCK is 6291456 bytes; \
                    set LimitMEMLOCK=infinity in the dataplane's unit file";
    assert_eq!(refused, expected);
    assert!(MemoryRegion::register(domain, memory, MemoryAccess::default()).is_ok());
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_lossy_wire_costs_time_and_nothing_else() {
    let (_alone, setup) = guest();
    run("tc qdisc add dev va root netem loss 1%");
    run("tc qdisc add dev vb root netem loss 1%");
    let mut harness = Harness::with_memory(&setup, 1 << 20);
    for round in 0..8u32 {
        for part in 0..32u32 {
            harness.write(round * 100 + part, u64::from(part) * 32_768, 32_768).unwrap();
        }
        harness.send(End::Initiator, round.into()).unwrap();
        let said = harness.until("the round has come", |said| {
            status(&said[0], round * 100 + 31).is_some() && !common::tags(&said[1]).is_empty()
        });
        assert!((0..32).all(|part| status(&said[0], round * 100 + part) == Some(Code::Ok)));
        assert_eq!(common::tags(&said[1]), [u64::from(round)]);
    }
    drop(harness);
    fabric::records_come_after_writes(&mut || Harness::new(&setup));
    run("tc qdisc del dev va root");
    run("tc qdisc del dev vb root");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_link_that_goes_down_ends_connections_in_bounded_time_and_serves_again() {
    let (_alone, setup) = guest();
    let mut harness = Harness::with_memory(&setup, 1 << 20);
    for round in 0..3u32 {
        run("ip link set vb down");
        harness.write(round, 0, 1 << 20).unwrap();
        let start = Instant::now();
        let said = harness.until("this end is down", |said| down(&said[0]).is_some());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(status(&said[0], round), Some(Code::ConnectionReset));
        // The other end was only written to: whoever watches both nodes tells it.
        let far = harness.connection(End::Target, 0);
        harness.fabric(End::Target).close(far);
        harness.until("the other end is down", |said| down(&said[1]).is_some());
        run("ip link set vb up");
        harness.nodes[1].nic_comes_back();
        harness.connect(0);
        harness.write(100 + round, 0, 1 << 20).unwrap();
        assert_eq!(harness.status_of(100 + round), Code::Ok);
    }
    // Shorter than their patience: they never know.
    harness.write(200, 0, 1 << 20).unwrap();
    run("ip link set vb down");
    run("ip link set vb up");
    assert_eq!(harness.status_of(200), Code::Ok);
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn addresses_that_change_are_told_and_read_again() {
    let (_alone, setup) = guest();
    let harness = Harness::new(&setup);
    let nic = &harness.nodes[0].nic;
    assert_eq!(nic.gid().gid.to_string(), "10.8.0.1");
    while nic.wait_event(Duration::ZERO).unwrap().is_some() {}
    run("ip addr add 10.8.0.77/16 dev va");
    assert_eq!(next_event(nic), Event::Addresses { port: 1 });
    nic.refresh().unwrap();
    assert_eq!(nic.gid().gid.to_string(), "10.8.0.1", "the first stays");
    run("ip addr del 10.8.0.1/24 dev va");
    assert_eq!(next_event(nic), Event::Addresses { port: 1 });
    nic.refresh().unwrap();
    assert_eq!(nic.gid().gid.to_string(), "10.8.0.77", "the other one serves");
    drop(harness);
    fabric::random_mix(&mut || Harness::new(&setup));
    run("ip addr add 10.8.0.1/24 dev va");
    run("ip addr del 10.8.0.77/16 dev va");
}

fn next_event(nic: &Nic) -> Event {
    nic.wait_event(Duration::from_secs(10)).expect("no error").expect("an event within ten seconds")
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_sleeping_lane_is_woken() {
    let (_alone, setup) = guest();
    let mut harness = Harness::with_memory(&setup, 4096);
    let mut events = [FabricEvent::Down { connection: harness.near(), cause: Code::Ok }; 8];
    for round in 0..50 {
        come_to_rest(&mut harness);
        harness.send(End::Initiator, round).unwrap();
        let now = harness.pass();
        harness.nodes[0].fabric.kick(now);
        let mut told = 0;
        while told == 0 {
            let fd = harness.nodes[1].fabric.descriptors().next().unwrap().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which can be written.
            let ready = unsafe { libc::poll(&mut poll, 1, 5_000) };
            assert_eq!(ready, 1, "round {round}: nobody woke the sleeper");
            // It may have been woken by a completion of its own, of which there is nothing to say.
            let now = harness.pass();
            told = harness.nodes[1].fabric.poll(now, &mut events) + come_to_rest(&mut harness);
        }
        assert_eq!(told, 1, "round {round}");
        let now = harness.pass();
        harness.nodes[0].fabric.poll(now, &mut events);
    }
}

/// Lets the target's lane do what there is to do until it may sleep. Returns how many events it said.
fn come_to_rest(harness: &mut Harness) -> usize {
    let mut told = 0;
    let mut events = [FabricEvent::Down { connection: harness.near(), cause: Code::Ok }; 8];
    while !harness.nodes[1].fabric.prepare_sleep() {
        let now = harness.pass();
        harness.nodes[1].fabric.kick(now);
        told += harness.nodes[1].fabric.poll(now, &mut events);
    }
    told
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn the_kernel_holds_nothing_of_what_is_gone() {
    let (_alone, setup) = guest();
    let held = || {
        let output = Command::new("rdma").args(["resource", "show"]).output().expect("rdma runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = held();
    assert!(before.contains("qp") && before.contains("mr"), "{before}");
    for _ in 0..30 {
        let setup = Setup { flush_needed: true, ..setup.clone() };
        let mut harness = Harness::with_memory(&setup, 65_536);
        harness.write(1, 0, 65_536).unwrap();
        harness.cut(0);
        harness.until("both are down", both_down);
        harness.connect(0);
        harness.write(2, 0, 65_536).unwrap();
    }
    assert_eq!(before, held());
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_cached_registration_saves_what_it_cost() {
    let (_alone, setup) = guest();
    let harness = Harness::with_memory(&setup, 16 << 20);
    let memory = harness.span(End::Target, TARGET).clone();
    let domain = harness.nodes[1].nic.domain();
    let access = MemoryAccess { local_write: true, ..MemoryAccess::default() };
    let cache = RegistrationCache::new(16, 1 << 30, PinBudget::new(1 << 30, 64));
    let key = CacheKey { memory: 1, offset: 0, bytes: 16 << 20, access, rail: 0 };
    for _ in 0..100 {
        let lease = cache.get(key, || MemoryRegion::register(domain, &memory, access)).unwrap().unwrap();
        assert_eq!(lease.bytes(), 16 << 20);
    }
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.misses), (99, 1));
    println!("99 hits saved {} us of registration", counters.saved_us);
    assert!(counters.saved_us > 99 * 10, "{counters:?}");
    assert_eq!(cache.invalidate(1), 0);
}
