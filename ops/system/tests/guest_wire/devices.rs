//! The lab itself, by rdma-core's and perftest's own programs.

use std::process::Command;
use std::time::Duration;

use railhead_system::guest::{self, Impaired};
use railhead_system::{Ended, Folder, Process, run};

const LIMIT: Duration = Duration::from_secs(60);
const MESSAGE_BYTES: u64 = 64 << 10;
const MESSAGES: u64 = 100;

/// `ib_write_bw` from `rxe1` to `rxe0`, over the wire.
fn write_bandwidth() -> Ended {
    let folder = Folder::new();
    let (bytes, count) = (MESSAGE_BYTES.to_string(), MESSAGES.to_string());
    // GID index 1 is the IPv4-mapped one; a server that waits for its client has made its port.
    let common = ["-x", "1", "-F", "-s", &bytes, "-n", &count];
    let mut server = Command::new("ib_write_bw");
    let mut server =
        Process::start("ib_write_bw", server.args(["-d", "rxe0"]).args(common), &folder.join("server"));
    railhead_system::until("the server's port", LIMIT, || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?
            + &std::fs::read_to_string("/proc/net/tcp6").ok()?;
        // 18515, listening.
        sockets.lines().any(|line| line.contains(":4853 ") && line.contains(" 0A ")).then_some(())
    });
    let ended = run(Command::new("ib_write_bw").args(["-d", "rxe1"]).args(common).arg("10.8.0.1"), LIMIT);
    assert!(server.wait(LIMIT).success(), "{}", server.said());
    ended
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn both_devices_are_active_with_an_address() {
    guest::needs("veth");
    for (device, address) in [("rxe0", "0a08:0001"), ("rxe1", "0a08:0002")] {
        let port = format!("/sys/class/infiniband/{device}/ports/1");
        assert_eq!(std::fs::read_to_string(format!("{port}/state")).unwrap().trim(), "4: ACTIVE");
        let gids: Vec<String> =
            (0..4).filter_map(|index| std::fs::read_to_string(format!("{port}/gids/{index}")).ok()).collect();
        assert!(gids.iter().any(|gid| gid.trim().ends_with(&format!("ffff:{address}"))), "{gids:?}");
    }
    let said = guest::command(&["ibv_devinfo", "-d", "rxe0"]);
    assert!(said.lines().any(|line| line.contains("active_mtu") && line.contains("4096")), "{said}");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn data_crosses_the_wire_and_leaves_nothing() {
    guest::needs("veth");
    let before = (guest::sent_bytes("vb"), guest::rdma_resources());
    let ended = write_bandwidth();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let sent = guest::sent_bytes("vb") - before.0;
    assert!(sent >= MESSAGE_BYTES * MESSAGES, "{sent} bytes left rxe1");
    assert_eq!(guest::rdma_resources(), before.1, "perftest's queues and memory are gone with it");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn lost_packets_are_sent_again() {
    guest::needs("veth");
    let lossy = Impaired::new("vb", "loss 2%");
    let before = guest::rdma_counter("rxe1", "completer_retry_err");
    let ended = write_bandwidth();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(lossy.dropped() > 0, "nothing was lost");
    assert!(guest::rdma_counter("rxe1", "completer_retry_err") > before, "nothing was sent again");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth"]
fn a_cut_wire_takes_the_port_down_and_comes_back() {
    guest::needs("veth");
    let state = || std::fs::read_to_string("/sys/class/infiniband/rxe1/ports/1/state").unwrap_or_default();
    guest::set_link("vb", false);
    railhead_system::until("the port down", LIMIT, || state().contains("DOWN").then_some(()));
    guest::set_link("vb", true);
    railhead_system::until("the port up", LIMIT, || state().contains("ACTIVE").then_some(()));
    let ended = write_bandwidth();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
}
