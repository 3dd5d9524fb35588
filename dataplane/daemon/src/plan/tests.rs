use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use railhead_abi::settings::{Setting, Settings};
use railhead_config::Peer;
use railhead_config::settings_file::{self, Saved};

use super::*;

fn configuration(folder: &Path, more: &str) -> Result<Plan, StartError> {
    let key = folder.join("cluster.key");
    fs::write(&key, "ab".repeat(32)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "[node]\nname = \"a\"\nstate_dir = \"run\"\n[fabric]\nlisten = \"127.0.0.1:0\"\nkey_file = \"cluster.key\"\n{more}"
    );
    let config = Config::parse(&folder.join("a.toml"), &text).expect("the file itself is sound");
    Plan::new(config)
}

#[test]
fn plan_follows_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let plan = configuration(
        folder.path(),
        "[dataplane]\nlanes = 2\n[pool]\nlarge_send = 3\nlarge_receive = 64\n[settings]\nslice_bytes = 65536\n",
    );
    let plan = plan.unwrap();
    assert_eq!(plan.key, ClusterKey([0xab; 32]));
    assert!(!format!("{plan:?}").contains("171"), "the key is not printed");
    assert_eq!(plan.pool().large_send, 3);
    assert_eq!(plan.arena().bytes, plan.config.pool.lane_bytes());
    assert_eq!((plan.start.generation, plan.start.settings.get(Setting::SliceBytes)), (1, 65536));
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(plan.uids, [own, 0]);
    assert!(plan.summary().contains("2 lane(s)"), "{}", plan.summary());
}

#[test]
fn what_this_machine_does_not_have_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = Cores::allowed().unwrap();
    let absent = (0..1024).rev().find(|core| !allowed.has(*core)).unwrap();
    let refused =
        configuration(folder.path(), &format!("[settings.lanes.0]\ncore = {absent}\n")).unwrap_err();
    assert_eq!((refused.code, refused.what.as_str()), (Code::SettingCoreAbsent, "settings.lanes.0.core"));
    let refused = configuration(folder.path(), "[pool]\nnuma_node = 63\n").unwrap_err();
    assert_eq!((refused.code, refused.what.as_str()), (Code::ConfigContradiction, "pool.numa_node"));
}

#[test]
fn key_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = configuration(folder.path(), "").unwrap();
    fs::set_permissions(folder.path().join("cluster.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Plan::new(plan.config).unwrap_err();
    assert_eq!((refused.code, refused.what.as_str()), (Code::KeyFile, "fabric.key_file"));
}

#[test]
fn saved_settings_go_over_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("run");
    fs::create_dir(&state).unwrap();
    let mut settings = Settings::default();
    settings.set(Setting::ChunkBytes, 8192);
    let saved = Saved { generation: 41, author: "test".to_owned(), unix_ns: 1, settings };
    settings_file::save(&state, &saved).unwrap();
    let plan = configuration(folder.path(), "[settings]\nchunk_bytes = 16384\n").unwrap();
    assert_eq!((plan.start.generation, plan.start.settings.get(Setting::ChunkBytes)), (41, 8192));
    assert!(plan.start.ignored.is_none());
}

#[test]
fn saved_settings_that_do_not_fit_are_ignored_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("run");
    fs::create_dir(&state).unwrap();
    let mut settings = Settings::default();
    settings.set(Setting::ChunkBytes, 1 << 20);
    let saved = Saved { generation: 41, author: "test".to_owned(), unix_ns: 1, settings };
    settings_file::save(&state, &saved).unwrap();
    let plan = configuration(folder.path(), "").unwrap();
    assert_eq!(plan.start.ignored, Some((Code::SettingBlockBytes, "chunk_bytes".to_owned())));
    assert_eq!(plan.start.generation, 42, "an ETag of the ignored ones must not be valid again");
    assert_eq!(plan.start.settings, plan.config.settings);
    fs::write(state.join(settings_file::FILE_NAME), "{").unwrap();
    let plan = configuration(folder.path(), "").unwrap();
    assert_eq!((plan.start.ignored.unwrap().0, plan.start.generation), (Code::ConfigSyntax, 1));
}

#[test]
fn saved_peers_take_the_place_of_the_configurations_unless_they_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let state_dir = folder.path().join("run");
    fs::create_dir(&state_dir).unwrap();
    let configured = "[[peer]]\nname = \"b\"\naddress = \"h:1\"\n";
    let plan = configuration(folder.path(), configured).unwrap();
    assert_eq!((plan.config.peers.len(), plan.map().peers()), (1, 1 + railhead_config::PEERS_SPARE));
    let peer = |name: &str, port: u16| Peer { name: name.to_owned(), address: format!("h:{port}") };
    peers_file::save(&state_dir, &[peer("c", 2), peer("d", 3)]).unwrap();
    let plan = configuration(folder.path(), configured).unwrap();
    assert_eq!(plan.config.peers, [peer("c", 2), peer("d", 3)]);
    assert_eq!(plan.peers_ignored, None);
    // The node itself, as a copied state directory would have it.
    peers_file::save(&state_dir, &[peer("a", 2)]).unwrap();
    let plan = configuration(folder.path(), configured).unwrap();
    assert_eq!(plan.config.peers, [peer("b", 1)]);
    let (code, cause) = plan.peers_ignored.unwrap();
    assert_eq!(
        (code, cause.as_str()),
        (Code::ConfigContradiction, "peer[0].name: this is the node's own name")
    );
    fs::write(state_dir.join(peers_file::FILE_NAME), "{").unwrap();
    let plan = configuration(folder.path(), configured).unwrap();
    assert_eq!(plan.config.peers, [peer("b", 1)]);
    assert_eq!(plan.peers_ignored.unwrap().0, Code::ConfigSyntax);
}
