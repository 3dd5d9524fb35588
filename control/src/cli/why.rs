//! `railhead transfers` and `railhead why`.

use serde_json::Value as Json;

use crate::client::Client;
use crate::command::Transfers;
use crate::output::{Failure, Tone, print, print_json};
use crate::show::{bytes, duration, grouped, items, moment, number, or_dash, percent, share, text};
use crate::table::{Side, Table, bar};

pub(crate) async fn list(client: &Client, wanted: &Transfers, json: bool) -> Result<(), Failure> {
    let path = format!("/v1/transfers?limit={}&failed={}", wanted.limit, wanted.failed);
    let body = client.get(&path, json).await?;
    if json {
        return print_json(&body);
    }
    let transfers = items(&body, "transfers");
    if transfers.is_empty() {
        return print("no transfers\n");
    }
    let mut table = Table::new(&[
        ("ticket", Side::Left),
        ("time (UTC)", Side::Left),
        ("lane", Side::Right),
        ("session", Side::Left),
        ("peer", Side::Left),
        ("bytes", Side::Right),
        ("send", Side::Left),
        ("receive", Side::Left),
        ("took", Side::Right),
        ("outcome", Side::Left),
        ("why", Side::Left),
    ]);
    for transfer in transfers {
        let reasons = [&transfer["send"], &transfer["receive"]].map(|leg| text(leg, "reason"));
        let status = text(transfer, "status");
        let plain = |text: String| (text, Tone::Plain);
        table.toned([
            plain(text(transfer, "ticket").to_owned()),
            (moment(text(transfer, "time")), Tone::Faint),
            plain(number(transfer, "lane").to_string()),
            plain(text(transfer, "session_name").to_owned()),
            plain(or_dash(&transfer["peer"])),
            plain(bytes(number(transfer, "bytes"))),
            plain(text(&transfer["send"], "leg").to_owned()),
            plain(text(&transfer["receive"], "leg").to_owned()),
            plain(duration(number(&transfer["ns"], "total"))),
            (status.to_owned(), outcome_tone(status)),
            (reasons.join(", "), Tone::Faint),
        ]);
    }
    print(&table.render())
}

fn outcome_tone(status: &str) -> Tone {
    if status == "ok" { Tone::Good } else { Tone::Bad }
}

pub(crate) async fn run(client: &Client, transfer: &str, json: bool) -> Result<(), Failure> {
    let ticket = if transfer == "last" {
        let body = client.get("/v1/transfers?limit=1", json).await?;
        match items(&body, "transfers").first() {
            Some(newest) => text(newest, "ticket").to_owned(),
            None => {
                return Err(Failure::usage("no transfer has completed yet", "give the ticket of a transfer"));
            }
        }
    } else if transfer.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !transfer.is_empty() {
        transfer.to_owned()
    } else {
        let what = format!("\"{transfer}\" is not a ticket");
        return Err(Failure::usage(
            what,
            "give a ticket such as 0x1f, as `railhead transfers` shows them, or `last`",
        ));
    };
    let body = client.get(&format!("/v1/transfers/{ticket}"), json).await?;
    if json { print_json(&body) } else { print(&told(&body)) }
}

fn told(body: &Json) -> String {
    let status = text(body, "status");
    let head = format!("transfer {}", text(body, "ticket"));
    let size = number(body, "bytes");
    let size = if size < 1024 {
        format!("{size} bytes")
    } else {
        format!("{} bytes ({})", grouped(size), bytes(size))
    };
    let mut out = format!(
        "{}  {size} {} {}: {} after {}\n",
        Tone::Strong.paint(&head),
        if text(body, "operation") == "read" { "read from" } else { "to" },
        or_dash(&body["peer"]),
        outcome_tone(status).paint(status),
        duration(number(&body["ns"], "total")),
    );
    let facts = format!(
        "at {} UTC, lane {}, session {}, class {}, cookie {}, {} chunk(s), settings generation {}\n\n",
        moment(text(body, "time")),
        number(body, "lane"),
        text(body, "session_name"),
        text(body, "class"),
        number(body, "cookie"),
        number(body, "chunks"),
        number(body, "generation"),
    );
    out += &Tone::Faint.paint(&facts);
    let mut table = Table::new(&[("", Side::Left), ("", Side::Left)]);
    for part in ["send", "receive", "outcome"] {
        table.row([part.to_owned(), text(&body["why"], part).to_owned()]);
    }
    out += &table.render();
    out.push('\n');
    out + &times(&body["ns"])
}

/// Where the time went: parts that add up to the whole, then what overlaps with them.
fn times(ns: &Json) -> String {
    let total = number(ns, "total");
    let mut table = Table::new(&[
        ("time", Side::Left),
        ("took", Side::Right),
        ("share", Side::Right),
        ("", Side::Left),
        ("what it is", Side::Left),
    ]);
    for (name, key, what) in [
        ("wait", "wait", "from intake to the first post"),
        ("post", "post", "from the first post to the last"),
        ("confirm", "confirm", "from the last post to the completion"),
        ("total", "total", "from intake to completion"),
        ("  copy", "copy", "of it on the send leg: copies into staging blocks"),
        ("  receive", "receive", "of it at the target: from the first record to delivery"),
    ] {
        let part = share(number(ns, key), total);
        let bar = if key == "total" { String::new() } else { bar(part) };
        // The parts inside others are 0 where nothing was measured: no copy, or a peer that does not say.
        let is_missing = name.starts_with(' ') && number(ns, key) == 0;
        let unless_missing = |text: String| if is_missing { "-".to_owned() } else { text };
        table.toned([
            (name.to_owned(), if key == "total" { Tone::Strong } else { Tone::Plain }),
            (unless_missing(duration(number(ns, key))), Tone::Plain),
            (unless_missing(percent(part)), Tone::Plain),
            (bar, Tone::Plain),
            (what.to_owned(), Tone::Faint),
        ]);
    }
    if let Some(predicted) = ns["predicted"].as_u64() {
        let row =
            ["predicted".to_owned(), duration(predicted), percent(share(predicted, total)), String::new()];
        let [name, took, part, none] = row;
        table.row([name, took, part, none, "what the model expected".to_owned()]);
    }
    table.render()
}
