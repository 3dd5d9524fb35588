use super::*;
use railhead_abi::settings::Setting;
use serde_json::json;

fn patched(patch: Json) -> Result<Settings, (Code, Option<String>)> {
    let mut current = Settings::default();
    current.set(Setting::ReceiveMode, 2);
    current.set_lane_core(1, Some(4));
    let mut configured = Settings::default();
    configured.set(Setting::ReceiveMode, 1);
    configured.set_lane_core(1, Some(9));
    apply(&current, &configured, &patch).map_err(|problem| (problem.code, problem.field))
}

#[test]
fn document_is_nested_and_names_every_setting() {
    let document = document(&Settings::default(), 2);
    for key in Key::all(2) {
        let pointer = format!("/{}", key.name().replace('.', "/"));
        let expected = value_json(key.read(&Settings::default()));
        assert_eq!(document.pointer(&pointer), Some(&expected), "{pointer}");
    }
    let lane = json!({"core": null, "numa_node": null, "pool_numa_node": null});
    assert_eq!(document["lanes"], json!({"0": lane, "1": lane}));
}

#[test]
fn document_as_a_patch_changes_nothing() {
    let mut settings = Settings::default();
    settings.set_lane_core(0, Some(3));
    settings.set(Setting::SendMode, 2);
    let patch = document(&settings, 2);
    assert_eq!(apply(&settings, &Settings::default(), &patch).unwrap(), settings);
    assert_eq!(apply(&Settings::default(), &Settings::default(), &patch).unwrap(), settings);
}

#[test]
fn nested_and_dotted_names_are_the_same() {
    let nested =
        patched(json!({"send": {"mode": "staged", "direct_from_bytes": 0}, "lanes": {"0": {"core": 2}}}));
    let dotted = patched(json!({"send.mode": "staged", "send.direct_from_bytes": 0, "lanes.0.core": 2}));
    assert_eq!(nested, dotted);
    let settings = nested.unwrap();
    assert_eq!((settings.get(Setting::SendMode), settings.lane_core(0)), (1, Some(2)));
    assert_eq!(settings.get(Setting::ReceiveMode), 2, "what the patch does not name stays");
}

#[test]
fn null_leads_back_to_the_configuration() {
    assert_eq!(patched(json!({"receive": {"mode": null}})).unwrap().get(Setting::ReceiveMode), 1);
    assert_eq!(patched(json!({"receive": null})).unwrap().get(Setting::ReceiveMode), 1);
    assert_eq!(patched(json!({"lanes": {"1": {"core": null}}})).unwrap().lane_core(1), None, "unpinned");
    assert_eq!(patched(json!({"lanes": {"1": null}})).unwrap().lane_core(1), None);
}

#[test]
fn bad_members_are_named() {
    for (patch, code, field) in [
        (json!([1]), Code::RequestMalformed, "body"),
        (json!("send"), Code::RequestMalformed, "body"),
        (json!({"send": "staged"}), Code::SettingType, "send"),
        (json!({"lanes": {"1": 4}}), Code::SettingType, "lanes.1"),
        (json!({"chunk_bytes": {"x": 1}}), Code::SettingUnknown, "chunk_bytes.x"),
        (json!({"sent": {"mode": "auto"}}), Code::SettingUnknown, "sent.mode"),
        (json!({"nothing": null}), Code::SettingUnknown, "nothing"),
        (json!({"send": {"mode": 1}}), Code::SettingType, "send.mode"),
        (json!({"send": {"mode": true}}), Code::SettingType, "send.mode"),
        (json!({"send": {"mode": ["auto"]}}), Code::SettingType, "send.mode"),
        (json!({"chunk_bytes": 4096.5}), Code::SettingType, "chunk_bytes"),
        (json!({"chunk_bytes": "4096"}), Code::SettingType, "chunk_bytes"),
        (json!({"chunk_bytes": -1}), Code::SettingRange, "chunk_bytes"),
        (json!({"pipeline_depth": 0}), Code::SettingRange, "pipeline_depth"),
        (json!({"pool": {"large_bytes": 1}}), Code::SettingRestartOnly, "pool.large_bytes"),
        (json!({"lanes": {"64": {"core": 1}}}), Code::SettingLaneAbsent, "lanes.64.core"),
        (json!({"send": {"mode": "auto"}, "send.mode": "auto"}), Code::RequestMalformed, "send.mode"),
    ] {
        assert_eq!(patched(patch.clone()), Err((code, Some(field.to_owned()))), "{patch}");
    }
}

#[test]
fn snapshot_is_judged_against_the_node() {
    let limits = Limits {
        large_block_bytes: 8192,
        lanes: 2,
        cores: [0b100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        numa_nodes: 0b11,
    };
    let judged = |patch: Json| {
        let mut base = Settings::default();
        base.set(Setting::ChunkBytes, 8192);
        let settings = apply(&base, &base, &patch).unwrap();
        validate(&settings, &limits).map_err(|problem| (problem.code, problem.field.unwrap()))
    };
    assert_eq!(judged(json!({"lanes.0.core": 2})), Ok(()));
    assert_eq!(judged(json!({"lanes": {"1": {"numa_node": 1, "pool_numa_node": 0}}})), Ok(()));
    assert_eq!(judged(json!({"lanes.1.numa_node": null})), Ok(()));
    for (patch, code, field) in [
        (json!({"chunk_bytes": 8193}), Code::SettingBlockBytes, "chunk_bytes"),
        (json!({"slice_bytes": 300_000}), Code::SettingContradiction, "slice_bytes"),
        (json!({"lanes.0.core": 3}), Code::SettingCoreAbsent, "lanes.0.core"),
        (json!({"lanes.0.core": 5000}), Code::SettingCoreAbsent, "lanes.0.core"),
        (json!({"lanes.2.core": 2}), Code::SettingLaneAbsent, "lanes.2.core"),
        (json!({"lanes.1.numa_node": 2}), Code::SettingNodeAbsent, "lanes.1.numa_node"),
        (json!({"lanes.1.pool_numa_node": 64}), Code::SettingNodeAbsent, "lanes.1.pool_numa_node"),
        (json!({"lanes.2.pool_numa_node": 0}), Code::SettingLaneAbsent, "lanes.2.pool_numa_node"),
    ] {
        assert_eq!(judged(patch), Err((code, field.to_owned())));
    }
}
