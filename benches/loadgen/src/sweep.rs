//! `sweep`: sizes x routes, each measured for a while and then verified to the last byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use railhead_client::{Port, Read, Region, Write};
use serde::Serialize;

use crate::args::{Operation, Route, Sweep};
use crate::cpu;
use crate::error::{BenchError, Result};
use crate::exchange::{Areas, Command, HEAD_BYTES};
use crate::pattern::{FILLED, NEVER, Spec};
use crate::pump::{Tally, Work, pump};
use crate::report::{Figures, Share, columns, publish, size_text, time_text};
use crate::sink::{Sink, attach, take_port};

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    operation: &'static str,
    from: String,
    to: String,
    outstanding: u32,
    ports: u32,
    class: &'static str,
    /// Bytes that buffers walked through; `null`: they stayed in the caches.
    cold_bytes: Option<u64>,
    page_bytes: usize,
    page_step_down: Option<String>,
    rows: Vec<Row>,
    /// Why not all rows are there.
    aborted: Option<String>,
    verified: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    size_bytes: u64,
    /// What was asked for; what was taken is in `routes`.
    route: String,
    #[serde(flatten)]
    figures: Figures,
    checked_bytes: u64,
    wrong_bytes: u64,
    /// Where the first wrong byte is, and which.
    first_wrong: Option<String>,
    verified: bool,
}

/// What each thread needs for one size and route.
#[derive(Clone, Copy)]
struct Job<'a> {
    spec: Spec,
    /// What is written from, or read into.
    source: &'a Region,
    operation: Operation,
    template: Write,
    outstanding: usize,
    /// Number of the first transfer.
    first: u64,
    /// Transfers of each port.
    most: Option<u64>,
    /// When to stop instead.
    seconds: Option<Duration>,
}

pub(crate) fn run(options: &Sweep) -> Result<()> {
    let connection = &options.connection;
    let routes: Vec<Route> = options.routes.iter().flat_map(|list| list.0.iter().copied()).collect();
    let (payload_bytes, slots_max) = memory(options)?;
    cpu::used(&connection.cpu_of)?;
    let session = attach(connection, options.ports)?;
    let mut ports =
        (0..options.ports).map(|_| take_port(&session, connection)).collect::<Result<Vec<Port>>>()?;
    let areas = Areas { payload_bytes, command_bytes: HEAD_BYTES + 8 * slots_max, reply_bytes: HEAD_BYTES };
    let mut sink = Sink::join(connection, &session, &mut ports[0], areas)?;
    let mut rows = Vec::new();
    let aborted = measure_all(options, &routes, &mut sink, &mut ports, &mut rows).err();
    let report = Report {
        command: "sweep",
        operation: options.operation.name(),
        from: session.node().to_owned(),
        to: connection.to.clone(),
        outstanding: connection.outstanding,
        ports: options.ports,
        class: connection.class.name(),
        cold_bytes: options.cold,
        page_bytes: sink.source.page_bytes(),
        page_step_down: sink.source.step_down().map(ToString::to_string),
        verified: aborted.is_none() && rows.iter().all(|row| row.verified),
        rows,
        aborted: aborted.map(|error| error.to_string()),
    };
    publish(&text(&report), &report, connection.json.as_deref())?;
    if report.aborted.is_none() {
        sink.leave(&mut ports[0]);
    }
    if report.verified {
        return Ok(());
    }
    let errors: u64 = report.rows.iter().flat_map(|row| row.figures.errors.values()).sum();
    let wrong: u64 = report.rows.iter().map(|row| row.wrong_bytes).sum();
    Err(BenchError::Wrong(format!(
        "{errors} transfers failed, {wrong} bytes are wrong at {}{}; see the events and the log of both dataplanes",
        connection.to,
        report.aborted.map_or_else(String::new, |reason| format!("; ended early: {reason}"))
    )))
}

/// Measures every size and route; rows made before something broke stay.
fn measure_all(
    options: &Sweep,
    routes: &[Route],
    sink: &mut Sink,
    ports: &mut [Port],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let bar = progress((options.sizes.len() * routes.len()) as u64);
    for &bytes in &options.sizes {
        for &route in routes {
            bar.set_message(format!("{} {}", size_text(bytes), route.name()));
            // A new seed and poison for each measurement: what an earlier one left does not pass.
            let number = rows.len() as u64 + 1;
            let spec = Spec {
                bytes,
                slots: slots(options, bytes),
                seed: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                poison: 0xa5 ^ number.to_le_bytes()[0],
            };
            rows.push(measure(options, spec, route, sink, ports)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Slots for one size: as many as are in flight, or enough to leave the caches.
fn slots(options: &Sweep, bytes: u64) -> u64 {
    let in_flight = u64::from(options.connection.outstanding) * u64::from(options.ports);
    let stride = Spec::stride(bytes).unwrap_or(u64::MAX);
    let cold = options.cold.map_or(0, |cold| cold.div_ceil(stride));
    // Each port needs as many as it has in flight.
    in_flight.max(cold).next_multiple_of(u64::from(options.ports))
}

/// Bytes that the largest size needs, and the most slots of any.
fn memory(options: &Sweep) -> Result<(u64, u64)> {
    let mut most = (0, 0);
    for &bytes in &options.sizes {
        let slots = slots(options, bytes);
        let needed = Spec::total_bytes(bytes, slots).filter(|needed| *needed <= options.memory);
        let needed = needed.ok_or_else(|| BenchError::Argument {
            argument: "--sizes",
            problem: format!("{} x {slots} buffers do not fit {} bytes", size_text(bytes), options.memory),
            remedy: "raise --memory, or lower the size, --outstanding, --ports or --cold",
        })?;
        most = (needed.max(most.0), slots.max(most.1));
    }
    Ok(most)
}

fn measure(options: &Sweep, spec: Spec, route: Route, sink: &mut Sink, ports: &mut [Port]) -> Result<Row> {
    let connection = &options.connection;
    let outside = |error: railhead_client::OutOfRange| BenchError::Wrong(error.to_string());
    let bytes = spec.slot_at(spec.slots);
    let is_read = options.operation == Operation::Read;
    if is_read {
        sink.command(&mut ports[0], &Command::Fill(spec), &[])?;
        sink.source.fill(0, bytes, spec.poison).map_err(outside)?;
    } else {
        sink.command(&mut ports[0], &Command::Poison { bytes, byte: spec.poison }, &[])?;
        for slot in 0..spec.slots {
            spec.fill(&sink.source, slot).map_err(outside)?;
        }
    }
    let template = Write {
        local: sink.source.handle(),
        remote: sink.remote.handle(),
        bytes: spec.bytes,
        class: connection.class.class(),
        send_leg: route.send,
        receive_leg: route.receive,
        ..Write::default()
    };
    let ports_count = ports.len() as u64;
    let per_port = |iterations: u64| Some(iterations.div_ceil(ports_count));
    // Every slot once, so that no page is touched for the first time while it counts.
    let warm = Job {
        spec,
        source: &sink.source,
        operation: options.operation,
        template,
        outstanding: connection.outstanding as usize,
        first: 0,
        most: per_port(spec.slots),
        seconds: None,
    };
    let (warm_tally, mut last) = run_ports(&warm, ports)?;
    let seconds = options.iterations.is_none().then_some(options.seconds);
    let job = Job { first: spec.slots, most: options.iterations.and_then(per_port), seconds, ..warm };
    let before = cpu::used(&connection.cpu_of)?;
    let start = Instant::now();
    let (mut tally, newest) = run_ports(&job, ports)?;
    let elapsed = start.elapsed();
    let cpu = cpu::used(&connection.cpu_of)?.saturating_sub(before);
    for (last, newest) in last.iter_mut().zip(newest).filter(|(_, newest)| *newest != NEVER) {
        *last = newest;
    }
    tally.blame(&warm_tally);
    let ([checked_bytes, wrong_bytes], first) = if is_read {
        let verdict = spec.verify(&sink.source, &last).map_err(outside)?;
        ([verdict.checked_bytes, verdict.wrong_bytes], verdict.text())
    } else {
        let (reply, _) = sink.command(&mut ports[0], &Command::Verify(spec), &last)?;
        (reply.figures, reply.text)
    };
    Ok(Row {
        size_bytes: spec.bytes,
        route: route.name(),
        figures: Figures::new(&tally, elapsed, (!connection.cpu_of.is_empty()).then_some(cpu)),
        checked_bytes,
        wrong_bytes,
        first_wrong: (wrong_bytes > 0).then_some(first),
        verified: wrong_bytes == 0 && tally.error_count() == 0 && checked_bytes == bytes,
    })
}

/// Runs all ports side by side, each with its own slots. Returns the last iteration of every slot.
fn run_ports(job: &Job<'_>, ports: &mut [Port]) -> Result<(Tally, Vec<u64>)> {
    let share = job.spec.slots / ports.len() as u64;
    let results: Vec<Result<(Tally, Vec<u64>)>> = std::thread::scope(|scope| {
        let run = |(index, port)| {
            let first = index as u64 * share;
            scope.spawn(move || run_port(job, port, first..first + share))
        };
        let threads: Vec<_> = ports.iter_mut().enumerate().map(run).collect();
        let panicked = |_| Err(BenchError::Wrong("a measuring thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut total = Tally::new();
    let mut all = Vec::new();
    for result in results {
        let (tally, last) = result?;
        total.merge(&tally);
        all.extend(last);
    }
    Ok((total, all))
}

fn run_port(job: &Job<'_>, port: &mut Port, slots: std::ops::Range<u64>) -> Result<(Tally, Vec<u64>)> {
    let count = (slots.end - slots.start) as usize;
    let mut tally = Tally::new();
    let mut last = vec![NEVER; count];
    // First in, first out: with more slots than are in flight this walks through all of them.
    let free = std::cell::RefCell::new((0..count as u64).collect::<VecDeque<u64>>());
    let end = job.seconds.map(|seconds| Instant::now() + seconds);
    let mut made = 0;
    let next = |now: Instant| {
        if job.most == Some(made) || (made > 0 && end.is_some_and(|end| now >= end)) {
            return Ok(None);
        }
        let Some(slot) = free.borrow_mut().pop_front() else { return Ok(None) };
        let at = job.spec.slot_at(slots.start + slot);
        let write = Write { cookie: slot, local_offset: at, remote_offset: at, ..job.template };
        // What is read into says that nothing came, until it comes.
        let (stamp, expected, work) = match job.operation {
            Operation::Write => (job.first + made, job.first + made, Work::Write(write)),
            Operation::Read => (NEVER, FILLED, Work::Read(read_of(&write))),
        };
        let stamped = job.spec.stamp(job.source, slots.start + slot, stamp);
        stamped.map_err(|error| BenchError::Wrong(error.to_string()))?;
        last[slot as usize] = expected;
        made += 1;
        Ok(Some(work))
    };
    pump(port, job.outstanding, count, next, |completion, latency| {
        tally.add(completion, latency);
        free.borrow_mut().push_back(completion.cookie);
    })?;
    Ok((tally, last))
}

/// The read of the same places, by the same legs.
const fn read_of(write: &Write) -> Read {
    Read {
        cookie: write.cookie,
        local: write.local,
        local_offset: write.local_offset,
        remote: write.remote,
        remote_offset: write.remote_offset,
        bytes: write.bytes,
        class: write.class,
        send_leg: write.send_leg,
        receive_leg: write.receive_leg,
        deadline_us: write.deadline_us,
    }
}

/// Hidden when standard error is no terminal.
fn progress(cells: u64) -> ProgressBar {
    let bar = ProgressBar::new(cells);
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar
}

fn text(report: &Report) -> String {
    let head = [
        "size",
        "route",
        "transfers",
        "GB/s",
        "p50",
        "p99",
        "p99.9",
        "cpu s/GB",
        "taken",
        "errors",
        "verified",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &report.rows {
        let figures = &row.figures;
        let latency = figures.latency_us;
        let share = |(route, share): (&String, &Share)| match figures.routes.len() {
            1 => route.clone(),
            _ => format!("{route} {:.0}%", 100.0 * share.transfers as f64 / figures.transfers.max(1) as f64),
        };
        let taken: Vec<String> = figures.routes.iter().map(share).collect();
        rows.push(vec![
            size_text(row.size_bytes),
            row.route.clone(),
            figures.transfers.to_string(),
            format!("{:.2}", figures.gigabytes_per_second),
            time_text(latency.p50),
            time_text(latency.p99),
            time_text(latency.p999),
            figures.cpu_text(),
            taken.join("+"),
            figures.errors_text(),
            if row.verified { "yes".to_owned() } else { "NO".to_owned() },
        ]);
    }
    let buffers =
        report.cold_bytes.map_or_else(|| "hot".to_owned(), |bytes| format!("cold ({})", size_text(bytes)));
    let mut text = format!(
        "{} sweep from {} to {}: {} outstanding on {} ports, class {}, buffers {buffers}\n{}",
        report.operation,
        report.from,
        report.to,
        report.outstanding,
        report.ports,
        report.class,
        columns(&rows)
    );
    if let Some(reason) = &report.page_step_down {
        text.push_str(&format!("pages of {} bytes: {reason}\n", report.page_bytes));
    }
    for row in report.rows.iter().filter(|row| !row.verified) {
        let first = row.first_wrong.as_deref().unwrap_or("");
        text.push_str(&format!(
            "{} {}: {} wrong bytes {first}; {}\n",
            size_text(row.size_bytes),
            row.route,
            row.wrong_bytes,
            row.figures.failures.join("; ")
        ));
    }
    text
}
