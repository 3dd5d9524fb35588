//! The files of this folder are what they say: each parses, the two nodes fit each other, the README tells the truth.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use railhead_abi::settings::Settings;
use railhead_config::{Config, reference};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn toml_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter(|path| path.file_name().is_some_and(|name| name != "Cargo.toml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_file_parses_and_starts_with_the_defaults() {
    let files = toml_files();
    assert!(files.len() >= 3, "{files:?}");
    for path in files {
        let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.settings, Settings::default(), "{} shows the defaults", path.display());
        assert!(config.node.state_dir.starts_with(folder()), "relative paths start at the file's folder");
    }
}

#[test]
fn every_file_shows_every_key() {
    for path in toml_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let keys = reference::FIELDS_AT_RESTART.iter().map(|field| field.name.to_owned());
        let settings = railhead_config::setting::Key::all(1).map(railhead_config::setting::Key::name);
        for name in keys.chain(settings) {
            let key = name.rsplit('.').next().unwrap();
            let shown = text.lines().any(|line| {
                line.trim_start_matches(['#', ' '])
                    .strip_prefix(key)
                    .is_some_and(|rest| rest.starts_with(" ="))
            });
            assert!(shown, "{} does not show {name}", path.display());
        }
    }
}

#[test]
fn the_two_nodes_fit_each_other() {
    let [a, b] = ["node-a.toml", "node-b.toml"].map(|file| Config::load(&folder().join(file)).unwrap());
    for (one, other) in [(&a, &b), (&b, &a)] {
        assert_eq!(one.peers.len(), 1);
        assert_eq!(one.peers[0].name, other.node.name);
        assert_eq!(one.peers[0].address.parse::<SocketAddr>().unwrap(), other.fabric.listen);
        assert_eq!(one.fabric.key_file, other.fabric.key_file);
    }
    assert_ne!(a.node.state_dir, b.node.state_dir);
    assert_ne!(a.control.listen, b.control.listen);
}

#[test]
fn readme_has_the_table_of_the_code() {
    const BEGIN: &str = "<!-- table -->\n";
    const END: &str = "<!-- end -->";
    let path = folder().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the table's beginning is marked");
    let (shown, tail) = rest.split_once(END).expect("the table's end is marked");
    let table = reference::table();
    if std::env::var_os("RAILHEAD_BLESS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
        return;
    }
    assert!(shown == table, "configs/README.md is not up to date: run it with RAILHEAD_BLESS=1");
}

#[test]
fn defaults_of_the_reference_are_those_of_the_parser() {
    let text = "[node]\nname = \"n\"\nstate_dir = \"s\"\n[fabric]\nkey_file = \"k\"\n";
    let config = Config::parse(Path::new("/c/x.toml"), text).unwrap();
    let of = |name: &str| {
        reference::FIELDS_AT_RESTART
            .iter()
            .find(|field| field.name == name)
            .expect("known field")
            .default
            .to_owned()
    };
    for (name, value) in [
        ("dataplane.lanes", config.dataplane.lanes.to_string()),
        ("dataplane.log", config.dataplane.log.name().to_owned()),
        ("session.max", config.session.max.to_string()),
        ("pool.small_bytes", config.pool.small_bytes.to_string()),
        ("pool.small_send", config.pool.small_send.to_string()),
        ("pool.small_receive", config.pool.small_receive.to_string()),
        ("pool.large_bytes", config.pool.large_bytes.to_string()),
        ("pool.large_send", config.pool.large_send.to_string()),
        ("pool.large_receive", config.pool.large_receive.to_string()),
        ("fabric.listen", config.fabric.listen.to_string()),
        ("control.listen", config.control.listen.to_string().replace("http://", "")),
    ] {
        assert_eq!(of(name), value, "{name}");
    }
    assert_eq!(config.dataplane.session_socket, Path::new("/c/s/session.sock"));
    assert_eq!(config.dataplane.admin_socket, Path::new("/c/s/admin.sock"));
    assert_eq!(config.session.uids, None);
}
