//! Events as server-sent events: a task of its own reads the logs, the body passes on what it says.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Api;
use crate::event::{self, Batch, Cursor};
use crate::problem::Problem;

/// Between two looks at the logs.
const POLL: Duration = Duration::from_millis(50);
/// After so long without an event a comment is sent, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A stream from `since` on, or from the last `limit` events on.
pub(super) fn response(
    api: &Api,
    since: Option<Cursor>,
    severity: u8,
    limit: usize,
) -> Result<Response, Problem> {
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| {
        Problem::new(Code::RequestMalformed, "too many event streams are open")
            .status(StatusCode::SERVICE_UNAVAILABLE)
    })?;
    let (sender, receiver) = mpsc::channel(16);
    let follower =
        Follower { api: api.clone(), sender, severity, cursor: since, last: Instant::now(), _permit: permit };
    tokio::spawn(follower.run(limit));
    let body = Body::new(Stream(receiver));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// The body: what the follower sends, until it ends.
struct Stream(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

struct Follower {
    api: Api,
    sender: mpsc::Sender<Bytes>,
    severity: u8,
    cursor: Option<Cursor>,
    /// When something was sent last.
    last: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The other side is gone.
struct Gone;

impl Follower {
    async fn run(mut self, limit: usize) {
        let mut stopping = self.api.stopping.clone();
        if self.send(": events of railhead\n\n".to_owned()).await.is_err() || self.begin(limit).await.is_err()
        {
            return;
        }
        loop {
            if self.look().await.is_err() {
                return;
            }
            let stopped = tokio::time::timeout(POLL, stopping.wait_for(|stopping| *stopping)).await;
            if stopped.is_ok() || self.sender.is_closed() {
                return;
            }
        }
    }

    /// Without a cursor: the last `limit` events, then what comes.
    async fn begin(&mut self, limit: usize) -> Result<(), Gone> {
        if self.cursor.is_some() {
            return Ok(());
        }
        let Ok(attachment) = self.api.attached() else { return Ok(()) };
        let mut cursor = Cursor::oldest(&attachment.segment);
        let mut batch = cursor.read(&attachment.segment, self.severity);
        batch.events.drain(..batch.events.len().saturating_sub(limit));
        batch.lost = 0;
        self.cursor = Some(cursor);
        self.pass(batch).await
    }

    async fn look(&mut self) -> Result<(), Gone> {
        if let Ok(attachment) = self.api.attached() {
            // A dataplane that came after the stream began is shown from its first event on.
            let cursor = self.cursor.get_or_insert_with(|| Cursor::oldest(&attachment.segment));
            let batch = cursor.read(&attachment.segment, self.severity);
            self.pass(batch).await?;
        }
        if self.last.elapsed() >= KEEP_ALIVE {
            self.send(": still here\n\n".to_owned()).await?;
        }
        Ok(())
    }

    async fn pass(&mut self, batch: Batch) -> Result<(), Gone> {
        let mut text = String::new();
        if batch.lost > 0 {
            append(&mut text, "lost", None, &json!({ "lost": batch.lost }));
        }
        for (entry, cursor) in &batch.events {
            let name = EventCode::from_number(entry.event).map_or("unknown", EventCode::name);
            append(&mut text, name, Some(cursor), &event::to_json(entry));
        }
        if text.is_empty() { Ok(()) } else { self.send(text).await }
    }

    async fn send(&mut self, text: String) -> Result<(), Gone> {
        self.last = Instant::now();
        self.sender.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

fn append(text: &mut String, name: &str, cursor: Option<&Cursor>, data: &serde_json::Value) {
    // Writing to a String cannot fail; JSON on one line has no line breaks.
    if let Some(cursor) = cursor {
        let _ = writeln!(text, "id: {cursor}");
    }
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
}
