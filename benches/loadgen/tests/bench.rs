//! The program itself, against a fake dataplane of two nodes.
#![allow(clippy::unwrap_used, reason = "a failed setup fails the test")]

#[path = "../../../dataplane/client/tests/fake/mod.rs"]
mod fake;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fake::{Command as Tell, Fake};
use railhead_abi::Code;
use serde_json::Value;

fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railhead-bench"));
    command.stdin(Stdio::null());
    command
}

/// A serving program, ended with the test.
struct Serving(Child);

impl Serving {
    fn start(fake: &Fake, node: &str, extra: &[&str]) -> Self {
        let mut command = bench();
        command.args(["serve", "--socket"]).arg(fake.path(node)).args(extra);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert!(line.starts_with("serving "), "{line}");
        Self(child)
    }

    /// Waits for its end; `None` if it does not come.
    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &str, fake: &Fake, to: &str, extra: &[&str]) -> (Output, Value) {
    let output = bench()
        .args([command, "--json", "-", "--to", to, "--socket"])
        .arg(fake.path("a"))
        .args(extra)
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, json)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A model with tensors of these sizes.
fn model(path: &Path, sizes: &[usize]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (index, &bytes) in sizes.iter().enumerate() {
        let entry = serde_json::json!({
            "dtype": "U8", "shape": [bytes], "data_offsets": [data.len(), data.len() + bytes]
        });
        header.insert(format!("tensor.{index}"), entry);
        data.extend((0..bytes).map(|at| (at * 31 + index * 7 + at / 251) as u8));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// Two nodes, a serving program on `b`, and a model of five tensors, two of them empty.
fn setup(folder: &Path) -> (Fake, Serving, String) {
    let path = folder.join("model.safetensors");
    model(&path, &[1, 0, 70_001, 4096, 0]);
    let fake = Fake::start(&["a", "b"], 2);
    let serving = Serving::start(&fake, "b", &["--once"]);
    (fake, serving, path.to_str().unwrap().to_owned())
}

#[test]
fn push_moves_and_verifies_every_tensor_in_every_round() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, mut serving, path) = setup(folder.path());
    let pid = std::process::id().to_string();
    let (output, json) =
        run("push", &fake, "b", &[&path, "--repeat", "3", "--outstanding", "2", "--cpu-of", &pid]);
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(json["verified"], true);
    assert_eq!(json["transfers"], 15);
    assert_eq!(json["bytes"], 3 * 74_098);
    assert_eq!(json["digests_equal"], 15);
    assert_eq!(json["routes"]["direct-direct"]["bytes"], 3 * 70_001);
    assert_eq!(json["routes"]["staged-staged"]["bytes"], 3 * 4097);
    assert_eq!(json["routes"]["empty"]["transfers"], 6);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 3);
    assert!(json["cpu_seconds_per_gigabyte"].is_number());
    assert!(errors(&output).contains("15 of 15 SHA-256 equal at b"), "{}", errors(&output));
    assert!(serving.ended().unwrap().success());
}

#[test]
fn push_to_this_node_works_and_the_route_can_be_forced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    model(&path, &[5000]);
    let fake = Fake::single();
    let _serving = Serving::start(&fake, "a", &["--sink", "here"]);
    let path = path.to_str().unwrap();
    let (output, json) = run("push", &fake, "self", &[path, "--sink", "here", "--route", "direct-staged"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(json["routes"]["direct-staged"]["bytes"], 5000);
    // All regions but the serving program's own two are given back.
    let start = Instant::now();
    while fake.regions() != 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "{} regions left", fake.regions());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn push_finds_a_changed_byte_and_names_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _serving, path) = setup(folder.path());
    fake.tell(Tell::Spoil(70_000));
    let (output, json) = run("push", &fake, "b", &[&path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json["verified"], false);
    assert_eq!(json["digests_wrong"], serde_json::json!(["tensor.2"]));
    assert!(errors(&output).contains("1 tensors differ at b"), "{}", errors(&output));
}

#[test]
fn push_reports_failed_transfers_with_code_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _serving, path) = setup(folder.path());
    fake.tell(Tell::Fail(50_000, Code::PeerDown));
    let (output, json) = run("push", &fake, "b", &[&path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json["errors"]["peer_down"], 1);
    assert_eq!(json["digests_equal"], 4);
    assert!(errors(&output).contains(Code::PeerDown.remedy()), "{}", errors(&output));
}

#[test]
fn what_was_moved_before_the_dataplane_died_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (mut fake, _serving, path) = setup(folder.path());
    let mut command = bench();
    command
        .args(["push", &path, "--to", "b", "--json", "-", "--repeat", "1000000", "--socket"])
        .arg(fake.path("a"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let third = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("round 3:"));
    assert!(third.unwrap().contains("direct-direct"));
    fake.kill();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["verified"], false);
    assert!(json["rounds"].as_array().unwrap().len() >= 3);
    assert!(json["aborted"].as_str().unwrap().contains("dataplane"), "{json}");
    assert!(rest.last().unwrap().contains("ended early"), "{rest:?}");
}

#[test]
fn sweep_measures_and_verifies_every_size_and_route() {
    let fake = Fake::start(&["a", "b"], 2);
    let _serving = Serving::start(&fake, "b", &[]);
    let arguments = ["--sizes", "0,1,9,4K,65537", "--iterations", "50", "--outstanding", "4", "--ports", "2"];
    let (output, json) = run("sweep", &fake, "b", &arguments);
    assert!(output.status.success(), "{}", errors(&output));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    for row in rows {
        assert_eq!((&row["verified"], &row["transfers"]), (&Value::Bool(true), &Value::from(50)), "{row}");
        assert!(row["latency_us"]["p50"].as_f64().unwrap() > 0.0);
        assert!(row["checked_bytes"].as_u64().unwrap() >= 8 * row["size_bytes"].as_u64().unwrap());
        let route = if row["size_bytes"] == 0 { "empty" } else { row["route"].as_str().unwrap() };
        assert_eq!(row["routes"][route]["bytes"], 50 * row["size_bytes"].as_u64().unwrap(), "{row}");
    }
    // The sender can come again, for a time instead of a number, and through cold memory.
    let arguments =
        ["--sizes", "4K", "--routes", "auto", "--seconds", "0.2", "--cold=1M", "--class", "latency"];
    let (output, json) = run("sweep", &fake, "b", &arguments);
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(json["cold_bytes"], 1 << 20);
    let row = &json["rows"][0];
    assert!(row["seconds"].as_f64().unwrap() >= 0.2);
    assert!(row["checked_bytes"].as_u64().unwrap() >= 1 << 20);
}

#[test]
fn sweep_finds_wrong_bytes_inside_and_outside_the_range() {
    for (mood, place) in [(Tell::Spoil(4096 + 100), "offset 4196"), (Tell::Overrun, "offset 8193")] {
        let fake = Fake::start(&["a", "b"], 1);
        let _serving = Serving::start(&fake, "b", &[]);
        fake.tell(mood);
        let arguments = ["--sizes", "4097", "--routes", "auto", "--iterations", "3", "--outstanding", "1"];
        let (output, json) = run("sweep", &fake, "b", &arguments);
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        assert_eq!(json["rows"][0]["wrong_bytes"], 1);
        let first = json["rows"][0]["first_wrong"].as_str().unwrap();
        assert!(first.contains(place), "{first}");
    }
}

#[test]
fn a_result_can_be_written_to_a_file_and_the_table_printed() {
    let fake = Fake::start(&["a", "b"], 1);
    let _serving = Serving::start(&fake, "b", &[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let arguments = ["--to", "b", "--sizes", "4K", "--routes", "auto", "--iterations", "5"];
    let output = bench()
        .args(["sweep", "--socket"])
        .arg(fake.path("a"))
        .args(arguments)
        .arg("--json")
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(json["command"], "sweep");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("verified") && table.contains("yes"), "{table}");
    assert!(errors(&output).is_empty(), "no progress bar without a terminal: {}", errors(&output));
}

#[test]
fn a_sender_that_wants_too_much_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    model(&path, &[100_000]);
    let fake = Fake::start(&["a", "b"], 1);
    let mut serving = Serving::start(&fake, "b", &["--memory", "64K"]);
    let (output, _) = run("push", &fake, "b", &[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("--memory"), "{}", errors(&output));
    assert!(serving.0.try_wait().unwrap().is_none(), "the serving program goes on");
}

#[test]
fn a_serving_program_ends_with_its_dataplane() {
    let mut fake = Fake::single();
    let mut serving = Serving::start(&fake, "a", &[]);
    let start = Instant::now();
    while fake.regions() < 2 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    fake.kill();
    assert_eq!(serving.ended().unwrap().code(), Some(1));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut serving.0.stderr.take().unwrap(), &mut text).unwrap();
    assert!(text.contains("the dataplane is gone"), "{text}");
}

#[test]
fn a_serving_program_that_stays_serves_the_restarted_dataplane() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    model(&path, &[5000]);
    let mut fake = Fake::start(&["a", "b"], 1);
    let mut serving = Serving::start(&fake, "b", &["--stay"]);
    for _ in 0..2 {
        let (output, _) = run("push", &fake, "b", &[path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", errors(&output));
        fake.restart();
    }
    assert!(serving.0.try_wait().unwrap().is_none());
}

#[test]
fn wrong_input_is_one_clear_error_naming_argument_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("model.safetensors");
    model(&good, &[10]);
    let good = good.to_str().unwrap();
    let fake = Fake::start(&["a", "b"], 1);
    let sweep = |extra: &[&str]| run("sweep", &fake, "b", extra).0;
    let cases: Vec<(Output, i32, &str)> = vec![
        (run("push", &fake, "b", &["absent.safetensors"]).0, 1, "absent.safetensors"),
        (run("push", &fake, "b", &["Cargo.toml"]).0, 1, "make-model"),
        (run("push", &fake, "c", &[good, "--wait", "0"]).0, 1, "peer_unknown"),
        (run("push", &fake, "b", &[good, "--wait", "0"]).0, 1, "railhead-bench serve"),
        (run("push", &fake, "b", &[good, "--outstanding", "0"]).0, 2, "--outstanding"),
        (run("push", &fake, "b", &[good, "--route", "fast"]).0, 2, "staged-direct"),
        (run("push", &fake, "b", &[good, "--name", "a b"]).0, 1, "\"a b\" is not a name"),
        (run("push", &fake, "b", &[good, "--cpu-of", "4294967295"]).0, 2, "--cpu-of"),
        (sweep(&["--sizes", "1X"]), 2, "1X"),
        (sweep(&["--sizes", "1G", "--memory", "1M"]), 2, "--memory"),
        (sweep(&["--seconds", "1", "--iterations", "1"]), 2, "--iterations"),
        (
            bench().args(["serve", "--socket", "nowhere.sock"]).output().unwrap(),
            1,
            "start railhead-dataplane",
        ),
        (bench().args(["make-model", "no-such-folder/file"]).output().unwrap(), 1, "no-such-folder"),
    ];
    for (output, code, named) in cases {
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(named), "{named:?} is not in: {text}");
    }
}
