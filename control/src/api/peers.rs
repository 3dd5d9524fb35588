//! `/v1/peers`: list, add, remove.

use std::time::Duration;

use axum::Json as Body;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use railhead_abi::Code;
use railhead_config::Peer;
use serde_json::{Value as Json, json};

use super::Api;
use super::node::peer_json;
use super::params::{Params, Raw, malformed};
use super::settings::{parse_body, require_json};
use crate::peers::Outcome;
use crate::problem::Problem;
use crate::segment::Segment;
use crate::text;

/// How long transfers to a peer that is removed may take to end by themselves, if the request does not say.
const DRAIN_MS: u64 = 1000;
const DRAIN_MS_MAX: u64 = 60_000;

pub(super) async fn list(State(api): State<Api>, query: Raw) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let peers: Vec<Json> = segment.peers().map(|(slot, peer)| peer_json(slot, &peer)).collect();
    Ok(Body(json!({ "peers": peers, "room": segment.header().peers_max })))
}

pub(super) async fn one(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Raw,
) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let attachment = api.attached()?;
    found(&attachment.segment, &name).map(Body).ok_or_else(|| unknown(&name))
}

pub(super) async fn add(
    State(api): State<Api>,
    headers: HeaderMap,
    query: Raw,
    content: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    require_json(&headers)?;
    Params::new(query, &[])?;
    let peer = read(&parse_body(content)?)?;
    let attachment = api.attached()?;
    let outcome = api.roster.add(&attachment, &peer).await?;
    let body = found(&attachment.segment, &peer.name).unwrap_or_else(|| json!({"name": peer.name}));
    Ok(told(StatusCode::CREATED, outcome, body))
}

pub(super) async fn remove(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Raw,
) -> Result<Response, Problem> {
    let params = Params::new(query, &["drain_ms"])?;
    let drain = Duration::from_millis(params.number("drain_ms", DRAIN_MS, 0, DRAIN_MS_MAX)?);
    let attachment = api.attached()?;
    let outcome = api.roster.remove(&attachment, &name, drain).await?;
    Ok(told(StatusCode::OK, outcome, json!({"name": name})))
}

/// What became of it; 202 while the dataplane is still at it.
fn told(status: StatusCode, outcome: Outcome, mut body: Json) -> Response {
    body["saved"] = Json::from(outcome.is_saved);
    body["pending"] = Json::from(!outcome.is_done);
    let status = if outcome.is_done { status } else { StatusCode::ACCEPTED };
    (status, Body(body)).into_response()
}

fn found(segment: &Segment, name: &str) -> Option<Json> {
    let (slot, peer) = segment.peers().find(|(_, peer)| text::words(&peer.name) == name)?;
    Some(peer_json(slot, &peer))
}

fn unknown(name: &str) -> Problem {
    Problem::new(Code::PeerUnknown, format!("this node has no peer \"{name}\"")).field("name")
}

/// A body `{"name": TEXT, "address": TEXT}`.
fn read(body: &Json) -> Result<Peer, Problem> {
    let members = body.as_object().ok_or_else(|| malformed("body", "not an object"))?;
    if let Some(other) = members.keys().find(|key| !["name", "address"].contains(&key.as_str())) {
        return Err(malformed(other, "a peer has a name and an address"));
    }
    let member = |name: &str| {
        let text = members.get(name).and_then(Json::as_str);
        text.map(str::to_owned).ok_or_else(|| malformed(name, "a text is needed"))
    };
    Ok(Peer { name: member("name")?, address: member("address")? })
}
