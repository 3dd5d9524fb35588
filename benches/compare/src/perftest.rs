//! Reference: perftest's `ib_write_bw` and `ib_write_lat` between two RDMA devices of this machine, and `railhead-bench
//! verbs-raw`, which does the same with our fabric alone. Both are two processes, started for each measurement, that
//! count a fixed number of messages.

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::nodes::binaries;
use crate::options::Options;
use crate::problem::{Problem, Tried};
use crate::runner::Measure;
use crate::ucx::{free_port, wait_for_port};

/// How long one run may take, beside what it shall measure. An emulated processor starts programs slowly.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Messages of the first trial. Bandwidth is that of a full queue, so there are always several queues full.
const TRIAL: u64 = 256;
const MESSAGES_MAX: f64 = 1_000_000.0;
const MEBIBYTE: f64 = 1_048_576.0;

/// What is asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Writes of so many bytes with so many outstanding, one way.
    Bandwidth { bytes: u64, outstanding: u32 },
    /// Writes of so many bytes, one at a time: ours from post to completion, perftest's to and fro, of which half counts.
    Latency { bytes: u64 },
}

impl Shape {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Bandwidth { bytes, .. } | Self::Latency { bytes } => bytes,
        }
    }

    pub(crate) const fn is_latency(self) -> bool {
        matches!(self, Self::Latency { .. })
    }
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Perftest,
}

/// The two devices of a run, as given: the server's, its address, and the client's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Devices {
    pub(crate) server: String,
    pub(crate) address: std::net::IpAddr,
    pub(crate) client: String,
}

impl std::str::FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not DEVICE=ADDRESS,DEVICE, as in rxe0=10.8.0.1,rxe1");
        let (server, client) = text.split_once(',').ok_or_else(wrong)?;
        let (server, address) = server.split_once('=').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Self { server: server.to_owned(), address, client: client.to_owned() })
    }
}

/// One side of a row, with how many messages fill a measurement.
#[derive(Debug)]
pub(crate) struct Runs {
    side: Side,
    shape: Shape,
    devices: Devices,
    bench: PathBuf,
    messages: u64,
}

impl Runs {
    /// Finds how many messages take `duration`.
    pub(crate) fn calibrate(
        options: &Options,
        side: Side,
        shape: Shape,
        duration: Duration,
    ) -> Result<Self, Problem> {
        let devices = options.verbs.clone().ok_or_else(|| Problem::new("no --verbs was given"))?;
        let bench = binaries(options)?.join("railhead-bench");
        let mut runs = Self { side, shape, devices, bench, messages: TRIAL };
        for _ in 0..2 {
            let rate = runs.run(TIMEOUT)?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just here")]
            let next = (rate * duration.as_secs_f64()).clamp(TRIAL as f64, MESSAGES_MAX) as u64;
            runs.messages = next;
        }
        Ok(runs)
    }

    /// One run.
    pub(crate) fn measure(&self, duration: Duration) -> Result<Measure, Problem> {
        let per_s = self.run(duration * 10 + TIMEOUT)?;
        let messages = self.messages as f64;
        let bytes = self.shape.bytes() as f64;
        let rate = if self.shape.is_latency() { per_s } else { per_s * bytes };
        Ok(Measure { rate, seconds: messages / per_s, cpu_s: None, bytes: messages * bytes })
    }

    /// Messages a second; for latency, what the median time comes to.
    fn run(&self, limit: Duration) -> Result<f64, Problem> {
        let address = SocketAddr::new(self.devices.address, free_port()?);
        let mut server = self.start(&self.devices.server, address, true)?;
        wait_for_port(address.port(), TIMEOUT, || match server.0.try_wait().tried("the server")? {
            None => Ok(()),
            Some(_) => server.finish(TIMEOUT).map(|_| ()),
        })?;
        let mut client = self.start(&self.devices.client, address, false)?;
        let output = client.finish(limit)?;
        server.finish(TIMEOUT)?;
        let result = match self.side {
            Side::Ours => ours_result(&output),
            Side::Perftest => perftest_result(&output, self.shape),
        };
        result.ok_or_else(|| Problem::new(format!("no result: {}", output.trim())))
    }

    fn start(&self, device: &str, address: SocketAddr, is_server: bool) -> Result<Ended, Problem> {
        let mut command = match self.side {
            Side::Ours => self.ours(device, address, is_server),
            Side::Perftest => self.perftest(device, address, is_server),
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .tried(format!("starting {:?}", command.get_program()))
            .map(Ended)
    }

    fn ours(&self, device: &str, address: SocketAddr, is_server: bool) -> Command {
        let mut command = Command::new(&self.bench);
        command.args(["verbs-raw", "--device", device, "--messages", &self.messages.to_string()]);
        command.args(["--bytes", &self.shape.bytes().to_string()]);
        match self.shape {
            Shape::Bandwidth { outstanding, .. } => {
                command.args(["--outstanding", &outstanding.to_string()]);
            }
            Shape::Latency { .. } => {
                command.arg("--latency");
            }
        }
        command.arg(if is_server { "--listen" } else { "--connect" }).arg(address.to_string());
        command
    }

    fn perftest(&self, device: &str, address: SocketAddr, is_server: bool) -> Command {
        let program = if self.shape.is_latency() { "ib_write_lat" } else { "ib_write_bw" };
        let mut command = Command::new(program);
        // GID index 1 is the IPv4-mapped one of a soft RoCE device.
        command.args(["-d", device, "-x", "1", "-F", "-p", &address.port().to_string()]);
        command.args(["-s", &self.shape.bytes().to_string(), "-n", &self.messages.to_string()]);
        if let Shape::Bandwidth { outstanding, .. } = self.shape {
            command.args(["-t", &outstanding.to_string()]);
        }
        if !is_server {
            command.arg(address.ip().to_string());
        }
        command
    }
}

/// A process that is ended when this is dropped.
#[derive(Debug)]
struct Ended(Child);

impl Ended {
    /// Waits for its end and returns what it printed, which is little enough for a pipe.
    fn finish(&mut self, limit: Duration) -> Result<String, Problem> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().tried("waiting for a process")? {
                break status;
            }
            if start.elapsed() > limit {
                return Err(Problem::new(format!("a process did not end within {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut output, mut errors) = (String::new(), String::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_string(&mut output).tried("the output of a process")?;
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut errors).tried("the output of a process")?;
        }
        if status.success() {
            return Ok(output);
        }
        Err(Problem::new(format!("a process ended with {status}: {} {}", errors.trim(), output.trim())))
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The line below the heading: bytes, iterations, then peak and average MiB/s, or the shortest, the longest and the typical
/// (median) microseconds.
fn perftest_result(output: &str, shape: Shape) -> Option<f64> {
    let (average, typical) = (3, 4);
    let fields: Vec<f64> = output
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"))
        .nth(1)?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let result = if shape.is_latency() {
        1e6 / fields.get(typical)?
    } else {
        fields.get(average)? * MEBIBYTE / shape.bytes() as f64
    };
    (result.is_finite() && result > 0.0).then_some(result)
}

/// `messages_per_s N`, by itself on a line.
fn ours_result(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("messages_per_s "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_results_are_read_from_their_table() {
        let bandwidth = " local address: x\n-----\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      1689             0.00               50.00  \t\t   0.000843\n-----\n";
        let shape = Shape::Bandwidth { bytes: 65536, outstanding: 128 };
        assert_eq!(perftest_result(bandwidth, shape), Some(800.0));
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       8       500          20.0        6003.08      25.00  \t       37.69 \n";
        assert_eq!(perftest_result(latency, Shape::Latency { bytes: 8 }), Some(40_000.0));
        assert_eq!(perftest_result("Couldn't connect\n", shape), None);
        assert_eq!(perftest_result(" #bytes\n", shape), None);
    }

    #[test]
    fn our_result_stands_by_itself() {
        assert_eq!(ours_result("device rxe0\nmessages_per_s 812.5\n"), Some(812.5));
        assert_eq!(ours_result("messages 3\n"), None);
    }

    #[test]
    fn devices_are_two_and_one_has_an_address() {
        let devices: Devices = "rxe0=10.8.0.1,rxe1".parse().expect("two devices");
        assert_eq!((devices.server.as_str(), devices.client.as_str()), ("rxe0", "rxe1"));
        assert!("rxe0,rxe1".parse::<Devices>().is_err());
        assert!("rxe0=host,rxe1".parse::<Devices>().is_err());
    }
}
