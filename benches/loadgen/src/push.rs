//! `push`: every tensor of a file to the peer, one transfer each, compared by SHA-256 there.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use railhead_client::{Port, Write};
use serde::Serialize;

use crate::args::Push;
use crate::cpu;
use crate::digest::DIGEST_BYTES;
use crate::error::{BenchError, Result};
use crate::exchange::{Areas, Command, HEAD_BYTES};
use crate::model::Model;
use crate::pump::{Tally, Work, pump};
use crate::report::{Figures, bytes_text, publish, time_text};
use crate::sink::{Sink, attach, take_port};

/// Tensor names that are told when they differ.
const TOLD_MAX: usize = 5;

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    file: String,
    from: String,
    to: String,
    tensors: usize,
    repeat: u32,
    outstanding: u32,
    class: &'static str,
    /// What was asked for; what was taken is in `routes`.
    route: String,
    /// Bytes of the pages that the source lies on, and why they are not hugepages.
    page_bytes: usize,
    page_step_down: Option<String>,
    #[serde(flatten)]
    total: Figures,
    digests_equal: usize,
    digests_wrong: Vec<String>,
    /// Why not all rounds were made.
    aborted: Option<String>,
    verified: bool,
    rounds: Vec<Figures>,
}

/// What all rounds came to.
struct Outcome {
    total: Tally,
    elapsed: Duration,
    cpu: Option<Duration>,
    equal: usize,
    wrong: Vec<String>,
    rounds: Vec<Figures>,
    /// Why not all rounds were made.
    aborted: Option<String>,
}

pub(crate) fn run(options: &Push) -> Result<()> {
    let connection = &options.connection;
    let mut model = Model::open(&options.file)?;
    cpu::used(&connection.cpu_of)?;
    let session = attach(connection, 1)?;
    let mut port = take_port(&session, connection)?;
    let count = model.tensors.len() as u64;
    let areas = Areas {
        payload_bytes: model.data_bytes,
        command_bytes: HEAD_BYTES + 16 * count,
        reply_bytes: HEAD_BYTES + DIGEST_BYTES as u64 * count,
    };
    let mut sink = Sink::join(connection, &session, &mut port, areas)?;
    let expected = model.load(&sink.source)?;
    let outcome = run_rounds(options, &model, &expected, &mut sink, &mut port);
    let report = Report {
        command: "push",
        file: options.file.display().to_string(),
        from: session.node().to_owned(),
        to: connection.to.clone(),
        tensors: model.tensors.len(),
        repeat: options.repeat,
        outstanding: connection.outstanding,
        class: connection.class.name(),
        route: options.route.name(),
        page_bytes: sink.source.page_bytes(),
        page_step_down: sink.source.step_down().map(ToString::to_string),
        total: Figures::new(&outcome.total, outcome.elapsed, outcome.cpu),
        digests_equal: outcome.equal,
        verified: outcome.equal == model.tensors.len() * options.repeat as usize
            && outcome.total.error_count() == 0,
        digests_wrong: outcome.wrong,
        aborted: outcome.aborted,
        rounds: outcome.rounds,
    };
    publish(&text(&report), &report, connection.json.as_deref())?;
    if report.aborted.is_none() {
        sink.leave(&mut port);
    }
    if report.verified {
        return Ok(());
    }
    Err(BenchError::Wrong(format!(
        "{} transfers failed, {} tensors differ at {}{}; see the events and the log of both dataplanes",
        outcome.total.error_count(),
        report.digests_wrong.len(),
        connection.to,
        report.aborted.map_or_else(String::new, |reason| format!("; ended early: {reason}"))
    )))
}

/// Makes the rounds, as far as they go: what was moved before something broke is reported all the same.
fn run_rounds(
    options: &Push,
    model: &Model,
    expected: &[[u8; DIGEST_BYTES]],
    sink: &mut Sink,
    port: &mut Port,
) -> Outcome {
    let cpu = (!options.connection.cpu_of.is_empty()).then_some(Duration::ZERO);
    let mut outcome = Outcome {
        total: Tally::new(),
        elapsed: Duration::ZERO,
        cpu,
        equal: 0,
        wrong: Vec::new(),
        rounds: Vec::new(),
        aborted: None,
    };
    for round in 0..options.repeat {
        if let Err(error) = run_round(options, round, model, expected, (sink, port), &mut outcome) {
            outcome.aborted = Some(format!("round {}: {error}", round + 1));
            break;
        }
    }
    outcome
}

fn run_round(
    options: &Push,
    round: u32,
    model: &Model,
    expected: &[[u8; DIGEST_BYTES]],
    (sink, port): (&mut Sink, &mut Port),
    outcome: &mut Outcome,
) -> Result<()> {
    let pids = &options.connection.cpu_of;
    // A fresh poison, so that a tensor of the round before cannot pass for this one's.
    let byte = 0xa5 ^ round.to_le_bytes()[0];
    sink.command(port, &Command::Poison { bytes: model.data_bytes, byte }, &[])?;
    let bar = progress(model, round, options.repeat);
    let before = cpu::used(pids)?;
    let start = Instant::now();
    let tally = push_tensors(options, model, sink, port, &bar)?;
    let elapsed = start.elapsed();
    let cpu = cpu::used(pids)?.saturating_sub(before);
    bar.finish_and_clear();
    let figures = Figures::new(&tally, elapsed, outcome.cpu.map(|_| cpu));
    if options.repeat > 1 {
        eprintln!("{}", round_text(round, &figures));
    }
    outcome.rounds.push(figures);
    outcome.total.merge(&tally);
    outcome.elapsed += elapsed;
    outcome.cpu = outcome.cpu.map(|sum| sum + cpu);
    let (equal, wrong) = compare(model, expected, sink, port)?;
    outcome.equal += equal;
    outcome.wrong.extend(wrong);
    Ok(())
}

fn push_tensors(
    options: &Push,
    model: &Model,
    sink: &Sink,
    port: &mut Port,
    bar: &ProgressBar,
) -> Result<Tally> {
    let connection = &options.connection;
    let mut tally = Tally::new();
    let mut tensors = model.tensors.iter().enumerate();
    let next = |_| {
        let write = |(index, tensor): (usize, &crate::model::Tensor)| Write {
            cookie: index as u64,
            local: sink.source.handle(),
            local_offset: tensor.offset,
            remote: sink.remote.handle(),
            remote_offset: tensor.offset,
            bytes: tensor.bytes,
            class: connection.class.class(),
            send_leg: options.route.send,
            receive_leg: options.route.receive,
            ..Write::default()
        };
        Ok(tensors.next().map(write).map(Work::Write))
    };
    pump(port, connection.outstanding as usize, model.tensors.len(), next, |completion, latency| {
        tally.add(completion, latency);
        bar.inc(completion.bytes);
    })?;
    Ok(tally)
}

/// Has the peer digest every tensor; returns how many are equal, and the names of those that are not.
fn compare(
    model: &Model,
    expected: &[[u8; DIGEST_BYTES]],
    sink: &mut Sink,
    port: &mut Port,
) -> Result<(usize, Vec<String>)> {
    let ranges: Vec<u64> = model.tensors.iter().flat_map(|tensor| [tensor.offset, tensor.bytes]).collect();
    let (_, found) = sink.command(port, &Command::Digest { count: model.tensors.len() as u64 }, &ranges)?;
    let (found, rest) = found.as_chunks::<DIGEST_BYTES>();
    if found.len() != expected.len() || !rest.is_empty() {
        return Err(BenchError::Answer("it has another number of digests"));
    }
    let differ =
        model.tensors.iter().zip(expected.iter().zip(found)).filter(|(_, (ours, theirs))| ours != theirs);
    let wrong: Vec<String> = differ.map(|(tensor, _)| tensor.name.clone()).collect();
    Ok((expected.len() - wrong.len(), wrong))
}

/// Hidden when standard error is no terminal.
fn progress(model: &Model, round: u32, rounds: u32) -> ProgressBar {
    let bar = ProgressBar::new(model.data_bytes);
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(if rounds > 1 { format!("round {}/{rounds}", round + 1) } else { "push".to_owned() });
    bar
}

fn round_text(round: u32, figures: &Figures) -> String {
    format!(
        "round {}: {} in {:.3} s, {:.2} GB/s; {}; errors {}",
        round + 1,
        bytes_text(figures.bytes),
        figures.seconds,
        figures.gigabytes_per_second,
        figures.routes_text(),
        figures.errors_text()
    )
}

fn text(report: &Report) -> String {
    let total = &report.total;
    let latency = total.latency_us;
    let mut lines = vec![
        ("push", format!("{} from {} to {}", report.file, report.from, report.to)),
        ("tensors", format!("{} x {}", report.tensors, report.repeat)),
        ("bytes", format!("{} ({})", total.bytes, bytes_text(total.bytes))),
        ("seconds", format!("{:.3}", total.seconds)),
        ("rate", format!("{:.2} GB/s", total.gigabytes_per_second)),
        ("latency", format!("p50 {}, p99 {}", time_text(latency.p50), time_text(latency.p99))),
        ("routes", total.routes_text()),
        ("errors", total.errors_text()),
    ];
    if total.cpu_seconds_per_gigabyte.is_some() {
        lines.push(("cpu", format!("{} s per GB", total.cpu_text())));
    }
    if let Some(reason) = &report.page_step_down {
        lines.push(("pages", format!("{} bytes: {reason}", report.page_bytes)));
    }
    let all = report.tensors * report.repeat as usize;
    lines.push(("verified", format!("{} of {all} SHA-256 equal at {}", report.digests_equal, report.to)));
    for name in report.digests_wrong.iter().take(TOLD_MAX) {
        lines.push(("differs", name.clone()));
    }
    for failure in &total.failures {
        lines.push(("failure", failure.clone()));
    }
    if let Some(reason) = &report.aborted {
        lines.push(("ended", reason.clone()));
    }
    lines.iter().map(|(name, value)| format!("{name:<9} {value}\n")).collect()
}
