//! The names and values of live settings, as people write them in TOML, in JSON and on a command line.

use std::fmt;

use railhead_abi::Code;
use railhead_abi::settings::{
    FIELDS, Kind, LANE_CORE_WORD, LANE_NODE_WORD, LANE_POOL_NODE_WORD, LANES_MAX, SETTINGS_WORDS, Setting,
    Settings,
};

/// A setting by name: one of the fixed ones, or one of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// One of [`FIELDS`].
    Fixed(Setting),
    /// `lanes.N.core`, N below [`LANES_MAX`].
    LaneCore(usize),
    /// `lanes.N.numa_node`.
    LaneNode(usize),
    /// `lanes.N.pool_numa_node`.
    LanePoolNode(usize),
}

/// A value as it came in, whatever the notation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given<'a> {
    /// A whole number.
    Number(i128),
    /// A text.
    Text(&'a str),
    /// Nothing (JSON null).
    Nothing,
    /// Anything else, named for people: `a list`.
    Other(&'static str),
}

/// A value as it goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// A number in the setting's unit.
    Number(u64),
    /// One of the setting's names.
    Name(&'static str),
    /// Not set: a lane that is not pinned, or lies anywhere.
    Unset,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::Unset => "none".fmt(f),
        }
    }
}

/// A refused name or value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The stable code.
    pub code: Code,
    /// The setting's dotted name, as it was given.
    pub field: String,
    /// What is wrong, with the value and what would be right.
    pub what: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

impl std::error::Error for Refused {}

impl Key {
    /// The key of a dotted name.
    ///
    /// # Errors
    /// [`Code::SettingUnknown`], with the nearest name; [`Code::SettingLaneAbsent`] for a lane that no node can have;
    /// [`Code::SettingRestartOnly`] for a field of the configuration file that is not live.
    pub fn parse(name: &str) -> Result<Self, Refused> {
        if let Some(setting) = FIELDS.iter().find(|setting| setting.info().name == name) {
            return Ok(Self::Fixed(*setting));
        }
        let refuse = |code, what| Err(Refused { code, field: name.to_owned(), what });
        let of_lane = name.strip_prefix("lanes.").and_then(|rest| rest.split_once('.'));
        let of_lane = of_lane.and_then(|(lane, rest)| Some((lane, Self::of_lane(rest)?)));
        if let Some((lane, key)) = of_lane {
            return match lane.parse::<usize>() {
                Ok(lane) if lane < LANES_MAX => Ok(key(lane)),
                _ => refuse(
                    Code::SettingLaneAbsent,
                    format!("`{lane}` is not a lane: lanes are 0 to {}", LANES_MAX - 1),
                ),
            };
        }
        if crate::reference::is_restart_only(name) {
            return refuse(
                Code::SettingRestartOnly,
                "this field of the configuration only changes at a restart".to_owned(),
            );
        }
        let names = FIELDS.iter().map(|setting| setting.info().name).chain(["lanes.0.core"]);
        let what = match nearest(name, names) {
            Some(near) => format!("no setting has this name; did you mean `{near}`?"),
            None => "no setting has this name".to_owned(),
        };
        refuse(Code::SettingUnknown, what)
    }

    /// The key of a snapshot's word, or `None` if no setting lies there.
    #[must_use]
    pub fn of_word(word: usize) -> Option<Self> {
        match word {
            LANE_CORE_WORD..LANE_NODE_WORD => Some(Self::LaneCore(word - LANE_CORE_WORD)),
            LANE_NODE_WORD..LANE_POOL_NODE_WORD => Some(Self::LaneNode(word - LANE_NODE_WORD)),
            LANE_POOL_NODE_WORD..SETTINGS_WORDS => Some(Self::LanePoolNode(word - LANE_POOL_NODE_WORD)),
            _ => {
                FIELDS.iter().find(|setting| **setting as usize == word).map(|setting| Self::Fixed(*setting))
            }
        }
    }

    /// All keys of a node, in the order of their words.
    pub fn all(lanes: usize) -> impl Iterator<Item = Self> {
        FIELDS
            .iter()
            .map(|setting| Self::Fixed(*setting))
            .chain((0..lanes.min(LANES_MAX)).map(Self::LaneCore))
            .chain((0..lanes.min(LANES_MAX)).map(Self::LaneNode))
            .chain((0..lanes.min(LANES_MAX)).map(Self::LanePoolNode))
    }

    /// The key of one lane's setting, by the last part of its name.
    fn of_lane(last: &str) -> Option<fn(usize) -> Self> {
        match last {
            "core" => Some(Self::LaneCore),
            "numa_node" => Some(Self::LaneNode),
            "pool_numa_node" => Some(Self::LanePoolNode),
            _ => None,
        }
    }

    /// The word of a snapshot that holds it.
    #[must_use]
    pub const fn word(self) -> usize {
        match self {
            Self::Fixed(setting) => setting as usize,
            Self::LaneCore(lane) => LANE_CORE_WORD + lane,
            Self::LaneNode(lane) => LANE_NODE_WORD + lane,
            Self::LanePoolNode(lane) => LANE_POOL_NODE_WORD + lane,
        }
    }

    /// The dotted name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Fixed(setting) => setting.info().name.to_owned(),
            Self::LaneCore(lane) => format!("lanes.{lane}.core"),
            Self::LaneNode(lane) => format!("lanes.{lane}.numa_node"),
            Self::LanePoolNode(lane) => format!("lanes.{lane}.pool_numa_node"),
        }
    }

    /// The unit of its values, empty for names.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Fixed(setting) => match setting.info().kind {
                Kind::Number { unit, .. } => unit,
                Kind::Choice(_) => "",
            },
            Self::LaneCore(_) => "core",
            Self::LaneNode(_) | Self::LanePoolNode(_) => "NUMA node",
        }
    }

    /// One line for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fixed(setting) => setting.info().text,
            Self::LaneCore(_) => "the core that the lane is pinned to; unset leaves it to the scheduler",
            Self::LaneNode(_) => {
                "where the lane's tables lie, and its pool and thread as far as nothing else is said of them; unset leaves them where they are"
            }
            Self::LanePoolNode(_) => {
                "where the lane's staging blocks lie; unset follows the lane's numa_node"
            }
        }
    }

    /// What its values may be, for people: `4096 to 67108864 bytes`, `auto, staged or direct`.
    #[must_use]
    pub fn range(self) -> String {
        match self {
            Self::Fixed(setting) => match setting.info().kind {
                Kind::Number { unit, min, max } => format!("{min} to {max} {unit}"),
                Kind::Choice(names) => choices(names),
            },
            Self::LaneCore(_) => "a core that the dataplane may use, or nothing".to_owned(),
            Self::LaneNode(_) | Self::LanePoolNode(_) => "a NUMA node with memory, or nothing".to_owned(),
        }
    }

    /// Its value in a snapshot.
    #[must_use]
    pub fn read(self, settings: &Settings) -> Value {
        match self {
            Self::Fixed(setting) => self.value_of(settings.get(setting)),
            _ => self.value_of(settings.words[self.word()]),
        }
    }

    /// What a word of a snapshot means for this key. Words that are out of range are shown as numbers.
    #[must_use]
    pub fn value_of(self, word: u64) -> Value {
        match self {
            Self::Fixed(setting) => match setting.info().kind {
                Kind::Number { .. } => Value::Number(word),
                Kind::Choice(names) => usize::try_from(word)
                    .ok()
                    .and_then(|place| names.get(place))
                    .map_or(Value::Number(word), |name| Value::Name(name)),
            },
            _ => word.checked_sub(1).map_or(Value::Unset, Value::Number),
        }
    }

    /// The word for a given value, checked against the setting's own bounds.
    ///
    /// # Errors
    /// [`Code::SettingType`], [`Code::SettingRange`].
    pub fn word_of(self, given: Given<'_>) -> Result<u64, Refused> {
        match (self, given) {
            (Self::Fixed(setting), Given::Number(number)) => match setting.info().kind {
                Kind::Number { min, max, .. } => u64::try_from(number)
                    .ok()
                    .filter(|number| (min..=max).contains(number))
                    .ok_or_else(|| self.refuse(Code::SettingRange, number)),
                Kind::Choice(_) => Err(self.refuse(Code::SettingType, format_args!("{number}, a number,"))),
            },
            (Self::Fixed(setting), Given::Text(text)) => match setting.info().kind {
                Kind::Number { .. } => {
                    Err(self.refuse(Code::SettingType, format_args!("\"{text}\", a text,")))
                }
                Kind::Choice(names) => names
                    .iter()
                    .position(|name| *name == text)
                    .map(|place| place as u64)
                    .ok_or_else(|| self.refuse(Code::SettingRange, format_args!("\"{text}\""))),
            },
            (Self::Fixed(_), Given::Nothing) => Err(self.refuse(Code::SettingType, "nothing")),
            (_, Given::Other(kind)) => Err(self.refuse(Code::SettingType, kind)),
            (_, Given::Nothing) => Ok(0),
            // What is above the masks of `Limits` is refused there; here only what does not fit the word.
            (_, Given::Number(number)) => u64::try_from(number)
                .ok()
                .and_then(|number| number.checked_add(1))
                .ok_or_else(|| self.refuse(Code::SettingRange, number)),
            (_, Given::Text(text)) => {
                Err(self.refuse(Code::SettingType, format_args!("\"{text}\", a text,")))
            }
        }
    }

    fn refuse(self, code: Code, given: impl fmt::Display) -> Refused {
        let given = given.to_string();
        let given = given.trim_end_matches(',');
        Refused {
            code,
            field: self.name(),
            what: format!("{given} is not allowed; allowed: {}", self.range()),
        }
    }
}

/// The settings that differ, in the order of their words.
pub fn difference(from: &Settings, to: &Settings) -> impl Iterator<Item = Key> {
    let words = from.words.iter().zip(&to.words).enumerate();
    let keys: Vec<Key> =
        words.filter(|(_, (from, to))| from != to).filter_map(|(word, _)| Key::of_word(word)).collect();
    keys.into_iter()
}

/// Names as people list them: `auto, staged or direct`.
fn choices(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The candidate that a misspelt name probably means, if one is near.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = name.len() / 3 + 1;
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, candidate)| candidate)
}

/// Single-byte edits between two names.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(a != b)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests;
