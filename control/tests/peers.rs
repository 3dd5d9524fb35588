//! `/v1/peers` against a dataplane that is a real segment behind a real admin socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use axum::body::Body;
use axum::http::Request;
use railhead_abi::Code;
use railhead_abi::frame::{ADMIN_PEER_ADD, ADMIN_PEER_REMOVE, AdminAnswer, Text, text_words};
use railhead_config::{Peer, peers_file};
use serde_json::{Value as Json, json};
use support::{Home, until};

fn peer(name: &str, address: &str) -> Peer {
    Peer { name: name.to_owned(), address: address.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_are_added_listed_and_removed_and_each_change_is_saved() {
    let home = Home::new();
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!(rest.get("/v1/peers").await.json(), json!({"peers": [], "room": 9}));
    for (name, address) in [("b", "h:1"), ("c", "[::1]:2")] {
        let answer = rest.post("/v1/peers", json!({"name": name, "address": address})).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        let body = answer.json();
        assert_eq!(
            (&body["name"], &body["address"], &body["state"]),
            (&json!(name), &json!(address), &json!("down"))
        );
        assert_eq!((&body["saved"], &body["pending"]), (&json!(true), &json!(false)));
    }
    let state_dir = &home.config.node.state_dir;
    assert_eq!(peers_file::load(state_dir).unwrap(), Some(vec![peer("b", "h:1"), peer("c", "[::1]:2")]));
    assert_eq!(rest.get("/v1/peers").await.json()["peers"].as_array().unwrap().len(), 2);
    assert_eq!(rest.get("/v1/peers/c").await.json()["slot"], 2);
    let answer = rest.delete("/v1/peers/b?drain_ms=70").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json(), json!({"name": "b", "saved": true, "pending": false}));
    assert_eq!(peers_file::load(state_dir).unwrap(), Some(vec![peer("c", "[::1]:2")]));
    let behaviour = fake.behaviour();
    let seen: Vec<_> = behaviour
        .commands
        .iter()
        .map(|command| (command.command, Text::of(&command.name).as_str().to_owned(), command.limit_ms))
        .collect();
    let expected = [(ADMIN_PEER_ADD, "b", 0), (ADMIN_PEER_ADD, "c", 0), (ADMIN_PEER_REMOVE, "b", 70)];
    assert_eq!(seen, expected.map(|(command, name, limit)| (command, name.to_owned(), limit)));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_dataplane_come_as_problems_and_nothing_is_saved() {
    let home = Home::new();
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    for (code, status) in [
        (Code::NameTaken, 409),
        (Code::PeersFull, 409),
        (Code::ConfigContradiction, 409),
        (Code::NameInvalid, 422),
        (Code::ConfigField, 422),
        (Code::PeerUnknown, 404),
        (Code::QuotaExceeded, 429),
    ] {
        let refusal = || AdminAnswer {
            status: code.number(),
            field: text_words("name"),
            detail: text_words("what is wrong"),
            ..AdminAnswer::default()
        };
        fake.behaviour().refuse_command = Some(refusal());
        let answer = rest.post("/v1/peers", json!({"name": "b", "address": "h:1"})).await;
        let problem = (status, code.name().to_owned(), Some("name".to_owned()));
        assert_eq!(answer.problem(), problem);
        assert_eq!(answer.json()["detail"], "what is wrong");
        fake.behaviour().refuse_command = Some(refusal());
        assert_eq!(rest.delete("/v1/peers/b").await.problem(), problem);
    }
    assert_eq!(peers_file::load(&home.config.node.state_dir).unwrap(), None);
    assert_eq!(rest.get("/v1/peers/b").await.problem(), (404, "peer_unknown".into(), Some("name".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_name_no_peer_reach_no_dataplane() {
    let home = Home::new();
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    let long = "x".repeat(64);
    for (body, status, field) in [
        (json!([]), 400, "body"),
        (json!({"name": "b"}), 400, "address"),
        (json!({"name": 1, "address": "h:1"}), 400, "name"),
        (json!({"name": "b", "address": "h:1", "slot": 1}), 400, "slot"),
        (json!({"name": long, "address": "h:1"}), 422, "name"),
        (json!({"name": "b", "address": format!("{long}:1")}), 422, "address"),
    ] {
        let answer = rest.post("/v1/peers", &body).await;
        let (found, _, blamed) = answer.problem();
        assert_eq!((found, blamed.as_deref()), (status, Some(field)), "{body}");
    }
    let text = Request::post("/v1/peers").header("content-type", "text/plain");
    let answer = rest.send(text.body(Body::from("{}")).unwrap()).await;
    assert_eq!(answer.problem().0, 415, "a web page can post this");
    assert_eq!(rest.delete("/v1/peers/b?drain_ms=60001").await.problem().0, 400);
    assert_eq!(rest.delete("/v1/peers").await.problem().0, 405);
    assert!(fake.behaviour().commands.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataplane_that_goes_away_before_it_answers_is_said_so() {
    let home = Home::new();
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    fake.behaviour().mute_commands = true;
    let adding = rest.post("/v1/peers", json!({"name": "b", "address": "h:1"}));
    let going = async {
        until("the command came", || !fake.behaviour().commands.is_empty()).await;
        tokio::task::spawn_blocking(move || drop(fake)).await.unwrap();
    };
    let (answer, ()) = tokio::join!(adding, going);
    assert_eq!((answer.problem().0, answer.problem().1), (503, "dataplane_absent".to_owned()));
    let without: Json = rest.get("/v1/peers").await.json();
    assert_eq!(without["code"], "dataplane_absent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_caller_goes_away_is_made_and_saved_all_the_same() {
    let home = Home::new();
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    let state_dir = &home.config.node.state_dir;
    // While this is held the fake neither takes nor answers a command.
    let held = fake.behaviour();
    let router = rest.router.clone();
    let request = Request::post("/v1/peers").header("content-type", "application/json");
    let request = request.body(Body::from(json!({"name": "b", "address": "h:1"}).to_string())).unwrap();
    let adding = tokio::spawn(async move { support::send(router, request).await });
    std::thread::sleep(std::time::Duration::from_millis(100));
    adding.abort();
    drop(held);
    until("saved", || peers_file::load(state_dir).unwrap() == Some(vec![peer("b", "h:1")])).await;
    assert_eq!(rest.get("/v1/peers/b").await.status, 200);
}
