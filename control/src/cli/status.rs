//! `railhead status`.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use crate::client::Client;
use crate::output::{Failure, Tone, print, print_json};
use crate::show::{bytes, grouped, items, moment, number, or_dash, percent, setting, share, text, uptime};
use crate::table::{Side, Table, bar};

/// Warnings shown.
const WARNINGS: usize = 5;

pub(crate) async fn run(client: &Client, json: bool) -> Result<(), Failure> {
    let node = client.get("/v1/node", json).await?;
    let settings = client.get("/v1/settings", json).await?;
    let lanes = client.get("/v1/lanes", json).await?;
    let pools = client.get("/v1/pools", json).await?;
    let events = client.get(&format!("/v1/events?severity=warning&limit={WARNINGS}"), json).await?;
    if json {
        return print_json(&json!({
            "node": node, "settings": settings, "lanes": lanes["lanes"], "pools": pools, "warnings": events["events"],
        }));
    }
    let lanes = items(&lanes, "lanes");
    let sections = [
        heading(&node, &settings),
        legs(&settings),
        lane_table(lanes),
        route_table(lanes),
        pool_table(&pools),
        rail_table(&node["rdma"]),
        peer_table(items(&node, "peers")),
        warnings(items(&events, "events")),
    ];
    let sections: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
    print(&sections.join("\n"))
}

fn heading(node: &Json, settings: &Json) -> String {
    let mut out = format!(
        "{} {}\n",
        Tone::Strong.paint(&format!("node {}", text(node, "name"))),
        Tone::Faint.paint(&format!(
            "up {}, pid {}, fabric {}, {} cores, {} NUMA node(s)",
            uptime(number(node, "uptime_ms")),
            number(node, "pid"),
            text(node, "listen"),
            items(node, "cores").len(),
            number(node, "numa_nodes"),
        ))
    );
    let lanes: Vec<String> = items(&settings["pending"], "lanes").iter().map(Json::to_string).collect();
    let state = if settings["pending"].is_null() {
        Tone::Good.paint("applied by all lanes")
    } else if settings["pending"]["prepared"] == false {
        Tone::Warning.paint("not yet taken by the dataplane")
    } else {
        Tone::Warning.paint(&format!("pending on lanes {}", lanes.join(", ")))
    };
    let by = format!("(set by {}, {} UTC)", text(settings, "author"), moment(text(settings, "time")));
    let _ = writeln!(
        out,
        "settings generation {}: {state} {}",
        number(settings, "generation"),
        Tone::Faint.paint(&by)
    );
    let peers: Vec<&str> = items(settings, "peers_pending").iter().filter_map(Json::as_str).collect();
    if !peers.is_empty() {
        let late = format!("peers that still use an older receive plan: {}", peers.join(", "));
        let _ = writeln!(out, "{}", Tone::Warning.paint(&late));
    }
    out
}

fn legs(settings: &Json) -> String {
    let mut table = Table::new(&[("leg", Side::Left), ("mode", Side::Left), ("direct from", Side::Left)]);
    for leg in ["send", "receive"] {
        let values = &settings["settings"][leg];
        let from = match text(values, "mode") {
            "auto" => setting(&values["direct_from_bytes"], "bytes"),
            _ => "- (forced)".to_owned(),
        };
        table.row([leg.to_owned(), text(values, "mode").to_owned(), from]);
    }
    table.render()
}

fn lane_table(lanes: &[Json]) -> String {
    let mut table = Table::new(&[
        ("lane", Side::Right),
        ("state", Side::Left),
        ("core", Side::Right),
        ("copies", Side::Left),
        ("generation", Side::Right),
        ("ports", Side::Right),
        ("conns", Side::Right),
        ("in flight", Side::Right),
        ("inbound", Side::Right),
        ("done", Side::Right),
        ("failed", Side::Right),
        ("busy", Side::Right),
    ]);
    for lane in lanes {
        let counters = &lane["counters"];
        let failed = number(counters, "transfers_failed_total");
        let state = text(lane, "state");
        let wanted = (lane["core_wanted"] != lane["core"]).then(|| format!("{}!", or_dash(&lane["core"])));
        let busy = share(number(counters, "busy_turns_total"), number(counters, "turns_total"));
        let plain = |text: String| (text, Tone::Plain);
        table.toned([
            plain(number(lane, "lane").to_string()),
            (state.to_owned(), if state == "running" { Tone::Good } else { Tone::Bad }),
            // An exclamation mark: not where it was asked to be.
            wanted.map_or_else(|| plain(or_dash(&lane["core"])), |core| (core, Tone::Warning)),
            plain(copies(lane)),
            plain(number(lane, "generation").to_string()),
            plain(number(lane, "ports").to_string()),
            plain(number(lane, "connections").to_string()),
            plain(number(lane, "in_flight").to_string()),
            plain(number(lane, "inbound").to_string()),
            plain(grouped(number(counters, "transfers_done_total"))),
            (grouped(failed), if failed == 0 { Tone::Plain } else { Tone::Bad }),
            plain(percent(busy)),
        ]);
    }
    table.render()
}

/// Who does the lane's larger copies: a thread, with its core if it is pinned, or the lane, with the reason.
fn copies(lane: &Json) -> String {
    match (text(lane, "copies"), &lane["copy_core"]) {
        ("thread", Json::Number(core)) => format!("thread on {core}"),
        ("lane_cores_short", _) => "lane (few cores)".to_owned(),
        (who, _) => who.to_owned(),
    }
}

fn route_table(lanes: &[Json]) -> String {
    let routes = ["staged_staged", "staged_direct", "direct_staged", "direct_direct"];
    let sum = |name: String| lanes.iter().map(|lane| number(&lane["counters"], &name)).sum::<u64>();
    let rows = routes
        .map(|route| (route, sum(format!("transfers_{route}_total")), sum(format!("bytes_{route}_total"))));
    let whole = rows.iter().map(|(_, _, bytes)| bytes).sum();
    let mut table = Table::new(&[
        ("route", Side::Left),
        ("transfers", Side::Right),
        ("bytes", Side::Right),
        ("share", Side::Right),
        ("", Side::Left),
    ]);
    for (route, transfers, moved) in rows {
        let part = share(moved, whole);
        table.row([
            format!("{} ", route.replace('_', " > ")),
            grouped(transfers),
            bytes(moved),
            percent(part),
            bar(part),
        ]);
    }
    table.render()
}

/// All lanes together, and the lane that has the least left.
fn pool_table(pools: &Json) -> String {
    let mut table = Table::new(&[
        ("pool", Side::Left),
        ("block", Side::Right),
        ("blocks", Side::Right),
        ("free", Side::Right),
        ("in use", Side::Right),
        ("", Side::Left),
        ("fullest", Side::Left),
    ]);
    let lanes = items(pools, "pools");
    for (class, leg) in [("small", "send"), ("small", "receive"), ("large", "send"), ("large", "receive")] {
        let of_lane = |pool: &Json| {
            let blocks =
                items(pool, "blocks").iter().find(|b| text(b, "class") == class && text(b, "leg") == leg);
            let blocks = blocks.unwrap_or(&Json::Null);
            let (all, free) = (number(blocks, "blocks"), number(blocks, "free"));
            (number(pool, "lane"), number(blocks, "block_bytes"), all, all.saturating_sub(free))
        };
        let kinds: Vec<_> = lanes.iter().map(of_lane).collect();
        let (all, used) = kinds.iter().fold((0, 0), |sum, (_, _, all, used)| (sum.0 + all, sum.1 + used));
        let fullest =
            kinds.iter().max_by(|one, other| share(one.3, one.2).total_cmp(&share(other.3, other.2)));
        let Some((lane, block_bytes, lane_all, lane_used)) = fullest else { continue };
        let part = share(used, all);
        table.row([
            format!("{class} {leg}"),
            bytes(*block_bytes),
            grouped(all),
            grouped(all - used),
            percent(part),
            bar(part),
            if *lane_used == 0 {
                String::new()
            } else {
                format!("lane {lane}: {}", percent(share(*lane_used, *lane_all)))
            },
        ]);
    }
    let pages = format!(
        "{} in all, on pages of {}",
        bytes(number(pools, "bytes")),
        bytes(number(pools, "page_bytes"))
    );
    table.render() + &Tone::Faint.paint(&pages) + "\n"
}

pub(crate) fn peer_table(peers: &[Json]) -> String {
    if peers.is_empty() {
        return "no peers\n".to_owned();
    }
    let mut table = Table::new(&[
        ("peer", Side::Left),
        ("state", Side::Left),
        ("address", Side::Left),
        ("receives", Side::Left),
        ("downs", Side::Right),
        ("cause", Side::Left),
    ]);
    for peer in peers {
        let up = text(peer, "state") == "up";
        let plan = &peer["plan"];
        let receives = match text(plan, "receive_mode") {
            _ if !up => "-".to_owned(),
            "auto" => format!("direct from {}", bytes(number(plan, "receive_direct_from_bytes"))),
            mode => mode.to_owned(),
        };
        let cause = if up { String::new() } else { text(peer, "cause").to_owned() };
        table.toned([
            (text(peer, "name").to_owned(), Tone::Plain),
            (text(peer, "state").to_owned(), if up { Tone::Good } else { Tone::Bad }),
            (text(peer, "address").to_owned(), Tone::Plain),
            (receives, Tone::Plain),
            (grouped(number(peer, "downs")), Tone::Plain),
            (cause, Tone::Warning),
        ]);
    }
    table.render()
}

/// The RDMA rails; nothing without.
fn rail_table(rdma: &Json) -> String {
    let rails = items(rdma, "rails");
    if rails.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("rail", Side::Right),
        ("device", Side::Left),
        ("state", Side::Left),
        ("link", Side::Left),
        ("address", Side::Left),
        ("mtu", Side::Right),
        ("node", Side::Right),
        ("queue pairs", Side::Right),
        ("written", Side::Right),
        ("read", Side::Right),
        ("requests", Side::Right),
        ("errors", Side::Right),
    ]);
    for rail in rails {
        let (state, counters) = (text(rail, "state"), &rail["counters"]);
        let errors = number(counters, "errors_total");
        let plain = |text: String| (text, Tone::Plain);
        table.toned([
            plain(number(rail, "rail").to_string()),
            plain(format!("{} port {}", text(rail, "device"), number(rail, "port"))),
            (state.to_owned(), if state == "up" { Tone::Good } else { Tone::Bad }),
            plain(text(rail, "link").to_owned()),
            plain(text(rail, "gid").to_owned()),
            plain(number(rail, "mtu_bytes").to_string()),
            plain(or_dash(&rail["numa_node"])),
            plain(number(rail, "queue_pairs").to_string()),
            plain(bytes(number(counters, "bytes_written_total"))),
            plain(bytes(number(counters, "bytes_read_total"))),
            plain(grouped(number(counters, "requests_total"))),
            (grouped(errors), if errors == 0 { Tone::Plain } else { Tone::Warning }),
        ]);
    }
    let cache = &rdma["registrations"];
    format!(
        "{}registrations: {} of {} pinned, {} found again, {} made, {} given up, {} refused\n",
        table.render(),
        bytes(number(cache, "pinned_bytes")),
        bytes(number(cache, "pinned_bytes_max")),
        grouped(number(cache, "hits")),
        grouped(number(cache, "misses")),
        grouped(number(cache, "evictions")),
        grouped(number(cache, "over_budget")),
    )
}

fn warnings(events: &[Json]) -> String {
    if events.is_empty() {
        return "no warnings\n".to_owned();
    }
    crate::events::table(events)
}
