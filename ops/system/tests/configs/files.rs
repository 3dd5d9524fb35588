//! Configuration files, good and bad, as both processes take them.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use railhead_abi::Code;
use railhead_system::{Cluster, Ended, Folder, NodeConfig, binary, free_port, run, write_key};

const PROGRAMS: [&str; 2] = ["railhead-dataplane", "railhead-control"];
const LIMIT: Duration = Duration::from_secs(10);

fn start(program: &str, file: &Path, check: bool) -> Ended {
    let mut command = Command::new(binary(program));
    command.arg(if check { "--check" } else { "--config" }).arg(file);
    run(&mut command, LIMIT)
}

/// A refusal: not 0, nothing on standard output, and one short error that says what, why and what to do.
#[track_caller]
fn assert_refused(ended: &Ended, program: &str, code: Code, names: &str) {
    assert!(ended.code.is_some_and(|code| code != 0), "{program} was not refused: {ended:?}");
    assert!(ended.err.contains(code.name()), "{program} does not say {}: {}", code.name(), ended.err);
    assert!(ended.err.contains(names), "{program} does not name {names}: {}", ended.err);
    let lines = ended.err.trim_end().lines().count();
    assert!((1..=4).contains(&lines), "{program} says too much or nothing: {}", ended.err);
    assert!(!ended.err.contains("panicked"), "{program}: {}", ended.err);
}

/// A folder with a key and a good file.
fn good() -> (Folder, PathBuf, String) {
    let folder = Folder::new();
    write_key(&folder.join("cluster.key"), '3');
    let mut config = NodeConfig::new("a");
    config.peers = vec![railhead_system::Peer { name: "b".to_owned(), port: free_port() }];
    let text = config.text();
    let file = folder.join("a.toml");
    std::fs::write(&file, &text).unwrap();
    (folder, file, text)
}

#[test]
fn every_file_of_configs_is_valid_for_both_programs() {
    let folder = Folder::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    std::fs::create_dir(folder.join("run")).unwrap();
    write_key(&folder.join("run/cluster.key"), '1');
    let mut count = 0;
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") || path.ends_with("Cargo.toml") {
            continue;
        }
        let copy = folder.join(path.file_name().unwrap());
        std::fs::copy(&path, &copy).unwrap();
        for program in PROGRAMS {
            let ended = start(program, &copy, true);
            assert_eq!(ended.code, Some(0), "{program} {}: {}", path.display(), ended.err);
        }
        count += 1;
    }
    assert!(count >= 3, "{count} files only");
}

#[test]
fn check_starts_and_makes_nothing() {
    let (folder, file, _) = good();
    for program in PROGRAMS {
        assert_eq!(start(program, &file, true).code, Some(0));
    }
    assert!(!folder.join("a").exists(), "the state directory was made");
}

#[test]
fn bad_files_are_refused_before_anything_is_made() {
    let (folder, file, text) = good();
    let cases: [(&str, &str, Code, &str); 14] = [
        ("lanes = 1", "lane = 1", Code::ConfigField, "dataplane.lane"),
        ("lanes = 1", "lanes = \"one\"", Code::ConfigField, "dataplane.lanes"),
        ("lanes = 1", "lanes = 0", Code::ConfigField, "dataplane.lanes"),
        ("lanes = 1", "lanes = = 1", Code::ConfigSyntax, "a.toml"),
        ("lanes = 1", "lanes = 1\ncores = [0, 1]", Code::ConfigContradiction, "dataplane.cores"),
        ("name = \"b\"", "name = \"a\"", Code::ConfigContradiction, "peer[0].name"),
        ("key_file = \"cluster.key\"", "", Code::ConfigField, "fabric.key_file"),
        (
            "hugepages = \"never\"",
            "hugepages = \"never\"\nsmall_receive = 1",
            Code::ConfigContradiction,
            "pool.small_receive",
        ),
        (
            "hugepages = \"never\"",
            "hugepages = \"never\"\nlarge_bytes = 65536",
            Code::SettingBlockBytes,
            "settings.chunk_bytes",
        ),
        ("[settings]", "[settings]\nsend.mode = \"fast\"", Code::SettingRange, "settings.send.mode"),
        ("[settings]", "[settings]\nsend.modes = \"auto\"", Code::SettingUnknown, "settings.send.modes"),
        (
            "[settings]",
            "[settings]\nslice_bytes = 1_048_576",
            Code::SettingContradiction,
            "settings.slice_bytes",
        ),
        ("[settings]", "[setting]", Code::ConfigField, "setting"),
        ("max = 64", "max = 64\nuids = []", Code::ConfigContradiction, "session.uids"),
    ];
    for (old, new, code, names) in cases {
        assert!(text.contains(old), "{old}");
        std::fs::write(&file, text.replacen(old, new, 1)).unwrap();
        for program in PROGRAMS {
            for check in [true, false] {
                assert_refused(&start(program, &file, check), program, code, names);
            }
        }
        assert!(!folder.join("a").exists(), "{new}: the state directory was made");
    }
}

#[test]
fn a_core_that_does_not_exist_is_refused_by_the_dataplane() {
    let (folder, file, text) = good();
    std::fs::write(&file, text.replace("lanes = 1", "lanes = 1\ncores = [1000]")).unwrap();
    for check in [true, false] {
        let ended = start("railhead-dataplane", &file, check);
        assert_refused(&ended, "railhead-dataplane", Code::SettingCoreAbsent, "lanes.0.core");
    }
    assert!(!folder.join("a").exists());
}

#[test]
fn missing_and_unreadable_files_are_named() {
    let folder = Folder::new();
    for program in PROGRAMS {
        let missing = folder.join("missing.toml");
        assert_refused(&start(program, &missing, false), program, Code::ConfigMissing, "missing.toml");
        assert_refused(&start(program, folder.path(), false), program, Code::ConfigMissing, "rh-");
        let ended = run(&mut Command::new(binary(program)), LIMIT);
        assert!(ended.code.is_some_and(|code| code != 0) && ended.err.contains("--config"), "{ended:?}");
        let ended = run(Command::new(binary(program)).args(["--config", "x", "--no-such-thing"]), LIMIT);
        assert!(
            ended.code.is_some_and(|code| code != 0) && ended.err.contains("--no-such-thing"),
            "{ended:?}"
        );
    }
}

#[test]
fn bad_key_files_are_refused_and_never_shown() {
    let (folder, file, _) = good();
    let key = folder.join("cluster.key");
    let digits = "0123456789abcdef".repeat(4);
    let write = |content: &str, mode: u32| {
        std::fs::write(&key, content).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (content, mode) in
        [(digits.as_str(), 0o644), (&digits[1..], 0o600), ("", 0o600), (&digits.replace('a', "x"), 0o600)]
    {
        write(content, mode);
        for program in PROGRAMS {
            for check in [true, false] {
                let ended = start(program, &file, check);
                assert_refused(&ended, program, Code::KeyFile, "cluster.key");
                assert!(!ended.err.contains("0123456789"), "the key is shown: {}", ended.err);
            }
        }
    }
    std::fs::remove_file(&key).unwrap();
    for program in PROGRAMS {
        let ended = start(program, &file, false);
        assert_refused(&ended, program, Code::KeyFile, "openssl rand -hex 32");
    }
    assert!(!folder.join("a").exists());
}

#[test]
fn taken_ports_are_named() {
    let (_folder, file, text) = good();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (program, field) in [("railhead-dataplane", "fabric.listen"), ("railhead-control", "control.listen")]
    {
        let (section, _) = field.split_once('.').unwrap();
        let at = text.find(&format!("[{section}]\nlisten = \"")).unwrap();
        let old: String = text[at..].lines().nth(1).unwrap().to_owned();
        std::fs::write(&file, text.replace(&old, &format!("listen = \"{address}\""))).unwrap();
        let ended = start(program, &file, false);
        assert_refused(&ended, program, Code::PortTaken, field);
        assert!(ended.err.contains(&address), "{}", ended.err);
    }
}

/// A folder that cannot be made, for root as well: below a file.
#[test]
fn a_state_directory_that_cannot_be_made_is_named() {
    let (folder, file, text) = good();
    std::fs::write(folder.join("file"), "precious").unwrap();
    std::fs::write(&file, text.replace("state_dir = \"a\"", "state_dir = \"file/a\"")).unwrap();
    for program in PROGRAMS {
        assert_refused(&start(program, &file, false), program, Code::PathDenied, "node.state_dir");
    }
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "precious");
}

#[test]
fn a_second_dataplane_of_one_node_is_refused_and_the_first_lives() {
    let cluster = Cluster::start(vec![NodeConfig::new("a")]);
    let ended = start("railhead-dataplane", &cluster.a().file(), false);
    assert_refused(&ended, "railhead-dataplane", Code::PortTaken, "");
    let _ = cluster.a().rest().get("/readyz").expect(200);
    drop(crate::support::attach(cluster.a(), "still", 1));
    cluster.stop();
}

/// A spoilt settings file is an event, and the configuration's settings are used.
#[test]
fn a_spoilt_settings_file_is_told_of_and_not_used() {
    let mut cluster = Cluster::prepare(vec![NodeConfig::new("a")]);
    for spoilt in [
        "",
        "{",
        "{\"format\":1}",
        "{\"format\":99,\"generation\":1,\"author\":\"x\",\"unix_ns\":1,\"settings\":{}}",
    ] {
        std::fs::create_dir_all(cluster.a().state_dir()).unwrap();
        std::fs::write(cluster.a().state_dir().join("settings.json"), spoilt).unwrap();
        cluster.nodes[0].start_both();
        assert!(cluster.a().has_event("settings_file_ignored"), "{spoilt}");
        let settings = cluster.a().rest().get("/v1/settings").expect(200).json;
        assert_eq!(settings["settings"]["send"]["mode"], "auto");
        cluster.nodes[0].stop();
    }
    cluster.stop();
}
