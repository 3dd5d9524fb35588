//! What people read, and the JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::options::Options;
use crate::problem::{Problem, Tried};
use crate::rows::{Method, Row};
use crate::runner::{Measure, Outcome, Pair};
use crate::statistics::{Goal, Interval, Verdict, interval, median, verdict};

/// Version of the JSON's form.
const FORMAT: u32 = 1;
const HEADING: [&str; 7] =
    ["row", "ours", "reference", "result [90 % interval]", "goal", "verdict", "CPU s/GB, ours / reference"];

/// Collects rows, printing each as it comes.
#[derive(Debug)]
pub(crate) struct Report {
    json: Option<PathBuf>,
    head: Value,
    machine: Machine,
    rows: Vec<Value>,
    verdicts: Vec<Verdict>,
    notes: Vec<String>,
}

/// Prints rows and goals.
pub(crate) fn list(rows: &[Row]) {
    for row in rows {
        println!("{:11} {:9} {}", row.name, goal_text(row.goal, row.method.unit()), row.what);
    }
}

impl Report {
    /// Describes the machine and prints the heading. A file that cannot be written is a problem now, not after minutes.
    pub(crate) fn begin(options: &Options) -> Result<Self, Problem> {
        if let Some(path) = &options.json {
            write(path, "{}\n")?;
        }
        let machine = Machine::describe();
        println!("{}", machine.line());
        println!("{} pairs of {} ms a side", options.pairs(), options.duration().as_millis());
        println!("{}", line(HEADING.map(str::to_owned)));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let called_as =
            options.called_as.clone().unwrap_or_else(|| std::env::args().collect::<Vec<_>>().join(" "));
        let pairs = |given: &[(String, String)]| {
            given.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        let head = json!({
            "format": FORMAT,
            "command": called_as,
            "revision": options.revision,
            "started_unix_s": started,
            "pairs": options.pairs(),
            "milliseconds": u64::try_from(options.duration().as_millis()).unwrap_or(u64::MAX),
            "settings": pairs(&options.settings),
            "pool": pairs(&options.pool),
            "lanes_pinned": !options.unpinned,
        });
        let (rows, verdicts, notes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { json: options.json.clone(), head, machine, rows, verdicts, notes })
    }

    /// Prints and keeps a row.
    pub(crate) fn add(&mut self, row: &Row, outcome: Result<Outcome, Problem>) {
        let (outcome, why) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(problem) => (Outcome::default(), Some(problem.to_string())),
        };
        let interval = interval(&outcome.samples);
        let verdict = verdict(row.goal, interval.as_ref());
        let unit = row.method.unit();
        let side = |of: fn(&Pair) -> Measure| Side::of(&outcome.pairs, of, &row.method);
        let (ours, reference) = (side(|pair| pair.ours), side(|pair| pair.reference));
        let result = interval.map_or_else(
            || "-".to_owned(),
            |Interval { low, median, high, .. }| format!("{median:.3} {unit} [{low:.3}, {high:.3}]"),
        );
        let cpu = match (&ours, &reference) {
            (Some(ours), Some(reference)) => match (ours.cpu_s_per_gb, reference.cpu_s_per_gb) {
                (Some(ours), Some(reference)) => format!("{ours:.3} / {reference:.3}"),
                _ => String::new(),
            },
            _ => String::new(),
        };
        let text = |side: &Option<Side>| side.as_ref().map_or_else(|| "-".to_owned(), Side::text);
        let goal = goal_text(row.goal, unit);
        let cells = [
            row.name.to_owned(),
            text(&ours),
            text(&reference),
            result,
            goal,
            verdict.name().to_owned(),
            cpu,
        ];
        println!("{}", line(cells));
        if let Some(why) = &why {
            self.notes.push(format!("{}: not run: {why}", row.name));
        }
        self.notes.extend(outcome.notes.iter().map(|note| format!("{}: {note}", row.name)));
        self.rows.push(json!({
            "name": row.name,
            "what": row.what,
            "unit": unit,
            "goal": goal_json(row.goal),
            "verdict": verdict.name(),
            "not_run_because": why,
            "result": interval.map(|interval| json!({
                "median": interval.median, "low": interval.low, "high": interval.high, "coverage": interval.coverage,
            })),
            "ours": ours.map(|side| side.json()),
            "reference": reference.map(|side| side.json()),
            "samples": outcome.samples,
            "pairs": outcome.pairs.iter().map(pair_json).collect::<Vec<_>>(),
            "pairs_repeated": outcome.repeated,
            "notes": outcome.notes,
        }));
        self.verdicts.push(verdict);
    }

    /// Prints what there is to say, writes the file, and returns the verdicts.
    pub(crate) fn end(self) -> Result<Vec<Verdict>, Problem> {
        for note in &self.notes {
            println!("{note}");
        }
        let count = |wanted: Verdict| self.verdicts.iter().filter(|verdict| **verdict == wanted).count();
        println!(
            "{} ok, {} short, {} unsure, {} not run",
            count(Verdict::Ok),
            count(Verdict::Short),
            count(Verdict::Unsure),
            count(Verdict::NotRun)
        );
        if let Some(path) = &self.json {
            let mut whole = self.head;
            whole["machine"] = self.machine.json();
            whole["rows"] = Value::Array(self.rows);
            let text = serde_json::to_string_pretty(&whole).tried("the JSON")?;
            write(path, &format!("{text}\n"))?;
            println!("written: {}", path.display());
        }
        Ok(self.verdicts)
    }
}

/// What a rate counts.
#[derive(Debug, Clone, Copy)]
enum Counts {
    Bytes,
    Items,
    /// Messages, one at a time.
    Messages,
}

/// One side of a row over all pairs.
#[derive(Debug)]
struct Side {
    rate: f64,
    counts: Counts,
    cpu_s_per_gb: Option<f64>,
}

impl Side {
    fn of(pairs: &[Pair], of: fn(&Pair) -> Measure, method: &Method) -> Option<Self> {
        let rates: Vec<f64> = pairs.iter().map(|pair| of(pair).rate).collect();
        let costs: Vec<f64> = pairs.iter().filter_map(|pair| of(pair).cpu_s_per_gb()).collect();
        let counts = match method {
            Method::Ring { .. } => Counts::Items,
            Method::Device(shape) if shape.is_latency() => Counts::Messages,
            _ => Counts::Bytes,
        };
        Some(Self { rate: median(&rates)?, counts, cpu_s_per_gb: median(&costs) })
    }

    fn text(&self) -> String {
        match self.counts {
            Counts::Items => format!("{:.1} ns/item", 1e9 / self.rate),
            Counts::Messages => format!("{:.1} us", 1e6 / self.rate),
            // Soft devices are slow.
            Counts::Bytes if self.rate < 1e9 / 8.0 * 5.0 => format!("{:.3} Gbit/s", self.rate * 8.0 / 1e9),
            Counts::Bytes => format!("{:.1} Gbit/s", self.rate * 8.0 / 1e9),
        }
    }

    fn json(&self) -> Value {
        let rate = match self.counts {
            Counts::Items => "items_per_s",
            Counts::Messages => "messages_per_s",
            Counts::Bytes => "bytes_per_s",
        };
        json!({ rate: self.rate, "cpu_s_per_gb": self.cpu_s_per_gb })
    }
}

fn pair_json(pair: &Pair) -> Value {
    let side = |measure: &Measure| json!({ "rate": measure.rate, "seconds": measure.seconds, "cpu_s_per_gb": measure.cpu_s_per_gb() });
    json!({ "ours": side(&pair.ours), "reference": side(&pair.reference), "other_cores": pair.other_cores })
}

fn goal_json(goal: Goal) -> Value {
    match goal {
        Goal::AtLeast(goal) => json!({ "at_least": goal }),
        Goal::Reaches { at, least } => json!({ "reaches": at, "at_least": least }),
        Goal::Below(limit) => json!({ "below": limit }),
    }
}

fn goal_text(goal: Goal, unit: &str) -> String {
    match goal {
        Goal::AtLeast(goal) => format!(">= {goal} {unit}"),
        Goal::Reaches { at, least } => format!("{at} {unit}, >= {least:.2}"),
        Goal::Below(limit) => format!("< {limit} {unit}"),
    }
}

fn line(cells: [String; HEADING.len()]) -> String {
    let [row, ours, reference, result, goal, verdict, cpu] = cells;
    let line = format!("{row:11} {ours:>13} {reference:>13}  {result:25} {goal:9} {verdict:8} {cpu}");
    line.trim_end().to_owned()
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    fs::write(path, text).tried(format!("writing {}", path.display()))
}
