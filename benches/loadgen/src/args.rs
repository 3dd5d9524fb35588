//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use railhead_client::{Class, Leg};

/// Moves data through a running Railhead dataplane and verifies every byte.
#[derive(Debug, Parser)]
#[command(name = "railhead-bench", version)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Move every tensor of a safetensors file to a peer and compare SHA-256 there
    Push(Push),
    /// Receive: run this at the peer, for push and sweep
    Serve(Serve),
    /// Sizes x routes: latency, bandwidth, bytes by route, data verified
    Sweep(Sweep),
    /// The RDMA fabric alone, between two devices in two processes, to stand beside perftest
    VerbsRaw(VerbsRaw),
    /// Write a deterministic file with the tensors of all-MiniLM-L6-v2 (no network, no Python)
    MakeModel(MakeModel),
}

/// What push and sweep share: how to reach the serving program.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Session socket of this node's dataplane
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Node to send to: a name from [[peer]], or `self`
    #[arg(long, value_name = "NODE")]
    pub(crate) to: String,
    /// Region name that `railhead-bench serve` listens under
    #[arg(long, value_name = "REGION", default_value = "sink")]
    pub(crate) sink: String,
    /// Name of this session [default: bench-PID]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Transfers in flight on each port, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) outstanding: u32,
    /// How long to wait for the peer and its serving program to come up
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) wait: Duration,
    /// How long to wait for an answer of the serving program
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// How long to poll for completions before sleeping
    #[arg(long, value_name = "US", default_value_t = 20)]
    pub(crate) spin_us: u64,
    /// Queue of the transfers
    #[arg(long, value_enum, default_value_t = ClassName::Bulk)]
    pub(crate) class: ClassName,
    /// Also write the result as JSON: a file, or `-` for standard output (the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Report CPU seconds per GB of these processes (the dataplanes)
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) cpu_of: Vec<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The safetensors file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Move the whole file this many times, verified each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Force the route, as SEND-RECEIVE of auto, staged and direct
    #[arg(long, value_name = "ROUTE", default_value = "auto")]
    pub(crate) route: Route,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Session socket of this node's dataplane
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Region name to listen under
    #[arg(long, value_name = "REGION", default_value = "sink")]
    pub(crate) sink: String,
    /// Who may send: NODE/NAME of a session, NODE/*, or *
    #[arg(long, value_name = "GRANT", default_value = "*")]
    pub(crate) grant: String,
    /// Most memory that one sender may ask for
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = size)]
    pub(crate) memory: u64,
    /// End after the first sender has left
    #[arg(long)]
    pub(crate) once: bool,
    /// When the dataplane ends, wait for its restart and serve again
    #[arg(long)]
    pub(crate) stay: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Sizes of transfers; K, M, G are powers of 1024
    #[arg(long, value_name = "SIZES", default_value = "4K,64K,1M,16M", value_delimiter = ',', value_parser = size)]
    pub(crate) sizes: Vec<u64>,
    /// Write to the peer, or read from it
    #[arg(long, value_enum, default_value_t = Operation::Write)]
    pub(crate) operation: Operation,
    /// Routes, as SEND-RECEIVE of auto, staged and direct; `auto`; or `all` for the four forced ones
    #[arg(long, value_name = "ROUTES", default_value = "all", value_delimiter = ',')]
    pub(crate) routes: Vec<RouteList>,
    /// How long to measure each size and route
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, conflicts_with = "iterations")]
    pub(crate) seconds: Duration,
    /// Measure this many transfers of each size and route instead
    #[arg(long, value_name = "N")]
    pub(crate) iterations: Option<u64>,
    /// Ports, one thread each, spread over the lanes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ports: u32,
    /// Walk through memory of this size, so that buffers are not in the caches
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, default_missing_value = "256M", value_parser = size)]
    pub(crate) cold: Option<u64>,
    /// Most memory to take, here and at the peer
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = size)]
    pub(crate) memory: u64,
}

#[derive(Debug, Args)]
pub(crate) struct VerbsRaw {
    /// RDMA device of this end
    #[arg(long, value_name = "NAME")]
    pub(crate) device: String,
    /// Wait here for the writing end, be written to once, and end
    #[arg(long, value_name = "IP:PORT", conflicts_with = "connect", required_unless_present = "connect")]
    pub(crate) listen: Option<SocketAddr>,
    /// Write to the end that listens there
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) connect: Option<SocketAddr>,
    /// Bytes of a write, the same at both ends
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub(crate) bytes: u32,
    /// Writes that are posted and not ended
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) outstanding: u32,
    /// Writes to count
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) messages: u64,
    /// One write at a time, from its post to its completion
    #[arg(long)]
    pub(crate) latency: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MakeModel {
    /// The file to write
    pub(crate) file: PathBuf,
}

/// Which way a sweep moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    Write,
    Read,
}

impl Operation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassName {
    Latency,
    Bulk,
}

impl ClassName {
    pub(crate) const fn class(self) -> Class {
        match self {
            Self::Latency => Class::LATENCY,
            Self::Bulk => Class::BULK,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bulk => "bulk",
        }
    }
}

/// Overrides of both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) send: Leg,
    pub(crate) receive: Leg,
}

impl Route {
    /// As on the command line: `auto` or `SEND-RECEIVE`.
    pub(crate) fn name(self) -> String {
        match (self.send, self.receive) {
            (Leg::AUTO, Leg::AUTO) => "auto".to_owned(),
            (send, receive) => format!("{}-{}", send.name(), receive.name()),
        }
    }
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let leg = |name| match name {
            "auto" => Ok(Leg::AUTO),
            "staged" => Ok(Leg::STAGED),
            "direct" => Ok(Leg::DIRECT),
            _ => Err(format!("{text:?} is not a route; use auto, or SEND-RECEIVE such as staged-direct")),
        };
        let (send, receive) = text.split_once('-').unwrap_or((text, text));
        Ok(Self { send: leg(send)?, receive: leg(receive)? })
    }
}

/// One or several routes.
#[derive(Debug, Clone)]
pub(crate) struct RouteList(pub(crate) Vec<Route>);

impl FromStr for RouteList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text != "all" {
            return Ok(Self(vec![text.parse()?]));
        }
        let legs = [Leg::STAGED, Leg::DIRECT];
        Ok(Self(legs.into_iter().flat_map(|send| legs.map(|receive| Route { send, receive })).collect()))
    }
}

/// Bytes with an optional K, M or G.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a size; use a number with K, M or G"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Program::command().debug_assert();
    }

    #[test]
    fn sizes_have_units_of_1024_and_bad_ones_are_named() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("4097"), Ok(4097));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("3m"), Ok(3 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for bad in ["", "K", "1.5M", "-1", "1KB", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(size("1KB").unwrap_err().contains("1KB"));
    }

    #[test]
    fn routes_read_and_print_the_same() {
        for name in
            ["auto", "staged-staged", "staged-direct", "direct-staged", "direct-direct", "auto-staged"]
        {
            assert_eq!(name.parse::<Route>().unwrap().name(), name);
        }
        assert_eq!("staged".parse::<Route>().unwrap().name(), "staged-staged");
        assert!("staged-none".parse::<Route>().unwrap_err().contains("staged-none"));
        let all: RouteList = "all".parse().unwrap();
        let names: Vec<String> = all.0.iter().map(|route| route.name()).collect();
        assert_eq!(names, ["staged-staged", "staged-direct", "direct-staged", "direct-direct"]);
    }

    #[test]
    fn seconds_are_positive_numbers() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err());
        assert!(seconds("soon").is_err());
    }
}
