//! `railhead-control`: the REST server of a node.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser};
use railhead_config::Config;
use railhead_control::{Bound, Control};
use tokio::signal::unix::{SignalKind, signal};

/// REST over the settings, counters and records of a node's dataplane.
#[derive(Debug, Parser)]
#[command(version, group(ArgGroup::new("file").required(true)))]
struct Arguments {
    /// Serve with this configuration, the same file that railhead-dataplane takes.
    #[arg(long, value_name = "FILE", group = "file")]
    config: Option<PathBuf>,
    /// Check this configuration file, and start nothing.
    #[arg(long, value_name = "FILE", group = "file")]
    check: Option<PathBuf>,
}

/// How long the first attempt to attach may take before the server starts without a dataplane.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("railhead-control: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    // The group makes sure that there is one of the two.
    let file = arguments.config.as_deref().or(arguments.check.as_deref()).unwrap_or(Path::new(""));
    let config = Config::check(file)?;
    if arguments.check.is_some() {
        println!("{}: valid configuration of node {}", file.display(), config.node.name);
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(tracing_subscriber::EnvFilter::new(config.control.log.name()))
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(serve(&config))
}

async fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("asked to stop by SIGTERM"),
            _ = interrupt.recv() => tracing::info!("asked to stop by SIGINT"),
        }
    };
    let bound = Bound::bind(&config.control.listen).await?;
    let control = Control::start(config)?;
    control.first_attempt(FIRST_ATTEMPT).await?;
    tracing::info!(node = config.node.name, url = bound.url(), "serving");
    control.serve(bound, stop).await?;
    Ok(())
}
