//! The one writer of settings: validates, publishes, waits for the dataplane, saves, and puts things right after a
//! restart or a refusal.
//!
//! Changes are made one after the other, each on top of the one before, so no update is lost. The cell in the segment
//! holds a refused snapshot only for a moment: the one before is published again at once, so whoever reads the cell later
//! finds what the lanes run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use railhead_abi::Code;
use railhead_abi::frame::Text;
use railhead_abi::segment::PEER_UP;
use railhead_abi::settings::{Setting, Settings};
use railhead_config::setting::Key;
use railhead_config::settings_file::{self, Saved};
use railhead_ring::CellWriter;
use railhead_shm::Words;
use serde_json::Value as Json;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::history::{Entry, History, changes};
use crate::link::Attachment;
use crate::patch;
use crate::problem::Problem;

/// Between two looks at what the dataplane says.
const POLL: Duration = Duration::from_micros(200);
/// How long the dataplane may take to prepare what control publishes by itself.
const OWN_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at a snapshot whose time limit is over.
const SETTLE: Duration = Duration::from_millis(50);

/// What to change.
#[derive(Debug, Clone)]
pub struct Change {
    /// The new settings.
    pub edit: Edit,
    /// The `If-Match` header, if there is one.
    pub if_match: Option<String>,
    /// Only say what would change.
    pub dry_run: bool,
    /// Who asks.
    pub author: String,
}

/// How the new settings come about.
#[derive(Debug, Clone)]
pub enum Edit {
    /// A merge patch of the present ones.
    Patch(Json),
    /// Those of an earlier generation.
    Rollback(u64),
}

/// What became of a change.
#[derive(Debug, Clone)]
pub struct Changed {
    /// The state after it.
    pub view: View,
    /// The generation before it.
    pub previous: u64,
    /// What it changed, as in the history.
    pub changed: Json,
    /// Lanes that have not acknowledged, if the time limit is over.
    pub pending: Option<Pending>,
    /// Whether the settings file has it.
    pub saved: bool,
    /// From publication to the last acknowledgement.
    pub took: Duration,
}

/// What a published snapshot still waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The dataplane has prepared it.
    pub prepared: bool,
    /// Lanes that do not apply it yet.
    pub lanes: Vec<usize>,
}

/// The published settings.
#[derive(Debug, Clone)]
pub struct View {
    /// Where they are published.
    pub attachment: Arc<Attachment>,
    /// Their generation.
    pub generation: u64,
    /// All of them.
    pub settings: Settings,
    /// Who published them.
    pub author: String,
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Newest generation that changed how data comes in: peers are told of it.
    receive_generation: u64,
}

impl View {
    /// The entity tag: it names this snapshot of this start of the dataplane.
    #[must_use]
    pub fn etag(&self) -> String {
        format!("\"{}-{:08x}\"", self.generation, self.attachment.incarnation() >> 32)
    }

    fn to_saved(&self) -> Saved {
        let Self { generation, settings, unix_ns, .. } = *self;
        Saved { generation, author: self.author.clone(), unix_ns, settings }
    }

    /// What the snapshot still waits for, if anything.
    #[must_use]
    pub fn pending(&self) -> Option<Pending> {
        let segment = &self.attachment.segment;
        let lanes: Vec<usize> =
            (0..segment.lanes()).filter(|lane| segment.acknowledged(*lane) < self.generation).collect();
        let prepared = segment.prepared().prepared_generation >= self.generation;
        (!lanes.is_empty() || !prepared).then_some(Pending { prepared, lanes })
    }

    /// Connected peers that do not use the newest receive plan yet.
    #[must_use]
    pub fn peers_pending(&self) -> Vec<String> {
        let behind = |planned| planned < self.receive_generation;
        let peers = self.attachment.segment.peers();
        peers
            .filter(|(_, peer)| peer.state == PEER_UP && behind(peer.planned_generation))
            .map(|(_, peer)| Text::of(&peer.name).as_str().to_owned())
            .collect()
    }
}

/// The writer.
#[derive(Debug)]
pub struct Writer {
    desk: Arc<Mutex<Desk>>,
    /// The newest view, so that readers never wait for a change in progress.
    shown: Arc<StdMutex<Option<View>>>,
    /// The generation in the settings file.
    store: Arc<StdMutex<Store>>,
}

#[derive(Debug)]
struct Store {
    state_dir: PathBuf,
    generation: u64,
}

/// What one change at a time works on.
#[derive(Debug)]
struct Desk {
    configured: Settings,
    bound: Option<Bound>,
    /// What shall be true after a restart of the dataplane; `None` until something was changed, ever.
    wanted: Option<Saved>,
    /// No generation is published twice, whatever dataplanes come and go.
    last_generation: u64,
    /// Whether this control ever held a dataplane.
    attached_before: bool,
    history: History,
    shown: Arc<StdMutex<Option<View>>>,
}

#[derive(Debug)]
struct Bound {
    cell: CellWriter<Words>,
    view: View,
    /// The snapshot before, while the dataplane has neither prepared nor refused this one.
    unsettled: Option<Settings>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Prepared,
    Refused {
        code: Code,
        word: usize,
    },
    Silent,
    /// The dataplane went away before it said anything.
    Lost,
}

impl Writer {
    /// A writer for a state directory. `configured` are the settings of the configuration file.
    #[must_use]
    pub fn new(state_dir: PathBuf, configured: Settings) -> Self {
        let wanted = settings_file::load(&state_dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "the saved settings cannot be used");
            None
        });
        let generation = wanted.as_ref().map_or(0, |saved| saved.generation);
        let history = History::load(&state_dir);
        let shown = Arc::new(StdMutex::new(None));
        let desk = Desk {
            configured,
            bound: None,
            wanted,
            last_generation: generation,
            attached_before: false,
            history,
            shown: Arc::clone(&shown),
        };
        let store = Arc::new(StdMutex::new(Store { state_dir, generation }));
        Self { desk: Arc::new(Mutex::new(desk)), shown, store }
    }

    /// The published settings; `None` while no dataplane is attached.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The newest entries of the history, newest first.
    pub async fn history(&self, limit: usize) -> Vec<Entry> {
        self.desk.lock().await.history.newest().take(limit).cloned().collect()
    }

    /// Takes over a dataplane: publishes what shall be true there, unless it already is. Called by the link's thread;
    /// blocks until changes in progress have ended.
    ///
    /// # Panics
    /// On a thread of an asynchronous runtime.
    pub fn attach(&self, attachment: &Arc<Attachment>) {
        let mut desk = self.desk.blocking_lock();
        let save = desk.attach(attachment);
        drop(desk);
        if let Some(saved) = save {
            self.store.lock().unwrap_or_else(PoisonError::into_inner).save(&saved);
        }
    }

    /// The dataplane went away.
    ///
    /// # Panics
    /// As [`Self::attach`].
    pub fn detach(&self) {
        self.desk.blocking_lock().detach();
    }

    /// Makes a change. It is made or refused as a whole, even if the caller goes away meanwhile.
    ///
    /// # Errors
    /// A [`Problem`]; nothing changed then, except with [`Code::SettingsPending`], which says so.
    pub async fn change(&self, change: Change, limit: Duration) -> Result<Changed, Problem> {
        let deadline = Instant::now() + limit;
        let busy = || {
            Problem::new(Code::SettingsPending, "earlier changes are still in progress; nothing was changed")
        };
        let lock = Arc::clone(&self.desk).lock_owned();
        let mut desk = tokio::time::timeout(limit, lock).await.map_err(|_| busy())?;
        let (store, watched) = (Arc::clone(&self.store), Arc::clone(&self.desk));
        let made = tokio::task::spawn_blocking(move || {
            let published = desk.change(change, deadline)?;
            let silent = desk.bound.as_ref().is_some_and(|bound| bound.unsettled.is_some());
            drop(desk);
            Ok::<_, Problem>((finish(published, &store, deadline), silent))
        });
        let (changed, silent) = made
            .await
            .map_err(|error| Problem::new(Code::Unknown, format!("the change broke off: {error}")))??;
        if silent {
            tokio::spawn(settle(watched, Arc::clone(&self.store)));
        }
        Ok(changed)
    }
}

/// A change that was published, or one that needed no publication.
#[derive(Debug)]
struct Published {
    view: View,
    previous: u64,
    changed: Json,
    /// To be written to the settings file, once prepared.
    save: Option<Saved>,
    since: Option<Instant>,
}

/// Waits for the lanes and saves, with the desk free for the next change.
fn finish(published: Published, store: &StdMutex<Store>, deadline: Instant) -> Changed {
    let Published { view, previous, changed, save, since } = published;
    let mut pending = None;
    if since.is_some() {
        loop {
            pending = view.pending();
            if pending.is_none() || view.attachment.is_closed() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(POLL);
        }
    }
    let took = since.map_or(Duration::ZERO, |since| since.elapsed());
    let saved = save.is_none_or(|saved| store.lock().unwrap_or_else(PoisonError::into_inner).save(&saved));
    Changed { view, previous, changed, pending, saved, took }
}

impl Store {
    /// Saves unless something newer is saved; whether the file has it or something newer.
    fn save(&mut self, saved: &Saved) -> bool {
        if saved.generation <= self.generation {
            return true;
        }
        if let Err(error) = settings_file::save(&self.state_dir, saved) {
            tracing::error!(%error, "the settings are in use but could not be saved");
            return false;
        }
        self.generation = saved.generation;
        true
    }
}

/// Follows a snapshot that the dataplane did not answer to in time, until it does.
async fn settle(desk: Arc<Mutex<Desk>>, store: Arc<StdMutex<Store>>) {
    loop {
        tokio::time::sleep(SETTLE).await;
        let guard = Arc::clone(&desk).lock_owned().await;
        let store = Arc::clone(&store);
        let settled = tokio::task::spawn_blocking(move || settle_once(guard, &store));
        if settled.await.unwrap_or(true) {
            return;
        }
    }
}

fn settle_once(mut desk: OwnedMutexGuard<Desk>, store: &StdMutex<Store>) -> bool {
    let save = desk.settle();
    let settled = desk.bound.as_ref().is_none_or(|bound| bound.unsettled.is_none());
    drop(desk);
    if let Some(saved) = save {
        store.lock().unwrap_or_else(PoisonError::into_inner).save(&saved);
    }
    settled
}

impl Desk {
    fn show(&self) {
        let view = self.bound.as_ref().map(|bound| bound.view.clone());
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn change(&mut self, change: Change, deadline: Instant) -> Result<Published, Problem> {
        self.settle();
        let Some(bound) = &self.bound else {
            return Err(Problem::new(Code::DataplaneAbsent, "no dataplane is attached; nothing was changed"));
        };
        let before = bound.view.clone();
        check_match(change.if_match.as_deref(), &before)?;
        let next = match &change.edit {
            Edit::Patch(patch) => patch::apply(&before.settings, &self.configured, patch)?,
            Edit::Rollback(generation) => {
                self.history.find(*generation).map(|entry| entry.settings).ok_or_else(|| {
                    let detail = format!("generation {generation} is not in the history");
                    Problem::new(Code::NotFound, detail).field("generation")
                })?
            }
        };
        patch::validate(&next, &before.attachment.segment.limits())?;
        let changed = changes(&before.settings, &next);
        let previous = before.generation;
        if change.dry_run || next == before.settings {
            return Ok(Published { view: before, previous, changed, save: None, since: None });
        }
        let since = Instant::now();
        let waiting = bound.unsettled;
        let answer = self.publish(&next, change.author, deadline)?;
        match answer {
            Answer::Prepared | Answer::Silent => {
                let save = (answer == Answer::Prepared).then(|| self.accept(changed.clone())).flatten();
                let view = self.bound.as_ref().map_or(before, |bound| bound.view.clone());
                Ok(Published { view, previous, changed, save, since: Some(since) })
            }
            Answer::Refused { code, word } => Err(self.refused(&before, code, word)),
            // Not accepted, so the next dataplane starts without it.
            Answer::Lost => {
                if let Some(bound) = &mut self.bound {
                    (bound.view, bound.unsettled) = (before, waiting);
                }
                let detail = "the dataplane went away before it took the settings; nothing was changed";
                Err(Problem::new(Code::DataplaneAbsent, detail))
            }
        }
    }

    /// Puts a snapshot into the cell and waits for the dataplane's word on it.
    fn publish(&mut self, settings: &Settings, author: String, deadline: Instant) -> Result<Answer, Problem> {
        let generation = self.last_generation.max(self.bound.as_ref().map_or(0, |b| b.cell.generation())) + 1;
        let Some(bound) = &mut self.bound else {
            return Err(Problem::new(Code::DataplaneAbsent, "no dataplane is attached; nothing was changed"));
        };
        bound
            .cell
            .publish(generation, &settings.words)
            .map_err(|error| Problem::new(Code::GenerationOld, error.to_string()))?;
        let before = std::mem::replace(&mut bound.view.settings, *settings);
        // While several snapshots wait unanswered, the way back leads before the first of them.
        bound.unsettled.get_or_insert(before);
        let receive = [Setting::ReceiveMode, Setting::ReceiveDirectFromBytes];
        if receive.iter().any(|setting| before.get(*setting) != settings.get(*setting)) {
            bound.view.receive_generation = generation;
        }
        (bound.view.generation, bound.view.author, bound.view.unix_ns) = (generation, author, unix_ns());
        self.last_generation = generation;
        bound.view.attachment.wake(generation);
        let answer = await_answer(&bound.view, deadline);
        if answer == Answer::Prepared {
            bound.unsettled = None;
        }
        self.show();
        Ok(answer)
    }

    /// A prepared change: it is what shall be true from now on. Returns what to save.
    fn accept(&mut self, changed: Json) -> Option<Saved> {
        let saved = self.bound.as_ref()?.view.to_saved();
        self.history.add(Entry {
            generation: saved.generation,
            unix_ns: saved.unix_ns,
            author: saved.author.clone(),
            changed,
            settings: saved.settings,
        });
        self.wanted = Some(saved.clone());
        Some(saved)
    }

    /// After a refusal: publishes what was there before, and says what was refused.
    fn refused(&mut self, before: &View, code: Code, word: usize) -> Problem {
        let refused_generation = self.last_generation;
        let field = Key::of_word(word).map_or_else(|| "settings".to_owned(), Key::name);
        let fallback =
            self.bound.as_mut().and_then(|bound| bound.unsettled.take()).unwrap_or(before.settings);
        let restored = self.publish(&fallback, before.author.clone(), Instant::now() + OWN_LIMIT);
        if restored != Ok(Answer::Prepared) {
            tracing::error!(?restored, "the settings before the refused ones could not be published again");
        }
        if let Some(bound) = &mut self.bound {
            // What was refused is no way back.
            bound.unsettled = (restored == Ok(Answer::Silent)).then_some(fallback);
        }
        Problem::new(
            code,
            format!(
                "the dataplane refused generation {refused_generation}: {}; no lane changed",
                code.text()
            ),
        )
        .status(StatusCode::CONFLICT)
        .field(field)
        .with("refused_generation", refused_generation)
        .with("generation", self.last_generation)
    }

    /// Looks whether an unanswered snapshot was prepared or refused meanwhile. Returns what to save.
    fn settle(&mut self) -> Option<Saved> {
        let bound = self.bound.as_mut()?;
        let fallback = bound.unsettled?;
        match answer_now(&bound.view) {
            Answer::Silent | Answer::Lost => None,
            Answer::Prepared => {
                bound.unsettled = None;
                let changed = changes(&fallback, &bound.view.settings);
                self.accept(changed)
            }
            Answer::Refused { code, word } => {
                let before = bound.view.clone();
                let problem = self.refused(&before, code, word);
                tracing::warn!(
                    code = code.name(),
                    field = problem.field,
                    "settings were refused after their time limit"
                );
                None
            }
        }
    }

    fn detach(&mut self) {
        if let Some(Bound { view, unsettled: Some(_), .. }) = self.bound.take() {
            // Accepted with 202 and neither prepared nor refused: the next dataplane has to judge it.
            self.wanted = Some(view.to_saved());
        }
        self.show();
    }

    /// Takes over a dataplane. Returns what to save.
    fn attach(&mut self, attachment: &Arc<Attachment>) -> Option<Saved> {
        let first = !std::mem::replace(&mut self.attached_before, true);
        let prepared = attachment.segment.prepared();
        // A cell that its last writer left half written, or that holds a refused snapshot, says nothing.
        let found = attachment.segment.settings().ok().flatten();
        let found = found.filter(|(generation, _)| prepared.refused_generation < *generation);
        let cell = attachment.segment.settings_writer();
        let (generation, settings) = found.unwrap_or((cell.generation(), self.configured));
        let view = View {
            attachment: Arc::clone(attachment),
            generation,
            settings,
            author: "dataplane".to_owned(),
            unix_ns: attachment.segment.header().started_unix_ns,
            receive_generation: 0,
        };
        self.bound = Some(Bound { cell, view, unsettled: None });
        let last = self.last_generation;
        self.last_generation = last.max(generation);
        // A control before this one may have published and died before it saved: then the cell is newer than the file.
        if first && found.is_some() && generation > last.max(1) {
            self.show();
            return self.accept(Json::Array(Vec::new()));
        }
        let Some(wanted) = self.wanted.clone() else {
            // Nothing was ever changed: the dataplane's own configuration counts.
            if found.is_none() || generation < last {
                self.republish(&settings, "configuration".to_owned());
            }
            self.show();
            return None;
        };
        if found.is_some() && wanted.settings == settings && generation >= last {
            if let Some(bound) = &mut self.bound {
                (bound.view.author, bound.view.unix_ns) = (wanted.author, wanted.unix_ns);
            }
            self.show();
            return None;
        }
        self.republish(&wanted.settings, wanted.author)
    }

    /// Publishes by itself what shall be true; if the dataplane refuses it, what it runs stays. Returns what to save.
    fn republish(&mut self, settings: &Settings, author: String) -> Option<Saved> {
        let before = self.bound.as_ref().map(|bound| bound.view.clone())?;
        let answer = self.publish(settings, author, Instant::now() + OWN_LIMIT);
        let generation = self.last_generation;
        match answer {
            Ok(Answer::Prepared) => {
                tracing::info!(generation, "settings published to the dataplane");
                let saved = self.bound.as_ref().map(|bound| bound.view.to_saved());
                self.wanted = self.wanted.take().and(saved);
                self.wanted.clone()
            }
            Ok(Answer::Refused { code, word }) => {
                let problem = self.refused(&before, code, word);
                tracing::error!(
                    code = code.name(),
                    field = problem.field,
                    "the dataplane refused the saved settings"
                );
                self.wanted = None;
                None
            }
            Ok(Answer::Silent | Answer::Lost) => {
                tracing::error!(generation, "the dataplane has not taken the settings in time");
                None
            }
            Err(problem) => {
                tracing::error!(problem = problem.detail, "settings could not be published");
                None
            }
        }
    }
}

fn check_match(if_match: Option<&str>, view: &View) -> Result<(), Problem> {
    let Some(header) = if_match else { return Ok(()) };
    let etag = view.etag();
    if header.split(',').map(str::trim).any(|tag| tag == "*" || tag == etag) {
        return Ok(());
    }
    Err(Problem::new(Code::EtagMismatch, format!("the settings are at {etag} now, If-Match says {header}"))
        .field("If-Match")
        .with("generation", view.generation)
        .with("etag", etag))
}

fn answer_now(view: &View) -> Answer {
    let prepared = view.attachment.segment.prepared();
    if prepared.prepared_generation >= view.generation {
        return Answer::Prepared;
    }
    if prepared.refused_generation >= view.generation {
        let code = Code::from_number(prepared.refusal_code).unwrap_or(Code::Unknown);
        return Answer::Refused { code, word: prepared.refusal_word as usize };
    }
    Answer::Silent
}

fn await_answer(view: &View, deadline: Instant) -> Answer {
    loop {
        match answer_now(view) {
            Answer::Silent if !view.attachment.is_closed() && Instant::now() < deadline => {
                std::thread::sleep(POLL)
            }
            Answer::Silent if view.attachment.is_closed() => return Answer::Lost,
            answer => return answer,
        }
    }
}

/// The wall clock, nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
