//! Settings over REST: applied, pending, refused, stale, dry, concurrent, across restarts of either process.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use railhead_abi::Code;
use railhead_abi::frame::name_words;
use railhead_abi::segment::{PEER_DOWN, PEER_UP, PeerStatus};
use railhead_abi::settings::{Setting, Settings};
use railhead_config::settings_file;
use serde_json::{Value as Json, json};
use support::{Answer, Fake, Home, Rest, until};

async fn ready(home: &Home) -> (Fake, Rest) {
    let fake = home.first_fake();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    (fake, rest)
}

fn staged() -> Json {
    json!({"send": {"mode": "staged"}})
}

fn settings_with(setting: Setting, value: u64) -> Settings {
    let mut settings = Settings::default();
    settings.set(setting, value);
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_what_the_dataplane_runs() {
    let home = Home::new();
    let (_fake, rest) = ready(&home).await;
    let answer = rest.get("/v1/settings").await;
    assert_eq!(answer.status, StatusCode::OK);
    let body = answer.json();
    assert_eq!(body["generation"], 1);
    assert_eq!(body["state"], "applied");
    assert_eq!(body["settings"]["send"], json!({"mode": "auto", "direct_from_bytes": 16384}));
    let anywhere = json!({"core": null, "numa_node": null, "pool_numa_node": null});
    assert_eq!(body["settings"]["lanes"], json!({"0": anywhere, "1": anywhere}));
    assert_eq!(answer.headers["etag"], body["etag"].as_str().unwrap());
    assert_eq!(answer.headers["cache-control"], "no-store");
    let described = rest.get("/v1/settings?describe=true").await.json();
    let fields = described["fields"].as_array().unwrap();
    // A core and two NUMA nodes for each of the two lanes.
    assert_eq!(fields.len(), Setting::ALL.len() + 2 * 3);
    assert!(
        fields
            .iter()
            .any(|field| field["name"] == "send.mode" && field["allowed"] == "auto, staged or direct")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn change_is_applied_acknowledged_and_saved() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let patch = json!({"send": {"mode": "staged"}, "chunk_bytes": 65536, "lanes": {"1": {"core": 3}}});
    let answer = rest
        .send(
            Request::patch("/v1/settings")
                .header("railhead-author", "ada")
                .body(Body::from(patch.to_string()))
                .unwrap(),
        )
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let body = answer.json();
    assert_eq!(
        (&body["generation"], &body["previous"], &body["state"]),
        (&json!(2), &json!(1), &json!("applied"))
    );
    assert_eq!(
        (&body["author"], &body["saved"], &body["peers_pending"]),
        (&json!("ada"), &json!(true), &json!([]))
    );
    assert_eq!(body["changed"][0], json!({"name": "send.mode", "from": "auto", "to": "staged", "unit": ""}));
    assert_eq!(body["changed"].as_array().unwrap().len(), 3);
    // The dataplane and the file agree with the answer.
    let (generation, published) = fake.published();
    assert_eq!((generation, published.get(Setting::SendMode), published.lane_core(1)), (2, 1, Some(3)));
    let saved = settings_file::load(&home.config.node.state_dir).unwrap().unwrap();
    assert_eq!((saved.generation, saved.settings, saved.author.as_str()), (2, published, "ada"));
    until("woken", || fake.behaviour().wakes == [2]).await;
    assert_ne!(rest.get("/v1/settings").await.etag(), "");
    assert_eq!(rest.get("/v1/settings").await.json()["generation"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_to_the_same_publishes_nothing() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let answer = rest.patch("/v1/settings", &json!({"send": {"mode": "auto"}})).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!((&answer.json()["state"], &answer.json()["generation"]), (&json!("unchanged"), &json!(1)));
    let answer = rest.patch("/v1/settings", &json!({})).await;
    assert_eq!(answer.json()["changed"], json!([]));
    assert_eq!(fake.published().0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_changes_nothing() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    for path in ["/v1/settings?dry_run=true", "/v1/settings?dry_run"] {
        let answer = rest.patch(path, &staged()).await;
        assert_eq!(answer.status, StatusCode::OK);
        let body = answer.json();
        assert_eq!((&body["state"], &body["generation"]), (&json!("dry_run"), &json!(1)));
        assert_eq!(body["changed"][0]["to"], "staged");
        assert_eq!(body["settings"]["send"]["mode"], "auto");
    }
    assert_eq!(fake.published(), (1, Settings::default()));
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), None);
    assert_eq!(rest.get("/v1/settings/history").await.json()["history"], json!([]));
    let refused = rest.patch("/v1/settings?dry_run=true", &json!({"chunk_bytes": 1})).await;
    assert_eq!(refused.problem().1, "setting_range", "a dry run judges like a real one");
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_etag_is_refused() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let tagged = |tag: &str| {
        Request::patch("/v1/settings").header("if-match", tag).body(Body::from(staged().to_string())).unwrap()
    };
    let etag = rest.get("/v1/settings").await.etag();
    assert_eq!(rest.patch("/v1/settings", &json!({"pipeline_depth": 2})).await.status, StatusCode::OK);
    for stale in [etag.as_str(), "\"x\"", "", "W/\"2-0000aaaa\"", "2"] {
        let answer = rest.send(tagged(stale)).await;
        assert_eq!(answer.problem(), (412, "etag_mismatch".to_owned(), Some("If-Match".to_owned())));
        assert_eq!(answer.json()["generation"], 2);
    }
    assert_eq!(fake.published().0, 2);
    let now = rest.get("/v1/settings").await.etag();
    assert_eq!(rest.send(tagged(&format!("\"x\", {now}"))).await.status, StatusCode::OK);
    assert_eq!(rest.send(tagged("*")).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_lane_is_told_with_202_and_ends_in_200() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().stalled.insert(1);
    let answer = rest.patch("/v1/settings?timeout_ms=50", &staged()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let body = answer.json();
    assert_eq!((&body["state"], &body["generation"]), (&json!("pending"), &json!(2)));
    assert_eq!(body["pending"], json!({"prepared": true, "lanes": [1]}));
    let shown = rest.get("/v1/settings").await.json();
    assert_eq!((&shown["state"], &shown["pending"]["lanes"]), (&json!("pending"), &json!([1])));
    assert!(rest.get("/metrics").await.text.contains("railhead_settings_pending_lanes 1\n"));
    fake.behaviour().stalled.clear();
    let answer = rest.patch("/v1/settings", &json!({"pipeline_depth": 2})).await;
    assert_eq!((answer.status, answer.json()["generation"].clone()), (StatusCode::OK, json!(3)));
    assert_eq!(rest.get("/v1/settings").await.json()["settings"]["send"]["mode"], "staged");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_changes_nothing_and_names_the_setting() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    {
        let mut behaviour = fake.behaviour();
        (behaviour.refuse, behaviour.refusal) = (1, (Code::SettingCoreAbsent.number(), 65));
    }
    let answer =
        rest.patch("/v1/settings", &json!({"lanes": {"1": {"core": 2}}, "send": {"mode": "direct"}})).await;
    assert_eq!(answer.problem(), (409, "setting_core_absent".to_owned(), Some("lanes.1.core".to_owned())));
    let body = answer.json();
    assert_eq!((&body["refused_generation"], &body["generation"]), (&json!(2), &json!(3)));
    // What was there before is published again, so the cell never keeps a refused snapshot.
    assert_eq!(fake.published(), (3, Settings::default()));
    assert_eq!(fake.behaviour().prepared.iter().map(|(generation, _)| *generation).collect::<Vec<_>>(), [3]);
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), None);
    assert_eq!(rest.get("/v1/settings").await.json()["settings"]["send"]["mode"], "auto");
    assert_eq!(rest.get("/v1/settings/history").await.json()["history"], json!([]));
    assert_eq!(rest.patch("/v1/settings", &staged()).await.json()["generation"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_after_the_time_limit_is_put_right() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().mute = true;
    let answer = rest.patch("/v1/settings?timeout_ms=30", &staged()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    assert_eq!(answer.json()["pending"], json!({"prepared": false, "lanes": [0, 1]}));
    let answer = rest.patch("/v1/settings?timeout_ms=30", &json!({"pipeline_depth": 2})).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    {
        let mut behaviour = fake.behaviour();
        (behaviour.refuse, behaviour.refusal) = (1, (Code::SettingRange.number(), 0));
        behaviour.mute = false;
    }
    until("back to the settings before", || fake.published() == (4, Settings::default())).await;
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), None);
    // Shown once the dataplane has taken it, which is after it was published.
    let deadline = std::time::Instant::now() + support::PATIENCE;
    while rest.get("/v1/settings").await.json()["settings"]["send"]["mode"] != "auto" {
        assert!(std::time::Instant::now() < deadline, "the settings before are shown again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_acceptance_is_saved() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().mute = true;
    assert_eq!(rest.patch("/v1/settings?timeout_ms=30", &staged()).await.status, StatusCode::ACCEPTED);
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), None);
    fake.behaviour().mute = false;
    let load = || settings_file::load(&home.config.node.state_dir).unwrap();
    until("saved", || load().is_some_and(|saved| saved.generation == 2)).await;
    assert_eq!(load().unwrap().settings.get(Setting::SendMode), 1);
    assert_eq!(rest.get("/v1/settings/history").await.json()["history"][0]["changed"][0]["to"], "staged");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_changes_give_up_in_time() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().mute = true;
    let first = rest.patch("/v1/settings?timeout_ms=400", staged());
    let second = async {
        until("first under way", || fake.published().0 == 2).await;
        rest.patch("/v1/settings?timeout_ms=20", &json!({"pipeline_depth": 2})).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.status, StatusCode::ACCEPTED);
    assert_eq!(second.problem(), (503, "settings_pending".to_owned(), None));
    assert_eq!(fake.published().0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_of_a_hundred_at_once_is_lost() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    // Each changes a word of its own or competes for one; in the end every change was made on top of the one before.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100u64 {
        let router = rest.router.clone();
        tasks.spawn(async move {
            let patch = match number % 4 {
                0 => json!({"send": {"direct_from_bytes": 1000 + number}}),
                1 => json!({"receive": {"direct_from_bytes": 1000 + number}}),
                2 => json!({"deadline_ms": 1000 + number}),
                _ => json!({"pressure_wait_us": 1000 + number}),
            };
            let request =
                Request::patch("/v1/settings?timeout_ms=30000").body(Body::from(patch.to_string())).unwrap();
            support::send(router, request).await
        });
    }
    let mut answers: Vec<Answer> = Vec::new();
    while let Some(answer) = tasks.join_next().await {
        answers.push(answer.unwrap());
    }
    let mut generations: Vec<u64> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            let body = answer.json();
            assert_eq!(body["previous"].as_u64().unwrap() + 1, body["generation"].as_u64().unwrap());
            assert_eq!(
                body["changed"].as_array().unwrap().len(),
                1,
                "nobody else's change is in this one: {body}"
            );
            body["generation"].as_u64().unwrap()
        })
        .collect();
    generations.sort_unstable();
    assert_eq!(generations, (2..=101).collect::<Vec<_>>());
    // The chain of changes: each starts from what the one before left.
    let history = rest.get("/v1/settings/history?limit=200").await.json();
    let entries = history["history"].as_array().unwrap();
    assert_eq!(entries.len(), 100);
    let mut last: std::collections::HashMap<String, Json> = std::collections::HashMap::new();
    for entry in entries.iter().rev() {
        let change = &entry["changed"][0];
        let name = change["name"].as_str().unwrap().to_owned();
        if let Some(before) = last.insert(name.clone(), change["to"].clone()) {
            assert_eq!(change["from"], before, "{name}");
        }
    }
    let saved = settings_file::load(&home.config.node.state_dir).unwrap().unwrap();
    assert_eq!((saved.generation, saved.settings), fake.published());
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_lets_one_of_many_win() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let etag = rest.get("/v1/settings").await.etag();
    let mut tasks = tokio::task::JoinSet::new();
    for depth in 1..=8 {
        let (router, etag) = (rest.router.clone(), etag.clone());
        tasks.spawn(async move {
            let body = Body::from(json!({"pipeline_depth": if depth == 8 { 9 } else { depth }}).to_string());
            support::send(router, Request::patch("/v1/settings").header("if-match", etag).body(body).unwrap())
                .await
                .status
        });
    }
    let statuses = tasks.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == StatusCode::OK).count(), 1);
    assert_eq!(statuses.iter().filter(|status| **status == StatusCode::PRECONDITION_FAILED).count(), 7);
    assert_eq!(fake.published().0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_dataplane_gets_the_settings_again() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    assert_eq!(rest.patch("/v1/settings", &staged()).await.status, StatusCode::OK);
    let etag = rest.get("/v1/settings").await.etag();
    drop(fake);
    rest.detached().await;
    assert_eq!(rest.get("/v1/settings").await.problem().1, "dataplane_absent");
    assert_eq!(rest.patch("/v1/settings", &staged()).await.problem().0, 503);
    assert_eq!(rest.get("/readyz").await.problem().0, 503);
    assert_eq!(rest.get("/healthz").await.status, StatusCode::OK);
    assert!(rest.get("/metrics").await.text.contains("railhead_up 0\n"));
    // It comes back without having read the settings file.
    let fake = home.fake(0xbbbb, Some((1, Settings::default())));
    rest.attached(0xbbbb).await;
    assert_eq!(fake.published(), (3, settings_with(Setting::SendMode, 1)));
    let answer = rest.get("/v1/settings").await;
    assert_eq!(answer.json()["state"], "applied");
    assert_ne!(answer.etag(), etag);
    drop(fake);
    rest.detached().await;
    // It comes back with the settings file read: nothing to publish.
    let saved = settings_file::load(&home.config.node.state_dir).unwrap().unwrap();
    let fake = home.fake(0xcccc, Some((saved.generation, saved.settings)));
    rest.attached(0xcccc).await;
    assert_eq!((fake.published().0, fake.behaviour().prepared.len()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_change_survives_a_crash_before_it_was_prepared() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().mute = true;
    assert_eq!(rest.patch("/v1/settings?timeout_ms=20", &staged()).await.status, StatusCode::ACCEPTED);
    drop(fake);
    rest.detached().await;
    let fake = home.fake(0xbbbb, Some((1, Settings::default())));
    rest.attached(0xbbbb).await;
    assert_eq!(fake.published().1, settings_with(Setting::SendMode, 1));
    until("saved", || settings_file::load(&home.config.node.state_dir).unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dataplane_that_dies_during_a_change_changes_nothing() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    fake.behaviour().mute = true;
    let patch = rest.patch("/v1/settings?timeout_ms=20000", staged());
    let kill = async {
        until("published", || fake.published().0 == 2).await;
        drop(fake);
    };
    let (answer, ()) = tokio::join!(patch, kill);
    assert_eq!(answer.problem(), (503, "dataplane_absent".to_owned(), None));
    let fake = home.fake(0xbbbb, Some((1, Settings::default())));
    rest.attached(0xbbbb).await;
    assert_eq!(fake.published().1, Settings::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_control_goes_on_from_what_runs() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    assert_eq!(rest.patch("/v1/settings", &staged()).await.status, StatusCode::OK);
    drop(rest);
    let rest = home.control();
    rest.attached(0xaaaa).await;
    let body = rest.get("/v1/settings").await.json();
    assert_eq!((&body["generation"], &body["settings"]["send"]["mode"]), (&json!(2), &json!("staged")));
    assert_eq!(rest.get("/v1/settings/history").await.json()["history"].as_array().unwrap().len(), 1);
    assert_eq!(fake.published().0, 2, "nothing was published again");
    assert_eq!(rest.patch("/v1/settings", &json!({"pipeline_depth": 2})).await.json()["generation"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_that_died_before_it_saved_loses_nothing() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    assert_eq!(rest.patch("/v1/settings", &staged()).await.status, StatusCode::OK);
    drop(rest);
    std::fs::remove_file(home.config.node.state_dir.join(settings_file::FILE_NAME)).unwrap();
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!(rest.get("/v1/settings").await.json()["settings"]["send"]["mode"], "staged");
    let load = || settings_file::load(&home.config.node.state_dir).unwrap();
    until("saved", || load().is_some_and(|saved| saved.settings == fake.published().1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cell_of_a_control_that_died_while_writing_is_put_right() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    assert_eq!(rest.patch("/v1/settings", &staged()).await.status, StatusCode::OK);
    drop(rest);
    // Half a publication of generation 3.
    fake.words[railhead_abi::segment::ControlShape::SETTINGS].store_release(5);
    fake.words[railhead_abi::segment::ControlShape::SETTINGS + 1].store_release(77);
    let rest = home.control();
    rest.attached(0xaaaa).await;
    let (generation, settings) = fake.published();
    assert_eq!((generation, settings), (3, settings_with(Setting::SendMode, 1)));
    assert_eq!(rest.get("/v1/settings").await.json()["state"], "applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_snapshot_that_a_dead_control_left_is_replaced() {
    let home = Home::new();
    let fake = home.first_fake();
    {
        let mut behaviour = fake.behaviour();
        (behaviour.refuse, behaviour.refusal) = (1, (Code::SettingRange.number(), 0));
    }
    fake.publish(2, &settings_with(Setting::SendMode, 2));
    until("refused", || fake.behaviour().refuse == 0).await;
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!(fake.published(), (3, Settings::default()));
    assert_eq!(rest.get("/v1/settings").await.json()["settings"]["send"]["mode"], "auto");
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_counts_until_something_is_changed() {
    let home = Home::with("pipeline_depth = 5\n");
    let configured = settings_with(Setting::PipelineDepth, 5);
    let fake = home.fake(0xaaaa, None);
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!(fake.published(), (1, configured), "an empty cell gets the configuration");
    drop(fake);
    rest.detached().await;
    // The file was edited and the dataplane restarted: control does not undo that.
    let edited = settings_with(Setting::PipelineDepth, 6);
    let fake = home.fake(0xbbbb, Some((1, edited)));
    rest.attached(0xbbbb).await;
    assert_eq!(fake.published(), (1, edited));
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), None);
    let answer = rest.patch("/v1/settings", &json!({"pipeline_depth": null})).await;
    assert_eq!(answer.json()["settings"]["pipeline_depth"], 5, "null leads to the configuration");
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_settings_that_are_refused_leave_what_runs() {
    let home = Home::new();
    let saved = settings_file::Saved {
        generation: 9,
        author: "x".to_owned(),
        unix_ns: 1,
        settings: settings_with(Setting::SendMode, 2),
    };
    settings_file::save(&home.config.node.state_dir, &saved).unwrap();
    let fake = home.first_fake();
    {
        let mut behaviour = fake.behaviour();
        (behaviour.refuse, behaviour.refusal) = (1, (Code::SettingRange.number(), 0));
    }
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!(fake.published(), (11, Settings::default()));
    assert_eq!(rest.get("/v1/settings").await.json()["settings"]["send"]["mode"], "auto");
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_settings_that_do_not_fit_stay_in_their_file() {
    let home = Home::new();
    let mut settings = Settings::default();
    settings.set_lane_core(0, Some(900));
    let saved = settings_file::Saved { generation: 9, author: "x".to_owned(), unix_ns: 1, settings };
    settings_file::save(&home.config.node.state_dir, &saved).unwrap();
    // A dataplane that ignored them counts on from their generation.
    let fake = home.fake(0xaaaa, Some((10, Settings::default())));
    let rest = home.control();
    rest.attached(0xaaaa).await;
    assert_eq!((fake.published(), fake.behaviour().prepared.len()), ((10, Settings::default()), 0));
    assert_eq!(settings_file::load(&home.config.node.state_dir).unwrap(), Some(saved));
    assert_eq!(rest.patch("/v1/settings", &staged()).await.json()["generation"], 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_control_is_refused_with_the_holder() {
    let home = Home::new();
    let (_fake, first) = ready(&home).await;
    let second = home.control();
    until("refused", || {
        second.control.link().state().is_err_and(|detached| detached.code == Code::ControlHeld)
    })
    .await;
    let error = second.control.first_attempt(support::PATIENCE).await.unwrap_err();
    assert_eq!(error.code, Code::ControlHeld);
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    assert_eq!(second.get("/v1/settings").await.problem(), (503, "control_held".to_owned(), None));
    assert_eq!(first.patch("/v1/settings", &staged()).await.status, StatusCode::OK);
    // When the first goes, the second takes over.
    drop(first);
    second.attached(0xaaaa).await;
    assert_eq!(second.get("/v1/settings").await.json()["settings"]["send"]["mode"], "staged");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_and_rollback() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    for depth in [2, 3, 4] {
        assert_eq!(
            rest.patch("/v1/settings", &json!({"pipeline_depth": depth})).await.status,
            StatusCode::OK
        );
    }
    let history = rest.get("/v1/settings/history?limit=2").await.json();
    let generations: Vec<&Json> =
        history["history"].as_array().unwrap().iter().map(|entry| &entry["generation"]).collect();
    assert_eq!(generations, [&json!(4), &json!(3)]);
    let rollback = |body: &str, kind: &str| {
        Request::post("/v1/settings/rollback")
            .header("content-type", kind)
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    let answer = rest.send(rollback("{\"generation\": 2}", "application/json")).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        answer.json()["changed"],
        json!([{"name": "pipeline_depth", "from": 4, "to": 2, "unit": "chunks"}])
    );
    assert_eq!(fake.published(), (5, settings_with(Setting::PipelineDepth, 2)));
    let absent = rest.send(rollback("{\"generation\": 99}", "application/json")).await;
    assert_eq!(absent.problem(), (404, "not_found".to_owned(), Some("generation".to_owned())));
    for body in
        ["{}", "[]", "{\"generation\": \"2\"}", "{\"generation\": 2, \"x\": 1}", "{\"generation\": -1}"]
    {
        let answer = rest.send(rollback(body, "application/json")).await;
        assert_eq!(
            answer.problem(),
            (400, "request_malformed".to_owned(), Some("generation".to_owned())),
            "{body}"
        );
    }
    let form = rest.send(rollback("{\"generation\": 2}", "text/plain")).await;
    assert_eq!(form.problem().0, 415);
    assert_eq!(fake.published().0, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_use_an_older_receive_plan_are_listed() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    let peer = |name: &str, state, planned_generation| PeerStatus {
        name: name_words(name),
        state,
        planned_generation,
        ..PeerStatus::default()
    };
    fake.set_peer(0, &peer("b", PEER_UP, 1));
    fake.set_peer(3, &peer("c", PEER_DOWN, 1));
    let answer = rest.patch("/v1/settings", &staged()).await;
    assert_eq!(answer.json()["peers_pending"], json!([]), "the send leg is no peer's business");
    let answer = rest.patch("/v1/settings", &json!({"receive": {"mode": "staged"}})).await;
    assert_eq!((answer.status, answer.json()["peers_pending"].clone()), (StatusCode::OK, json!(["b"])));
    let changing = rest.patch("/v1/settings?wait_peers_ms=5000", json!({"receive": {"mode": "direct"}}));
    let planning = async {
        until("published", || fake.published().0 == 4).await;
        fake.set_peer(0, &peer("b", PEER_UP, 4));
    };
    let (answer, ()) = tokio::join!(changing, planning);
    assert_eq!(answer.json()["peers_pending"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_name_the_part_and_change_nothing() {
    let home = Home::new();
    let (fake, rest) = ready(&home).await;
    for (body, status, code, field) in [
        ("", 400, "request_malformed", "body"),
        ("{", 400, "request_malformed", "body"),
        ("{\"send\": }", 400, "request_malformed", "body"),
        ("[]", 400, "request_malformed", "body"),
        ("\u{feff}{}", 400, "request_malformed", "body"),
        ("{\"send\": {\"mode\": \"staged\"}} x", 400, "request_malformed", "body"),
        ("{\"sent\": {\"mode\": \"auto\"}}", 422, "setting_unknown", "sent.mode"),
        ("{\"send\": {\"mode\": 3}}", 422, "setting_type", "send.mode"),
        ("{\"send\": {\"mode\": \"fast\"}}", 422, "setting_range", "send.mode"),
        ("{\"chunk_bytes\": 1}", 422, "setting_range", "chunk_bytes"),
        ("{\"chunk_bytes\": 1e400}", 400, "request_malformed", "body"),
        ("{\"chunk_bytes\": 18446744073709551616}", 422, "setting_type", "chunk_bytes"),
        ("{\"chunk_bytes\": 524288}", 409, "setting_block_bytes", "chunk_bytes"),
        ("{\"slice_bytes\": 1048576}", 422, "setting_contradiction", "slice_bytes"),
        ("{\"lanes\": {\"0\": {\"core\": 9}}}", 409, "setting_core_absent", "lanes.0.core"),
        ("{\"lanes\": {\"2\": {\"core\": 0}}}", 409, "setting_lane_absent", "lanes.2.core"),
        ("{\"pool\": {\"large_bytes\": 1}}", 422, "setting_restart_only", "pool.large_bytes"),
    ] {
        let answer = rest.send(Request::patch("/v1/settings").body(Body::from(body)).unwrap()).await;
        assert_eq!(answer.problem(), (status, code.to_owned(), Some(field.to_owned())), "{body}: {answer:?}");
    }
    let deep = "[".repeat(60_000);
    let answer = rest.send(Request::patch("/v1/settings").body(Body::from(deep)).unwrap()).await;
    assert_eq!(answer.problem().0, 400);
    let large = " ".repeat(70_000);
    let answer = rest.send(Request::patch("/v1/settings").body(Body::from(large)).unwrap()).await;
    assert_eq!(answer.problem(), (413, "request_malformed".to_owned(), Some("body".to_owned())));
    for (query, field) in [
        ("dryrun=true", "dryrun"),
        ("dry_run=yes", "dry_run"),
        ("dry_run=true&dry_run=false", "dry_run"),
        ("timeout_ms=0", "timeout_ms"),
        ("timeout_ms=-1", "timeout_ms"),
        ("timeout_ms=999999999", "timeout_ms"),
        ("wait_peers_ms=x", "wait_peers_ms"),
    ] {
        let answer = rest.patch(&format!("/v1/settings?{query}"), &staged()).await;
        assert_eq!(
            answer.problem(),
            (400, "request_malformed".to_owned(), Some(field.to_owned())),
            "{query}"
        );
    }
    let author = Request::patch("/v1/settings").header("railhead-author", "x".repeat(64));
    let answer = rest.send(author.body(Body::from(staged().to_string())).unwrap()).await;
    assert_eq!(answer.problem().2.as_deref(), Some("Railhead-Author"));
    assert_eq!(fake.published(), (1, Settings::default()));
}
