//! `/v1/settings`: show, change, history, rollback.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use railhead_abi::Code;
use railhead_abi::frame::NAME_BYTES_MAX;
use railhead_config::setting::Key;
use serde_json::{Value as Json, json};

use super::Api;
use super::params::{Params, Raw, malformed};
use crate::patch;
use crate::problem::Problem;
use crate::text;
use crate::view::{Pending, View};
use crate::writer::{Change, Changed, Edit};

/// How long a change may take until it is answered with 202, if the request does not say.
const TIMEOUT_MS: u64 = 2000;
const TIMEOUT_MS_MAX: u64 = 60_000;

pub(super) async fn show(State(api): State<Api>, query: Raw) -> Result<Response, Problem> {
    let params = Params::new(query, &["describe"])?;
    let describe = params.flag("describe")?;
    let view = view(&api)?;
    let pending = view.pending();
    let mut body = body(&view, pending.as_ref());
    body["state"] = Json::from(if pending.is_some() { "pending" } else { "applied" });
    if describe {
        body["fields"] = Key::all(view.attachment.segment.lanes()).map(describe_key).collect();
    }
    Ok(tagged(StatusCode::OK, &view, body))
}

pub(super) async fn change(
    State(api): State<Api>,
    headers: HeaderMap,
    query: Raw,
    content: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let patch = parse_body(content)?;
    publish(&api, &headers, query, Edit::Patch(patch)).await
}

pub(super) async fn rollback(
    State(api): State<Api>,
    headers: HeaderMap,
    query: Raw,
    content: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    require_json(&headers)?;
    let body = parse_body(content)?;
    let generation = match body.as_object() {
        Some(members) if members.len() == 1 => members.get("generation").and_then(Json::as_u64),
        _ => None,
    };
    let generation =
        generation.ok_or_else(|| malformed("generation", "the body is {\"generation\": NUMBER}"))?;
    publish(&api, &headers, query, Edit::Rollback(generation)).await
}

pub(super) async fn history(State(api): State<Api>, query: Raw) -> Result<Response, Problem> {
    let params = Params::new(query, &["limit"])?;
    let limit = params.number("limit", 50, 1, crate::history::ENTRIES as u64)?;
    let entries: Vec<Json> = api
        .writer
        .history(usize::try_from(limit).unwrap_or(usize::MAX))
        .await
        .into_iter()
        .map(|entry| {
            json!({
                "generation": entry.generation,
                "time": text::rfc3339(entry.unix_ns),
                "unix_ns": entry.unix_ns,
                "author": entry.author,
                "changed": entry.changed,
            })
        })
        .collect();
    Ok(axum::Json(json!({ "history": entries })).into_response())
}

async fn publish(api: &Api, headers: &HeaderMap, query: Raw, edit: Edit) -> Result<Response, Problem> {
    let params = Params::new(query, &["dry_run", "timeout_ms", "wait_peers_ms"])?;
    let dry_run = params.flag("dry_run")?;
    let limit = Duration::from_millis(params.number("timeout_ms", TIMEOUT_MS, 1, TIMEOUT_MS_MAX)?);
    let wait_peers = Duration::from_millis(params.number("wait_peers_ms", 0, 0, TIMEOUT_MS_MAX)?);
    api.attached()?;
    let change = Change { edit, if_match: if_match(headers)?, dry_run, author: author(headers)? };
    let changed = api.writer.change(change, limit).await?;
    if changed.pending.is_none() && !dry_run {
        await_peers(&changed.view, wait_peers).await;
    }
    let Changed { view, previous, changed, pending, saved, took } = changed;
    let state = match &pending {
        _ if dry_run => "dry_run",
        Some(_) => "pending",
        None if view.generation == previous => "unchanged",
        None => "applied",
    };
    let mut body = body(&view, pending.as_ref());
    body["state"] = Json::from(state);
    body["previous"] = Json::from(previous);
    body["changed"] = changed;
    body["saved"] = Json::from(saved);
    body["took_us"] = Json::from(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    let status = if pending.is_some() { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok(tagged(status, &view, body))
}

/// Waits until connected peers use the receive plan, at most so long: the answer lists those that do not.
async fn await_peers(view: &View, limit: Duration) {
    let deadline = Instant::now() + limit;
    while !view.peers_pending().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn view(api: &Api) -> Result<View, Problem> {
    api.attached()?;
    api.writer.view().ok_or_else(|| Problem::new(Code::DataplaneAbsent, "no dataplane is attached"))
}

/// What all answers about settings have in common.
fn body(view: &View, pending: Option<&Pending>) -> Json {
    json!({
        "generation": view.generation,
        "etag": view.etag(),
        "author": view.author,
        "time": text::rfc3339(view.unix_ns),
        "pending": pending.map(|pending| json!({"prepared": pending.prepared, "lanes": pending.lanes})),
        "peers_pending": view.peers_pending(),
        "settings": patch::document(&view.settings, view.attachment.segment.lanes()),
    })
}

fn tagged(status: StatusCode, view: &View, body: Json) -> Response {
    let mut response = (status, axum::Json(body)).into_response();
    if let Ok(etag) = HeaderValue::from_str(&view.etag()) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

fn describe_key(key: Key) -> Json {
    json!({"name": key.name(), "unit": key.unit(), "allowed": key.range(), "text": key.text()})
}

/// Refuses other content than JSON: a web page can post forms and plain text anywhere, but not that.
pub(super) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/json"));
    if is_json {
        return Ok(());
    }
    Err(malformed("Content-Type", "send application/json").status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

pub(super) fn parse_body(content: Result<Bytes, BytesRejection>) -> Result<Json, Problem> {
    let content = content.map_err(|error| malformed("body", error.body_text()).status(error.status()))?;
    serde_json::from_slice(&content).map_err(|error| malformed("body", format!("not valid JSON: {error}")))
}

fn if_match(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().map_err(|_| malformed("If-Match", "not printable text"))?;
    Ok(Some(text.to_owned()))
}

/// Who asks, as far as they say: for the history, not for any decision.
fn author(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(value) = headers.get("railhead-author") else { return Ok("rest".to_owned()) };
    match value.to_str() {
        Ok(author) if !author.is_empty() && author.len() <= NAME_BYTES_MAX => Ok(author.to_owned()),
        _ => Err(malformed("Railhead-Author", format!("not 1 to {NAME_BYTES_MAX} printable characters"))),
    }
}
