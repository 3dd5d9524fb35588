//! The desk: what one change at a time works on. All of it blocks for as long as the dataplane takes; it is used on
//! blocking threads and on the link's thread, under the writer's lock.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use railhead_abi::Code;
use railhead_abi::settings::{Setting, Settings};
use railhead_config::setting::Key;
use railhead_config::settings_file::Saved;
use railhead_ring::CellWriter;
use railhead_shm::Words;
use serde_json::Value as Json;

use super::{Change, Edit, POLL};
use crate::history::{Entry, History, changes};
use crate::link::Attachment;
use crate::patch;
use crate::problem::Problem;
use crate::view::{View, unix_ns};

/// How long the dataplane may take to prepare what control publishes by itself.
const OWN_LIMIT: Duration = Duration::from_secs(2);

/// What one change at a time works on.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) configured: Settings,
    pub(super) bound: Option<Bound>,
    /// What shall be true after a restart of the dataplane; `None` until something was changed, ever.
    pub(super) wanted: Option<Saved>,
    /// No generation is published twice, whatever dataplanes come and go.
    pub(super) last_generation: u64,
    /// Whether this control ever held a dataplane.
    pub(super) attached_before: bool,
    pub(super) history: History,
    pub(super) shown: Arc<StdMutex<Option<View>>>,
}

#[derive(Debug)]
pub(super) struct Bound {
    pub(super) cell: CellWriter<Words>,
    pub(super) view: View,
    /// The snapshot before, while the dataplane has neither prepared nor refused this one.
    pub(super) unsettled: Option<Settings>,
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

/// A change that was published, or one that needed no publication.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) view: View,
    pub(super) previous: u64,
    pub(super) changed: Json,
    /// To be written to the settings file, once prepared.
    pub(super) save: Option<Saved>,
    pub(super) since: Option<Instant>,
}

impl Desk {
    pub(super) fn show(&self) {
        let view = self.bound.as_ref().map(|bound| bound.view.clone());
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    pub(super) fn change(&mut self, change: Change, deadline: Instant) -> Result<Published, Problem> {
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
        tracing::info!(generation = saved.generation, author = saved.author, %changed, "settings changed");
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
    pub(super) fn settle(&mut self) -> Option<Saved> {
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

    pub(super) fn detach(&mut self) {
        if let Some(Bound { view, unsettled: Some(_), .. }) = self.bound.take() {
            // Accepted with 202 and neither prepared nor refused: the next dataplane has to judge it.
            self.wanted = Some(view.to_saved());
        }
        self.show();
    }

    /// Takes over a dataplane. Returns what to save.
    pub(super) fn attach(&mut self, attachment: &Arc<Attachment>) -> Option<Saved> {
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
        self.drop_unusable(attachment);
        // A control before this one may have published and died before it saved: then the cell is newer than the file.
        let readable = self.wanted.is_some() || last == 0;
        if first && readable && found.is_some() && generation > last.max(1) {
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

    /// Saved settings that this dataplane cannot have (another machine, a smaller pool) are left in their file and not
    /// used: it has ignored them, too.
    fn drop_unusable(&mut self, attachment: &Attachment) {
        let Some(wanted) = &self.wanted else { return };
        if let Err(problem) = patch::validate(&wanted.settings, &attachment.segment.limits()) {
            let (code, field) = (problem.code.name(), problem.field.unwrap_or_default());
            tracing::error!(code, field, "the saved settings do not fit this dataplane: {}", problem.detail);
            self.wanted = None;
        }
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
