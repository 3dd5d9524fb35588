//! `railhead-bench`: moves data through a running dataplane, verifies every byte of it, and says how it went.
//!
//! It is an ordinary client of the session socket: `serve` receives at one node, `push` and `sweep` send from another,
//! and what they have to tell each other goes through Railhead too. It never measures without verifying. `verbs-raw` alone runs without a dataplane.
#![forbid(unsafe_code)]

mod args;
mod cpu;
mod digest;
mod error;
mod exchange;
mod model;
mod pattern;
mod pump;
mod push;
mod report;
mod serve;
mod sink;
mod sweep;
mod verbs_raw;

use std::process::ExitCode;

use clap::Parser;

use args::{Command, Program};
use error::BenchError;

fn main() -> ExitCode {
    let result = match Program::parse().command {
        Command::Push(push) => push::run(&push),
        Command::Serve(serve) => serve::run(&serve),
        Command::Sweep(sweep) => sweep::run(&sweep),
        Command::VerbsRaw(raw) => verbs_raw::run(&raw),
        Command::MakeModel(make) => model::make(&make),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("railhead-bench: {error}");
            // Wrong input, as clap has it; everything else is 1.
            if matches!(error, BenchError::Argument { .. }) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
