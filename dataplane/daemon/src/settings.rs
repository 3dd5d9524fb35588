//! The settings thread: takes what control published, judges it, prepares it, lets the lanes apply it.
//!
//! Control writes the cell of the control segment and may write again at any moment, so lanes never read that one. The
//! thread copies a snapshot out, validates it, does the slow part (pins) and puts it into a second cell in memory of this
//! process: the *prepared* cell. Lanes look at its generation each turn; applying is one copy of some words. A refused
//! snapshot reaches no lane.
//!
//! The thread does nothing else and waits for nobody, so no registration, peer or client can delay a change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use railhead_abi::segment::LaneStatus;
use railhead_abi::settings::{
    LANE_CORE_WORD, LANES_MAX, Limits, Plans, Refusal, SETTINGS_WORDS, Setting, Settings, name_of,
};
use railhead_config::Config;
use railhead_config::settings_file;
use railhead_ring::{CellReader, CellWriter};
use railhead_shm::{Mapping, Words};

use crate::copies::{self, Place};
use crate::error::StartError;
use crate::events::{Event, EventLog};
use crate::lane::handle::Lanes;
use crate::machine::{self, Cores};
use crate::places::{Places, Stuck};
use crate::segment::{ControlSegment, word_of, write_prepared, write_refused};

/// How often the cell is looked at although nobody rang: a control process that dies between publishing and ringing
/// delays its change by no more than this.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often acknowledgements are looked at while lanes owe some.
const ACKNOWLEDGED_EVERY: Duration = Duration::from_micros(500);
/// How long acknowledgements are waited for with that care; later they are seen at the next look.
const ACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);
/// Copies tried while the writer is in the cell.
const TRIES: u32 = 10_000;

/// The settings that the dataplane starts with.
#[derive(Debug)]
pub(crate) struct StartSettings {
    /// The words.
    pub(crate) settings: Settings,
    /// Their generation, at least 1.
    pub(crate) generation: u64,
    /// Why the saved settings were not used, if there were some.
    pub(crate) ignored: Option<(Code, String)>,
}

impl StartSettings {
    /// The configuration's settings, overlaid by those that control saved.
    ///
    /// # Errors
    /// The configuration's settings do not fit this machine. Saved ones that do not are ignored.
    pub(crate) fn load(config: &Config, limits: &Limits) -> Result<Self, StartError> {
        let start = |refusal: Refusal| {
            let field = format!("settings.{}", field_name(refusal.word));
            StartError::new(refusal.code, field, format!("{}", config.path.display()))
        };
        config.settings.validate(limits).map_err(start)?;
        let configured = Self { settings: config.settings, generation: 1, ignored: None };
        match settings_file::load(&config.node.state_dir) {
            Ok(None) => Ok(configured),
            Ok(Some(saved)) => match saved.settings.validate(limits) {
                Ok(()) => {
                    Ok(Self { settings: saved.settings, generation: saved.generation.max(1), ignored: None })
                }
                Err(refusal) => {
                    let ignored = Some((refusal.code, field_name(refusal.word)));
                    // The generation still counts on, or an older ETag would be valid again.
                    Ok(Self { generation: saved.generation.saturating_add(1), ignored, ..configured })
                }
            },
            Err(error) => Ok(Self { ignored: Some((Code::ConfigSyntax, error.to_string())), ..configured }),
        }
    }
}

/// The setting's name, with the lane's number where it is one of a lane.
fn field_name(word: usize) -> String {
    match word.checked_sub(LANE_CORE_WORD) {
        Some(at) => name_of(word).replace('N', &(at % LANES_MAX).to_string()),
        None => name_of(word).to_owned(),
    }
}

/// The snapshot that lanes may apply, in memory of this process only.
#[derive(Debug, Clone)]
pub(crate) struct PreparedCell {
    words: Words,
}

impl PreparedCell {
    /// A cell that holds the start-up settings, so that a lane never finds it empty.
    ///
    /// # Errors
    /// [`Code::MappingFailed`].
    pub(crate) fn create(start: &StartSettings) -> Result<Self, StartError> {
        let refuse =
            |cause: railhead_shm::MapError| StartError::new(Code::MappingFailed, "prepared settings", cause);
        let mapping = Mapping::anonymous(8 * (1 + SETTINGS_WORDS)).map_err(refuse)?;
        mapping
            .populate()
            .map_err(|error| StartError::new(Code::MappingFailed, "prepared settings", error))?;
        let cell = Self { words: mapping.words(0, 1 + SETTINGS_WORDS).map_err(refuse)? };
        let published = cell.writer().publish(start.generation, &start.settings.words);
        published.map_err(|error| StartError::new(Code::GenerationOld, "settings", error))?;
        Ok(cell)
    }

    /// A lane's end.
    pub(crate) fn reader(&self) -> CellReader<Words> {
        CellReader::new(self.words.clone()).expect("the cell was made for a snapshot")
    }

    fn writer(&self) -> CellWriter<Words> {
        CellWriter::new(self.words.clone()).expect("the cell was made for a snapshot")
    }
}

/// The newest prepared snapshot, for registrar threads.
#[derive(Debug)]
pub(crate) struct Current {
    newest: Mutex<(Settings, u64)>,
}

impl Current {
    /// How long the holders of a region that goes may take to give it up.
    pub(crate) fn revoke_max(&self) -> Duration {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_millis(newest.0.get(Setting::RevokeMaxMs))
    }

    /// Starts with this snapshot.
    pub(crate) fn new(settings: Settings, generation: u64) -> Self {
        Self { newest: Mutex::new((settings, generation)) }
    }

    /// The plans for this node's memory.
    pub(crate) fn plans(&self) -> Plans {
        let (settings, generation) = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        Plans::of(&settings, generation)
    }

    pub(crate) fn set(&self, settings: &Settings, generation: u64) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = (*settings, generation);
    }
}

/// What wakes the settings thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knock {
    /// A snapshot was published.
    Look,
    /// The dataplane stops.
    Stop,
}

/// Told of each prepared snapshot, after the lanes: peers get the new receive plan.
pub(crate) type Publish = Box<dyn FnMut(Plans) + Send>;

/// The state of the settings thread.
pub(crate) struct SettingsDesk {
    limits: Limits,
    allowed: Cores,
    copy_cores: Option<Vec<u64>>,
    published: CellReader<Words>,
    answer: Words,
    prepared: CellWriter<Words>,
    current: Arc<Current>,
    status: Vec<Words>,
    lanes: Arc<Lanes>,
    places: Places,
    events: Arc<EventLog>,
    publish: Publish,
    /// The newest generation that was looked at, prepared or refused.
    seen: u64,
    settings: Settings,
    /// The generation that lanes owe an acknowledgement of, and since when.
    owed: Option<(u64, Instant)>,
}

impl core::fmt::Debug for SettingsDesk {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("SettingsDesk").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// What the settings thread works with.
pub(crate) struct DeskParts<'a> {
    pub(crate) limits: Limits,
    pub(crate) allowed: Cores,
    /// The configured cores of the lanes' copy threads.
    pub(crate) copy_cores: Option<Vec<u64>>,
    pub(crate) segment: &'a ControlSegment,
    pub(crate) prepared: &'a PreparedCell,
    pub(crate) current: Arc<Current>,
    pub(crate) lanes: Arc<Lanes>,
    /// Where the lanes' memory lies.
    pub(crate) places: Places,
    pub(crate) events: Arc<EventLog>,
    pub(crate) publish: Publish,
}

impl SettingsDesk {
    /// Publishes the start-up settings, for control to read and for lanes to apply. Lanes must have written their thread
    /// ids, and no control may be attached.
    ///
    /// # Errors
    /// [`Code::GenerationOld`] if the generation cannot be published.
    pub(crate) fn start(parts: DeskParts<'_>, start: &StartSettings) -> Result<Self, StartError> {
        let refuse = |error| StartError::new(Code::GenerationOld, "settings", error);
        let cell = parts.segment.settings();
        CellWriter::new(cell.clone())
            .map_err(|error| StartError::new(Code::MappingFailed, "settings", error))?
            .publish(start.generation, &start.settings.words)
            .map_err(refuse)?;
        let prepared = parts.prepared.writer();
        let desk = Self {
            limits: parts.limits,
            allowed: parts.allowed,
            copy_cores: parts.copy_cores,
            published: CellReader::new(cell)
                .map_err(|error| StartError::new(Code::MappingFailed, "settings", error))?,
            answer: parts.segment.prepared(),
            prepared,
            current: parts.current,
            status: (0..parts.lanes.count()).map(|lane| parts.segment.lane(lane).status).collect(),
            lanes: parts.lanes,
            places: parts.places,
            events: parts.events,
            publish: parts.publish,
            seen: start.generation,
            settings: start.settings,
            owed: None,
        };
        if let Err(stuck) = desk.move_memory(&Settings::default(), &start.settings) {
            // The dataplane starts all the same, as it does without the hugepages that it would like to have.
            let event = Event::new(EventCode::NumaNotBound).reason(Code::SettingMemoryStuck);
            desk.events.emit(event.text(format!("{}: {}", field_name(stuck.word), stuck.error)));
        }
        for lane in 0..desk.lanes.count() {
            if place_of(&desk.settings, lane) != (None, None) {
                desk.pin(lane, &start.settings);
            }
        }
        desk.place_copies(&start.settings);
        desk.warn_of_shared_cores(&start.settings);
        write_prepared(&desk.answer, start.generation);
        Ok(desk)
    }

    /// Runs until the dataplane stops.
    pub(crate) fn run(mut self, knocks: &flume::Receiver<Knock>) {
        loop {
            let is_hurried = self.owed.is_some_and(|(_, since)| since.elapsed() < ACKNOWLEDGED_MAX);
            match knocks.recv_timeout(if is_hurried { ACKNOWLEDGED_EVERY } else { LOOK_EVERY }) {
                Ok(Knock::Stop) | Err(flume::RecvTimeoutError::Disconnected) => return,
                Ok(Knock::Look) | Err(flume::RecvTimeoutError::Timeout) => {}
            }
            self.look();
            self.settle();
        }
    }

    /// Looks whether something new was published, and judges it.
    pub(crate) fn look(&mut self) {
        if self.published.generation() == self.seen {
            return;
        }
        let mut settings = Settings { words: [0; SETTINGS_WORDS] };
        // Busy means a writer that died or was stopped within the cell: the next look finds what a later one published.
        let Ok(generation) = self.published.read(&mut settings.words, TRIES) else { return };
        if generation <= self.seen {
            return;
        }
        self.seen = generation;
        match settings.validate(&self.limits) {
            Ok(()) => self.prepare(&settings, generation),
            Err(refusal) => self.refuse(refusal.code, refusal.word, generation),
        }
    }

    fn prepare(&mut self, settings: &Settings, generation: u64) {
        let before = self.settings;
        if let Err(stuck) = self.move_memory(&before, settings) {
            tracing::warn!(error = %stuck.error, setting = field_name(stuck.word), "memory stays where it is");
            return self.refuse(Code::SettingMemoryStuck, stuck.word, generation);
        }
        let moved: Vec<usize> = (0..self.lanes.count())
            .filter(|lane| place_of(settings, *lane) != place_of(&before, *lane))
            .collect();
        for lane in &moved {
            self.pin(*lane, settings);
        }
        if !moved.is_empty() {
            self.place_copies(settings);
            self.warn_of_shared_cores(settings);
        }
        if let Err(error) = self.prepared.publish(generation, &settings.words) {
            // Only a generation beyond what the cell can count gets here.
            tracing::error!(%error, generation, "a snapshot could not be prepared");
            self.refuse(Code::GenerationOld, 0, generation);
            return;
        }
        self.settings = *settings;
        self.current.set(settings, generation);
        write_prepared(&self.answer, generation);
        self.lanes.wake_all();
        self.owed = Some((generation, Instant::now()));
        (self.publish)(Plans::of(settings, generation));
    }

    fn refuse(&self, code: Code, word: usize, generation: u64) {
        write_refused(&self.answer, generation, code, word);
        let event = Event::new(EventCode::SettingsRefused).reason(code);
        self.events.emit(event.figures(generation, word as u64).text(field_name(word)));
    }

    /// Says so when all lanes have acknowledged.
    fn settle(&mut self) {
        let Some((generation, _)) = self.owed else { return };
        let acknowledged = word_of::<LaneStatus>("acknowledged");
        // Partner: the lane's release store after it applied the snapshot.
        if self.status.iter().all(|status| status[acknowledged].load_acquire() >= generation) {
            self.owed = None;
            self.events.emit(Event::new(EventCode::SettingsApplied).figures(generation, 0));
        }
    }

    /// Moves the memory of lanes that shall lie elsewhere, all of it or none. Takes as long as copying it does.
    fn move_memory(&self, before: &Settings, after: &Settings) -> Result<(), Stuck> {
        for moved in self.places.follow(before, after)? {
            let event = Event::new(EventCode::MemoryMoved).lane(moved.lane).text(moved.what);
            self.events.emit(event.figures(u64::from(moved.node), moved.bytes));
            if moved.what == "pool" {
                let word = word_of::<LaneStatus>("numa_node");
                self.status[moved.lane][word].store_release(u64::from(moved.node) + 1);
            }
        }
        Ok(())
    }

    /// The cores that a lane without one of its own may run on.
    fn cores_of(&self, node: Option<u64>) -> Cores {
        let node = node.and_then(|node| u32::try_from(node).ok()).and_then(Cores::of_node);
        let both = node.map(|cores| cores.and(&self.allowed)).filter(|cores| cores.count() > 0);
        both.unwrap_or(self.allowed)
    }

    /// Moves a lane's thread. A pin that fails leaves the lane where it may run, with an event.
    fn pin(&self, lane: usize, settings: &Settings) {
        let (status, (core, node)) = (&self.status[lane], place_of(settings, lane));
        let tid = status[word_of::<LaneStatus>("tid")].load_acquire();
        status[word_of::<LaneStatus>("core_wanted")].store_relaxed(core.map_or(0, |core| core + 1));
        let pinned = match machine::pin(tid, core, &self.cores_of(node)) {
            Ok(()) => core.map_or(0, |core| core + 1),
            Err(error) => {
                let errno = error.raw_os_error().map_or(0, |errno| u64::from(errno.unsigned_abs()));
                let event = Event::new(EventCode::PinFailed).lane(lane).text(error);
                self.events.emit(event.figures(core.unwrap_or(u64::MAX), errno));
                // What was pinned before stays, as far as the kernel is concerned; unpinned is the honest answer.
                0
            }
        };
        status[word_of::<LaneStatus>("core_pinned")].store_relaxed(pinned);
    }

    /// Moves the lanes' copy threads: they keep off the cores that lanes are pinned to.
    fn place_copies(&self, settings: &Settings) {
        for (lane, status) in self.status.iter().enumerate() {
            let tid = status[word_of::<LaneStatus>("copy_tid")].load_acquire();
            if tid == 0 {
                continue;
            }
            let configured = self.copy_cores.as_deref();
            let place = copies::place(
                lane,
                self.status.len(),
                settings,
                configured,
                &self.allowed,
                Cores::of_node_of,
            );
            let (core, moved) = match place {
                Place::Core(core) => (Some(core), machine::pin(tid, Some(core), &self.allowed)),
                Place::Any(cores) => (None, machine::pin(tid, None, &cores)),
            };
            if let Err(error) = &moved {
                let errno = error.raw_os_error().map_or(0, |errno| u64::from(errno.unsigned_abs()));
                let event = Event::new(EventCode::CopyPinFailed).lane(lane).text(error);
                self.events.emit(event.figures(core.unwrap_or(u64::MAX), errno));
            }
            let pinned = core.filter(|_| moved.is_ok()).map_or(0, |core| core + 1);
            status[word_of::<LaneStatus>("copy_core")].store_relaxed(pinned);
        }
    }

    fn warn_of_shared_cores(&self, settings: &Settings) {
        for lane in 0..self.lanes.count() {
            let Some(core) = settings.lane_core(lane) else { continue };
            if let Some(other) = (0..lane).find(|other| settings.lane_core(*other) == Some(core)) {
                self.events.emit(Event::new(EventCode::CoresShared).lane(lane).figures(core, other as u64));
            }
        }
    }
}

/// Where a lane's thread shall run: a core, else the cores of a NUMA node, else anywhere.
fn place_of(settings: &Settings, lane: usize) -> (Option<u64>, Option<u64>) {
    (settings.lane_core(lane), settings.lane_node(lane))
}

#[cfg(test)]
mod tests;
