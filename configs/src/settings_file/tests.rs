use super::*;
use railhead_abi::Code;
use railhead_abi::settings::Setting;

fn saved() -> Saved {
    let mut settings = Settings::default();
    settings.set(Setting::SendMode, 1);
    settings.set(Setting::ChunkBytes, 8192);
    settings.set_lane_core(0, Some(3));
    settings.set_lane_core(63, Some(0));
    Saved { generation: 42, author: "someone \"else\"".to_owned(), unix_ns: u64::MAX, settings }
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(load(folder.path()).unwrap(), None);
    save(folder.path(), &Saved { generation: 41, ..saved() }).unwrap();
    save(folder.path(), &saved()).unwrap();
    assert_eq!(load(folder.path()).unwrap(), Some(saved()));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [FILE_NAME], "no temporary file is left");
}

#[test]
fn failed_save_keeps_the_old_content() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &saved()).unwrap();
    // A folder where the temporary file would be: opening it fails, whoever runs the test.
    std::fs::create_dir(folder.path().join("settings.json.new")).unwrap();
    let error = save(folder.path(), &Saved { generation: 43, ..saved() }).unwrap_err();
    assert!(matches!(error, SettingsFileError::Io { .. }), "{error}");
    assert_eq!(load(folder.path()).unwrap(), Some(saved()));
}

#[test]
fn bad_content_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &saved()).unwrap();
    let path = folder.path().join(FILE_NAME);
    let good = std::fs::read_to_string(&path).unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        std::fs::write(&path, good.replace(from, to)).unwrap();
        load(folder.path()).unwrap_err()
    };
    assert!(matches!(with("{", ""), SettingsFileError::Form { .. }));
    assert!(matches!(with("\"format\": 1", "\"format\": 2"), SettingsFileError::Form { .. }));
    assert!(matches!(with("\"format\"", "\"version\""), SettingsFileError::Form { .. }));
    for (from, to, code) in [
        ("\"staged\"", "\"fast\"", Code::SettingRange),
        ("\"staged\"", "1", Code::SettingType),
        ("\"staged\"", "[]", Code::SettingType),
        ("8192", "8192.5", Code::SettingType),
        ("8192", "-1", Code::SettingRange),
        ("send.mode", "sendmode", Code::SettingUnknown),
    ] {
        match with(from, to) {
            SettingsFileError::Setting { refused, .. } => assert_eq!(refused.code, code, "{from} -> {to}"),
            other => panic!("{other}"),
        }
    }
    let half = &good[..good.len() / 2];
    std::fs::write(&path, half).unwrap();
    assert!(matches!(load(folder.path()), Err(SettingsFileError::Form { .. })));
}
