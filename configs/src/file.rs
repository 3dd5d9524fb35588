//! From TOML to [`Config`]: the grammar, the defaults, the paths.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use railhead_abi::Code;
use railhead_abi::settings::Settings;
use serde::Deserialize;

use crate::error::{ConfigError, Problem};
use crate::outline::Outline;
use crate::setting::{Given, Key, Refused, nearest};
use crate::{
    Config, Control, CopyThreads, Dataplane, Fabric, Hugepages, Listen, LogLevel, Node, Peer, Pool, Rdma,
    Session, UseRdma,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    node: RawNode,
    #[serde(default)]
    dataplane: RawDataplane,
    #[serde(default)]
    session: RawSession,
    #[serde(default)]
    pool: RawPool,
    fabric: RawFabric,
    #[serde(default)]
    rdma: RawRdma,
    #[serde(default)]
    peer: Vec<RawPeer>,
    #[serde(default)]
    settings: toml::Table,
    #[serde(default)]
    control: RawControl,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    state_dir: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDataplane {
    session_socket: Option<PathBuf>,
    admin_socket: Option<PathBuf>,
    lanes: usize,
    cores: Option<Vec<u64>>,
    copy_threads: CopyThreads,
    copy_cores: Option<Vec<u64>>,
    log: LogLevel,
}

impl Default for RawDataplane {
    fn default() -> Self {
        Self {
            session_socket: None,
            admin_socket: None,
            lanes: 1,
            cores: None,
            copy_threads: CopyThreads::Auto,
            copy_cores: None,
            log: LogLevel::Info,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSession {
    uids: Option<Vec<u32>>,
    max: usize,
}

impl Default for RawSession {
    fn default() -> Self {
        Self { uids: None, max: 64 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPool {
    small_bytes: u64,
    small_send: u32,
    small_receive: u32,
    large_bytes: u64,
    large_send: u32,
    large_receive: u32,
    hugepages: Hugepages,
    numa_node: Option<u32>,
}

impl Default for RawPool {
    fn default() -> Self {
        Self {
            small_bytes: 16 << 10,
            small_send: 64,
            small_receive: 256,
            large_bytes: 256 << 10,
            large_send: 32,
            large_receive: 64,
            hugepages: Hugepages::Prefer,
            numa_node: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFabric {
    #[serde(default = "fabric_listen")]
    listen: String,
    key_file: PathBuf,
    peers_max: Option<usize>,
}

fn fabric_listen() -> String {
    "127.0.0.1:7410".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRdma {
    #[serde(rename = "use")]
    use_rdma: UseRdma,
    devices: Vec<String>,
    traffic_class: u8,
    relaxed_ordering: bool,
    pinned_bytes_max: u64,
}

impl Default for RawRdma {
    fn default() -> Self {
        Self {
            use_rdma: UseRdma::Auto,
            devices: Vec::new(),
            traffic_class: 0,
            relaxed_ordering: false,
            pinned_bytes_max: 1 << 40,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeer {
    name: String,
    address: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawControl {
    listen: String,
    log: LogLevel,
}

impl Default for RawControl {
    fn default() -> Self {
        Self { listen: "127.0.0.1:7411".to_owned(), log: LogLevel::Info }
    }
}

/// Reads the fields of a file; contradictions between them are judged later.
pub(crate) fn read(path: &Path, text: &str, outline: &Outline) -> Result<Config, ConfigError> {
    let raw: RawFile = toml::from_str(text).map_err(|error| field_error(&error, path, outline))?;
    build(path, raw).map_err(|problem| problem.at(path, outline))
}

fn build(path: &Path, raw: RawFile) -> Result<Config, Problem> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let state_dir = resolve(folder, &raw.node.state_dir, "node.state_dir")?;
    let socket = |given: Option<PathBuf>, field: &str, name: &str| match given {
        Some(given) => resolve(folder, &given, field),
        None => Ok(state_dir.join(name)),
    };
    let dataplane = Dataplane {
        session_socket: socket(raw.dataplane.session_socket, "dataplane.session_socket", "session.sock")?,
        admin_socket: socket(raw.dataplane.admin_socket, "dataplane.admin_socket", "admin.sock")?,
        lanes: raw.dataplane.lanes,
        copy_threads: raw.dataplane.copy_threads,
        copy_cores: raw.dataplane.copy_cores,
        log: raw.dataplane.log,
    };
    let settings = read_settings(&raw.settings, raw.dataplane.cores.as_deref(), dataplane.lanes)?;
    Ok(Config {
        path: path.to_owned(),
        node: Node { name: raw.node.name, state_dir },
        dataplane,
        session: Session { uids: raw.session.uids, max: raw.session.max },
        pool: Pool {
            small_bytes: raw.pool.small_bytes,
            small_send: raw.pool.small_send,
            small_receive: raw.pool.small_receive,
            large_bytes: raw.pool.large_bytes,
            large_send: raw.pool.large_send,
            large_receive: raw.pool.large_receive,
            hugepages: raw.pool.hugepages,
            numa_node: raw.pool.numa_node,
        },
        fabric: Fabric {
            listen: socket_address(&raw.fabric.listen, "fabric.listen")?,
            key_file: resolve(folder, &raw.fabric.key_file, "fabric.key_file")?,
            peers_max: raw.fabric.peers_max,
        },
        rdma: Rdma {
            use_rdma: raw.rdma.use_rdma,
            devices: raw.rdma.devices,
            traffic_class: raw.rdma.traffic_class,
            relaxed_ordering: raw.rdma.relaxed_ordering,
            pinned_bytes_max: raw.rdma.pinned_bytes_max,
        },
        peers: raw.peer.into_iter().map(|RawPeer { name, address }| Peer { name, address }).collect(),
        settings,
        control: Control { listen: listen(folder, &raw.control.listen)?, log: raw.control.log },
    })
}

/// A path of the file, from the file's folder if it is relative.
fn resolve(folder: &Path, given: &Path, field: &str) -> Result<PathBuf, Problem> {
    if given.as_os_str().is_empty() {
        return Err(Problem::new(Code::ConfigField, field, "the path is empty")
            .remedy("give a path; a relative one starts at the folder of this file"));
    }
    Ok(folder.join(given))
}

fn socket_address(given: &str, field: &str) -> Result<SocketAddr, Problem> {
    given.parse().map_err(|_| {
        Problem::new(Code::ConfigField, field, format!("\"{given}\" is not an IP address with a port"))
            .remedy("write it like \"127.0.0.1:7410\" or \"[::1]:7410\"")
    })
}

fn listen(folder: &Path, given: &str) -> Result<Listen, Problem> {
    const FIELD: &str = "control.listen";
    if let Some(path) = given.strip_prefix("unix:") {
        return resolve(folder, Path::new(path), FIELD).map(Listen::Unix);
    }
    let address = socket_address(given, FIELD).map_err(|problem| {
        problem.remedy("write it like \"127.0.0.1:7411\", \"[::1]:7411\" or \"unix:control.sock\"")
    })?;
    if !address.ip().is_loopback() {
        let what = format!("{address} can be reached from other machines");
        return Err(Problem::new(Code::ListenRefused, FIELD, what));
    }
    Ok(Listen::Tcp(address))
}

/// `[settings]` over the defaults, then `dataplane.cores`.
fn read_settings(table: &toml::Table, cores: Option<&[u64]>, lanes: usize) -> Result<Settings, Problem> {
    let mut settings = Settings::default();
    let mut given = Vec::new();
    flatten("", table, &mut given);
    for (name, value) in &given {
        let key = Key::parse(name).map_err(setting_problem)?;
        settings.words[key.word()] = key.word_of(as_given(value)).map_err(setting_problem)?;
    }
    let Some(cores) = cores else { return Ok(settings) };
    if cores.len() != lanes {
        let what = format!("{} cores for {lanes} lanes", cores.len());
        return Err(Problem::new(Code::ConfigContradiction, "dataplane.cores", what)
            .remedy("name one core for each lane, lane 0 first, or leave the field out"));
    }
    for (lane, core) in cores.iter().enumerate() {
        if settings.lane_core(lane).is_some_and(|other| other != *core) {
            let what =
                format!("core {core} for lane {lane}, but settings.lanes.{lane}.core says another one");
            return Err(Problem::new(Code::ConfigContradiction, "dataplane.cores", what)
                .remedy("keep one of the two"));
        }
        settings.set_lane_core(lane, Some(*core));
    }
    Ok(settings)
}

/// The leaves of a table with their dotted names.
fn flatten<'a>(prefix: &str, table: &'a toml::Table, out: &mut Vec<(String, &'a toml::Value)>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => flatten(&name, inner, out),
            _ => out.push((name, value)),
        }
    }
}

fn as_given(value: &toml::Value) -> Given<'_> {
    match value {
        toml::Value::Integer(number) => Given::Number(i128::from(*number)),
        toml::Value::String(text) => Given::Text(text),
        toml::Value::Float(_) => Given::Other("a number with a fraction"),
        toml::Value::Boolean(_) => Given::Other("true or false"),
        toml::Value::Datetime(_) => Given::Other("a date"),
        toml::Value::Array(_) => Given::Other("a list"),
        toml::Value::Table(_) => Given::Other("a table"),
    }
}

fn setting_problem(refused: Refused) -> Problem {
    Problem::new(refused.code, format!("settings.{}", refused.field), refused.what)
}

/// Says in our words what the deserialiser found.
fn field_error(error: &toml::de::Error, path: &Path, outline: &Outline) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let around = outline.path_at(&span);
    let message = error.message();
    let problem = if let Some((name, known)) = unknown_field(message) {
        let what = match nearest(name, known.iter().copied()) {
            Some(near) => format!("no such field; did you mean `{near}`?"),
            None => "no such field".to_owned(),
        };
        Problem::new(Code::ConfigField, around, what)
            .remedy(format!("fields that can stand here: {}", known.join(", ")))
    } else if let Some(name) = quoted(message.strip_prefix("missing field ")) {
        let field = if around.is_empty() { name.to_owned() } else { format!("{around}.{name}") };
        Problem::new(Code::ConfigField, field, "this field is needed and not there")
            .remedy("add it; see configs/README.md")
    } else {
        Problem::new(Code::ConfigField, around, message.replace('\n', ", "))
    };
    let line = error.span().map(|span| outline.line_at(span.start));
    ConfigError { line, ..problem.in_file(path) }
}

/// The names in serde's "unknown field `x`, expected one of `a`, `b`".
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut names = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    Some((names.next()?, names.collect()))
}

fn quoted(text: Option<&str>) -> Option<&str> {
    text?.split('`').nth(1)
}
