//! Peers added and removed while the node runs: one command at a time to the dataplane, then the file that a restart reads.
//!
//! What the dataplane has is the truth: the file is always the list that its control segment shows after a command.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{
    ADMIN_PEER_ADD, ADMIN_PEER_REMOVE, AdminAnswer, AdminCommand, NAME_BYTES_MAX, Text, name_words,
};
use railhead_config::{Peer, peers_file};
use tokio::sync::Mutex;

use crate::link::{Attachment, Unanswered};
use crate::problem::Problem;

/// How long the dataplane may take for what is no waiting.
const ANSWER: Duration = Duration::from_secs(15);

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The dataplane has carried it out; false if it is still at it.
    pub is_done: bool,
    /// The file has it.
    pub is_saved: bool,
}

/// Who adds and removes peers.
#[derive(Debug)]
pub struct Roster {
    state_dir: PathBuf,
    /// Held for a command and the file that belongs to it.
    turn: Mutex<()>,
}

impl Roster {
    /// For a state directory.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self { state_dir, turn: Mutex::new(()) }
    }

    /// Adds a peer; even if the caller goes away meanwhile, it is added and saved, or neither.
    ///
    /// # Errors
    /// The dataplane's refusal.
    pub async fn add(
        self: &Arc<Self>,
        attachment: &Arc<Attachment>,
        peer: &Peer,
    ) -> Result<Outcome, Problem> {
        fits("name", &peer.name)?;
        fits("address", &peer.address)?;
        let command = AdminCommand {
            command: ADMIN_PEER_ADD,
            name: name_words(&peer.name),
            address: name_words(&peer.address),
            ..AdminCommand::default()
        };
        self.carry_out(attachment, command, ANSWER, None).await
    }

    /// Removes a peer; its transfers may take `drain` to end by themselves. As [`Self::add`] if the caller goes away.
    ///
    /// # Errors
    /// The dataplane's refusal.
    pub async fn remove(
        self: &Arc<Self>,
        attachment: &Arc<Attachment>,
        name: &str,
        drain: Duration,
    ) -> Result<Outcome, Problem> {
        fits("name", name)?;
        let command = AdminCommand {
            command: ADMIN_PEER_REMOVE,
            limit_ms: u32::try_from(drain.as_millis()).unwrap_or(u32::MAX),
            name: name_words(name),
            ..AdminCommand::default()
        };
        self.carry_out(attachment, command, drain + ANSWER, Some(name.to_owned())).await
    }

    async fn carry_out(
        self: &Arc<Self>,
        attachment: &Arc<Attachment>,
        command: AdminCommand,
        limit: Duration,
        without: Option<String>,
    ) -> Result<Outcome, Problem> {
        let (roster, attachment) = (Arc::clone(self), Arc::clone(attachment));
        // A task of its own: the caller's ends with its connection.
        let carrying = tokio::spawn(async move {
            let _turn = roster.turn.lock().await;
            let is_done = judge(attachment.command(command, limit).await)?;
            Ok(Outcome { is_done, is_saved: roster.save(&attachment, without.as_deref()).await })
        });
        let lost = || Problem::new(Code::DataplaneAbsent, "the command was given up: control stops");
        carrying.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Writes the dataplane's peers, without one that is still being removed.
    async fn save(&self, attachment: &Arc<Attachment>, without: Option<&str>) -> bool {
        let peers = attachment.segment.peers().map(|(_, peer)| Peer {
            name: Text::of(&peer.name).as_str().to_owned(),
            address: Text::of(&peer.address).as_str().to_owned(),
        });
        let peers: Vec<Peer> = peers.filter(|peer| Some(peer.name.as_str()) != without).collect();
        let state_dir = self.state_dir.clone();
        let saved = tokio::task::spawn_blocking(move || peers_file::save(&state_dir, &peers)).await;
        match saved {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(%error, "the peers are in use but could not be saved");
                false
            }
            Err(_) => false,
        }
    }
}

/// Whether it was carried out, or will be.
fn judge(answer: Result<AdminAnswer, Unanswered>) -> Result<bool, Problem> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(Unanswered::Late) => return Ok(false),
        Err(Unanswered::Lost) => {
            return Err(Problem::new(Code::DataplaneAbsent, "the dataplane went away before it answered"));
        }
    };
    match Code::from_number(answer.status) {
        Some(Code::Ok) => Ok(true),
        code => {
            let (field, detail) = (Text::of(&answer.field), Text::of(&answer.detail));
            let problem = Problem::new(code.unwrap_or(Code::FrameMalformed), detail.as_str());
            Err(if field.as_str().is_empty() { problem } else { problem.field(field.as_str()) })
        }
    }
}

/// A text that a frame would cut is not what was asked for.
fn fits(field: &str, text: &str) -> Result<(), Problem> {
    if text.len() <= NAME_BYTES_MAX && !text.contains('\0') {
        return Ok(());
    }
    Err(Problem::new(Code::NameInvalid, format!("more than {NAME_BYTES_MAX} bytes")).field(field))
}
