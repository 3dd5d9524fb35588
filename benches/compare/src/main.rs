//! `railhead-compare`: how fast Railhead is beside plain sockets, UCX and another ring.
//!
//! **Owns** the rows, the references and the statistics: ours and the reference alternate in one run on one machine, and
//! what counts is the ratio of each pair. Starts two nodes of its own, from configurations that it generates, in a
//! folder of its own, and ends them.
//!
//! **Never** states an absolute figure as a result, hides a row that could not be measured, or touches a running node.
//!
//! **Called by** `ops/bench`, which builds everything and gives it a network namespace of its own.
#![forbid(unsafe_code)]

mod control;
mod cpu;
mod idle;
mod load;
mod machine;
mod nodes;
mod options;
mod perftest;
mod problem;
mod report;
mod ring;
mod rows;
mod runner;
mod settings;
mod statistics;
mod stream;
mod ucx;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Options, Role};
use crate::problem::Problem;
use crate::report::Report;
use crate::statistics::Verdict;

/// A row is short of its goal.
const EXIT_SHORT: u8 = 1;
/// Nothing could be measured.
const EXIT_UNABLE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match &options.role {
        Some(Role::StreamSink { address, bytes, walk_bytes }) => {
            stream::sink(*address, *bytes, *walk_bytes).map(|()| ExitCode::SUCCESS)
        }
        None if options.list => {
            report::list(rows::ALL);
            report::list(rows::VERBS);
            Ok(ExitCode::SUCCESS)
        }
        None => measure(&options),
    };
    outcome.unwrap_or_else(|problem| {
        eprintln!("railhead-compare: {problem}");
        ExitCode::from(EXIT_UNABLE)
    })
}

fn measure(options: &Options) -> Result<ExitCode, Problem> {
    let chosen = rows::chosen(if options.verbs.is_some() { rows::VERBS } else { rows::ALL }, &options.rows)?;
    let mut report = Report::begin(options)?;
    runner::run(options, &chosen, |row, outcome| report.add(row, outcome));
    let verdicts = report.end()?;
    let code = if verdicts.contains(&Verdict::Short) {
        EXIT_SHORT
    } else if verdicts.iter().all(|verdict| *verdict == Verdict::NotRun) {
        EXIT_UNABLE
    } else {
        0
    };
    Ok(ExitCode::from(code))
}
