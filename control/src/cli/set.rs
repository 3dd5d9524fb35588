//! `railhead set`.

use hyper::Method;
use serde_json::{Map, Value as Json};

use crate::client::Client;
use crate::command::Set;
use crate::output::{Failure, Tone, print, print_json};
use crate::show::{duration, items, number, setting, text};
use crate::table::{Side, Table};

/// How long the answer may wait for peers to use a new receive plan.
const PEERS_MS: u32 = 1000;

pub(crate) async fn run(client: &Client, wanted: &Set, json: bool) -> Result<(), Failure> {
    if wanted.pairs.is_empty() {
        return show(client, json).await;
    }
    let mut patch = Map::new();
    for (key, value) in &wanted.pairs {
        if patch.insert(key.clone(), parse_value(value)).is_some() {
            return Err(Failure::usage(format!("{key} is given twice"), "give each setting once"));
        }
    }
    let etag = match &wanted.if_match {
        Some(given) => Some(etag_of(client, given, json).await?),
        None => None,
    };
    let author =
        std::env::var("USER").ok().filter(|user| is_header_text(user)).unwrap_or_else(|| "cli".to_owned());
    let mut headers = vec![("railhead-author", author.as_str())];
    headers.extend(etag.as_deref().map(|etag| ("if-match", etag)));
    let path = format!(
        "/v1/settings?dry_run={}&timeout_ms={}&wait_peers_ms={PEERS_MS}",
        wanted.dry_run, wanted.timeout_ms
    );
    let (_, body) = client.send(Method::PATCH, &path, &headers, Some(&Json::Object(patch)), json).await?;
    if json { print_json(&body) } else { print(&told(&body)) }
}

/// The ETag of a generation, or what was given if it is one itself.
async fn etag_of(client: &Client, given: &str, json: bool) -> Result<String, Failure> {
    let Ok(generation) = given.parse::<u64>() else { return Ok(given.to_owned()) };
    let now = client.get("/v1/settings", json).await?;
    // Not the present one: an ETag that matches nothing makes control say where it is.
    if number(&now, "generation") == generation {
        Ok(text(&now, "etag").to_owned())
    } else {
        Ok(format!("\"{generation}\""))
    }
}

fn is_header_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= 63 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A value as typed: a number, a number with K, M or G (times 1,024), `none`, or a text.
fn parse_value(typed: &str) -> Json {
    if let Ok(number) = typed.parse::<i64>() {
        return Json::from(number);
    }
    if typed == "none" || typed == "null" {
        return Json::Null;
    }
    let lower = typed.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Json::from(typed),
    };
    match digits.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)) {
        Some(number) => Json::from(number),
        None => Json::from(typed),
    }
}

/// What became of it.
fn told(body: &Json) -> String {
    let generation = number(body, "generation");
    let mut out = match text(body, "state") {
        "dry_run" => format!("dry run: nothing was changed, generation {generation} stays\n"),
        "unchanged" => format!("nothing to change: generation {generation} has these values\n"),
        "pending" => {
            let lanes: Vec<String> = items(&body["pending"], "lanes").iter().map(Json::to_string).collect();
            let what = format!(
                "generation {generation} is published; not yet applied by lanes {}",
                lanes.join(", ")
            );
            Tone::Warning.paint(&what) + "\n"
        }
        _ => {
            let took = duration(number(body, "took_us").saturating_mul(1000));
            Tone::Good.paint(&format!("generation {generation} is applied by all lanes"))
                + &format!(" after {took}\n")
        }
    };
    let mut table =
        Table::new(&[("setting", Side::Left), ("from", Side::Left), ("", Side::Left), ("to", Side::Left)]);
    let changes = items(body, "changed");
    for change in changes {
        let unit = text(change, "unit");
        table.toned([
            (text(change, "name").to_owned(), Tone::Plain),
            (setting(&change["from"], unit), Tone::Faint),
            ("->".to_owned(), Tone::Faint),
            (setting(&change["to"], unit), Tone::Strong),
        ]);
    }
    if !changes.is_empty() {
        out += &table.render();
    }
    let peers: Vec<&str> = items(body, "peers_pending").iter().filter_map(Json::as_str).collect();
    if !peers.is_empty() {
        out += &Tone::Warning
            .paint(&format!("peers that still use the older receive plan: {}", peers.join(", ")));
        out.push('\n');
    }
    if body["saved"] == false {
        out += &Tone::Bad
            .paint("in use, but not saved: a restart of the dataplane loses it (see control's log)");
        out.push('\n');
    }
    out
}

/// All settings with their values and what they may be.
async fn show(client: &Client, json: bool) -> Result<(), Failure> {
    let body = client.get("/v1/settings?describe=true", json).await?;
    if json {
        return print_json(&body);
    }
    let mut table = Table::new(&[
        ("setting", Side::Left),
        ("value", Side::Left),
        ("allowed", Side::Left),
        ("what it is", Side::Left),
    ]);
    for field in items(&body, "fields") {
        let pointer = format!("/settings/{}", text(field, "name").replace('.', "/"));
        let value = body.pointer(&pointer).unwrap_or(&Json::Null);
        table.toned([
            (text(field, "name").to_owned(), Tone::Plain),
            (setting(value, text(field, "unit")), Tone::Strong),
            (text(field, "allowed").to_owned(), Tone::Faint),
            (text(field, "text").to_owned(), Tone::Faint),
        ]);
    }
    print(&format!("generation {}\n\n{}", number(&body, "generation"), table.render()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_as_typed() {
        for (typed, value) in [
            ("8", json!(8)),
            ("-1", json!(-1)),
            ("64k", json!(65536)),
            ("64KiB", json!(65536)),
            ("1 MiB", json!(1 << 20)),
            ("2G", json!(2u64 << 30)),
            ("none", Json::Null),
            ("staged", json!("staged")),
            ("k", json!("k")),
            ("1.5k", json!("1.5k")),
            ("99999999999999999999g", json!("99999999999999999999g")),
            ("", json!("")),
        ] {
            assert_eq!(parse_value(typed), value, "{typed}");
        }
    }

    #[test]
    fn answers_in_words() {
        let body = json!({
            "state": "applied", "generation": 7, "took_us": 800, "saved": true, "peers_pending": ["b"],
            "changed": [
                {"name": "send.mode", "from": "auto", "to": "staged", "unit": ""},
                {"name": "chunk_bytes", "from": 262144, "to": 4096, "unit": "bytes"},
            ],
        });
        let expected = "generation 7 is applied by all lanes after 800.0 us\n\
                        SETTING      FROM                     TO\n\
                        send.mode    auto                 ->  staged\n\
                        chunk_bytes  262,144 (256.0 KiB)  ->  4,096 (4.0 KiB)\n\
                        peers that still use the older receive plan: b\n";
        assert_eq!(told(&body), expected);
    }
}
