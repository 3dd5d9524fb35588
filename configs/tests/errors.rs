//! Bad files: each is refused with the code, the line and the field to blame, and with a remedy.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use railhead_abi::Code;
use railhead_config::{Config, ConfigError, CopyThreads, UseRdma};

const GOOD: &str = "\
[node]
name = \"a\"
state_dir = \"run\"
[dataplane]
lanes = 2
[pool]
small_bytes = 16384
large_bytes = 262144
[fabric]
listen = \"127.0.0.1:7000\"
key_file = \"key\"
[[peer]]
name = \"b\"
address = \"127.0.0.1:7001\"
[settings]
chunk_bytes = 65536
send.mode = \"auto\"
[control]
listen = \"127.0.0.1:7002\"
";

fn refused(text: &str) -> ConfigError {
    let error = Config::parse(Path::new("/etc/x.toml"), text).expect_err("should be refused");
    assert!(!error.what.is_empty() && !error.remedy.is_empty(), "{error:?}");
    assert!(!error.what.contains('\n') && !error.remedy.contains('\n'), "one line each: {error:?}");
    error
}

/// Replaces a line of the good file; the error must blame the field and the last line that was put in.
#[track_caller]
fn replaced(line: usize, with: &str, code: Code, field: &str) -> ConfigError {
    let lines: Vec<&str> =
        GOOD.lines().enumerate().map(|(at, old)| if at + 1 == line { with } else { old }).collect();
    let error = refused(&lines.join("\n"));
    assert_eq!((error.code, error.field.as_str()), (code, field), "{error}");
    assert_eq!(error.line, Some(line + with.lines().count() - 1), "{error}");
    error
}

#[test]
fn good_file_is_good() {
    Config::parse(Path::new("/etc/x.toml"), GOOD).unwrap();
}

#[test]
fn unknown_field_is_named_with_the_nearest() {
    let error = replaced(5, "lane = 2", Code::ConfigField, "dataplane.lane");
    assert!(error.what.contains("`lanes`"), "{error}");
    assert!(error.remedy.contains("admin_socket"), "{error}");
    replaced(14, "adress = \"127.0.0.1:7001\"", Code::ConfigField, "peer[0].adress");
    let error = replaced(4, "[dataplan]", Code::ConfigField, "dataplan");
    assert!(error.what.contains("`dataplane`"), "{error}");
}

#[test]
fn wrong_types() {
    replaced(5, "lanes = \"two\"", Code::ConfigField, "dataplane.lanes");
    replaced(5, "lanes = -1", Code::ConfigField, "dataplane.lanes");
    replaced(5, "cores = [\"x\"]", Code::ConfigField, "dataplane.cores[0]");
    replaced(2, "name = 7", Code::ConfigField, "node.name");
    replaced(7, "hugepages = \"maybe\"", Code::ConfigField, "pool.hugepages");
}

#[test]
fn missing_fields() {
    let error = refused(&GOOD.replace("key_file = \"key\"\n", ""));
    assert_eq!(
        (error.code, error.field.as_str(), error.line),
        (Code::ConfigField, "fabric.key_file", Some(9))
    );
    let error = refused(&GOOD.replace("name = \"b\"\n", ""));
    assert_eq!((error.field.as_str(), error.line), ("peer[0].name", Some(12)));
    let error = refused("");
    assert_eq!((error.code, error.field.as_str()), (Code::ConfigField, "node"));
}

#[test]
fn syntax_error_has_its_line() {
    let error = refused(&GOOD.replace("lanes = 2", "lanes = = 2"));
    assert_eq!((error.code, error.line), (Code::ConfigSyntax, Some(5)));
    let error = refused(&GOOD.replace("lanes = 2", "lanes = 2\nlanes = 3"));
    assert_eq!((error.code, error.line), (Code::ConfigSyntax, Some(6)));
}

#[test]
fn lanes_are_1_to_64() {
    for lanes in [0, 65, 1_000_000] {
        replaced(5, &format!("lanes = {lanes}"), Code::ConfigField, "dataplane.lanes");
    }
}

#[test]
fn copy_cores_fit_the_lanes_and_are_their_own() {
    let field = "dataplane.copy_cores";
    replaced(5, "lanes = 2\ncopy_threads = \"maybe\"", Code::ConfigField, "dataplane.copy_threads");
    replaced(5, "lanes = 2\ncopy_cores = [3]", Code::ConfigContradiction, field);
    replaced(5, "lanes = 2\ncopy_cores = [3, 3]", Code::ConfigContradiction, field);
    replaced(5, "lanes = 2\ncopy_cores = [3, 5000]", Code::ConfigField, field);
    replaced(5, "lanes = 2\ncores = [1, 2]\ncopy_cores = [3, 1]", Code::ConfigContradiction, field);
    replaced(5, "lanes = 2\ncopy_threads = \"off\"\ncopy_cores = [3, 4]", Code::ConfigContradiction, field);
    let good =
        GOOD.replace("lanes = 2", "lanes = 2\ncopy_threads = \"on\"\ncores = [1, 2]\ncopy_cores = [3, 4]");
    let config = Config::parse(Path::new("/etc/x.toml"), &good).unwrap();
    assert_eq!(config.dataplane.copy_threads, CopyThreads::On);
    assert_eq!(config.dataplane.copy_cores, Some(vec![3, 4]));
    let default = Config::parse(Path::new("/etc/x.toml"), GOOD).unwrap().dataplane;
    assert_eq!((default.copy_threads, default.copy_cores), (CopyThreads::Auto, None));
}

#[test]
fn rdma_devices_are_few_and_different() {
    let with = |body: &str| GOOD.replace("[fabric]", &format!("[rdma]\n{body}\n[fabric]"));
    let refused = |body: &str, code: Code, field: &str| {
        let error = Config::parse(Path::new("/etc/x.toml"), &with(body)).unwrap_err();
        assert_eq!((error.code, error.field.as_str()), (code, field), "{body}");
    };
    refused("use = \"maybe\"", Code::ConfigField, "rdma.use");
    refused("use = \"off\"\ndevices = [\"x\"]", Code::ConfigContradiction, "rdma.devices");
    refused("devices = [\"x\", \"x\"]", Code::ConfigContradiction, "rdma.devices");
    refused("devices = [\"\"]", Code::ConfigContradiction, "rdma.devices");
    refused("devices = [\"a\", \"b\", \"c\", \"d\", \"e\"]", Code::ConfigContradiction, "rdma.devices");
    refused("traffic_class = 256", Code::ConfigField, "rdma.traffic_class");
    let config = Config::parse(Path::new("/etc/x.toml"), &with("devices = [\"rxe0\"]")).unwrap();
    assert_eq!(config.rdma.devices, ["rxe0"]);
    assert_eq!(Config::parse(Path::new("/etc/x.toml"), GOOD).unwrap().rdma.use_rdma, UseRdma::Auto);
}

#[test]
fn cores_fit_the_lanes() {
    replaced(5, "lanes = 2\ncores = [1]", Code::ConfigContradiction, "dataplane.cores");
    let text = GOOD
        .replace("lanes = 2", "lanes = 2\ncores = [1, 2]")
        .replace("[control]", "lanes.1.core = 3\n[control]");
    assert_eq!(refused(&text).code, Code::ConfigContradiction);
    let text = GOOD.replace("lanes = 2", "lanes = 2\ncores = [1, 2]");
    let config = Config::parse(Path::new("x"), &text).unwrap();
    assert_eq!((config.settings.lane_core(0), config.settings.lane_core(1)), (Some(1), Some(2)));
}

#[test]
fn pool_sizes() {
    replaced(7, "small_bytes = 1000", Code::ConfigField, "pool.small_bytes");
    replaced(7, "small_bytes = 20000", Code::ConfigField, "pool.small_bytes");
    replaced(7, "small_bytes = 262144", Code::ConfigContradiction, "pool.small_bytes");
    replaced(7, "small_send = 0", Code::ConfigField, "pool.small_send");
    replaced(7, "small_receive = 3", Code::ConfigContradiction, "pool.small_receive");
    replaced(8, "large_bytes = 1073745920", Code::ConfigField, "pool.large_bytes");
    let text = GOOD.replace("large_bytes = 262144", "large_bytes = 1073741824\nlarge_receive = 65535");
    assert_eq!(refused(&text).code, Code::ConfigContradiction);
}

#[test]
fn settings_against_each_other_and_the_pool() {
    let error = replaced(16, "chunk_bytes = 524288", Code::SettingBlockBytes, "settings.chunk_bytes");
    assert!(error.what.contains("262144"), "{error}");
    replaced(16, "chunk_bytes = 1", Code::SettingRange, "settings.chunk_bytes");
    replaced(16, "slice_bytes = 1048576", Code::SettingContradiction, "settings.slice_bytes");
    replaced(17, "send.mode = 1", Code::SettingType, "settings.send.mode");
    let error = replaced(17, "send.mode = \"fast\"", Code::SettingRange, "settings.send.mode");
    assert!(error.what.contains("auto, staged or direct"), "{error}");
    let error = replaced(17, "send.mod = \"auto\"", Code::SettingUnknown, "settings.send.mod");
    assert!(error.what.contains("`send.mode`"), "{error}");
    replaced(17, "lanes.2.core = 0", Code::SettingLaneAbsent, "settings.lanes.2.core");
    replaced(17, "lanes.64.core = 0", Code::SettingLaneAbsent, "settings.lanes.64.core");
    replaced(17, "idle.spin_us = 1.5", Code::SettingType, "settings.idle.spin_us");
}

#[test]
fn names() {
    for name in ["", "two words", "self", &"x".repeat(64), "a/b", "ä"] {
        let code = if name == "self" { Code::ConfigField } else { Code::NameInvalid };
        replaced(2, &format!("name = \"{name}\""), code, "node.name");
        replaced(13, &format!("name = \"{name}\""), code, "peer[0].name");
    }
}

#[test]
fn peers_contradict_the_node_or_each_other() {
    replaced(13, "name = \"a\"", Code::ConfigContradiction, "peer[0].name");
    replaced(14, "address = \"127.0.0.1:7000\"", Code::ConfigContradiction, "peer[0].address");
    let second = |name: &str, address: &str| {
        GOOD.replace(
            "[settings]",
            &format!("[[peer]]\nname = \"{name}\"\naddress = \"{address}\"\n[settings]"),
        )
    };
    let error = refused(&second("b", "127.0.0.1:7003"));
    assert_eq!(
        (error.code, error.field.as_str(), error.line),
        (Code::ConfigContradiction, "peer[1].name", Some(16))
    );
    let error = refused(&second("c", "127.0.0.1:7001"));
    assert_eq!((error.code, error.field.as_str()), (Code::ConfigContradiction, "peer[1].address"));
    Config::parse(Path::new("x"), &second("c", "node-c.example:7001")).unwrap();
    let many: String =
        (0..65).map(|n| format!("[[peer]]\nname = \"p{n}\"\naddress = \"h{n}:1\"\n")).collect();
    assert_eq!(refused(&GOOD.replace("[settings]", &format!("{many}[settings]"))).field, "peer");
}

#[test]
fn addresses() {
    for address in [
        "",
        "host",
        "host:",
        "host:0",
        "host:70000",
        ":1",
        "0.0.0.0:1",
        "a b:1",
        &format!("{}:1", "h".repeat(62)),
    ] {
        replaced(14, &format!("address = \"{address}\""), Code::ConfigField, "peer[0].address");
    }
    replaced(10, "listen = \"localhost\"", Code::ConfigField, "fabric.listen");
    replaced(19, "listen = \"7002\"", Code::ConfigField, "control.listen");
    replaced(19, "listen = \"127.0.0.1:7000\"", Code::ConfigContradiction, "control.listen");
    replaced(19, "listen = \"unix:\"", Code::ConfigField, "control.listen");
    for open in ["0.0.0.0:7002", "10.0.0.1:7002", "[::]:7002"] {
        replaced(19, &format!("listen = \"{open}\""), Code::ListenRefused, "control.listen");
    }
    for fine in ["[::1]:7002", "127.0.0.2:7000", "unix:run/control.sock", "unix:/run/x.sock"] {
        Config::parse(Path::new("x"), &GOOD.replace("127.0.0.1:7002", fine)).unwrap();
    }
    let all = GOOD.replace("127.0.0.1:7000", "0.0.0.0:7002");
    assert_eq!(refused(&all).code, Code::ConfigContradiction, "0.0.0.0 takes the port on loopback, too");
}

#[test]
fn sockets() {
    let long = "x".repeat(120);
    replaced(3, &format!("state_dir = \"{long}\""), Code::ConfigField, "node.state_dir");
    replaced(5, &format!("admin_socket = \"{long}\""), Code::ConfigField, "dataplane.admin_socket");
    replaced(19, &format!("listen = \"unix:{long}\""), Code::ConfigField, "control.listen");
    replaced(5, "admin_socket = \"run/session.sock\"", Code::ConfigContradiction, "dataplane.admin_socket");
    replaced(19, "listen = \"unix:run/admin.sock\"", Code::ConfigContradiction, "control.listen");
    replaced(3, "state_dir = \"\"", Code::ConfigField, "node.state_dir");
}

#[test]
fn uids() {
    replaced(5, "lanes = 1\n[session]\nuids = []", Code::ConfigContradiction, "session.uids");
    replaced(5, "lanes = 1\n[session]\nmax = 257", Code::ConfigField, "session.max");
}

#[test]
fn missing_file_says_so() {
    let error = Config::load(Path::new("/nonexistent/x.toml")).unwrap_err();
    assert_eq!((error.code, error.line), (Code::ConfigMissing, None));
    assert!(error.to_string().starts_with("/nonexistent/x.toml: "), "{error}");
}

#[test]
fn key_file_is_private_and_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("x.toml"), folder.path().join("key"));
    std::fs::write(&file, GOOD).unwrap();
    let write = |content: &str, mode: u32| {
        std::fs::write(&key, content).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let check = || {
        let error = Config::check(&file).unwrap_err();
        assert_eq!((error.code, error.file.as_path()), (Code::KeyFile, key.as_path()));
        error
    };
    assert!(check().remedy.contains("openssl rand -hex 32"));
    let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
    for mode in [0o640, 0o604, 0o644, 0o660] {
        write(&digits, mode);
        assert!(check().remedy.contains("chmod 600"), "{mode:o}");
    }
    for bad in [
        "",
        "xyz",
        &digits[1..],
        &format!("{digits}0"),
        &digits.replace('F', "G"),
        &digits.replace("ab", "ä"),
    ] {
        write(bad, 0o600);
        let error = check().to_string();
        assert!(!error.contains(&digits[..16]), "a key never shows up in an error");
    }
    write(&format!("{digits}\n"), 0o600);
    let config = Config::check(&file).unwrap();
    assert_eq!(config.fabric.read_key().unwrap()[..3], [0x01, 0x23, 0x45]);
}

#[test]
fn no_damage_to_a_file_is_worse_than_an_error() {
    // A fixed sequence, so that a failure comes again.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let pieces = [
        "=",
        "[",
        "]",
        "\"",
        "\n",
        "#",
        ".",
        "-1",
        "99999999999999999999",
        "{}",
        "[[peer]]",
        "true",
        "ä",
        "\u{0}",
    ];
    let mut refused = 0;
    for _ in 0..3000 {
        let mut text: Vec<char> = GOOD.chars().collect();
        for _ in 0..=random(3) {
            let at = random(text.len());
            match random(3) {
                0 => drop(text.drain(at..(at + 1 + random(8)).min(text.len()))),
                1 => drop(text.splice(at..at, pieces[random(pieces.len())].chars())),
                _ => text[at] = char::from(u8::try_from(32 + random(95)).unwrap()),
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = Config::parse(Path::new("/etc/x.toml"), &text) {
            refused += 1;
            let lines = text.split('\n').count();
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}\n{text}");
            assert!(!error.what.contains('\n') && !error.remedy.is_empty(), "{error}");
        }
    }
    assert!(refused > 1000, "{refused}");
}
