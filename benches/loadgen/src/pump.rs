//! Keeps a port busy, and counts what comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use railhead_client::{Completion, Full, Leg, Port, Read, Write, outcome};

use crate::error::{BenchError, Result};

/// Nothing completes for this long: something is broken. Longer than the longest default deadline.
pub(crate) const STALL: Duration = Duration::from_secs(90);
/// Completions taken at a time.
const BATCH: usize = 64;
/// Failed transfers that are told one by one.
const TOLD_MAX: usize = 5;

/// What became of many transfers.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    /// From submission to completion, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) transfers: u64,
    pub(crate) bytes: u64,
    /// Bytes and transfers by the route taken.
    pub(crate) routes: BTreeMap<String, (u64, u64)>,
    /// By the code's name.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The first failures in words.
    pub(crate) told: Vec<String>,
    /// Oldest and newest settings generation that chose a route.
    pub(crate) generations: Option<(u64, u64)>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let mut latency_ns = Histogram::new(3).expect("three digits are within the histogram's range");
        latency_ns.auto(true);
        Self {
            latency_ns,
            transfers: 0,
            bytes: 0,
            routes: BTreeMap::new(),
            errors: BTreeMap::new(),
            told: Vec::new(),
            generations: None,
        }
    }

    pub(crate) fn add(&mut self, completion: &Completion, latency: Duration) {
        if let Err(failure) = outcome(completion) {
            let name = failure
                .code
                .map_or_else(|| format!("code_{}", failure.number), |code| code.name().to_owned());
            *self.errors.entry(name).or_default() += 1;
            if self.told.len() < TOLD_MAX {
                self.told.push(failure.to_string());
            }
            return;
        }
        self.transfers += 1;
        self.bytes += completion.bytes;
        let latency = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        // Not the saturating one, which would stay within the histogram's first size. This one grows and cannot fail.
        let recorded = self.latency_ns.record(latency);
        debug_assert!(recorded.is_ok(), "the histogram grows with its values");
        let route = match (completion.send_leg, completion.receive_leg) {
            // Nothing took a route, whatever would have been chosen.
            _ if completion.bytes == 0 => "empty".to_owned(),
            (send, receive) => format!("{}-{}", Leg(send).name(), Leg(receive).name()),
        };
        let entry = self.routes.entry(route).or_default();
        *entry = (entry.0 + completion.bytes, entry.1 + 1);
        let (oldest, newest) = self.generations.unwrap_or((completion.generation, completion.generation));
        self.generations = Some((oldest.min(completion.generation), newest.max(completion.generation)));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency_ns += &other.latency_ns;
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        for (route, (bytes, transfers)) in &other.routes {
            let entry = self.routes.entry(route.clone()).or_default();
            *entry = (entry.0 + bytes, entry.1 + transfers);
        }
        for (name, count) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
        let room = TOLD_MAX.saturating_sub(self.told.len());
        self.told.extend(other.told.iter().take(room).cloned());
        self.generations = match (self.generations, other.generations) {
            (Some(mine), Some(theirs)) => Some((mine.0.min(theirs.0), mine.1.max(theirs.1))),
            (mine, theirs) => mine.or(theirs),
        };
    }

    /// Takes over the errors of transfers that are not measured, such as a warm-up's.
    pub(crate) fn blame(&mut self, other: &Self) {
        let errors = Self { errors: other.errors.clone(), told: other.told.clone(), ..Self::new() };
        self.merge(&errors);
    }

    pub(crate) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// What a pump submits.
pub(crate) enum Work {
    Write(Write),
    Read(Read),
}

impl Work {
    const fn cookie(&self) -> u64 {
        match self {
            Self::Write(write) => write.cookie,
            Self::Read(read) => read.cookie,
        }
    }

    fn submit(&self, port: &mut Port) -> core::result::Result<(), Full> {
        match self {
            Self::Write(write) => port.submit(write),
            Self::Read(read) => port.submit_read(read),
        }
    }
}

/// Submits what `next` gives, with up to `outstanding` in flight, until it gives nothing more and all have completed.
/// Cookies are numbers below `cookies`, none in flight twice. `next` gets the time of its batch.
pub(crate) fn pump(
    port: &mut Port,
    outstanding: usize,
    cookies: usize,
    mut next: impl FnMut(Instant) -> Result<Option<Work>>,
    mut done: impl FnMut(&Completion, Duration),
) -> Result<()> {
    let mut started = vec![Instant::now(); cookies];
    let mut completions = [Completion::default(); BATCH];
    let mut exhausted = false;
    loop {
        let now = Instant::now();
        while !exhausted && port.in_flight() < outstanding && port.room() > 0 {
            let Some(work) = next(now)? else {
                exhausted = true;
                break;
            };
            started[work.cookie() as usize] = now;
            if work.submit(port).is_err() {
                return Err(BenchError::Wrong("a port with room refused a submission as full".to_owned()));
            }
        }
        port.ring();
        if port.in_flight() == 0 {
            return Ok(());
        }
        let count = port.poll(&mut completions);
        if count == 0 {
            if !port.wait(STALL) {
                return Err(BenchError::Stalled { in_flight: port.in_flight(), after: STALL });
            }
            continue;
        }
        let now = Instant::now();
        for completion in &completions[..count] {
            done(completion, now - started[completion.cookie as usize]);
        }
    }
}

/// One transfer from submission to completion.
pub(crate) fn transfer(port: &mut Port, write: Write, doing: &str) -> Result<Completion> {
    let mut only = Some(Work::Write(Write { cookie: 0, ..write }));
    let mut last = Completion::default();
    pump(port, 1, 1, |_| Ok(only.take()), |completion, _| last = *completion)?;
    match outcome(&last) {
        Ok(()) => Ok(last),
        Err(failure) => Err(BenchError::Transfer { doing: doing.to_owned(), failure }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railhead_client::Code;

    #[test]
    fn routes_errors_and_generations_are_counted_apart() {
        let mut tally = Tally::new();
        let done =
            Completion { send_leg: 1, receive_leg: 2, bytes: 10, generation: 5, ..Completion::default() };
        tally.add(&done, Duration::from_micros(3));
        tally.add(&Completion { generation: 4, ..done }, Duration::from_micros(5));
        tally.add(&Completion { status: Code::PeerDown.number(), ..done }, Duration::from_micros(5));
        tally.add(&Completion { status: 9999, ..done }, Duration::ZERO);
        let mut other = Tally::new();
        other.add(
            &Completion { send_leg: 0, receive_leg: 0, bytes: 0, generation: 9, ..done },
            Duration::ZERO,
        );
        tally.merge(&other);
        assert_eq!((tally.transfers, tally.bytes, tally.error_count()), (3, 20, 2));
        assert_eq!(tally.routes["staged-direct"], (20, 2));
        assert_eq!(tally.routes["empty"], (0, 1));
        assert_eq!(tally.errors["peer_down"], 1);
        assert_eq!(tally.errors["code_9999"], 1);
        assert_eq!(tally.generations, Some((4, 9)));
        assert_eq!(tally.latency_ns.len(), 3);
        assert!((4990..5010).contains(&tally.latency_ns.max()), "{}", tally.latency_ns.max());
        assert_eq!(tally.told.len(), 2);
    }
}
