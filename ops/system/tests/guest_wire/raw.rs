//! The fabric alone on real verbs, as two processes of `railhead-bench verbs-raw`: what arrives is what was sent, a bad
//! wire is survived or named, and a killed process leaves nothing with the kernel.

use std::process::Command;
use std::time::{Duration, Instant};

use railhead_system::guest::{self, Impaired, RdmaResources};
use railhead_system::{Ended, Folder, Process, binary, run, until};

/// Queue pairs give up after some seconds, and an emulated processor is slow.
const LIMIT: Duration = Duration::from_secs(90);
const ADDRESS: &str = "10.8.0.1:7000";
const KILLS: u64 = 30;
/// A cut ends a soft device's connection at once (it has no route), so that each costs a start of both processes.
const CUTS: u64 = 12;

fn end(device: &str, role: &str, bytes: u64, messages: u64) -> Command {
    let mut command = Command::new(binary("railhead-bench"));
    command.args(["verbs-raw", "--device", device, role, ADDRESS]);
    command.args(["--bytes", &bytes.to_string(), "--messages", &messages.to_string()]);
    command
}

/// A process that waits on `rxe0` to be written to; `rxe1` may connect.
fn listening(folder: &Folder, bytes: u64) -> Process {
    let server = Process::start("the target", &mut end("rxe0", "--listen", bytes, 1), &folder.join("target"));
    until("the target listens", Duration::from_secs(20), || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?;
        sockets.lines().any(|line| line.contains("0100080A:1B58 00000000:0000 0A")).then_some(())
    });
    server
}

/// Writes from `rxe1` to `rxe0`; the target must see the end whatever it is.
fn writes(bytes: u64, messages: u64) -> Ended {
    let folder = Folder::new();
    let mut server = listening(&folder, bytes);
    let ended = run(&mut end("rxe1", "--connect", bytes, messages), LIMIT);
    let status = server.wait(LIMIT);
    assert_eq!(status.success(), ended.code == Some(0), "{}{}{}", server.said(), ended.out, ended.err);
    ended
}

#[track_caller]
fn assert_verified(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("verified"), "{}", ended.out);
}

fn resources() -> Vec<(String, RdmaResources)> {
    guest::rdma_resources().into_iter().collect()
}

/// What the kernel frees after a process's end, it frees soon.
#[track_caller]
fn assert_flat(before: &[(String, RdmaResources)]) {
    let mut last = Vec::new();
    let flat = railhead_system::within(Duration::from_secs(10), || {
        last = resources();
        (last == before).then_some(())
    });
    assert!(flat.is_some(), "{before:?} became {last:?}");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn what_arrives_is_what_was_sent_and_crossed_the_wire() {
    guest::needs("veth");
    let before = resources();
    for (bytes, messages) in [(1, 300), (8, 300), (4096, 300), (65_537, 50), (3 << 20, 5)] {
        let sent = guest::sent_bytes("vb");
        assert_verified(&writes(bytes, messages));
        let sent = guest::sent_bytes("vb") - sent;
        assert!(sent >= bytes * messages, "{bytes} B: {sent} bytes left rxe1");
    }
    assert_flat(&before);
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn both_directions_of_a_wire_may_lose() {
    guest::needs("veth");
    // Data, then acknowledgements: one or more for each message, so many that some are lost for certain.
    for interface in ["vb", "va"] {
        let lossy = Impaired::new(interface, "loss 2%");
        assert_verified(&writes(65_536, 500));
        assert!(lossy.dropped() > 0, "nothing of {interface} was lost");
    }
}

/// Either the wire is back before the queue pair gives up, and everything arrives; or the end has a name.
#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_wire_cut_again_and_again_ends_nothing_without_a_name() {
    guest::needs("veth");
    let before = resources();
    let start = Instant::now();
    let (mut cuts, mut whole, mut failed) = (0, 0, 0);
    while cuts < CUTS {
        let folder = Folder::new();
        let mut server = listening(&folder, 65_536);
        let mut client =
            Process::start("the writer", &mut end("rxe1", "--connect", 65_536, 2000), &folder.join("writer"));
        // A device without a port that is up cannot even be opened.
        until("the connection", LIMIT, || client.said().contains("packets of").then_some(()));
        let running = Instant::now();
        while client.ended().is_none() && running.elapsed() < LIMIT {
            // Both roles: now the writer's end of the wire, now the target's.
            let interface = if cuts % 2 == 0 { "vb" } else { "va" };
            std::thread::sleep(Duration::from_millis(40 + cuts % 7 * 20));
            guest::set_link(interface, false);
            std::thread::sleep(Duration::from_millis(10 + cuts % 5 * 40));
            guest::set_link(interface, true);
            cuts += 1;
        }
        let status = client.wait(LIMIT);
        let said = client.said();
        if status.success() {
            assert!(said.contains("verified"), "{said}");
            whole += 1;
        } else {
            assert!(said.contains("failed: ") || said.contains("ended: "), "{said}");
            failed += 1;
        }
        server.wait(LIMIT);
    }
    println!("{cuts} cuts in {:?}: {whole} runs whole, {failed} ended with a cause", start.elapsed());
    assert_flat(&before);
    assert_verified(&writes(65_536, 20));
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn killed_processes_leave_nothing_with_the_kernel() {
    guest::needs("veth");
    let before = resources();
    for round in 0..KILLS {
        let folder = Folder::new();
        let mut server = listening(&folder, 65_536);
        let mut client = Process::start(
            "the writer",
            &mut end("rxe1", "--connect", 65_536, 1_000_000),
            &folder.join("writer"),
        );
        let held = until("queues and memory of both", LIMIT, || {
            let now = resources();
            now.iter().zip(&before).all(|(now, before)| now.1["mr"] > before.1["mr"]).then_some(now)
        });
        assert_ne!(held, before);
        std::thread::sleep(Duration::from_millis(round % 10 * 10));
        // Now the writer first, now the target.
        if round % 2 == 0 {
            client.kill();
            server.kill();
        } else {
            server.kill();
            client.kill();
        }
        assert_flat(&before);
    }
    assert_verified(&writes(65_536, 20));
}
