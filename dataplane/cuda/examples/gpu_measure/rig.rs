//! The machine under measurement, and how pairs become a row.

use std::time::Instant;

use railhead_cuda::{Absent, Device, Driver, Gpu};
use serde_json::{Value, json};

/// What the command line says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Pairs of a row.
    pub(crate) pairs: usize,
    /// Copy and measure nothing: for what runs beside.
    pub(crate) load: bool,
    /// That by resident kernels.
    pub(crate) kernels: bool,
}

impl Options {
    pub(crate) fn from_arguments() -> Self {
        let given = |name: &str| std::env::args().any(|argument| argument == name);
        Self {
            pairs: if given("--quick") { 3 } else { 15 },
            load: given("--load"),
            kernels: given("--kernels"),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) options: Options,
    driver: Driver,
}

impl Rig {
    pub(crate) fn open(options: Options) -> Result<Self, Absent> {
        let driver = Driver::open()?;
        let count = driver.device_count().map_err(Absent::Failed)?;
        let gpus: Result<Vec<_>, _> = (0..count).map(|ordinal| Gpu::open(&driver, ordinal)).collect();
        Ok(Self { gpus: gpus.map_err(Absent::Failed)?, options, driver })
    }

    pub(crate) fn print_machine(&self) {
        let devices: Vec<String> = self.gpus.iter().map(|gpu| describe(gpu.device())).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        println!(
            "{}",
            json!({
                "machine": {
                    "gpus": devices, "cuda": self.driver.version(), "cores": cores, "kernel": kernel.trim(),
                    "batched_copies": self.driver.has_batched_copies(), "pairs": self.options.pairs,
                }
            })
        );
    }

    /// The GPUs of copies between two: the first and the last, which are the same where there is one.
    pub(crate) fn two(&self) -> (usize, usize) {
        (0, self.gpus.len() - 1)
    }
}

fn describe(device: &Device) -> String {
    format!(
        "{} at {}, NUMA node {:?}, compute {}.{}, {} copy engines, writes ordered {:?}, flush by host {}, by stream {}, \
         dma-buf {}, MPS {}",
        device.name,
        device.pci,
        device.numa_node,
        device.compute.0,
        device.compute.1,
        device.copy_engines,
        device.writes_ordering,
        device.flush_by_host,
        device.flush_by_stream,
        device.dma_buf,
        device.mps
    )
}

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// One row: ours and the reference measured one right after the other, again and again.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) better: Better,
    /// The ratio ours / reference that is asked for.
    pub(crate) goal: f64,
    pub(crate) note: &'a str,
}

impl Row<'_> {
    pub(crate) fn measure(
        &self,
        rig: &Rig,
        mut ours: impl FnMut() -> f64,
        mut reference: impl FnMut() -> f64,
    ) {
        // Not counted: first calls load, compile and map.
        let _ = (ours(), reference());
        let mut pairs = Vec::new();
        for pair in 0..rig.options.pairs {
            // Turn about, so that what one leaves behind meets both.
            let (our, their) = if pair % 2 == 0 {
                let our = ours();
                (our, reference())
            } else {
                let their = reference();
                (ours(), their)
            };
            pairs.push((our, their));
        }
        self.print(&pairs);
    }

    fn print(&self, pairs: &[(f64, f64)]) {
        let mut ratios: Vec<f64> = pairs.iter().map(|(our, their)| our / their).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = interval(&ratios);
        let verdict = match self.better {
            Better::More if low >= self.goal => "ok",
            Better::More if high < self.goal => "short",
            Better::Less if high <= self.goal => "ok",
            Better::Less if low > self.goal => "short",
            _ => "unsure",
        };
        let pairs_text: Vec<Value> = pairs.iter().map(|(a, b)| json!([short(*a), short(*b)])).collect();
        println!(
            "{}",
            json!({
                "row": self.name, "unit": self.unit, "verdict": verdict, "goal": self.goal,
                "ratio": short(median(&ratios)), "interval": [short(low), short(high)],
                "ours": short(median(&sorted(pairs.iter().map(|pair| pair.0)))),
                "reference": short(median(&sorted(pairs.iter().map(|pair| pair.1)))),
                "note": self.note, "pairs": pairs_text,
            })
        );
    }
}

pub(crate) fn not_run(name: &str, reason: &str) {
    println!("{}", json!({ "row": name, "verdict": "not run", "note": reason }));
}

/// The order statistics that hold the true median with more than nine tenths: of 15 the 4th from either end.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let skip = match sorted.len() {
        15.. => sorted.len() * 3 / 15,
        8..15 => 1,
        _ => 0,
    };
    (sorted[skip], sorted[sorted.len() - 1 - skip])
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// Four digits: more would be noise.
fn short(value: f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Sorted times in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn of(count: usize, mut one: impl FnMut()) -> Self {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            one();
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn from_unsorted(times: Vec<f64>) -> Self {
        Self(sorted(times.into_iter()))
    }

    /// The time that so many of a thousand are not above.
    pub(crate) fn at(&self, per_mille: usize) -> f64 {
        self.0[(self.0.len() - 1) * per_mille / 1000]
    }

    pub(crate) fn print(&self, name: &str, bytes: u64) {
        println!(
            "{}",
            json!({
                "latency": name, "bytes": bytes, "count": self.0.len(), "unit": "us",
                "p50": short(self.at(500)), "p99": short(self.at(990)), "p999": short(self.at(999)),
            })
        );
    }
}

/// CPU seconds of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
