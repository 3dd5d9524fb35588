//! The other routes: node, lanes, pools, transfers, events, metrics, health; and how requests are refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use railhead_abi::frame::{name_words, text_words};
use railhead_abi::observe::{Counter, EventCode, EventEntry, Flight};
use railhead_abi::segment::{FLIGHT_ENTRIES, PEER_DOWN, PEER_UP, PeerStatus, REGISTRAR_EVENT_ENTRIES};
use railhead_abi::{Code, Reason};
use serde_json::{Value as Json, json};
use support::{Fake, Home, Rest};
use tower::ServiceExt;

async fn ready(home: &Home) -> (Fake, Rest) {
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    (fake, rest)
}

#[tokio::test(flavor = "multi_thread")]
async fn node_lanes_and_pools() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.set_peer(
        0,
        &PeerStatus {
            name: name_words("b"),
            address: name_words("127.0.0.1:7420"),
            state: PEER_UP,
            receive_mode: 1,
            ..PeerStatus::default()
        },
    );
    fake.set_peer(
        5,
        &PeerStatus {
            name: name_words("c"),
            state: PEER_DOWN,
            cause: Code::HeartbeatLost.number(),
            ..PeerStatus::default()
        },
    );
    let node = rest.get("/v1/node").await.json();
    assert_eq!(
        (&node["name"], &node["lanes"], &node["cores"]),
        (&json!("fake"), &json!(2), &json!([0, 1, 2, 3]))
    );
    assert_eq!(node["incarnation"], "0x0000aaaa00000000");
    assert_eq!(node["started"], "2023-11-14T22:13:20.000Z");
    assert_eq!(node["peers"].as_array().unwrap().len(), 2);
    assert_eq!((&node["peers"][0]["state"], &node["peers"][0]["code"]), (&json!("up"), &Json::Null));
    assert_eq!(node["peers"][0]["plan"]["receive_mode"], "staged");
    assert_eq!((&node["peers"][1]["slot"], &node["peers"][1]["code"]), (&json!(5), &json!("heartbeat_lost")));

    fake.set_counter(1, Counter::BytesDirectDirect, 77);
    let lanes = rest.get("/v1/lanes").await.json();
    assert_eq!(lanes["lanes"].as_array().unwrap().len(), 2);
    let lane = &lanes["lanes"][1];
    assert_eq!((&lane["lane"], &lane["state"], &lane["core"]), (&json!(1), &json!("running"), &Json::Null));
    assert_eq!(lane["counters"]["bytes_direct_direct_total"], 77);
    assert_eq!(lane["counters"].as_object().unwrap().len(), Counter::ALL.len());

    let pools = rest.get("/v1/pools").await.json();
    assert_eq!(pools["bytes"], 64 << 20);
    let blocks = &pools["pools"][0]["blocks"];
    assert_eq!(
        blocks[0],
        json!({"class": "small", "leg": "send", "block_bytes": 16384, "blocks": 64, "free": 60})
    );
    assert_eq!(
        blocks[3],
        json!({"class": "large", "leg": "receive", "block_bytes": 262144, "blocks": 32, "free": 32})
    );
    assert_eq!(rest.get("/readyz").await.status, StatusCode::OK);
    // A lane that has stopped.
    fake.words[fake.shape.lane(1) + 1].store_relaxed(2);
    let answer = rest.get("/readyz").await;
    assert_eq!((answer.problem().0, answer.json()["lanes"].clone()), (503, json!([1])));
    assert_eq!(rest.get("/v1/lanes").await.json()["lanes"][1]["state"], "stopped");
}

fn flight(ticket: u64, intake_ns: u64) -> Flight {
    Flight {
        ticket,
        bytes: 4096,
        send_leg: 1,
        receive_leg: 2,
        send_reason: Reason::BelowThreshold as u8,
        receive_reason: Reason::Mode as u8,
        send_threshold: 16384,
        generation: 7,
        plan_generation: 3,
        intake_ns,
        wait_ns: 100,
        post_ns: 200,
        total_ns: 1000,
        chunks: 1,
        session_name: text_words("push"),
        ..Flight::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_newest_first_over_all_lanes() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    assert_eq!(rest.get("/v1/transfers").await.json()["transfers"], json!([]));
    for (lane, ticket, intake) in [(0, 1, 2_000_000), (1, 2, 3_000_000), (0, 3, 4_000_000)] {
        fake.add_flight(lane, &flight(ticket, intake));
    }
    fake.add_flight(1, &Flight { status: Code::PeerDown.number(), ..flight(4, 3_500_000) });
    let tickets = |body: Json| -> Vec<String> {
        let list = body["transfers"].as_array().unwrap();
        list.iter()
            .map(|transfer| transfer["ticket"].as_str().unwrap().trim_start_matches("0x0000").to_owned())
            .collect()
    };
    let all = rest.get("/v1/transfers").await.json();
    assert_eq!(tickets(all.clone()), ["000000000003", "000000000004", "000000000002", "000000000001"]);
    assert_eq!(tickets(rest.get("/v1/transfers?limit=2").await.json()).len(), 2);
    assert_eq!(tickets(rest.get("/v1/transfers?failed=true").await.json()), ["000000000004"]);
    let newest = &all["transfers"][0];
    assert_eq!(newest["time"], "2023-11-14T22:13:20.003Z", "the intake on the wall clock");
    assert_eq!((&newest["route"], &newest["status"]), (&json!("staged-direct"), &json!("ok")));
    assert_eq!(newest["ns"]["confirm"], 700, "the parts add up to the whole");
    assert_eq!(newest["session_name"], "push");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_transfer_went_so() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.add_flight(1, &flight(0xab, 2_000_000));
    for path in ["/v1/transfers/0xab", "/v1/transfers/0x00000000000000ab", "/v1/transfers/171"] {
        let why = rest.get(path).await.json()["why"].clone();
        assert_eq!(
            why,
            json!({
                "send": "sent staged: 4,096 bytes are fewer than send.direct_from_bytes = 16,384 in generation 7 of settings",
                "receive": "received direct: receive.mode says so in generation 3 of the peer's receive plan",
                "outcome": "done",
            })
        );
    }
    assert_eq!(
        rest.get("/v1/transfers/0xac").await.problem(),
        (404, "transfer_unknown".to_owned(), Some("ticket".to_owned()))
    );
    for bad in ["0x", "x", "-1", "1.5", "0x1ffffffffffffffff"] {
        let problem = rest.get(&format!("/v1/transfers/{bad}")).await.problem();
        assert_eq!(problem, (400, "request_malformed".to_owned(), Some("ticket".to_owned())), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_log_that_wraps_keeps_the_newest() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    for ticket in 0..2 * FLIGHT_ENTRIES as u64 {
        fake.add_flight(0, &flight(ticket, 2_000_000 + ticket));
    }
    let body = rest.get("/v1/transfers?limit=10000").await.json();
    let list = body["transfers"].as_array().unwrap();
    assert_eq!(list.len(), FLIGHT_ENTRIES);
    assert_eq!(list[0]["ticket"], format!("{:#018x}", 2 * FLIGHT_ENTRIES - 1));
    assert_eq!(rest.get("/v1/transfers/5").await.problem().0, 404);
}

fn event(code: EventCode, unix_ns: u64, text: &str) -> EventEntry {
    EventEntry {
        event: code as u16,
        severity: code.severity(),
        unix_ns,
        text: text_words(text),
        ..EventEntry::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_on_from_a_cursor() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    for number in 0..5 {
        fake.add_event(&event(EventCode::SessionOpened, number, &format!("s{number}")));
    }
    fake.add_event(&EventEntry { code: Code::HeartbeatLost.number(), ..event(EventCode::PeerDown, 6, "b") });
    let texts = |body: &Json| -> Vec<String> {
        let list = body["events"].as_array().unwrap();
        list.iter().map(|event| event["text"].as_str().unwrap().to_owned()).collect()
    };
    let body = rest.get("/v1/events?limit=2").await.json();
    assert_eq!(texts(&body), ["s4", "b"], "the last ones, oldest first");
    assert_eq!(body["events"][1]["message"], "a peer is gone: name b");
    assert_eq!(
        (&body["events"][1]["code"], &body["events"][1]["severity"]),
        (&json!("heartbeat_lost"), &json!("error"))
    );
    assert_eq!(texts(&rest.get("/v1/events?severity=warning").await.json()), ["b"]);

    let next = body["next"].as_str().unwrap().to_owned();
    assert_eq!(texts(&rest.get(&format!("/v1/events?since={next}")).await.json()), Vec::<String>::new());
    for number in 0..3 {
        fake.add_event(&event(EventCode::SessionClosed, 10 + number, &format!("t{number}")));
    }
    let body = rest.get(&format!("/v1/events?since={next}&limit=2")).await.json();
    assert_eq!(texts(&body), ["t0", "t1"], "the next ones, none left out");
    let next = body["next"].as_str().unwrap();
    assert_eq!(texts(&rest.get(&format!("/v1/events?since={next}")).await.json()), ["t2"]);

    // More than the log keeps: the reader is told how many it missed.
    for number in 0..REGISTRAR_EVENT_ENTRIES as u64 {
        fake.add_event(&event(EventCode::SessionOpened, 100 + number, "x"));
    }
    let body = rest.get(&format!("/v1/events?since={next}&limit=10000")).await.json();
    assert_eq!(
        (&body["lost"], body["events"].as_array().unwrap().len()),
        (&json!(1), REGISTRAR_EVENT_ENTRIES)
    );
    for (query, field) in
        [("since=x", "since"), ("since=", "since"), ("severity=bad", "severity"), ("limit=0", "limit")]
    {
        let problem = rest.get(&format!("/v1/events?{query}")).await.problem();
        assert_eq!(problem, (400, "request_malformed".to_owned(), Some(field.to_owned())), "{query}");
    }
}

/// Reads a stream until it holds `text`.
async fn read_until(body: &mut Body, text: &str) -> String {
    let mut seen = String::new();
    let reading = async {
        while !seen.contains(text) {
            let frame = body.frame().await.expect("the stream goes on").unwrap();
            seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(support::PATIENCE, reading).await.expect("in time");
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_streamed_as_they_happen() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.add_event(&event(EventCode::Started, 1, "old"));
    fake.add_event(&event(EventCode::SessionOpened, 2, "newer"));
    let open = |path: &str, id: Option<String>| {
        let mut request = Request::get(path).header("accept", "text/event-stream");
        if let Some(id) = id {
            request = request.header("last-event-id", id);
        }
        rest.router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let response = open("/v1/events?limit=1", None).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let seen = read_until(&mut body, "newer").await;
    assert!(seen.contains("event: session_opened\ndata: {") && !seen.contains("old"), "{seen}");
    fake.add_event(&event(EventCode::PeerUp, 3, "b"));
    let seen = read_until(&mut body, "peer_up").await;
    let id = seen.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    drop(body);
    // A reader that comes back with the last id misses nothing and sees nothing twice.
    fake.add_event(&event(EventCode::PeerDown, 4, "b"));
    let mut body = open("/v1/events", Some(id)).await.unwrap().into_body();
    let seen = read_until(&mut body, "peer_down").await;
    assert!(!seen.contains("peer_up"), "{seen}");
    // The stream outlives the dataplane and shows the next one from its first event on.
    drop(fake);
    rest.detached().await;
    let fake = home.fake(0xbbbb, None);
    fake.add_event(&event(EventCode::Started, 5, "again"));
    read_until(&mut body, "again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_prometheus_text() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.set_counter(0, Counter::Done, 3);
    fake.set_counter(1, Counter::Done, 4);
    fake.set_peer(0, &PeerStatus { name: name_words("b\"c"), state: PEER_UP, ..PeerStatus::default() });
    let answer = rest.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4");
    for line in [
        "railhead_up 1",
        "railhead_settings_generation 1",
        "# TYPE railhead_transfers_done_total counter",
        "railhead_transfers_done_total{lane=\"0\"} 3",
        "railhead_transfers_done_total{lane=\"1\"} 4",
        "railhead_lane_generation{lane=\"1\"} 1",
        "railhead_pool_blocks_free{lane=\"0\",class=\"small\",leg=\"send\"} 60",
        "railhead_peer_up{peer=\"b\\\"c\"} 1",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "{line}\n{}", answer.text);
    }
    // Every sample belongs to the TYPE line above it, and no name comes twice.
    let mut names = std::collections::HashSet::new();
    let mut current = "";
    for line in answer.text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().unwrap();
            assert!(names.insert(current), "{current} twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, current);
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said() {
    let home = Home::new();
    let (_fake, rest) = ready(&home).await;
    assert_eq!(
        rest.get("/v1/nothing").await.problem(),
        (404, "not_found".to_owned(), Some("path".to_owned()))
    );
    assert_eq!(rest.get("/").await.problem().0, 404);
    for (method, path, allowed) in [
        (Method::DELETE, "/v1/settings", "GET,HEAD,PATCH"),
        (Method::POST, "/v1/node", "GET,HEAD"),
        (Method::GET, "/v1/settings/rollback", "POST"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = rest.send(request).await;
        assert_eq!(answer.problem(), (405, "method_not_allowed".to_owned(), Some("method".to_owned())));
        assert_eq!(answer.headers["allow"], allowed);
    }
    for path in ["/v1/node", "/v1/lanes", "/v1/pools", "/v1/transfers/1"] {
        let problem = rest.get(&format!("{path}?x=1")).await.problem();
        assert_eq!(problem, (400, "request_malformed".to_owned(), Some("x".to_owned())), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_are_turned_away() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let request = |host: &str| {
        let patch = json!({"send": {"mode": "staged"}}).to_string();
        Request::patch("/v1/settings").header("host", host).body(Body::from(patch)).unwrap()
    };
    let problem = rest.send(request("evil.example:7411")).await.problem();
    assert_eq!(problem, (421, "request_malformed".to_owned(), Some("Host".to_owned())));
    assert_eq!(fake.published().0, 1);
    assert_eq!(rest.send(request("127.0.0.1:7411")).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_dataplane_every_route_says_so() {
    let home = Home::new();
    let rest = home.control();
    for path in [
        "/v1/settings",
        "/v1/node",
        "/v1/lanes",
        "/v1/pools",
        "/v1/transfers",
        "/v1/transfers/1",
        "/v1/events",
        "/readyz",
    ] {
        let (status, code, _) = rest.get(path).await.problem();
        assert_eq!((status, code.as_str()), (503, "dataplane_absent"), "{path}");
    }
    support::until("explained", || {
        rest.control.link().state().is_err_and(|detached| detached.what.contains("no admin socket"))
    })
    .await;
    assert_eq!(rest.get("/healthz").await.status, StatusCode::OK);
    assert!(rest.get("/metrics").await.text.contains("railhead_up 0\n"));
    assert_eq!(rest.control.first_attempt(support::PATIENCE).await.map_err(|error| error.code), Ok(()));
}

#[test]
fn readme_lists_every_route() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = std::fs::read_to_string(folder.join("src/api.rs")).unwrap();
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let routes: Vec<&str> =
        code.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next()).collect();
    assert!(routes.len() >= 12, "{routes:?}");
    for route in routes {
        assert!(readme.contains(&format!("{route}`")), "README.md does not list {route}");
    }
}
