//! Control killed and started again: transfers go on, settings stay, nothing is half changed.

use std::time::Duration;

use railhead_system::{Cluster, until};
use serde_json::{Value as Json, json};

use crate::load::{Load, REGION_BYTES};
use crate::support::*;

fn settings(cluster: &Cluster) -> Json {
    cluster.a().rest().get("/v1/settings").expect(200).json
}

#[test]
fn settings_outlive_control_and_transfers_do_not_notice() {
    let mut cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _steady = region(&receiver, "steady", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "steady", 1), "b", "steady", false);
    for round in 0..5_u64 {
        let answer = cluster
            .a()
            .rest()
            .set(&json!({"send": {"direct_from_bytes": 5000 + round}, "pipeline_depth": 3 + round}));
        let before = answer.json;
        cluster.nodes[0].kill_control();
        assert!(cluster.a().rest().try_get("/healthz").is_none());
        std::thread::sleep(Duration::from_millis(50));
        cluster.nodes[0].start_control();
        let after = settings(&cluster);
        assert_eq!((&after["settings"], &after["generation"]), (&before["settings"], &before["generation"]));
        assert_eq!(after["author"], before["author"]);
        assert_eq!(after["state"], "applied");
        assert_eq!(lanes(cluster.a())[0]["generation"], after["generation"]);
    }
    load.finish().assert_no_failure();
    drop(receiver);
    cluster.stop();
}

/// Killed somewhere in the middle of a change: afterwards it is made or not, as a whole, and lanes and control agree.
#[test]
fn a_change_that_control_dies_in_is_made_or_not() {
    let mut cluster = Cluster::pair();
    let receiver = attach(cluster.b(), "receiver", 1);
    let _steady = region(&receiver, "steady", REGION_BYTES);
    let load = Load::start(attach(cluster.a(), "steady", 1), "b", "steady", false);
    let values = |body: &Json| {
        (body["settings"]["pipeline_depth"].clone(), body["settings"]["send"]["direct_from_bytes"].clone())
    };
    let rest = cluster.a().rest();
    rest.set(&json!({"pipeline_depth": 1, "send.direct_from_bytes": 1001}));
    let mut last = 1;
    for round in 0..20_u64 {
        let number = 2 + round;
        let patch = json!({"pipeline_depth": number, "send.direct_from_bytes": 1000 + number}).to_string();
        let patching = {
            let rest = rest.clone();
            std::thread::spawn(move || {
                // The answer may never come.
                rest.try_patch_text("/v1/settings", &patch, &[]).map_or(0, |answer| answer.status)
            })
        };
        std::thread::sleep(Duration::from_micros(150 * round));
        cluster.nodes[0].kill_control();
        let status = patching.join().unwrap();
        cluster.nodes[0].start_control();
        // What the dead one published last, lanes may only now be taking up.
        let after = until("the settings are applied", LIMIT, || {
            let after = settings(&cluster);
            (after["state"] == "applied").then_some(after)
        });
        let (old, new) = ((json!(last), json!(1000 + last)), (json!(number), json!(1000 + number)));
        let found = values(&after);
        assert!(found == new || (found == old && status != 200), "{status}: {after}");
        assert_eq!(lanes(cluster.a())[0]["generation"], after["generation"]);
        last = if found == new { number } else { last };
    }
    load.finish().assert_no_failure();
    drop(receiver);
    cluster.stop();
}

#[test]
fn a_second_control_is_refused_with_the_first_ones_pid() {
    let cluster = Cluster::pair();
    let text = cluster.a().config.text();
    let other =
        text.replace(&cluster.a().config.control_port.to_string(), &railhead_system::free_port().to_string());
    let file = cluster.folder().join("second.toml");
    std::fs::write(&file, other).unwrap();
    let mut command = std::process::Command::new(railhead_system::binary("railhead-control"));
    let ended = railhead_system::run(command.arg("--config").arg(&file), Duration::from_secs(10));
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(
        ended.err.contains("control_held") && ended.err.contains(&cluster.a().control_pid().to_string()),
        "{ended:?}"
    );
    let _ = cluster.a().rest().get("/readyz").expect(200);
    cluster.stop();
}
