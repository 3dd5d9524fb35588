//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::perftest::Devices;

/// Pairs of a `--quick` run.
const PAIRS_QUICK: usize = 3;

/// Measures Railhead beside references, alternating in one run, and judges the ratios. Run it through ops/bench.
///
/// Exit status: 0 when no row is short of its goal, 1 when one is, 2 when nothing could be measured.
#[derive(Debug, Parser)]
#[command(name = "railhead-compare", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    /// Rows to run, by name, with commas between; all when left out. See --list.
    #[arg(long, value_delimiter = ',', value_name = "ROW")]
    pub(crate) rows: Vec<String>,
    /// How often ours and the reference alternate.
    #[arg(long, default_value_t = 15, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pairs: u32,
    /// Three short pairs, to see that everything runs: too few for a 90 % interval.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub(crate) milliseconds: u64,
    /// Also write everything, with the machine's description, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print the rows and their goals, and do nothing else.
    #[arg(long)]
    pub(crate) list: bool,
    /// Run only our side of each row, once, for a profiler to look at; there are no verdicts.
    #[arg(long, conflicts_with_all = ["quick", "json"])]
    pub(crate) ours_only: bool,
    /// A setting that both nodes start with, in place of its default.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) settings: Vec<(String, String)>,
    /// A key of the pool section of both configurations, in place of its default.
    #[arg(long = "pool", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) pool: Vec<(String, String)>,
    /// A key of the dataplane section of both configurations, in place of its default.
    #[arg(long = "dataplane", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) dataplane: Vec<(String, String)>,
    /// Microseconds that our client polls before it sleeps, in place of each row's own.
    #[arg(long, value_name = "US", hide = true)]
    pub(crate) client_spin_us: Option<u64>,
    /// Leave the lanes unpinned, in place of one core for each node's lane.
    #[arg(long)]
    pub(crate) unpinned: bool,
    /// Folder of railhead-dataplane and railhead-control; that of this program when left out.
    #[arg(long, value_name = "DIR")]
    pub(crate) binaries: Option<PathBuf>,
    /// Two RDMA devices of this machine: measure the rows that need them, and no others.
    #[arg(long, value_name = "DEVICE=ADDRESS,DEVICE")]
    pub(crate) verbs: Option<Devices>,
    /// Folder of UCX, with bin/ucx_perftest and lib.
    #[arg(long, value_name = "DIR", conflicts_with = "ucx_missing")]
    pub(crate) ucx: Option<PathBuf>,
    /// Why there is no UCX, for the rows that need it.
    #[arg(long, value_name = "WHY", default_value = "no --ucx was given")]
    pub(crate) ucx_missing: String,
    /// How this run was called, for the JSON.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub(crate) called_as: Option<String>,
    /// The version of the code, for the JSON.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub(crate) revision: Option<String>,
    /// Another process of the same run.
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What this program is when it starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// The reading end of the plain stream.
    #[command(hide = true)]
    StreamSink {
        /// Where the writing end listens.
        address: SocketAddr,
        /// Bytes of one read.
        bytes: usize,
        /// Bytes of the buffer.
        walk_bytes: usize,
    },
}

impl Options {
    /// Pairs of each row.
    pub(crate) const fn pairs(&self) -> usize {
        if self.quick { PAIRS_QUICK } else { self.pairs as usize }
    }

    /// Length of one measurement.
    pub(crate) const fn duration(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { self.milliseconds })
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("\"{text}\" is not KEY=VALUE, as in idle.spin_us=100")),
    }
}
