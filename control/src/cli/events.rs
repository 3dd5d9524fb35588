//! `railhead events`.

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::Value as Json;

use crate::client::Client;
use crate::command::Events;
use crate::output::{Failure, Tone, print, print_json};
use crate::show::{items, moment, number, or_dash, text};
use crate::table::{Side, Table};

pub(crate) async fn run(client: &Client, wanted: &Events, json: bool) -> Result<(), Failure> {
    let query = format!("/v1/events?limit={}&severity={}", wanted.limit, wanted.severity.name());
    if wanted.follow {
        return follow(client, &query, json).await;
    }
    let body = client.get(&query, json).await?;
    if json {
        return print_json(&body);
    }
    let events = items(&body, "events");
    if events.is_empty() { print("no events\n") } else { print(&table(events)) }
}

/// Events as a table, oldest first.
pub(crate) fn table(events: &[Json]) -> String {
    let mut table = Table::new(&[
        ("time (UTC)", Side::Left),
        ("severity", Side::Left),
        ("lane", Side::Right),
        ("event", Side::Left),
        ("what happened", Side::Left),
    ]);
    for event in events {
        let severity = text(event, "severity");
        table.toned([
            (moment(text(event, "time")), Tone::Faint),
            (severity.to_owned(), Tone::of_severity(severity)),
            (or_dash(&event["lane"]), Tone::Plain),
            (text(event, "event").to_owned(), Tone::Plain),
            (message(event), Tone::Plain),
        ]);
    }
    table.render()
}

/// The message with its reason.
fn message(event: &Json) -> String {
    match text(event, "reason") {
        "" => text(event, "message").to_owned(),
        reason => format!("{} ({reason})", text(event, "message")),
    }
}

/// One event of a stream: columns as wide as most events need.
fn line(event: &Json) -> String {
    let severity = text(event, "severity");
    let lane = or_dash(&event["lane"]);
    format!(
        "{}  {}  {lane:>4}  {:<22}  {}\n",
        Tone::Faint.paint(&moment(text(event, "time"))),
        Tone::of_severity(severity).paint(&format!("{severity:<8}")),
        text(event, "event"),
        message(event),
    )
}

async fn follow(client: &Client, path: &str, json: bool) -> Result<(), Failure> {
    let response = client.open(Method::GET, path, &[("accept", "text/event-stream")], None).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let content = body.collect().await.map_err(|error| client.lost(&error))?.to_bytes();
        let problem = serde_json::from_slice(&content).unwrap_or(Json::Null);
        return Err(Failure::refused(problem, json));
    }
    let mut stream = Stream::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| client.lost(&error))?;
        for event in frame.data_ref().map(|data| stream.push(data)).unwrap_or_default() {
            print(&if json {
                format!("{event}\n")
            } else if event.get("lost").is_some() {
                format!("{} events were overwritten before they could be read\n", number(&event, "lost"))
            } else {
                line(&event)
            })?;
        }
    }
    Err(Failure::unreachable("the stream of events ended", "control was stopped; start it again"))
}

/// Cuts server-sent events out of the pieces that arrive.
#[derive(Debug, Default)]
struct Stream {
    rest: Vec<u8>,
}

impl Stream {
    fn push(&mut self, piece: &[u8]) -> Vec<Json> {
        self.rest.extend_from_slice(piece);
        let mut events = Vec::new();
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.rest.drain(..end + 2).collect();
            let data = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data: "));
            events.extend(data.and_then(|data| serde_json::from_slice(data).ok()));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_cut_out_of_any_pieces() {
        let text =
            b": hello\n\nid: 1:0\nevent: started\ndata: {\"a\":1}\n\nevent: lost\ndata: {\"lost\":3}\n\n";
        for size in 1..text.len() {
            let mut stream = Stream::default();
            let events: Vec<Json> = text.chunks(size).flat_map(|piece| stream.push(piece)).collect();
            assert_eq!(events, [json!({"a": 1}), json!({"lost": 3})], "pieces of {size}");
        }
    }
}
