//! The one writer of settings: validates, publishes, waits for the dataplane, saves, and puts things right after a
//! restart or a refusal.
//!
//! Changes are made one after the other, each on top of the one before, so no update is lost. The cell in the segment
//! holds a refused snapshot only for a moment: the one before is published again at once, so whoever reads the cell later
//! finds what the lanes run.

mod desk;

use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::settings::Settings;
use railhead_config::settings_file::{self, Saved};
use serde_json::Value as Json;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::history::{Entry, History};
use crate::link::Attachment;
use crate::problem::Problem;
use crate::view::{Pending, View};

use desk::{Desk, Published};

/// Between two looks at what the dataplane says.
const POLL: Duration = Duration::from_micros(200);
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
