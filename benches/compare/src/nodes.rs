//! Two nodes, a and b, in a folder of their own: configurations, keys and logs are made here and gone afterwards.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cpu;
use crate::options::Options;
use crate::problem::{Problem, Tried};
use crate::ucx::free_port;

/// How long a process may take to be there, and to end when asked.
const START_TIMEOUT: Duration = Duration::from_secs(15);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// How much of a log a problem quotes.
const LOG_LINES: usize = 6;

/// Names of the nodes; the first initiates.
pub(crate) const NAMES: [&str; 2] = ["a", "b"];

/// Both nodes. Dropping ends all their processes.
#[derive(Debug)]
pub(crate) struct Nodes {
    dataplanes: Vec<Process>,
    controls: Vec<Process>,
    configs: Vec<PathBuf>,
    control_ports: Vec<u16>,
    binaries: PathBuf,
    folder: TempDir,
}

impl Nodes {
    /// Starts both dataplanes. They are ready when a session can open a region of the peer.
    pub(crate) fn start(options: &Options) -> Result<Self, Problem> {
        let folder =
            tempfile::Builder::new().prefix("railhead-compare-").tempdir().tried("a folder for the nodes")?;
        let binaries = binaries(options)?;
        write_key(&folder.path().join("cluster.key"))?;
        let ports = [free_port()?, free_port()?];
        let control_ports = vec![free_port()?, free_port()?];
        let mut nodes = Self {
            dataplanes: Vec::new(),
            controls: Vec::new(),
            configs: Vec::new(),
            control_ports,
            binaries,
            folder,
        };
        let cores = cpu::allowed()?;
        for at in 0..NAMES.len() {
            let core = (cores.len() > 1 && !options.unpinned).then(|| cores[at % cores.len()]);
            let rdma = options.verbs.as_ref().map_or_else(Vec::new, |devices| {
                let device = if at == 0 { &devices.client } else { &devices.server };
                vec![
                    ("use".to_owned(), "require".to_owned()),
                    ("devices".to_owned(), format!("[\"{device}\"]")),
                ]
            });
            let sections =
                [("settings", &options.settings[..]), ("pool", &options.pool[..]), ("rdma", &rdma[..])];
            let text = config(at, ports, nodes.control_ports[at], core, &options.dataplane, &sections);
            let path = nodes.folder.path().join(format!("{}.toml", NAMES[at]));
            fs::write(&path, text).tried(path.display())?;
            nodes.configs.push(path);
        }
        for at in 0..NAMES.len() {
            let process = nodes.launch("railhead-dataplane", at)?;
            nodes.dataplanes.push(process);
        }
        for at in 0..NAMES.len() {
            let socket = nodes.session_socket(at);
            nodes.dataplanes[at].until(|| socket.exists())?;
        }
        Ok(nodes)
    }

    /// Starts both controls, and waits until they listen.
    pub(crate) fn start_controls(&mut self) -> Result<(), Problem> {
        for at in 0..NAMES.len() {
            let mut process = self.launch("railhead-control", at)?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.control_ports[at]));
            process.until(|| TcpStream::connect_timeout(&address, PAUSE).is_ok())?;
            self.controls.push(process);
        }
        Ok(())
    }

    /// Ends both controls.
    pub(crate) fn stop_controls(&mut self) {
        self.controls.clear();
    }

    /// Where a node's clients attach.
    pub(crate) fn session_socket(&self, node: usize) -> PathBuf {
        self.state_dir(node).join("session.sock")
    }

    /// Where a node's control attaches.
    pub(crate) fn admin_socket(&self, node: usize) -> PathBuf {
        self.state_dir(node).join("admin.sock")
    }

    /// CPU seconds of each node so far: of its dataplane, and of its control if one runs.
    pub(crate) fn cpu_s(&self) -> Result<[f64; NAMES.len()], Problem> {
        let mut used = [0.0; NAMES.len()];
        for processes in [&self.dataplanes, &self.controls] {
            for (used, process) in used.iter_mut().zip(processes) {
                *used += cpu::process_s(process.child.id())?;
            }
        }
        Ok(used)
    }

    /// Runs `attempt` until it succeeds, a node ends, or time is up.
    pub(crate) fn retry<T>(&mut self, mut attempt: impl FnMut() -> Result<T, Problem>) -> Result<T, Problem> {
        let start = Instant::now();
        loop {
            let problem = match attempt() {
                Ok(value) => return Ok(value),
                Err(problem) => problem,
            };
            for process in &mut self.dataplanes {
                process.check()?;
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(Problem::new(format!("{problem}; {}", self.dataplanes[0].log_end())));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn state_dir(&self, node: usize) -> PathBuf {
        self.folder.path().join(NAMES[node])
    }

    fn launch(&self, program: &'static str, node: usize) -> Result<Process, Problem> {
        let log = self.folder.path().join(format!("{program}-{}.log", NAMES[node]));
        Process::start(&self.binaries.join(program), &self.configs[node], &log)
    }
}

/// A process of a node; asked to end, then killed, when this is dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    fn start(program: &Path, config: &Path, log: &Path) -> Result<Self, Problem> {
        let name = log.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let output = fs::File::create(log).tried(log.display())?;
        let errors = output.try_clone().tried(log.display())?;
        let child = Command::new(program)
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .tried(format!("starting {}", program.display()))?;
        Ok(Self { child, name, log: log.to_owned() })
    }

    fn until(&mut self, mut ready: impl FnMut() -> bool) -> Result<(), Problem> {
        let start = Instant::now();
        while !ready() {
            self.check()?;
            if start.elapsed() > START_TIMEOUT {
                return Err(Problem::new(format!("{} is not ready; {}", self.name, self.log_end())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// That it still runs.
    fn check(&mut self) -> Result<(), Problem> {
        match self.child.try_wait().tried(&self.name)? {
            None => Ok(()),
            Some(status) => {
                Err(Problem::new(format!("{} ended with {status}; {}", self.name, self.log_end())))
            }
        }
    }

    fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("its log ends: {}", lines[lines.len().saturating_sub(LOG_LINES)..].join(" | "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()).map(Pid::from_raw)
            && let Some(pid) = pid
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = kill_process(pid, Signal::TERM);
            let start = Instant::now();
            while start.elapsed() < STOP_TIMEOUT && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(PAUSE);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of the programs to measure.
pub(crate) fn binaries(options: &Options) -> Result<PathBuf, Problem> {
    if let Some(folder) = &options.binaries {
        return Ok(folder.clone());
    }
    let program = std::env::current_exe().tried("the path of this program")?;
    program.parent().map(Path::to_owned).ok_or_else(|| Problem::new("this program lies in no folder"))
}

/// A key for this run only: what it guards is as short-lived.
fn write_key(path: &Path) -> Result<(), Problem> {
    let mut bytes = [0; 32];
    let mut source = fs::File::open("/dev/urandom").tried("/dev/urandom")?;
    std::io::Read::read_exact(&mut source, &mut bytes).tried("/dev/urandom")?;
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).tried(path.display())?;
    writeln!(file, "{text}").tried(path.display())
}

/// The configuration of one node. Paths are relative to its folder.
fn config(
    at: usize,
    ports: [u16; NAMES.len()],
    control_port: u16,
    core: Option<usize>,
    dataplane: &[(String, String)],
    sections: &[(&str, &[(String, String)])],
) -> String {
    let (name, peer) = (NAMES[at], NAMES[1 - at]);
    let (port, peer_port) = (ports[at], ports[1 - at]);
    let cores = core.map_or_else(String::new, |core| format!("cores = [{core}]\n"));
    let dataplane = entries(dataplane);
    let mut text = format!(
        "[node]\nname = \"{name}\"\nstate_dir = \"{name}\"\n\n\
         [dataplane]\n{cores}log = \"warn\"\n{dataplane}\n\
         [fabric]\nlisten = \"127.0.0.1:{port}\"\nkey_file = \"cluster.key\"\n\n\
         [[peer]]\nname = \"{peer}\"\naddress = \"127.0.0.1:{peer_port}\"\n\n\
         [control]\nlisten = \"127.0.0.1:{control_port}\"\nlog = \"warn\"\n\n"
    );
    for (section, given) in sections {
        let _ = writeln!(text, "[{section}]\n{}", entries(given));
    }
    text
}

/// Lines of a section: numbers and lists as they are, everything else as text.
fn entries(given: &[(String, String)]) -> String {
    let mut text = String::new();
    for (key, value) in given {
        let quote = if value.parse::<u64>().is_ok() || value.starts_with('[') { "" } else { "\"" };
        let _ = writeln!(text, "{key} = {quote}{value}{quote}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bare_and_names_are_quoted() {
        let settings = [("idle.spin_us".into(), "100".into()), ("send.mode".into(), "direct".into())];
        let dataplane = [("copy_threads".into(), "on".into()), ("copy_cores".into(), "[4]".into())];
        let sections = [("settings", &settings[..]), ("pool", &[])];
        let text = config(1, [7001, 7002], 7003, Some(3), &dataplane, &sections);
        for line in [
            "name = \"b\"",
            "listen = \"127.0.0.1:7002\"",
            "address = \"127.0.0.1:7001\"",
            "cores = [3]",
            "copy_threads = \"on\"",
            "copy_cores = [4]",
            "idle.spin_us = 100",
            "send.mode = \"direct\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn process_that_ends_at_once_is_quoted() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("true.log");
        let mut process = Process::start(Path::new("/bin/false"), Path::new("none"), &log).expect("started");
        let problem = process.until(|| false).expect_err("it ended");
        assert!(problem.to_string().contains("ended with"), "{problem}");
    }
}
