//! REST bodies, queries and arguments that are not right: refused by name, and nothing is changed.

use std::process::Command;
use std::time::Duration;

use railhead_system::{Cluster, Ended, NodeConfig, Rest, binary, run};

const LIMIT: Duration = Duration::from_secs(15);

#[test]
fn bad_requests_are_refused_with_a_problem_that_names_the_part() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    let before = rest.get("/v1/settings").expect(200);
    let huge = format!("{{\"send.mode\": \"{}\"}}", "x".repeat(70_000));
    for (body, status, field) in [
        ("", 400, "body"),
        ("{", 400, "body"),
        ("[]", 400, "body"),
        ("7", 400, "body"),
        ("null", 400, "body"),
        ("{\"send.mode\": \"staged\", \"send\": {\"mode\": \"direct\"}}", 400, "send.mode"),
        (huge.as_str(), 413, "body"),
    ] {
        let answer = rest.patch_text("/v1/settings", body, &[]);
        let shown = &body[..body.len().min(60)];
        assert_eq!((answer.status, answer.code()), (status, "request_malformed"), "{shown}: {}", answer.text);
        assert_eq!(answer.json["field"], field, "{shown}: {}", answer.text);
        assert!(
            answer.json["detail"].as_str().is_some_and(|detail| !detail.is_empty()),
            "{shown}: {}",
            answer.text
        );
    }
    for path in [
        "/v1/settings?dry=true",
        "/v1/settings?describe=perhaps",
        "/v1/events?limit=0",
        "/v1/events?limit=x",
        "/v1/events?severity=fatal",
        "/v1/events?since=yesterday",
        "/v1/transfers?limit=-1",
        "/v1/transfers/first",
        "/v1/node?x=1",
        "/v1/transfers?limit=1&limit=2",
    ] {
        let answer = rest.get(path);
        assert_eq!((answer.status, answer.code()), (400, "request_malformed"), "{path}: {}", answer.text);
        assert!(answer.json["field"].is_string(), "{path}: {}", answer.text);
    }
    assert_eq!(rest.get("/v1/nothing").expect(404).code(), "not_found");
    assert_eq!(rest.get("/v1/transfers/0xffffffffffff").expect(404).code(), "transfer_unknown");
    let wrong = rest.post("/v1/settings", "{}").expect(405);
    assert_eq!(wrong.code(), "method_not_allowed");
    assert!(wrong.allow.contains("PATCH"), "{wrong:?}");
    let stale = rest
        .patch_text("/v1/settings", "{\"send.mode\": \"staged\"}", &[("if-match", "\"1-0\"")])
        .expect(412);
    assert_eq!(stale.code(), "etag_mismatch");
    let after = rest.get("/v1/settings").expect(200);
    assert_eq!((after.etag, &after.json["settings"]), (before.etag, &before.json["settings"]));
    cluster.stop();
}

#[test]
fn without_a_dataplane_control_says_so() {
    let mut cluster = Cluster::prepare(vec![NodeConfig::new("a")]);
    // Not waited for: it is not ready without a dataplane.
    let mut command = Command::new(binary("railhead-control"));
    command.arg("--config").arg(cluster.a().file());
    let control =
        railhead_system::Process::start("control", &mut command, &cluster.folder().join("control.log"));
    let rest = cluster.a().rest();
    railhead_system::until("control answers", LIMIT, || {
        rest.try_get("/healthz").filter(|answer| answer.status == 200)
    });
    for path in
        ["/readyz", "/v1/node", "/v1/settings", "/v1/lanes", "/v1/pools", "/v1/transfers", "/v1/events"]
    {
        let answer = rest.get(path);
        assert_eq!((answer.status, answer.code()), (503, "dataplane_absent"), "{path}: {}", answer.text);
    }
    assert_eq!(
        rest.patch_text("/v1/settings", "{\"send.mode\": \"staged\"}", &[]).expect(503).code(),
        "dataplane_absent"
    );
    let ended = command_of(&rest, &["status"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    cluster.nodes[0].start_dataplane();
    railhead_system::until("control finds it", LIMIT, || (rest.get("/readyz").status == 200).then_some(()));
    cluster.nodes[0].control = Some(control);
    cluster.stop();
}

fn command_of(rest: &Rest, arguments: &[&str]) -> Ended {
    run(Command::new(binary("railhead")).args(["--url", rest.base()]).args(arguments), LIMIT)
}

#[test]
fn the_command_says_what_is_wrong_and_how_it_ended() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let rest = cluster.a().rest();
    for good in [
        vec!["status"],
        vec!["set"],
        vec!["set", "send.mode=staged", "chunk_bytes=64KiB"],
        vec!["set", "--dry-run", "send.mode=direct"],
        vec!["events"],
        vec!["transfers"],
        vec!["--json", "status"],
    ] {
        let ended = command_of(&rest, &good);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{good:?}: {ended:?}");
        assert!(!ended.out.is_empty(), "{good:?}");
    }
    let settings = rest.get("/v1/settings").expect(200).json["settings"].clone();
    assert_eq!((&settings["send"]["mode"], &settings["chunk_bytes"]), (&"staged".into(), &65_536.into()));
    // Arguments, exit code, what the error must name.
    for (bad, code, names) in [
        (vec!["set", "send.mode=fast"], 1, "send.mode"),
        (vec!["set", "send.mod=auto"], 1, "send.mod"),
        (vec!["set", "chunk_bytes=1"], 1, "chunk_bytes"),
        (vec!["set", "lanes.0.core=1000"], 1, "lanes.0.core"),
        (vec!["set", "send.mode=auto", "chunk_bytes=0"], 1, "chunk_bytes"),
        (vec!["set", "--if-match", "1", "send.mode=auto"], 1, "If-Match"),
        (vec!["set", "send.mode"], 2, "KEY=VALUE"),
        (vec!["why", "0x7fffffff"], 1, "0x7fffffff"),
        (vec!["why"], 2, "TRANSFER"),
        (vec!["fly"], 2, "fly"),
        (vec!["events", "--limit", "many"], 2, "--limit"),
    ] {
        let ended = command_of(&rest, &bad);
        assert_eq!(ended.code, Some(code), "{bad:?}: {ended:?}");
        assert!(ended.err.contains(names), "{bad:?} does not name {names}: {}", ended.err);
        assert!(!ended.err.contains("panicked") && ended.err.lines().count() < 16, "{bad:?}: {}", ended.err);
    }
    assert_eq!(rest.get("/v1/settings").expect(200).json["settings"], settings, "nothing was changed");
    cluster.stop();
    let ended = run(Command::new(binary("railhead")).args(["--url", rest.base(), "status"]), LIMIT);
    assert!(ended.code == Some(3) && ended.err.contains(rest.base()), "{ended:?}");
    let ended = run(Command::new(binary("railhead")).args(["--url", "nonsense", "status"]), LIMIT);
    assert!(ended.code == Some(2) && ended.err.contains("nonsense"), "{ended:?}");
}

#[test]
fn the_load_generator_says_what_is_wrong() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let socket = cluster.a().session_socket();
    let socket = socket.to_str().unwrap();
    let spoilt = cluster.folder().join("spoilt.safetensors");
    std::fs::write(&spoilt, "not a model").unwrap();
    let spoilt = spoilt.to_str().unwrap();
    for (arguments, names) in [
        (
            vec!["push", "/nonexistent.safetensors", "--socket", socket, "--to", "self"],
            "/nonexistent.safetensors",
        ),
        (vec!["push", spoilt, "--socket", socket, "--to", "self"], "spoilt.safetensors"),
        (vec!["push", spoilt, "--socket", "/nonexistent.sock", "--to", "self"], "spoilt.safetensors"),
        (vec!["sweep", "--socket", "/nonexistent.sock", "--to", "self"], "/nonexistent.sock"),
        (vec!["sweep", "--socket", socket, "--to", "z", "--wait", "0.1"], "peer_unknown"),
        (vec!["sweep", "--socket", socket, "--to", "self", "--wait", "0.1"], "sink"),
        (vec!["sweep", "--socket", socket, "--to", "self", "--sizes", "huge"], "huge"),
        (vec!["sweep", "--socket", socket, "--to", "self", "--routes", "scenic"], "scenic"),
        (vec!["dance"], "dance"),
    ] {
        let ended = run(Command::new(binary("railhead-bench")).args(&arguments), LIMIT);
        assert!(ended.code.is_some_and(|code| code != 0), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(names), "{arguments:?} does not name {names}: {}", ended.err);
        assert!(
            !ended.err.contains("panicked") && ended.err.lines().count() < 16,
            "{arguments:?}: {}",
            ended.err
        );
    }
    cluster.stop();
}
