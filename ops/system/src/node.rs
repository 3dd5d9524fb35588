//! A node: a configuration file, a dataplane and a control.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::files::{binary, free_port};
use crate::guest;
use crate::process::Process;
use crate::rest::Rest;
use crate::wait::within;

/// How long a node may take until it is ready; an emulated processor is slow.
fn ready_limit() -> Duration {
    Duration::from_secs(if guest::is_one() { 90 } else { 15 })
}

/// A `[[peer]]`.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Name.
    pub name: String,
    /// Port of its fabric on 127.0.0.1.
    pub port: u16,
}

/// What a node's file says.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// `node.name`
    pub name: String,
    /// `dataplane.lanes`
    pub lanes: usize,
    /// `session.max`
    pub sessions: usize,
    /// More lines of `[dataplane]`.
    pub dataplane: String,
    /// Lines of `[pool]`.
    pub pool: String,
    /// Lines of `[rdma]`.
    pub rdma: String,
    /// Lines of `[settings]`.
    pub settings: String,
    /// `fabric.listen`, on 127.0.0.1.
    pub fabric_port: u16,
    /// `control.listen`, on 127.0.0.1.
    pub control_port: u16,
    /// `fabric.key_file`, from the folder of the file.
    pub key_file: String,
    /// The peers.
    pub peers: Vec<Peer>,
}

impl NodeConfig {
    /// One lane, a small pool on ordinary pages, free ports, no peers.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lanes: 1,
            sessions: 64,
            dataplane: String::new(),
            pool: "hugepages = \"never\"\n".to_owned(),
            rdma: "use = \"off\"\n".to_owned(),
            settings: String::new(),
            fabric_port: free_port(),
            control_port: free_port(),
            key_file: "cluster.key".to_owned(),
            peers: Vec::new(),
        }
    }

    /// The file's text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self {
            name,
            lanes,
            sessions,
            dataplane,
            pool,
            rdma,
            settings,
            fabric_port,
            control_port,
            key_file,
            peers,
        } = self;
        let mut text = format!(
            "[node]\nname = \"{name}\"\nstate_dir = \"{name}\"\n\n\
             [dataplane]\nlanes = {lanes}\nlog = \"debug\"\n{dataplane}\n\
             [session]\nmax = {sessions}\n\n[pool]\n{pool}\n\
             [fabric]\nlisten = \"127.0.0.1:{fabric_port}\"\nkey_file = \"{key_file}\"\n\n\
             [rdma]\n{rdma}\n"
        );
        for Peer { name, port } in peers {
            // Writing to a String cannot fail.
            let _ = write!(text, "[[peer]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n\n");
        }
        let _ = write!(
            text,
            "[settings]\n{settings}\n[control]\nlisten = \"127.0.0.1:{control_port}\"\nlog = \"debug\"\n"
        );
        text
    }
}

/// A node whose processes can be started, stopped and killed one by one.
#[derive(Debug)]
pub struct Node {
    /// What its file says.
    pub config: NodeConfig,
    folder: PathBuf,
    /// The dataplane, unless it is stopped.
    pub dataplane: Option<Process>,
    /// The control, unless it is stopped.
    pub control: Option<Process>,
}

impl Node {
    /// Writes the file into `folder`; starts nothing.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    pub fn new(config: NodeConfig, folder: &Path) -> Self {
        let node = Self { config, folder: folder.to_owned(), dataplane: None, control: None };
        std::fs::write(node.file(), node.config.text()).expect("writing the configuration");
        node
    }

    /// Path of the configuration file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.toml", self.config.name))
    }

    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join(&self.config.name)
    }

    /// Where clients attach.
    #[must_use]
    pub fn session_socket(&self) -> PathBuf {
        self.state_dir().join("session.sock")
    }

    /// Where control attaches.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.state_dir().join("admin.sock")
    }

    /// Its REST.
    #[must_use]
    pub fn rest(&self) -> Rest {
        Rest::new(self.config.control_port)
    }

    /// Starts the dataplane and waits until clients can attach.
    ///
    /// # Panics
    /// If it ends or is not ready in time.
    pub fn start_dataplane(&mut self) {
        assert!(self.dataplane.is_none(), "already started");
        let mut process = self.start("railhead-dataplane", "dataplane");
        let socket = self.session_socket();
        self.await_ready(&mut process, "the session socket", || is_seqpacket_open(&socket));
        self.dataplane = Some(process);
    }

    /// Starts control and waits until it holds the dataplane.
    ///
    /// # Panics
    /// If it ends or is not ready in time.
    pub fn start_control(&mut self) {
        assert!(self.control.is_none(), "already started");
        let mut process = self.start("railhead-control", "control");
        let rest = self.rest();
        self.await_ready(&mut process, "/readyz", || {
            rest.try_get("/readyz").is_some_and(|answer| answer.status == 200)
        });
        self.control = Some(process);
    }

    /// Both.
    pub fn start_both(&mut self) {
        self.start_dataplane();
        self.start_control();
    }

    /// The id of the dataplane.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn dataplane_pid(&self) -> u32 {
        self.dataplane.as_ref().expect("the dataplane runs").pid()
    }

    /// The id of control.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn control_pid(&self) -> u32 {
        self.control.as_ref().expect("control runs").pid()
    }

    /// Kills the dataplane with SIGKILL.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_dataplane(&mut self) {
        self.dataplane.take().expect("the dataplane runs").kill();
    }

    /// Kills control with SIGKILL.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_control(&mut self) {
        self.control.take().expect("control runs").kill();
    }

    /// Stops both with SIGTERM, control first, each of which must end with success.
    ///
    /// # Panics
    /// If one does not.
    pub fn stop(&mut self) {
        for process in [self.control.take(), self.dataplane.take()].into_iter().flatten() {
            let mut process = process;
            let (status, _) = process.stop();
            assert!(status.success(), "{status} on SIGTERM; it said:\n{}", process.said());
        }
    }

    /// The events of `/v1/events`, newest and oldest alike.
    #[must_use]
    pub fn events(&self) -> Vec<Json> {
        let answer = self.rest().get("/v1/events?limit=1000").expect(200);
        answer.json["events"].as_array().cloned().unwrap_or_else(|| panic!("no events: {}", answer.text))
    }

    /// Whether there was an event of that name.
    #[must_use]
    pub fn has_event(&self, name: &str) -> bool {
        self.events().iter().any(|event| event["event"] == name)
    }

    fn start(&self, program: &str, kind: &str) -> Process {
        let name = format!("{kind} {}", self.config.name);
        let log = self.folder.join(format!("{}-{kind}.log", self.config.name));
        Process::start(&name, Command::new(binary(program)).arg("--config").arg(self.file()), &log)
    }

    fn await_ready(&self, process: &mut Process, what: &str, mut ready: impl FnMut() -> bool) {
        let state = within(ready_limit(), || {
            if let Some(status) = process.ended() {
                return Some(Err(format!("it ended with {status}")));
            }
            ready().then_some(Ok(()))
        });
        let state = state.unwrap_or_else(|| Err(format!("{what} was not there within {:?}", ready_limit())));
        if let Err(problem) = state {
            panic!("{} is not ready: {problem}; it said:\n{}", self.config.name, process.said());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Control first: so its log does not fill with a dataplane that went away.
        drop(self.control.take());
        drop(self.dataplane.take());
    }
}

/// Whether somebody listens on a packet socket; the probe's session is refused or ends at once.
fn is_seqpacket_open(path: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| rustix::net::connect(&socket, &address).is_ok())
}
