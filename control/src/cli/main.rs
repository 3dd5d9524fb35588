//! `railhead`: the operator's command. A client of control's REST routes and nothing else.
//!
//! Exit codes: 0 done, 1 refused, 2 wrong usage, 3 control or its dataplane cannot be reached.
#![forbid(unsafe_code)]

mod client;
mod command;
mod events;
mod output;
mod peers;
mod set;
mod show;
mod status;
mod table;
mod why;

use std::process::ExitCode;

use clap::Parser;

use client::Client;
use command::{Arguments, Command};
use output::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::broken(format!("no runtime: {error}")).report(),
    };
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.url())?;
    let json = arguments.json;
    match &arguments.command {
        Command::Status => status::run(&client, json).await,
        Command::Set(wanted) => set::run(&client, wanted, json).await,
        Command::Peers { change } => peers::run(&client, change.as_ref(), json).await,
        Command::Events(wanted) => events::run(&client, wanted, json).await,
        Command::Transfers(wanted) => why::list(&client, wanted, json).await,
        Command::Why { transfer } => why::run(&client, transfer, json).await,
    }
}
