//! Settings as a JSON document, and changes to it as merge patches (RFC 7396).
//!
//! The document is nested by the dots of the names: `{"send": {"mode": "auto"}}`. A patch may also use the dotted names
//! themselves (`{"send.mode": "auto"}`), which is what people type. Null brings a setting back to the configuration's
//! value, and unpins a lane; null for a group does so for all in it.

use railhead_abi::Code;
use railhead_abi::settings::{LANES_MAX, Limits, Settings};
use railhead_config::setting::{Key, Value};
use railhead_config::settings_file::given;
use serde_json::{Map, Value as Json};

use crate::problem::Problem;

/// The settings of a node with `lanes` lanes as a document.
#[must_use]
pub fn document(settings: &Settings, lanes: usize) -> Json {
    let mut root = Map::new();
    for key in Key::all(lanes) {
        let name = key.name();
        let mut place = &mut root;
        let mut steps = name.split('.').peekable();
        while let Some(step) = steps.next() {
            if steps.peek().is_none() {
                place.insert(step.to_owned(), value_json(key.read(settings)));
                break;
            }
            let entry = place.entry(step).or_insert_with(|| Json::Object(Map::new()));
            let Json::Object(inner) = entry else {
                unreachable!("no setting's name is the beginning of another's")
            };
            place = inner;
        }
    }
    Json::Object(root)
}

/// A value as JSON.
#[must_use]
pub fn value_json(value: Value) -> Json {
    match value {
        Value::Number(number) => Json::from(number),
        Value::Name(name) => Json::from(name),
        Value::Unset => Json::Null,
    }
}

/// The settings that a patch makes of `current`. `configured` is where null leads back to.
///
/// # Errors
/// A [`Problem`] that names the first bad member, in the patch's order.
pub fn apply(current: &Settings, configured: &Settings, patch: &Json) -> Result<Settings, Problem> {
    let Json::Object(members) = patch else {
        return Err(
            Problem::new(Code::RequestMalformed, "a merge patch of settings is a JSON object").field("body")
        );
    };
    let mut leaves = Vec::new();
    flatten("", members, &mut leaves);
    let mut settings = *current;
    let mut seen = [false; railhead_abi::settings::SETTINGS_WORDS];
    for (name, value) in leaves {
        let keys = keys_of(&name, value)?;
        for key in keys {
            if std::mem::replace(&mut seen[key.word()], true) {
                return Err(Problem::new(Code::RequestMalformed, "the patch sets it twice").field(key.name()));
            }
            settings.words[key.word()] = match (value, key) {
                (Json::Null, Key::Fixed(_)) => configured.words[key.word()],
                _ => key.word_of(given(value))?,
            };
        }
    }
    Ok(settings)
}

/// Checks a snapshot against the node.
///
/// # Errors
/// A [`Problem`] that names the setting.
pub fn validate(settings: &Settings, limits: &Limits) -> Result<(), Problem> {
    settings.validate(limits).map_err(|refusal| {
        let problem = Problem::new(refusal.code, "");
        let Some(key) = Key::of_word(refusal.word) else { return problem };
        let value = key.read(settings);
        let detail = match refusal.code {
            Code::SettingRange => format!("{value} is not allowed; allowed: {}", key.range()),
            Code::SettingBlockBytes => {
                format!("{value} is above pool.large_bytes = {}", limits.large_block_bytes)
            }
            Code::SettingLaneAbsent => format!("this node has lanes 0 to {}", limits.lanes.saturating_sub(1)),
            Code::SettingCoreAbsent => format!("the dataplane may not use core {value}"),
            Code::SettingNodeAbsent => format!("this machine has no NUMA node {value}"),
            code => format!("{value}: {}", code.text()),
        };
        Problem { detail, ..problem }.field(key.name())
    })
}

fn flatten<'a>(prefix: &str, members: &'a Map<String, Json>, out: &mut Vec<(String, &'a Json)>) {
    for (key, value) in members {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Json::Object(inner) => flatten(&name, inner, out),
            _ => out.push((name, value)),
        }
    }
}

/// The setting of a name, or all settings of a group that is set to null.
fn keys_of(name: &str, value: &Json) -> Result<Vec<Key>, Problem> {
    let refused = match Key::parse(name) {
        Ok(key) => return Ok(vec![key]),
        Err(refused) => refused,
    };
    let group: Vec<Key> = Key::all(LANES_MAX)
        .filter(|key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
        .collect();
    match (group.first(), value) {
        (None, _) => Err(refused.into()),
        (Some(_), Json::Null) => Ok(group),
        (Some(first), _) => {
            let detail = format!("this holds other settings, such as {}; give an object", first.name());
            Err(Problem::new(Code::SettingType, detail).field(name))
        }
    }
}

#[cfg(test)]
mod tests;
