//! The arguments.

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Looks at a Railhead node and changes its settings while transfers run.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 done, 1 refused, 2 wrong usage, 3 control or its dataplane cannot be reached."
)]
pub(crate) struct Arguments {
    /// Where control listens: http://127.0.0.1:PORT or unix:/PATH [default: $RAILHEAD_URL, else http://127.0.0.1:7411].
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// Print what control answered, as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Where control listens.
    pub(crate) fn url(&self) -> String {
        let given =
            self.url.clone().or_else(|| std::env::var("RAILHEAD_URL").ok().filter(|url| !url.is_empty()));
        given.unwrap_or_else(|| "http://127.0.0.1:7411".to_owned())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Node, lanes, routes, pools, peers and what went wrong lately.
    Status,
    /// Change settings, all or none; without arguments, show them.
    Set(Set),
    /// The peers of the node; with a command, add one or remove one while transfers run.
    Peers {
        #[command(subcommand)]
        change: Option<PeersChange>,
    },
    /// What happened on the node.
    Events(Events),
    /// The last transfers.
    Transfers(Transfers),
    /// Why a transfer went the way it did, and where its time went.
    Why {
        /// A ticket such as 0x1f, or `last`.
        transfer: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Names and values, such as send.mode=staged chunk_bytes=64KiB lanes.0.core=none.
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) pairs: Vec<(String, String)>,
    /// Only show what would change.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Only if the settings are still at this generation or ETag.
    #[arg(long, value_name = "GENERATION")]
    pub(crate) if_match: Option<String>,
    /// How long lanes may take before the answer is `pending`.
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pub(crate) timeout_ms: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeersChange {
    /// Add a peer; it is connected as soon as both nodes know each other.
    Add {
        /// Its own name.
        name: String,
        /// Where its fabric listens, HOST:PORT.
        address: String,
    },
    /// Remove a peer: its handles become stale, its transfers and connections end.
    Remove {
        /// Its name.
        name: String,
        /// How long transfers to it may take to end by themselves.
        #[arg(long, value_name = "MS", default_value_t = 1000)]
        drain_ms: u32,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Go on with what happens, until interrupted.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// How many of the last events.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Only events that are at least so severe.
    #[arg(long, value_enum, default_value_t = Severity::Info)]
    pub(crate) severity: Severity,
}

#[derive(Debug, Args)]
pub(crate) struct Transfers {
    /// How many.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Only those that failed.
    #[arg(long)]
    pub(crate) failed: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("expected KEY=VALUE, such as send.mode=staged".to_owned()),
    }
}
