//! Results: for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::error::{BenchError, Result};
use crate::pump::Tally;

/// Fewer bytes say nothing about CPU seconds per byte.
const CPU_BYTES_MIN: u64 = 1_000_000;

/// Latencies of transfers, from submission to completion.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// What went over one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub(crate) bytes: u64,
    pub(crate) transfers: u64,
}

/// Figures that every result has.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(crate) transfers: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// 1 GB is 10^9 bytes.
    pub(crate) gigabytes_per_second: f64,
    pub(crate) latency_us: Latency,
    /// By the route that was taken, SEND-RECEIVE.
    pub(crate) routes: BTreeMap<String, Share>,
    /// By the code's name.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The first failures in words.
    pub(crate) failures: Vec<String>,
    /// Oldest and newest settings generation that chose a route.
    pub(crate) settings_generations: Option<[u64; 2]>,
    /// CPU seconds of the processes given, per 10^9 bytes moved.
    pub(crate) cpu_seconds_per_gigabyte: Option<f64>,
}

impl Figures {
    pub(crate) fn new(tally: &Tally, elapsed: Duration, cpu: Option<Duration>) -> Self {
        let seconds = elapsed.as_secs_f64();
        let gigabytes = tally.bytes as f64 / 1e9;
        let latency = &tally.latency_ns;
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let shares = tally.routes.iter();
        Self {
            transfers: tally.transfers,
            bytes: tally.bytes,
            seconds,
            gigabytes_per_second: if seconds > 0.0 { gigabytes / seconds } else { 0.0 },
            latency_us: Latency {
                p50: us(latency.value_at_quantile(0.5)),
                p99: us(latency.value_at_quantile(0.99)),
                p999: us(latency.value_at_quantile(0.999)),
                max: us(latency.max()),
            },
            routes: shares
                .map(|(route, &(bytes, transfers))| (route.clone(), Share { bytes, transfers }))
                .collect(),
            errors: tally.errors.clone(),
            failures: tally.told.clone(),
            settings_generations: tally.generations.map(|(oldest, newest)| [oldest, newest]),
            cpu_seconds_per_gigabyte: cpu
                .filter(|_| tally.bytes > 0)
                .map(|cpu| cpu.as_secs_f64() / gigabytes),
        }
    }

    /// `direct-direct 88.1 MB (80), staged-staged 2.7 MB (24)`.
    pub(crate) fn routes_text(&self) -> String {
        if self.routes.is_empty() {
            return "none".to_owned();
        }
        let share = |(route, share): (&String, &Share)| {
            format!("{route} {} ({})", bytes_text(share.bytes), share.transfers)
        };
        self.routes.iter().map(share).collect::<Vec<_>>().join(", ")
    }

    /// `0.123`; `-` where it is not known, or where so few bytes were moved that it is the cost of transfers, not of bytes.
    pub(crate) fn cpu_text(&self) -> String {
        match self.cpu_seconds_per_gigabyte {
            Some(cpu) if self.bytes >= CPU_BYTES_MIN => format!("{cpu:.3}"),
            _ => "-".to_owned(),
        }
    }

    /// `none`, or `3 peer_down, 1 unknown`.
    pub(crate) fn errors_text(&self) -> String {
        if self.errors.is_empty() {
            return "none".to_owned();
        }
        self.errors.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

/// Writes to standard output; a reader that has gone, as `head` does, is no error of ours.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints the text, and writes the JSON where it is wanted; with `-` the text goes to standard error.
pub(crate) fn publish(text: &str, result: &impl Serialize, json: Option<&Path>) -> Result<()> {
    let Some(path) = json else {
        say(text);
        return Ok(());
    };
    let mut body = serde_json::to_string_pretty(result)
        .map_err(|error| BenchError::Wrong(format!("the result cannot be written as JSON: {error}")))?;
    body.push('\n');
    if path == Path::new("-") {
        eprint!("{text}");
        say(&body);
        return Ok(());
    }
    say(text);
    std::fs::write(path, body).map_err(BenchError::file(path))
}

/// `12 B`, `4.1 KB`, `90.9 MB`: powers of 1000, as rates are.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `4K`, `1M`, `4097`: as sizes are given on the command line.
pub(crate) fn size_text(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// `8.4 us`, `1.20 ms`, `2.5 s`.
pub(crate) fn time_text(us: f64) -> String {
    if us < 1e3 {
        format!("{us:.1} us")
    } else if us < 1e6 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// Columns, each as wide as its widest cell; the first is aligned left, the others right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a String does not fail.
            let _ =
                if column == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_in_fitting_units() {
        assert_eq!(bytes_text(999), "999 B");
        assert_eq!(bytes_text(90_900_000), "90.9 MB");
        assert_eq!(size_text(4096), "4K");
        assert_eq!(size_text(4097), "4097");
        assert_eq!(size_text(0), "0");
        assert_eq!(time_text(8.44), "8.4 us");
        assert_eq!(time_text(1200.0), "1.20 ms");
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(columns(&[row(["size", "p50"]), row(["4K", "10 us"])]), "size    p50\n4K    10 us\n");
    }

    #[test]
    fn no_time_and_no_bytes_give_no_infinities() {
        let figures = Figures::new(&Tally::new(), Duration::ZERO, Some(Duration::from_secs(1)));
        let json = serde_json::to_value(&figures).unwrap();
        assert_eq!(json["gigabytes_per_second"], 0.0);
        assert!(json["cpu_seconds_per_gigabyte"].is_null());
        assert_eq!((figures.routes_text(), figures.errors_text()), ("none".to_owned(), "none".to_owned()));
    }
}
