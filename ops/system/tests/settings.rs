//! Settings changed live, with transfers in flight: after a 200 every later transfer carries the new generation and goes
//! by the new rules, sleeping lanes included, and nothing fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use railhead_client::{Class, Completion, Leg, Port, Region, Remote, Write, outcome};
use railhead_system::{Cluster, NodeConfig, Rest, procfs, until};
use serde_json::{Value as Json, json};
use support::*;

const CHANGES: u64 = 1000;
/// Sizes of transfers: below, at and above the thresholds that the test sets.
const SIZES: [u64; 5] = [100, 5000, 40_000, 200_000, 600_000];
const REGION_BYTES: u64 = 1 << 20;

/// What the rules of one snapshot say.
#[derive(Debug, Clone)]
struct Rule {
    mode: String,
    direct_from: u64,
}

impl Rule {
    /// Of the leg `side` (`send` or `receive`) in an answer's body.
    fn of(body: &Json, side: &str) -> Self {
        let leg = &body["settings"][side];
        let mode = leg["mode"].as_str().unwrap_or_else(|| panic!("no {side}.mode: {body}")).to_owned();
        Self { mode, direct_from: leg["direct_from_bytes"].as_u64().expect("a number") }
    }

    fn leg(&self, bytes: u64) -> Leg {
        match self.mode.as_str() {
            "staged" => Leg::STAGED,
            "direct" => Leg::DIRECT,
            _ if bytes >= self.direct_from => Leg::DIRECT,
            _ => Leg::STAGED,
        }
    }
}

/// The send rules by generation, and the newest generation that was answered with 200.
#[derive(Debug, Default)]
struct Published {
    rules: BTreeMap<u64, Rule>,
    answered: u64,
}

fn generation(body: &Json) -> u64 {
    body["generation"].as_u64().unwrap_or_else(|| panic!("no generation: {body}"))
}

/// The change number `number`: two of mode, threshold, chunk, slice and idle policy at a time.
fn change(number: u64) -> Json {
    let mode = ["auto", "staged", "direct"][usize::try_from(number % 3).unwrap()];
    let threshold = [1, 4096, 50_000, 300_000][usize::try_from(number / 3 % 4).unwrap()];
    let policy = ["spin", "adaptive"][usize::try_from(number / 5 % 2).unwrap()];
    match number % 5 {
        0 => json!({"send": {"mode": mode, "direct_from_bytes": threshold}}),
        1 => {
            json!({"send": {"mode": "auto", "direct_from_bytes": threshold}, "chunk_bytes": 16_384 << (number % 4)})
        }
        2 => json!({"idle": {"policy": policy}, "send": {"mode": mode}}),
        3 => {
            json!({"pipeline_depth": 1 + number % 16, "slice_bytes": 8192 << (number % 4), "send.direct_from_bytes": threshold})
        }
        _ => json!({"idle.policy": "adaptive", "idle.spin_us": number % 100, "send.mode": mode}),
    }
}

/// Keeps transfers in flight until told to stop; each must succeed and agree with the rules of the generation that it
/// carries, which must not be older than what was answered before it was submitted. Returns how many there were.
fn load(
    port: &mut Port,
    source: &Region,
    remote: &Remote,
    published: &Mutex<Published>,
    stop: &Receiver<()>,
) -> u64 {
    let mut number = 0;
    // Answers: the newest generation answered before it, and its bytes.
    let mut submit = |port: &mut Port, slot: usize| {
        number += 1;
        let bytes = SIZES[usize::try_from(number % 5).unwrap()];
        let least = published.lock().unwrap().answered;
        let class = if number % 4 == 0 { Class::LATENCY } else { Class::BULK };
        port.submit(&Write { class, ..write(slot as u64, source, remote, bytes) }).unwrap();
        (least, bytes)
    };
    let mut expected: Vec<(u64, u64)> = (0..8).map(|slot| submit(port, slot)).collect();
    let mut some = [Completion::default(); 8];
    let mut waiting: Vec<(u64, u64, Completion)> = Vec::new();
    let mut done = 0;
    loop {
        let stopping = !matches!(stop.try_recv(), Err(TryRecvError::Empty));
        assert!(port.wait(LIMIT), "the load is stuck");
        let count = port.poll(&mut some);
        for completion in &some[..count] {
            let slot = usize::try_from(completion.cookie).unwrap();
            outcome(completion).unwrap_or_else(|failure| panic!("{failure}: {completion:?}"));
            waiting.push((expected[slot].0, expected[slot].1, *completion));
            done += 1;
            if !stopping {
                expected[slot] = submit(port, slot);
            }
        }
        let published = published.lock().unwrap();
        waiting.retain(|(least, bytes, completion)| {
            assert!(
                completion.generation >= *least,
                "generation {} after the 200 of {least}",
                completion.generation
            );
            // A lane may use a generation before its answer is here.
            let Some(rule) = published.rules.get(&completion.generation) else { return true };
            assert_eq!(Leg(completion.send_leg), rule.leg(*bytes), "{rule:?}: {completion:?}");
            false
        });
        drop(published);
        if stopping {
            done += drain(port, LIMIT).iter().filter(|completion| outcome(completion).is_ok()).count() as u64;
            return done;
        }
    }
}

/// One transfer of each size, which must carry at least `generation` and go by the rules.
fn probe(port: &mut Port, source: &Region, remote: &Remote, least: u64, send: &Rule, receive: Option<&Rule>) {
    for bytes in SIZES {
        let completion = transfer(port, &write(bytes, source, remote, bytes));
        outcome(&completion).unwrap_or_else(|failure| panic!("{failure}: {completion:?}"));
        assert!(
            completion.generation >= least,
            "generation {} after the 200 of {least}",
            completion.generation
        );
        assert_eq!(Leg(completion.send_leg), send.leg(bytes), "{send:?}: {completion:?}");
        if let Some(receive) = receive {
            assert_eq!(Leg(completion.receive_leg), receive.leg(bytes), "{receive:?}: {completion:?}");
        }
    }
}

/// Changes the receive leg of the peer and waits until its peers use the plan.
fn change_receive(rest: &Rest, number: u64) -> Rule {
    let mode = ["direct", "auto", "staged"][usize::try_from(number % 3).unwrap()];
    let threshold = [1000, 100_000][usize::try_from(number % 2).unwrap()];
    let patch = json!({"receive": {"mode": mode, "direct_from_bytes": threshold}});
    let answer = rest.patch_text("/v1/settings?wait_peers_ms=5000", &patch.to_string(), &[]).expect(200);
    assert_eq!(answer.json["peers_pending"], json!([]), "{}", answer.text);
    Rule::of(&answer.json, "receive")
}

#[test]
fn a_thousand_changes_under_load() {
    // In mode auto a transfer may take the other leg under pressure; here the rules alone shall decide.
    let settings = "pressure_wait_us = 10_000_000\n".to_owned();
    let two_lanes = NodeConfig { lanes: 2, settings, ..NodeConfig::new("a") };
    let cluster = Cluster::start(vec![two_lanes, NodeConfig::new("b")]);
    let (sender, receiver) = (attach(cluster.a(), "sender", 2), attach(cluster.b(), "receiver", 1));
    let (source, _destination) =
        (region(&sender, "", REGION_BYTES), region(&receiver, "destination", REGION_BYTES));
    let remote = open(&sender, "b", "destination");
    let (mut busy, mut quiet) = (sender.take_port().unwrap(), sender.take_port().unwrap());
    assert_eq!((busy.lane(), quiet.lane()), (0, 1));
    let (rest, peer) = (cluster.a().rest(), cluster.b().rest());
    let published = Mutex::new(Published::default());
    let publish = |body: &Json| {
        let mut published = published.lock().unwrap();
        published.rules.insert(generation(body), Rule::of(body, "send"));
        published.answered = generation(body);
    };
    publish(&rest.get("/v1/settings").expect(200).json);
    let (stop, stopped) = channel();
    std::thread::scope(|scope| {
        // Goes with this closure, so that the load ends when something here fails.
        let stop = stop;
        let (source, remote, published) = (&source, &remote, &published);
        let load = scope.spawn(move || load(&mut busy, source, remote, published, &stopped));
        let mut previous = 0;
        let mut receive = None;
        for number in 1..=CHANGES {
            if load.is_finished() {
                break;
            }
            let answer = rest.patch_text("/v1/settings", &change(number).to_string(), &[]).expect(200);
            assert!(generation(&answer.json) >= previous, "{}", answer.text);
            previous = generation(&answer.json);
            publish(&answer.json);
            if number % 20 == 0 {
                receive = Some(change_receive(&peer, number / 20));
            }
            // On a lane that nothing else wakes.
            let send = Rule::of(&answer.json, "send");
            probe(&mut quiet, source, remote, previous, &send, receive.as_ref());
        }
        stop.send(()).unwrap();
        let done = load.join().expect("the load sees no error");
        assert!(done > CHANGES, "{done} transfers are no load");
    });
    let of_quiet = &lanes(cluster.a())[1];
    assert!(
        of_quiet["counters"]["sleeps_total"].as_u64() > Some(0),
        "the quiet lane never slept: {of_quiet}"
    );
    for node in [cluster.a(), cluster.b()] {
        assert_eq!(node.rest().counter("transfers_failed_total"), 0);
        assert_blocks_home(node, 2);
    }
    cluster.stop();
}

/// Nothing moves and the lane sleeps: a change is answered all the same, and quickly.
#[test]
fn a_sleeping_lane_is_woken_by_a_change() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    for number in 0..50 {
        std::thread::sleep(Duration::from_millis(10));
        let answer = rest.set(&json!({"pipeline_depth": 1 + number % 2}));
        assert!(answer.json["took_us"].as_u64() < Some(1_000_000), "{}", answer.text);
        let lane = &lanes(cluster.a())[0];
        assert_eq!(lane["generation"], answer.json["generation"]);
    }
    cluster.stop();
}

#[test]
fn changes_made_at_the_same_time_are_all_made() {
    const EACH: u64 = 50;
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let keys = ["send.direct_from_bytes", "receive.direct_from_bytes", "pressure_wait_us", "deadline_ms"];
    let first = generation(&rest.get("/v1/settings").expect(200).json);
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads = keys.map(|key| {
            let rest = rest.clone();
            scope.spawn(move || {
                let set = |number| {
                    let answer = rest.set(&json!({ key: 1000 + number }));
                    assert_eq!(answer.json["changed"].as_array().map(Vec::len), Some(1), "{}", answer.text);
                    generation(&answer.json)
                };
                (1..=EACH).map(set).collect::<Vec<u64>>()
            })
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    let count = EACH * keys.len() as u64;
    // The answer may already name the generation of somebody's later change, never an earlier one.
    assert_eq!(all.len() as u64, count);
    let body = rest.get("/v1/settings").expect(200).json;
    assert_eq!(generation(&body), first + count, "every change has a generation of its own");
    for key in keys {
        let pointer = format!("/settings/{}", key.replace('.', "/"));
        assert_eq!(body.pointer(&pointer), Some(&json!(1000 + EACH)), "{body}");
    }
    let history = rest.get("/v1/settings/history?limit=256").expect(200).json;
    assert_eq!(history["history"].as_array().map(Vec::len), Some(usize::try_from(count).unwrap()));
    cluster.stop();
}

/// Read, add one, write if unchanged, from four sides: no addition is lost.
#[test]
fn if_match_loses_no_update() {
    const EACH: u64 = 20;
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let before = rest.get("/v1/settings").expect(200).json["settings"]["pressure_wait_us"].as_u64().unwrap();
    let conflicts: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let rest = rest.clone();
                scope.spawn(move || {
                    let (mut made, mut conflicts) = (0, 0);
                    while made < EACH {
                        let answer = rest.get("/v1/settings").expect(200);
                        let value = answer.json["settings"]["pressure_wait_us"].as_u64().unwrap();
                        let patch = json!({"pressure_wait_us": value + 1}).to_string();
                        let answer = rest.patch_text("/v1/settings", &patch, &[("if-match", &answer.etag)]);
                        match answer.status {
                            200 => made += 1,
                            412 => {
                                assert_eq!(answer.code(), "etag_mismatch");
                                conflicts += 1;
                            }
                            _ => panic!("{}", answer.text),
                        }
                    }
                    conflicts
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let after = rest.get("/v1/settings").expect(200).json["settings"]["pressure_wait_us"].as_u64().unwrap();
    assert_eq!(after, before + 4 * EACH, "after {conflicts} conflicts");
    cluster.stop();
}

#[test]
fn what_is_refused_changes_nothing() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let before = rest.get("/v1/settings").expect(200);
    let dry = rest
        .patch_text("/v1/settings?dry_run=true", &json!({"send.mode": "direct"}).to_string(), &[])
        .expect(200);
    assert_eq!(dry.json["changed"][0]["name"], "send.mode");
    assert_eq!((&dry.json["state"], generation(&dry.json)), (&json!("dry_run"), generation(&before.json)));
    for (patch, code, field) in [
        (json!({"lanes": {"0": {"core": 1_000}}}), "setting_core_absent", "lanes.0.core"),
        (json!({"lanes": {"7": {"core": 0}}}), "setting_lane_absent", "lanes.7.core"),
        (json!({"chunk_bytes": 524_288}), "setting_block_bytes", "chunk_bytes"),
        (json!({"chunk_bytes": 1}), "setting_range", "chunk_bytes"),
        (json!({"slice_bytes": 1 << 20}), "setting_contradiction", "slice_bytes"),
        (json!({"send": {"mode": "quick"}}), "setting_range", "send.mode"),
        (json!({"send": {"mode": 1}}), "setting_type", "send.mode"),
        (json!({"send": {"modes": "auto"}}), "setting_unknown", "send.modes"),
        (json!({"pool": {"large_bytes": 1 << 20}}), "setting_restart_only", "pool.large_bytes"),
        // One good and one bad member: neither is taken.
        (json!({"send.mode": "direct", "deadline_ms": 0}), "setting_range", "deadline_ms"),
    ] {
        for query in ["", "?dry_run=true"] {
            let answer = rest.patch_text(&format!("/v1/settings{query}"), &patch.to_string(), &[]);
            let is_of_node =
                ["setting_core_absent", "setting_lane_absent", "setting_block_bytes"].contains(&code);
            assert_eq!(answer.status, if is_of_node { 409 } else { 422 }, "{patch}: {}", answer.text);
            assert_eq!((answer.code(), answer.json["field"].as_str()), (code, Some(field)), "{patch}");
            assert!(
                answer.json["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()),
                "{}",
                answer.text
            );
        }
    }
    let after = rest.get("/v1/settings").expect(200);
    assert_eq!((after.etag, &after.json["settings"]), (before.etag, &before.json["settings"]));
    cluster.stop();
}

#[test]
fn a_lane_moves_to_another_core_under_load() {
    let mine = procfs::affinity(u64::from(std::process::id()));
    assert!(mine.len() >= 2, "this needs two cores, there are {mine:?}");
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, _destination) =
        (region(&sender, "", REGION_BYTES), region(&receiver, "destination", REGION_BYTES));
    let remote = open(&sender, "b", "destination");
    let mut port = sender.take_port().unwrap();
    let rest = cluster.a().rest();
    let tid = lane_tids(cluster.a())[0];
    let (stop, stopped) = channel::<()>();
    std::thread::scope(|scope| {
        let stop = stop;
        let (source, remote) = (&source, &remote);
        let load = scope.spawn(move || {
            let mut done = 0_u64;
            while matches!(stopped.try_recv(), Err(TryRecvError::Empty)) {
                transfer_ok(&mut port, &write(done, source, remote, REGION_BYTES));
                done += 1;
            }
            done
        });
        for core in [mine[0], mine[1], mine[0], mine[1]] {
            let answer = rest.set(&json!({"lanes": {"0": {"core": core}}}));
            assert_eq!(procfs::affinity(tid), [core], "{}", answer.text);
            assert_eq!(lanes(cluster.a())[0]["core"], json!(core));
            std::thread::sleep(Duration::from_millis(50));
        }
        rest.set(&json!({"lanes": {"0": {"core": null}}}));
        until("the lane may run anywhere again", LIMIT, || (procfs::affinity(tid) == mine).then_some(()));
        stop.send(()).unwrap();
        assert!(load.join().unwrap() > 10);
    });
    cluster.stop();
}

#[test]
fn a_rollback_brings_back_what_was() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let first = rest.set(&json!({"send.mode": "staged", "deadline_ms": 1234}));
    let second = rest.set(&json!({"send.mode": "direct"}));
    assert!(generation(&second.json) > generation(&first.json));
    let body = json!({"generation": generation(&first.json)}).to_string();
    let back = rest.post("/v1/settings/rollback", &body).expect(200);
    assert!(generation(&back.json) > generation(&second.json), "going back is a change as well");
    assert_eq!(back.json["settings"], first.json["settings"]);
    assert_eq!(
        rest.post("/v1/settings/rollback", "{\"generation\": 999999}").expect(404).code(),
        "not_found"
    );
    cluster.stop();
}

/// NUMA nodes by name: what the machine has is taken, saved and shown, what it has not is refused whole. The moves
/// themselves are tested where there are two nodes.
#[test]
fn numa_nodes_of_lanes_are_settings_like_others() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let set = rest.set(&json!({"lanes": {"0": {"numa_node": 0}}}));
    assert_eq!(set.json["settings"]["lanes"]["0"]["numa_node"], 0, "{}", set.text);
    assert_eq!(rest.get("/v1/pools").expect(200).json["pools"][0]["numa_node"], 0);
    let moved = cluster.a().events().iter().filter(|event| event["event"] == "memory_moved").count();
    assert_eq!(moved, 2, "the pool, which follows, and the tables");
    let before = rest.get("/v1/settings").expect(200).json;
    let body = json!({"lanes.0.pool_numa_node": 63, "chunk_bytes": 8192}).to_string();
    let refused = rest.patch_text("/v1/settings", &body, &[]).expect(409);
    assert_eq!(
        (refused.code(), &refused.json["field"]),
        ("setting_node_absent", &json!("lanes.0.pool_numa_node"))
    );
    assert_eq!(rest.get("/v1/settings").expect(200).json["settings"], before["settings"]);
    let unset = rest.set(&json!({"lanes.0.numa_node": null}));
    assert!(unset.json["settings"]["lanes"]["0"]["numa_node"].is_null(), "{}", unset.text);
    cluster.stop();
}
