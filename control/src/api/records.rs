//! `/v1/transfers` and `/v1/events`.

use axum::Json as Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use railhead_abi::Code;
use railhead_abi::observe::{SEVERITY_ERROR, SEVERITY_INFO, SEVERITY_WARNING};
use serde_json::{Value as Json, json};

use super::params::{Params, Raw, malformed};
use super::{Api, stream};
use crate::event::{self, Cursor};
use crate::problem::Problem;
use crate::transfer;

const TRANSFERS_MAX: u64 = 10_000;
const EVENTS_MAX: u64 = 10_000;

pub(super) async fn transfers(State(api): State<Api>, query: Raw) -> Result<Body<Json>, Problem> {
    let params = Params::new(query, &["limit", "failed"])?;
    let limit = params.number("limit", 50, 1, TRANSFERS_MAX)?;
    let failed = params.flag("failed")?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let records: Vec<Json> = transfer::newest(segment, limit, |flight| !failed || flight.status != 0)
        .iter()
        .map(|record| transfer::to_json(segment, record))
        .collect();
    Ok(Body(json!({ "transfers": records })))
}

pub(super) async fn transfer(
    State(api): State<Api>,
    path: Result<Path<String>, PathRejection>,
    query: Raw,
) -> Result<Body<Json>, Problem> {
    Params::new(query, &[])?;
    let Path(text) = path.map_err(|error| malformed("ticket", error.body_text()))?;
    let ticket = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let ticket =
        ticket.ok_or_else(|| malformed("ticket", format!("\"{text}\" is not a ticket, such as 0x1f")))?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let record = transfer::find(segment, ticket).ok_or_else(|| {
        Problem::new(Code::TransferUnknown, format!("no record of ticket {text}")).field("ticket")
    })?;
    let mut body = transfer::to_json(segment, &record);
    body["why"] = transfer::why(&record);
    Ok(Body(body))
}

pub(super) async fn events(
    State(api): State<Api>,
    headers: HeaderMap,
    query: Raw,
) -> Result<Response, Problem> {
    let params = Params::new(query, &["limit", "since", "severity"])?;
    let severity = match params.text("severity") {
        None | Some("info") => SEVERITY_INFO,
        Some("warning") => SEVERITY_WARNING,
        Some("error") => SEVERITY_ERROR,
        Some(other) => {
            return Err(malformed("severity", format!("\"{other}\" is not info, warning or error")));
        }
    };
    let since = params.text("since").or_else(|| headers.get("last-event-id")?.to_str().ok());
    let since: Option<Cursor> =
        since.map(str::parse).transpose().map_err(|what: &str| malformed("since", what))?;
    let streamed = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("text/event-stream"));
    if streamed {
        let limit = params.number("limit", 0, 0, EVENTS_MAX)?;
        return stream::response(&api, since, severity, usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let limit = params.number("limit", 100, 1, EVENTS_MAX)?;
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (from_oldest, mut cursor) = match since {
        Some(cursor) => (true, cursor),
        None => (false, Cursor::oldest(segment)),
    };
    let mut batch = cursor.read(segment, severity);
    if from_oldest && batch.events.len() > limit {
        batch.events.truncate(limit);
        // Go on behind the last one that is shown.
        cursor = batch.events.last().map_or(cursor, |(_, behind)| behind.clone());
    }
    let skip = batch.events.len().saturating_sub(limit);
    let events: Vec<Json> = batch.events.iter().skip(skip).map(|(entry, _)| event::to_json(entry)).collect();
    Ok(Body(json!({ "events": events, "next": cursor.to_string(), "lost": batch.lost })).into_response())
}
