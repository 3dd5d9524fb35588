//! Runs rows: ours and the reference in turn, pair after pair, each pair a ratio.

use std::time::{Duration, Instant};

use crate::cpu;
use crate::load::{Load, Shape};
use crate::nodes::Nodes;
use crate::options::Options;
use crate::perftest::{self, Runs};
use crate::problem::Problem;
use crate::rows::{Method, Reference, Row};
use crate::ucx::Put;
use crate::{idle, ring, settings, stream};

/// Cores that others may use during a pair. With more, it is measured again: as often as there are pairs, in all.
pub(crate) const OTHER_CORES_MAX: f64 = 0.3;
/// Before the first pair each side runs once so long, uncounted.
const WARM_UP: Duration = Duration::from_millis(100);

/// One measurement of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// Bytes a second; items a second for rings.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
    /// CPU seconds of both ends, where they can be had.
    pub(crate) cpu_s: Option<f64>,
    /// Bytes moved.
    pub(crate) bytes: f64,
}

impl Measure {
    /// CPU seconds for 10^9 bytes.
    pub(crate) fn cpu_s_per_gb(&self) -> Option<f64> {
        self.cpu_s.map(|cpu_s| cpu_s / (self.bytes / 1e9))
    }
}

/// Ours and the reference, measured one right after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) ours: Measure,
    pub(crate) reference: Measure,
    /// Cores that other processes of the machine used meanwhile.
    pub(crate) other_cores: f64,
}

/// What a row has given.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// One ratio for each pair, or figures in the row's unit.
    pub(crate) samples: Vec<f64>,
    /// Empty for rows without a reference.
    pub(crate) pairs: Vec<Pair>,
    /// Pairs measured again because others were busy.
    pub(crate) repeated: usize,
    pub(crate) notes: Vec<String>,
}

/// Runs rows one after the other and hands each outcome over.
pub(crate) fn run(
    options: &Options,
    rows: &[&'static Row],
    mut report: impl FnMut(&'static Row, Result<Outcome, Problem>),
) {
    let mut bench = Bench { options, nodes: None };
    for row in rows {
        eprintln!("{}: {}", row.name, row.what);
        let outcome = bench.row(row);
        if outcome.is_err() {
            // Whatever state they are in, the next row shall not inherit it.
            bench.nodes = None;
        }
        report(row, outcome);
    }
}

struct Bench<'a> {
    options: &'a Options,
    /// The nodes and our load on them, kept from row to row.
    nodes: Option<(Load, Nodes)>,
}

impl Bench<'_> {
    fn row(&mut self, row: &Row) -> Result<Outcome, Problem> {
        let (options, pairs) = (self.options, self.options.pairs());
        match &row.method {
            Method::Writes { ours, reference } => self.writes(ours, reference),
            Method::Device(shape) => self.device(*shape),
            Method::Ring { batch } => alternate(
                options,
                |_| Ok(0.0),
                |_, duration| ring::ours(*batch, duration),
                |_, duration| ring::rtrb(*batch, duration),
                &mut (),
            ),
            Method::Settings | Method::Idle => {
                // These start nodes of their own; two pairs of lanes would share the cores.
                self.nodes = None;
                let samples = match row.method {
                    Method::Settings => settings::measure(options, pairs)?,
                    _ => idle::measure(options, pairs)?,
                };
                Ok(Outcome { samples, ..Outcome::default() })
            }
        }
    }

    /// The kernel's threads are the device here, and in a guest nothing tells what the host does meanwhile: there are no
    /// other processes to look for.
    fn device(&self, shape: perftest::Shape) -> Result<Outcome, Problem> {
        let (options, duration) = (self.options, self.options.duration());
        let ours = Runs::calibrate(options, perftest::Side::Ours, shape, duration)?;
        let reference = Runs::calibrate(options, perftest::Side::Perftest, shape, duration)?;
        let mut pairs = Vec::new();
        for _ in 0..options.pairs() {
            let (ours, reference) = (ours.measure(duration)?, reference.measure(duration)?);
            pairs.push(Pair { ours, reference, other_cores: 0.0 });
        }
        let samples = pairs.iter().map(|pair| pair.ours.rate / pair.reference.rate).collect();
        Ok(Outcome { samples, pairs, ..Outcome::default() })
    }

    fn writes(&mut self, ours: &Shape, reference: &Reference) -> Result<Outcome, Problem> {
        let options = self.options;
        let spin = options.client_spin_us.map(Duration::from_micros);
        let ours = &Shape { spin: spin.unwrap_or(ours.spin), ..*ours };
        // Without UCX there is nothing to measure, so the nodes need not be started.
        let put = match reference {
            Reference::UcxPut if !options.ours_only => {
                self.nodes = None;
                Some(Put::calibrate(options, ours.bytes, ours.outstanding, options.duration())?)
            }
            _ => None,
        };
        let perftest = match reference {
            Reference::Perftest if !options.ours_only => {
                self.nodes = None;
                let outstanding = u32::try_from(ours.outstanding).unwrap_or(u32::MAX);
                let shape = perftest::Shape::Bandwidth { bytes: ours.bytes, outstanding };
                Some(Runs::calibrate(options, perftest::Side::Perftest, shape, options.duration())?)
            }
            _ => None,
        };
        let nodes = self.nodes()?;
        let note = nodes.0.step_down();
        let mut outcome = alternate(
            options,
            |(_, nodes)| nodes.cpu_s().map(|used| used.iter().sum()),
            |(load, nodes), duration| load.measure(nodes, ours, duration),
            |(load, nodes), duration| match (reference, &put, &perftest) {
                (Reference::Ours(shape), ..) => load.measure(nodes, shape, duration),
                (_, Some(put), _) => put.measure(duration),
                (_, _, Some(perftest)) => perftest.measure(duration),
                _ => stream::measure(size(ours.bytes), size(ours.walk_bytes), duration),
            },
            nodes,
        )?;
        outcome.notes.extend(note);
        Ok(outcome)
    }

    fn nodes(&mut self) -> Result<&mut (Load, Nodes), Problem> {
        let nodes = match self.nodes.take() {
            Some(nodes) => nodes,
            None => {
                let mut nodes = Nodes::start(self.options)?;
                (Load::attach(&mut nodes)?, nodes)
            }
        };
        Ok(self.nodes.insert(nodes))
    }
}

/// Both sides in turn, until there are as many quiet pairs as asked for, or twice as many in all; then the quietest.
/// `nodes_cpu_s` is the CPU time so far of processes that are neither this one nor ended children of it.
fn alternate<S>(
    options: &Options,
    nodes_cpu_s: impl Fn(&S) -> Result<f64, Problem>,
    mut ours: impl FnMut(&mut S, Duration) -> Result<Measure, Problem>,
    mut reference: impl FnMut(&mut S, Duration) -> Result<Measure, Problem>,
    state: &mut S,
) -> Result<Outcome, Problem> {
    let (duration, wanted) = (options.duration(), options.pairs());
    // A soft RDMA device is threads of the kernel.
    let others_max = if options.verbs.is_some() { f64::INFINITY } else { OTHER_CORES_MAX };
    ours(state, WARM_UP)?;
    if options.ours_only {
        let measure = ours(state, duration)?;
        let cost = measure.cpu_s_per_gb().map_or_else(String::new, |cost| format!(", {cost:.3} CPU s/GB"));
        let notes = vec![format!("ours only: {:.2} GB/s{cost}", measure.bytes / measure.seconds / 1e9)];
        return Ok(Outcome { notes, ..Outcome::default() });
    }
    reference(state, WARM_UP)?;
    let mut pairs: Vec<Pair> = Vec::new();
    let mut quiet = 0;
    while quiet < wanted && pairs.len() < 2 * wanted {
        let start = Instant::now();
        let counted = nodes_cpu_s(state)? + cpu::own_s();
        let machine = cpu::machine_s();
        let (ours, reference) = (ours(state, duration)?, reference(state, duration)?);
        let others = cpu::machine_s() - machine - (nodes_cpu_s(state)? + cpu::own_s() - counted);
        let other_cores = (others / start.elapsed().as_secs_f64()).max(0.0);
        quiet += usize::from(other_cores <= others_max);
        pairs.push(Pair { ours, reference, other_cores });
    }
    let repeated = pairs.len() - wanted;
    pairs.sort_by(|left, right| left.other_cores.total_cmp(&right.other_cores));
    pairs.truncate(wanted);
    let samples = pairs.iter().map(|pair| pair.ours.rate / pair.reference.rate).collect();
    let loud = pairs.iter().filter(|pair| pair.other_cores > others_max).count();
    let notes = (loud > 0)
        .then(|| format!("in {loud} pairs other processes used more than {OTHER_CORES_MAX} cores: run it again when the machine is quiet"));
    Ok(Outcome { samples, pairs, repeated, notes: notes.into_iter().collect() })
}

/// Sizes of rows are far below what an address can name.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
