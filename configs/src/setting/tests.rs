use super::*;

#[test]
fn names_and_words_are_one_to_one() {
    for key in Key::all(LANES_MAX) {
        assert_eq!(Key::parse(&key.name()), Ok(key));
        assert_eq!(Key::of_word(key.word()), Some(key));
        assert!(!key.text().is_empty() && !key.range().is_empty());
    }
    assert_eq!(Key::of_word(63), None);
    assert_eq!(Key::of_word(SETTINGS_WORDS), None);
}

#[test]
fn values_come_back_as_they_went_in() {
    let mut settings = Settings::default();
    for (name, given, shown) in [
        ("send.mode", Given::Text("direct"), "direct"),
        ("pipeline_depth", Given::Number(3), "3"),
        ("lanes.5.core", Given::Number(0), "0"),
        ("lanes.6.core", Given::Nothing, "none"),
    ] {
        let key = Key::parse(name).unwrap();
        settings.words[key.word()] = key.word_of(given).unwrap();
        assert_eq!(key.read(&settings).to_string(), shown);
    }
    assert_eq!(settings.lane_core(5), Some(0));
}

#[test]
fn values_are_refused_by_type_and_range() {
    let word = |name: &str, given| Key::parse(name).unwrap().word_of(given).map_err(|refused| refused.code);
    assert_eq!(word("pipeline_depth", Given::Number(0)), Err(Code::SettingRange));
    assert_eq!(word("pipeline_depth", Given::Number(65)), Err(Code::SettingRange));
    assert_eq!(word("pipeline_depth", Given::Number(-1)), Err(Code::SettingRange));
    assert_eq!(word("pipeline_depth", Given::Number(1 << 64)), Err(Code::SettingRange));
    assert_eq!(word("pipeline_depth", Given::Text("8")), Err(Code::SettingType));
    assert_eq!(word("pipeline_depth", Given::Nothing), Err(Code::SettingType));
    assert_eq!(word("send.mode", Given::Text("Auto")), Err(Code::SettingRange));
    assert_eq!(word("send.mode", Given::Number(0)), Err(Code::SettingType));
    assert_eq!(word("send.mode", Given::Other("a list")), Err(Code::SettingType));
    assert_eq!(word("lanes.0.core", Given::Number(-1)), Err(Code::SettingRange));
    assert_eq!(word("lanes.0.core", Given::Number(i128::from(u64::MAX))), Err(Code::SettingRange));
}

#[test]
fn unknown_names_say_why() {
    let code = |name: &str| Key::parse(name).unwrap_err().code;
    assert_eq!(code("sendmode"), Code::SettingUnknown);
    assert_eq!(code(""), Code::SettingUnknown);
    assert_eq!(code("lanes.64.core"), Code::SettingLaneAbsent);
    assert_eq!(code("lanes.x.core"), Code::SettingLaneAbsent);
    assert_eq!(code("pool.large_bytes"), Code::SettingRestartOnly);
    assert_eq!(code("fabric"), Code::SettingRestartOnly);
    assert!(Key::parse("send.mod").unwrap_err().what.contains("`send.mode`"));
    assert!(!Key::parse("entirely_different").unwrap_err().what.contains('`'));
}

#[test]
fn difference_lists_changed_settings() {
    let from = Settings::default();
    let mut to = from;
    to.set(Setting::ReceiveMode, 2);
    to.set_lane_core(3, Some(7));
    let keys: Vec<String> = difference(&from, &to).map(Key::name).collect();
    assert_eq!(keys, ["receive.mode", "lanes.3.core"]);
    assert_eq!(difference(&from, &from).count(), 0);
}
