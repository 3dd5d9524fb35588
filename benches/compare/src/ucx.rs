//! Reference: UCX's one-sided put, as its own `ucx_perftest` measures it between two processes over loopback TCP.
//!
//! It sends one buffer again and again and counts a put as done when it may reuse the buffer, with one flush at the end.
//! Ours of the same row walk through as many buffers as are outstanding and wait for each write to be visible.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cpu;
use crate::options::Options;
use crate::problem::{Problem, Tried};
use crate::runner::Measure;

const PROGRAM: &str = "bin/ucx_perftest";
/// How long one run may take, beside what it shall measure.
const TIMEOUT: Duration = Duration::from_secs(20);
const WARM_UP: u32 = 200;
const MEBIBYTE: f64 = 1_048_576.0;
/// Iterations of the first trial, and of the run that shows what starting costs.
const TRIAL: u64 = 2_000;
const START_ONLY: u64 = 2;
const ITERATIONS_MAX: f64 = 20_000_000.0;

/// What one row asks of UCX, with what was found out about it.
#[derive(Debug)]
pub(crate) struct Put {
    folder: PathBuf,
    bytes: u64,
    outstanding: usize,
    iterations: u64,
    /// CPU seconds of starting both processes.
    start_cpu_s: f64,
}

impl Put {
    /// Finds how many iterations take `duration`: short runs measure connection set-up.
    pub(crate) fn calibrate(
        options: &Options,
        bytes: u64,
        outstanding: usize,
        duration: Duration,
    ) -> Result<Self, Problem> {
        let folder = options.ucx.clone().ok_or_else(|| Problem::new(options.ucx_missing.clone()))?;
        let program = folder.join(PROGRAM);
        if !program.is_file() {
            return Err(Problem::new(format!("there is no {}", program.display())));
        }
        let mut put = Self { folder, bytes, outstanding, iterations: START_ONLY, start_cpu_s: 0.0 };
        put.start_cpu_s = put.run(TIMEOUT)?.1;
        put.iterations = TRIAL;
        for _ in 0..3 {
            let rate = put.run(TIMEOUT)?.0;
            let wanted = rate / bytes as f64 * duration.as_secs_f64();
            let enough = put.iterations as f64 > 0.6 * wanted;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just here")]
            let next = wanted.clamp(TRIAL as f64, ITERATIONS_MAX) as u64;
            put.iterations = next;
            if enough {
                break;
            }
        }
        Ok(put)
    }

    /// One run.
    pub(crate) fn measure(&self, duration: Duration) -> Result<Measure, Problem> {
        let (rate, cpu_s) = self.run(duration * 4 + TIMEOUT)?;
        let bytes = (self.iterations + u64::from(WARM_UP)) as f64 * self.bytes as f64;
        let cpu_s = Some((cpu_s - self.start_cpu_s).max(0.0));
        Ok(Measure { rate, seconds: self.iterations as f64 * self.bytes as f64 / rate, cpu_s, bytes })
    }

    /// Bytes a second and CPU seconds of both processes.
    fn run(&self, limit: Duration) -> Result<(f64, f64), Problem> {
        let cpu = cpu::children_s();
        let port = free_port()?;
        let mut server = self.start(port, &[])?;
        wait_for_listener(port, &mut server)?;
        let arguments = [
            "127.0.0.1".to_owned(),
            "-t".to_owned(),
            "ucp_put_bw".to_owned(),
            "-s".to_owned(),
            self.bytes.to_string(),
            "-n".to_owned(),
            self.iterations.to_string(),
            "-w".to_owned(),
            WARM_UP.to_string(),
            "-O".to_owned(),
            self.outstanding.to_string(),
        ];
        let mut client = self.start(port, &arguments)?;
        let output = client.finish(limit)?;
        server.finish(TIMEOUT)?;
        Ok((overall_rate(&output)?, cpu::children_s() - cpu))
    }

    fn start(&self, port: u16, arguments: &[String]) -> Result<Ended, Problem> {
        Command::new(self.folder.join(PROGRAM))
            .args(arguments)
            .args(["-p", &port.to_string(), "-f", "-v"])
            .env("LD_LIBRARY_PATH", self.folder.join("lib"))
            .envs([("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")])
            .envs([("UCX_WARN_UNUSED_ENV_VARS", "n"), ("UCX_LOG_LEVEL", "error")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .tried("starting ucx_perftest")
            .map(Ended)
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
            if let Some(status) = self.0.try_wait().tried("ucx_perftest")? {
                break status;
            }
            if start.elapsed() > limit {
                return Err(Problem::new(format!("ucx_perftest did not end within {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let (mut output, mut errors) = (String::new(), String::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_string(&mut output).tried("the output of ucx_perftest")?;
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut errors).tried("the output of ucx_perftest")?;
        }
        if status.success() {
            return Ok(output);
        }
        Err(Problem::new(format!("ucx_perftest ended with {status}: {}", errors.trim())))
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last line of its CSV: iterations, a percentile's latency, average and overall latency, average and overall
/// bandwidth in MiB/s, average and overall message rate.
fn overall_rate(output: &str) -> Result<f64, Problem> {
    const OVERALL_BANDWIDTH: usize = 5;
    const FIELDS: usize = 8;
    let fields = |line: &str| -> Option<Vec<f64>> {
        let fields: Vec<f64> =
            line.split(',').map(|field| field.trim().parse().ok()).collect::<Option<_>>()?;
        (fields.len() >= FIELDS && fields[OVERALL_BANDWIDTH] > 0.0).then_some(fields)
    };
    let last = output.lines().filter_map(fields).next_back();
    last.map(|fields| fields[OVERALL_BANDWIDTH] * MEBIBYTE)
        .ok_or_else(|| Problem::new(format!("ucx_perftest printed no result: {}", output.trim())))
}

pub(crate) fn free_port() -> Result<u16, Problem> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).tried("looking for a free port")?;
    Ok(listener.local_addr().tried("looking for a free port")?.port())
}

fn wait_for_listener(port: u16, server: &mut Ended) -> Result<(), Problem> {
    wait_for_port(port, TIMEOUT, || {
        if server.0.try_wait().tried("ucx_perftest")?.is_some() {
            server.finish(TIMEOUT)?;
            return Err(Problem::new("the ucx_perftest server ended at once"));
        }
        Ok(())
    })
}

/// Waits until somebody listens on a port; `still` says that it may yet come. Looks rather than connects: a connection
/// would be taken for the client's.
pub(crate) fn wait_for_port(
    port: u16,
    limit: Duration,
    mut still: impl FnMut() -> Result<(), Problem>,
) -> Result<(), Problem> {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    let start = Instant::now();
    while start.elapsed() < limit {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = fs::read_to_string(table).unwrap_or_default();
            let listens = text.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some(LISTEN)
            });
            if listens {
                return Ok(());
            }
        }
        still()?;
        // The kernel walks its whole table of connections for each look.
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Problem::new(format!("nobody listens on port {port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overall_bandwidth_of_the_last_line_counts() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                      100,1.0,2.0,3.0,4.0,5.0,6,7\n200,11.0,115.8,173.2,539.37,360.5,8630,5771\n";
        let rate = overall_rate(output).expect("a result");
        assert!((rate - 360.5 * MEBIBYTE).abs() < 1.0);
    }

    #[test]
    fn no_result_is_a_problem() {
        assert!(overall_rate("iterations,overall_bw\n").is_err());
        assert!(overall_rate("200,11.0,115.8,173.2,539.37,0.0,8630,5771\n").is_err());
    }
}
