//! `railhead-dataplane`: checks its configuration, starts the node, waits for a signal, stops it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use railhead_abi::Code;
use railhead_config::Config;
use railhead_daemon::allocator::CountingAllocator;
use railhead_daemon::log::LogOutput;
use railhead_daemon::{Node, Plan, StartError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The dataplane of a Railhead node: moves tensors between memories of this node and of its peers.
#[derive(Debug, Parser)]
#[command(name = "railhead-dataplane", version, group(ArgGroup::new("file").required(true)))]
struct Arguments {
    /// Run with this configuration file.
    #[arg(long, value_name = "FILE", group = "file")]
    config: Option<PathBuf>,
    /// Check this configuration file against this machine, and start nothing.
    #[arg(long, value_name = "FILE", group = "file")]
    check: Option<PathBuf>,
}

impl Arguments {
    /// The file; the group makes sure that there is one.
    fn file(&self) -> &Path {
        self.config.as_deref().or(self.check.as_deref()).unwrap_or(Path::new(""))
    }
}

/// The configuration is wrong, or something that it names is not to be had: another try is of no use.
const EXIT_REFUSED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    abort_on_panic();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("railhead-dataplane: {error}");
            ExitCode::from(EXIT_REFUSED)
        }
    }
}

/// A refusal with the file that it is about.
fn in_file(path: &Path) -> impl Fn(StartError) -> String + '_ {
    |error| format!("{}: {error}", path.display())
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let file = arguments.file();
    let plan = Plan::new(Config::load(file)?).map_err(in_file(file))?;
    if arguments.check.is_some() {
        println!("{} is valid: {}", file.display(), plan.summary());
        return Ok(());
    }
    let log = LogOutput::start(std::io::stderr())?;
    tracing_subscriber::fmt()
        .with_env_filter(plan.log_filter())
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(log.clone())
        .init();
    let outcome = run_node(&plan);
    // Before an error is written past the log.
    log.flush();
    outcome.map_err(|error| in_file(file)(error).into())
}

/// Runs a node until a signal ends it.
fn run_node(plan: &Plan) -> Result<(), StartError> {
    // Before any other thread: a signal during the start is seen right after it.
    let signals = Signals::new([SIGTERM, SIGINT]);
    let mut signals =
        signals.map_err(|error| StartError::new(Code::DeviceError, "signal handlers", error))?;
    let node = Node::start(plan)?;
    if let Some(signal) = signals.forever().next() {
        // A second one does not wait for the first one's stop.
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                std::process::exit(1);
            }
        });
        node.stop(signal);
    }
    Ok(())
}

/// A dataplane that has met a bug must not go on with half of its threads: others hold its memory.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
