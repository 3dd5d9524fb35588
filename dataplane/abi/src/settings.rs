//! Settings: the words of a snapshot, their names and bounds, and what makes a snapshot valid.
//!
//! One table serves the configuration file, REST, the CLI, the documentation and the dataplane.
//! Per-lane settings follow the table: one word per lane.

use crate::codes::Code;

/// Lanes that a node may have.
pub const LANES_MAX: usize = 64;
/// Words of a snapshot: [`FIELDS`], room to grow, then three words a lane.
pub const SETTINGS_WORDS: usize = LANE_POOL_NODE_WORD + LANES_MAX;
/// First word of the lanes' cores: 0 is unpinned, else core + 1.
pub const LANE_CORE_WORD: usize = 64;
/// First word of the lanes' NUMA nodes: 0 is any, else node + 1.
pub const LANE_NODE_WORD: usize = LANE_CORE_WORD + LANES_MAX;
/// First word of the NUMA nodes of the lanes' pools: 0 follows the lane's, else node + 1.
pub const LANE_POOL_NODE_WORD: usize = LANE_NODE_WORD + LANES_MAX;

/// How a leg is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// By rules and threshold.
    Auto = 0,
    /// Always staged; waits under pressure.
    Staged = 1,
    /// Always direct where possible.
    Direct = 2,
}

/// What a lane does when it has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum IdlePolicy {
    /// Polls for ever.
    Spin = 0,
    /// Polls for `idle.spin_us`, then sleeps until it is rung.
    Adaptive = 1,
}

/// What a value of a setting looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number in the unit given.
    Number {
        /// The unit, as in `bytes`.
        unit: &'static str,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// One of these names; the value is its place in the list.
    Choice(&'static [&'static str]),
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct FieldInfo {
    /// Dotted name: the JSON path, the CLI key and the key in `[settings]` of the configuration file.
    pub name: &'static str,
    /// Shape and bounds.
    pub kind: Kind,
    /// Value when nothing else is said.
    pub default: u64,
    /// One line for people.
    pub text: &'static str,
}

macro_rules! settings {
    ($( $variant:ident = $word:literal, $name:literal, $kind:expr, $default:expr, $text:literal; )*) => {
        /// The settings, by the word that holds each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Setting { $( #[doc = $text] $variant = $word, )* }

        impl Setting {
            /// All settings in order of their words.
            pub const ALL: &'static [Setting] = &[ $( Setting::$variant, )* ];
            /// Name, shape and default.
            #[must_use]
            pub const fn info(self) -> FieldInfo {
                match self { $( Setting::$variant => FieldInfo { name: $name, kind: $kind, default: $default, text: $text }, )* }
            }
        }
    };
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Number { unit: "bytes", min, max }
}
const MODES: Kind = Kind::Choice(&["auto", "staged", "direct"]);

settings! {
    SendMode = 0, "send.mode", MODES, 0, "how the send leg is chosen";
    ReceiveMode = 1, "receive.mode", MODES, 0, "how the receive leg is chosen, for data that comes to this node";
    SendDirectFromBytes = 2, "send.direct_from_bytes", bytes(0, 1 << 40), 16 * 1024, "in mode auto, transfers of at least this many bytes are sent direct";
    ReceiveDirectFromBytes = 3, "receive.direct_from_bytes", bytes(0, 1 << 40), 16 * 1024, "in mode auto, transfers of at least this many bytes are received direct";
    ChunkBytes = 4, "chunk_bytes", bytes(4096, 64 << 20), 256 * 1024, "a transfer is posted in pieces of this size, between which others get their turn";
    SliceBytes = 5, "slice_bytes", bytes(4096, 16 << 20), 256 * 1024, "the most that one copy or socket call moves";
    PipelineDepth = 6, "pipeline_depth", Kind::Number { unit: "chunks", min: 1, max: 64 }, 8, "chunks of one transfer that may be on their way at once";
    IdlePolicyWord = 7, "idle.policy", Kind::Choice(&["spin", "adaptive"]), 1, "what a lane does when it has nothing to do";
    IdleSpinUs = 8, "idle.spin_us", Kind::Number { unit: "us", min: 0, max: 1_000_000 }, 50, "with adaptive, how long a lane polls before it sleeps";
    LatencySharePercent = 9, "latency_share_percent", Kind::Number { unit: "percent", min: 1, max: 99 }, 80, "the most that the latency class gets while bulk transfers wait";
    PressureWaitUs = 10, "pressure_wait_us", Kind::Number { unit: "us", min: 0, max: 10_000_000 }, 2000, "in mode auto, a transfer waits this long for a block before it goes direct";
    DeadlineMs = 11, "deadline_ms", Kind::Number { unit: "ms", min: 1, max: 3_600_000 }, 30_000, "deadline of a transfer that gives none";
    QuiesceMaxMs = 12, "quiesce_max_ms", Kind::Number { unit: "ms", min: 1, max: 60_000 }, 2000, "after the deadline, how long the peer may take to confirm that nothing lands any more";
    CoalesceBytes = 13, "coalesce_bytes", bytes(4096, 16 << 20), 256 * 1024, "the most that one gathered socket call carries";
    StagingWindowBytes = 14, "staging_window_bytes", bytes(4096, 1 << 40), 1 << 20, "the most bytes of large blocks in use at once for each connection and leg; few blocks stay in the cache";
    RevokeMaxMs = 15, "revoke_max_ms", Kind::Number { unit: "ms", min: 1, max: 60_000 }, 5000, "how long the holders of a region that goes may take to give it up before they are fenced";
}

/// The settings that are one fixed word each, for REST, CLI and documentation.
pub const FIELDS: &[Setting] = Setting::ALL;

/// What a snapshot is checked against: facts of the node that settings cannot change.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a large staging block.
    pub large_block_bytes: u64,
    /// Lanes of this node.
    pub lanes: usize,
    /// Cores that the dataplane may use, bit n of word n / 64.
    pub cores: [u64; 16],
    /// NUMA nodes of the machine, bit n for node n.
    pub numa_nodes: u64,
}

impl Limits {
    /// Whether the machine has NUMA node `node`.
    #[must_use]
    pub const fn has_node(&self, node: u64) -> bool {
        node < 64 && self.numa_nodes >> node & 1 == 1
    }

    /// Whether the dataplane may run on `core`.
    #[must_use]
    pub fn has_core(&self, core: u64) -> bool {
        usize::try_from(core / 64)
            .ok()
            .and_then(|word| self.cores.get(word))
            .is_some_and(|bits| bits >> (core % 64) & 1 == 1)
    }
}

/// A refused snapshot: which word, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The word of the setting; see [`name_of`].
    pub word: usize,
    /// Why.
    pub code: Code,
}

/// The name of the setting in `word`, without the lane's number for per-lane words.
#[must_use]
pub fn name_of(word: usize) -> &'static str {
    match word {
        LANE_POOL_NODE_WORD.. => return "lanes.N.pool_numa_node",
        LANE_NODE_WORD.. => return "lanes.N.numa_node",
        LANE_CORE_WORD.. => return "lanes.N.core",
        _ => {}
    }
    FIELDS.iter().find(|setting| **setting as usize == word).map_or("unknown", |setting| setting.info().name)
}

/// A whole snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The words; [`Setting`] says which is which.
    pub words: [u64; SETTINGS_WORDS],
}

impl Default for Settings {
    fn default() -> Self {
        let mut words = [0; SETTINGS_WORDS];
        for setting in FIELDS {
            words[*setting as usize] = setting.info().default;
        }
        Self { words }
    }
}

impl Settings {
    /// The value of a setting.
    #[must_use]
    #[inline]
    pub const fn get(&self, setting: Setting) -> u64 {
        self.words[setting as usize]
    }

    /// Replaces a value; [`Settings::validate`] judges it later.
    pub const fn set(&mut self, setting: Setting, value: u64) {
        self.words[setting as usize] = value;
    }

    /// The core that `lane` shall be pinned to.
    #[must_use]
    pub fn lane_core(&self, lane: usize) -> Option<u64> {
        self.words.get(LANE_CORE_WORD + lane).and_then(|word| word.checked_sub(1))
    }

    /// Sets the core of `lane`; `None` leaves it unpinned. Lanes past [`LANES_MAX`] are ignored.
    pub fn set_lane_core(&mut self, lane: usize, core: Option<u64>) {
        if let Some(word) = self.words.get_mut(LANE_CORE_WORD + lane) {
            *word = core.map_or(0, |core| core.saturating_add(1));
        }
    }

    /// The NUMA node that `lane` shall be on: its tables, its thread unless that has a core, and its pool unless that has a
    /// node of its own.
    #[must_use]
    pub fn lane_node(&self, lane: usize) -> Option<u64> {
        self.words.get(LANE_NODE_WORD + lane).and_then(|word| word.checked_sub(1))
    }

    /// The NUMA node that the pool of `lane` shall be on.
    #[must_use]
    pub fn lane_pool_node(&self, lane: usize) -> Option<u64> {
        let own = self.words.get(LANE_POOL_NODE_WORD + lane).and_then(|word| word.checked_sub(1));
        own.or_else(|| self.lane_node(lane))
    }

    /// The mode of a leg setting; values are validated before, so anything odd is `Auto`.
    #[must_use]
    pub const fn mode(&self, setting: Setting) -> Mode {
        match self.get(setting) {
            1 => Mode::Staged,
            2 => Mode::Direct,
            _ => Mode::Auto,
        }
    }

    /// The idle policy.
    #[must_use]
    pub const fn idle_policy(&self) -> IdlePolicy {
        if self.get(Setting::IdlePolicyWord) == 0 { IdlePolicy::Spin } else { IdlePolicy::Adaptive }
    }

    /// Checks every word against its bounds, the others and the node.
    ///
    /// # Errors
    /// The first [`Refusal`] in order of words.
    pub fn validate(&self, limits: &Limits) -> Result<(), Refusal> {
        let mut word = 0;
        while word < LANE_CORE_WORD {
            let refuse = |code| Err(Refusal { word, code });
            let value = self.words[word];
            match FIELDS.iter().find(|setting| **setting as usize == word) {
                None if value != 0 => return refuse(Code::SettingUnknown),
                None => {}
                Some(setting) => match setting.info().kind {
                    Kind::Number { min, max, .. } if value < min || value > max => {
                        return refuse(Code::SettingRange);
                    }
                    Kind::Choice(names) if value >= names.len() as u64 => return refuse(Code::SettingRange),
                    _ => {}
                },
            }
            word += 1;
        }
        if self.get(Setting::ChunkBytes) > limits.large_block_bytes {
            return Err(Refusal { word: Setting::ChunkBytes as usize, code: Code::SettingBlockBytes });
        }
        if self.get(Setting::SliceBytes) > self.get(Setting::CoalesceBytes) {
            return Err(Refusal { word: Setting::SliceBytes as usize, code: Code::SettingContradiction });
        }
        self.validate_lanes(limits)
    }

    fn validate_lanes(&self, limits: &Limits) -> Result<(), Refusal> {
        for word in LANE_CORE_WORD..SETTINGS_WORDS {
            let Some(value) = self.words[word].checked_sub(1) else { continue };
            if (word - LANE_CORE_WORD) % LANES_MAX >= limits.lanes {
                return Err(Refusal { word, code: Code::SettingLaneAbsent });
            }
            if word < LANE_NODE_WORD && !limits.has_core(value) {
                return Err(Refusal { word, code: Code::SettingCoreAbsent });
            }
            if word >= LANE_NODE_WORD && !limits.has_node(value) {
                return Err(Refusal { word, code: Code::SettingNodeAbsent });
            }
        }
        Ok(())
    }
}

/// How a node wants others to use its memory: what is written to it, and what is read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plans {
    /// The receive leg of writes.
    pub receive: Plan,
    /// The send leg of reads.
    pub send: Plan,
}

impl Plans {
    /// The plans for memory that direct is possible for.
    #[must_use]
    pub const fn of(settings: &Settings, generation: u64) -> Self {
        Self { receive: Plan::of(settings, generation, true), send: Plan::of(settings, generation, false) }
    }

    /// Settings generation of the node that owns the memory.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.receive.generation
    }
}

/// Size ranges of one leg: the bounded look-up that a lane does for each transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The mode of the leg.
    pub mode: Mode,
    /// In mode auto, direct from this many bytes.
    pub direct_from_bytes: u64,
    /// Settings generation of the node that owns the memory.
    pub generation: u64,
    /// Direct is possible for this memory.
    pub direct_possible: bool,
}

impl Plan {
    /// The plan of the send leg, or of the receive leg, for memory that direct is possible for.
    #[must_use]
    pub const fn of(settings: &Settings, generation: u64, receive: bool) -> Self {
        let (mode, from) = if receive {
            (Setting::ReceiveMode, Setting::ReceiveDirectFromBytes)
        } else {
            (Setting::SendMode, Setting::SendDirectFromBytes)
        };
        Self {
            mode: settings.mode(mode),
            direct_from_bytes: settings.get(from),
            generation,
            direct_possible: true,
        }
    }
}
