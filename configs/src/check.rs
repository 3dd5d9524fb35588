//! Contradictions between fields, and the key file.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use railhead_abi::Code;
use railhead_abi::frame::{NAME_BYTES_MAX, is_name};
use railhead_abi::segment::SESSIONS_MAX;
use railhead_abi::settings::LANES_MAX;

use crate::error::{ConfigError, Problem};
use crate::setting::Key;
use crate::{Config, CopyThreads, Listen, Pool, UseRdma};

/// The longest path of a Unix socket: what `sockaddr_un` holds, less its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// RDMA NICs of a node.
const RDMA_DEVICES_MAX: usize = 4;
/// Blocks are cut from pages of this size.
const PAGE_BYTES: u64 = 4096;
/// No block is larger: peers name its bytes in 32 bits.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Cores that a set of them can name.
const CORES_MAX: u64 = 1024;
/// More per lane than any machine has: a slip of the finger.
const LANE_POOL_BYTES_MAX: u64 = 1 << 40;

pub(crate) fn contradictions(config: &Config) -> Result<(), Problem> {
    name("node.name", &config.node.name)?;
    range("dataplane.lanes", config.dataplane.lanes as u64, 1, LANES_MAX as u64, "lanes")?;
    range("session.max", config.session.max as u64, 1, SESSIONS_MAX as u64, "sessions")?;
    if config.session.uids.as_ref().is_some_and(Vec::is_empty) {
        return Err(Problem::new(
            Code::ConfigContradiction,
            "session.uids",
            "an empty list: nobody could attach",
        )
        .remedy("name at least one uid, or leave the field out for your own uid and root"));
    }
    copy_threads(config)?;
    rdma(config)?;
    pool(&config.pool)?;
    peers(config)?;
    addresses(config)?;
    sockets(config)?;
    settings(config)
}

fn range(field: &str, value: u64, min: u64, max: u64, unit: &str) -> Result<(), Problem> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Problem::new(Code::ConfigField, field, format!("{value} is not allowed"))
        .remedy(format!("use {min} to {max} {unit}")))
}

fn name(field: &str, name: &str) -> Result<(), Problem> {
    if !is_name(name) {
        return Err(Problem::new(Code::NameInvalid, field, format!("\"{name}\" is not a name"))
            .remedy("a name is 1 to 63 bytes of letters, digits, '.', '-', '_'"));
    }
    if name == "self" {
        return Err(Problem::new(Code::ConfigField, field, "\"self\" always means the node itself")
            .remedy("choose another name"));
    }
    Ok(())
}

fn copy_threads(config: &Config) -> Result<(), Problem> {
    const FIELD: &str = "dataplane.copy_cores";
    let Some(cores) = &config.dataplane.copy_cores else { return Ok(()) };
    let refuse =
        |what: String, remedy| Err(Problem::new(Code::ConfigContradiction, FIELD, what).remedy(remedy));
    if config.dataplane.copy_threads == CopyThreads::Off {
        return refuse("dataplane.copy_threads is \"off\"".to_owned(), "keep one of the two");
    }
    if cores.len() != config.dataplane.lanes {
        let what = format!("{} cores for the copy threads of {} lanes", cores.len(), config.dataplane.lanes);
        return refuse(what, "name one core for each lane, lane 0 first, or leave the field out");
    }
    for (index, core) in cores.iter().enumerate() {
        range(FIELD, *core, 0, CORES_MAX - 1, "as a core")?;
        if (0..config.dataplane.lanes).any(|lane| config.settings.lane_core(lane) == Some(*core)) {
            let what = format!("core {core} is a lane's core, too");
            return refuse(what, "name another: on one core, a lane and a copy thread wait for each other");
        }
        if cores[..index].contains(core) {
            return refuse(format!("core {core} is named twice"), "name different cores");
        }
    }
    Ok(())
}

fn rdma(config: &Config) -> Result<(), Problem> {
    const FIELD: &str = "rdma.devices";
    let devices = &config.rdma.devices;
    let refuse =
        |what: String, remedy| Err(Problem::new(Code::ConfigContradiction, FIELD, what).remedy(remedy));
    if config.rdma.use_rdma == UseRdma::Off && !devices.is_empty() {
        return refuse("rdma.use is \"off\"".to_owned(), "keep one of the two");
    }
    if devices.len() > RDMA_DEVICES_MAX {
        return refuse(format!("{} devices", devices.len()), "name at most four");
    }
    for (index, device) in devices.iter().enumerate() {
        if device.is_empty() || devices[..index].contains(device) {
            return refuse(format!("\"{device}\" is empty or named twice"), "name different devices");
        }
    }
    Ok(())
}

fn pool(pool: &Pool) -> Result<(), Problem> {
    for (field, bytes) in [("pool.small_bytes", pool.small_bytes), ("pool.large_bytes", pool.large_bytes)] {
        range(field, bytes, PAGE_BYTES, BLOCK_BYTES_MAX, "bytes")?;
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Problem::new(
                Code::ConfigField,
                field,
                format!("{bytes} is not a multiple of {PAGE_BYTES}"),
            )
            .remedy(format!("use {} for example", bytes.next_multiple_of(PAGE_BYTES))));
        }
    }
    if pool.small_bytes >= pool.large_bytes {
        let what = format!("{} is not below pool.large_bytes = {}", pool.small_bytes, pool.large_bytes);
        return Err(Problem::new(Code::ConfigContradiction, "pool.small_bytes", what));
    }
    for (field, blocks) in [
        ("pool.small_send", pool.small_send),
        ("pool.small_receive", pool.small_receive),
        ("pool.large_send", pool.large_send),
        ("pool.large_receive", pool.large_receive),
    ] {
        range(field, u64::from(blocks), 1, 65_535, "blocks")?;
    }
    if pool.lane_bytes() > LANE_POOL_BYTES_MAX {
        let what = format!("the blocks of one lane take {} bytes", pool.lane_bytes());
        return Err(
            Problem::new(Code::ConfigContradiction, "pool", what).remedy("use fewer or smaller blocks")
        );
    }
    Ok(())
}

/// The peers among themselves and against the rest.
pub(crate) fn peers(config: &Config) -> Result<(), Problem> {
    let most = config.fabric.peers_max.unwrap_or(crate::PEERS_MOST);
    range("fabric.peers_max", most as u64, 1, crate::PEERS_MOST as u64, "peers")?;
    if config.peers.len() > most {
        let what = format!("{} peers", config.peers.len());
        return Err(Problem::new(Code::ConfigField, "peer", what).remedy(format!("use at most {most}")));
    }
    let mut names = HashMap::new();
    let mut addresses = HashMap::new();
    for (index, peer) in config.peers.iter().enumerate() {
        let (name_field, address_field) = (format!("peer[{index}].name"), format!("peer[{index}].address"));
        name(&name_field, &peer.name)?;
        if peer.name == config.node.name {
            return Err(Problem::new(Code::ConfigContradiction, name_field, "this is the node's own name")
                .remedy("remove the entry: a node reaches itself without one"));
        }
        peer_address(&address_field, &peer.address)?;
        if let Some(first) = names.insert(&peer.name, index) {
            let what = format!("\"{}\" is already the name of peer[{first}]", peer.name);
            return Err(Problem::new(Code::ConfigContradiction, name_field, what));
        }
        if let Some(first) = addresses.insert(&peer.address, index) {
            let what = format!("\"{}\" is already the address of peer[{first}]", peer.address);
            return Err(Problem::new(Code::ConfigContradiction, address_field, what));
        }
        if peer.address.parse() == Ok(config.fabric.listen) {
            return Err(Problem::new(
                Code::ConfigContradiction,
                address_field,
                "this is the node's own fabric.listen",
            ));
        }
    }
    let least = 2 * (config.peers.len() + 1);
    if (config.pool.small_receive as usize) < least {
        let what = format!(
            "{} blocks for {} peers and the node itself",
            config.pool.small_receive,
            config.peers.len()
        );
        return Err(Problem::new(Code::ConfigContradiction, "pool.small_receive", what)
            .remedy(format!("use at least two for each: {least}")));
    }
    Ok(())
}

fn peer_address(field: &str, address: &str) -> Result<(), Problem> {
    let wrong = |what: String| {
        Err(Problem::new(Code::ConfigField, field, what)
            .remedy("write it like \"10.0.0.7:7410\", \"[fd00::7]:7410\" or \"node-b.example:7410\""))
    };
    if address.len() > NAME_BYTES_MAX {
        return wrong(format!("more than {NAME_BYTES_MAX} bytes"));
    }
    if let Ok(address) = address.parse::<SocketAddr>() {
        return if address.ip().is_unspecified() || address.port() == 0 {
            wrong(format!("nothing can be reached at {address}"))
        } else {
            Ok(())
        };
    }
    let Some((host, port)) = address.rsplit_once(':') else {
        return wrong(format!("\"{address}\" has no port"));
    };
    let host_ok = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if !host_ok || !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return wrong(format!("\"{address}\" is not a host and a port"));
    }
    Ok(())
}

fn addresses(config: &Config) -> Result<(), Problem> {
    let Listen::Tcp(control) = config.control.listen else { return Ok(()) };
    let fabric = config.fabric.listen;
    let overlap = control.ip() == fabric.ip() || fabric.ip().is_unspecified();
    if control.port() != 0 && control.port() == fabric.port() && overlap {
        let what = format!("{control} is the address of fabric.listen, too");
        return Err(Problem::new(Code::ConfigContradiction, "control.listen", what)
            .remedy("give the two different ports"));
    }
    Ok(())
}

fn sockets(config: &Config) -> Result<(), Problem> {
    let mut taken: Vec<(&str, &Path)> = Vec::new();
    let control = match &config.control.listen {
        Listen::Unix(path) => Some(("control.listen", path.as_path())),
        Listen::Tcp(_) => None,
    };
    let sockets = [
        ("dataplane.session_socket", config.dataplane.session_socket.as_path()),
        ("dataplane.admin_socket", config.dataplane.admin_socket.as_path()),
    ];
    for (field, path) in sockets.into_iter().chain(control) {
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            // Whoever left the socket's path to its default has to shorten the folder.
            let from_folder = path.parent() == Some(config.node.state_dir.as_path());
            let field = if from_folder { "node.state_dir" } else { field };
            let what = format!(
                "{} has {bytes} bytes; a socket's path has at most {SOCKET_PATH_BYTES_MAX}",
                path.display()
            );
            return Err(Problem::new(Code::ConfigField, field, what)
                .remedy("use a shorter path, for example below $XDG_RUNTIME_DIR"));
        }
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == path) {
            let what = format!("{} is the path of {other}, too", path.display());
            return Err(Problem::new(Code::ConfigContradiction, field, what));
        }
        taken.push((field, path));
    }
    Ok(())
}

/// The settings among themselves and against the pool. Whether a core exists is for the machine to say.
fn settings(config: &Config) -> Result<(), Problem> {
    config.settings.validate(&config.limits([u64::MAX; 16], u64::MAX)).map_err(|refusal| {
        let key = Key::of_word(refusal.word);
        let name = key.map_or_else(|| "?".to_owned(), Key::name);
        let value = key.map(|key| key.read(&config.settings).to_string()).unwrap_or_default();
        let what = match refusal.code {
            Code::SettingBlockBytes => {
                format!("{value} is above pool.large_bytes = {}", config.pool.large_bytes)
            }
            code => format!("{value}: {}", code.text()),
        };
        Problem::new(refusal.code, format!("settings.{name}"), what)
    })
}

pub(crate) fn read_key(path: &Path) -> Result<[u8; 32], ConfigError> {
    let wrong = |what: String| Problem::new(Code::KeyFile, "", what).in_file(path);
    let remedy =
        format!("(umask 077; openssl rand -hex 32 > {}), the same file on all nodes", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| ConfigError {
        remedy: remedy.clone(),
        ..wrong(format!("the cluster key cannot be read: {error}"))
    })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ConfigError {
            remedy: format!("chmod 600 {}", path.display()),
            ..wrong(format!("the cluster key is open to others: its mode is {mode:04o}"))
        });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| wrong(format!("the cluster key cannot be read: {error}")))?;
    let digits = text.trim_ascii();
    parse_key(digits).ok_or_else(|| ConfigError {
        remedy,
        // The content is secret: only its shape is told.
        ..wrong(format!(
            "a cluster key is 64 hex digits; this file has {} characters, not all hex digits or not 64",
            digits.len()
        ))
    })
}

fn parse_key(digits: &str) -> Option<[u8; 32]> {
    let bytes = digits.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(bytes.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(16 * high + low).ok()?;
    }
    Some(key)
}
