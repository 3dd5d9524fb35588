//! `railhead peers`.

use hyper::Method;
use serde_json::{Value as Json, json};

use crate::client::Client;
use crate::command::PeersChange;
use crate::output::{Failure, Tone, print, print_json};
use crate::show::{items, number, text};
use crate::status::peer_table;

pub(crate) async fn run(client: &Client, change: Option<&PeersChange>, json: bool) -> Result<(), Failure> {
    let body = match change {
        None => {
            let body = client.get("/v1/peers", json).await?;
            return if json { print_json(&body) } else { print(&list(&body)) };
        }
        Some(PeersChange::Add { name, address }) => {
            let peer = json!({"name": name, "address": address});
            client.send(Method::POST, "/v1/peers", &[], Some(&peer), json).await?.1
        }
        Some(PeersChange::Remove { name, drain_ms }) => {
            let path = format!("/v1/peers/{}?drain_ms={drain_ms}", escaped(name));
            client.send(Method::DELETE, &path, &[], None, json).await?.1
        }
    };
    if json { print_json(&body) } else { print(&told(&body, change)) }
}

fn list(body: &Json) -> String {
    let peers = items(body, "peers");
    let room = number(body, "room").saturating_sub(peers.len() as u64);
    peer_table(peers) + &Tone::Faint.paint(&format!("room for {room} more")) + "\n"
}

/// What became of it.
fn told(body: &Json, change: Option<&PeersChange>) -> String {
    let name = text(body, "name");
    let is_pending = body["pending"] == true;
    let mut out = match change {
        Some(PeersChange::Add { .. }) if is_pending => {
            Tone::Warning.paint(&format!("{name} is not there yet: the dataplane has not answered"))
        }
        Some(PeersChange::Add { .. }) => {
            let state = text(body, "state");
            Tone::Good.paint(&format!("{name} is added; it is {state} now, see `railhead peers`"))
        }
        _ if is_pending => {
            Tone::Warning.paint(&format!("{name} is being removed; its transfers have not all ended yet"))
        }
        _ => Tone::Good.paint(&format!("{name} is removed, and everything of it has ended")),
    };
    out.push('\n');
    if body["saved"] == false {
        out += &Tone::Bad
            .paint("in use, but not saved: a restart of the dataplane loses it (see control's log)");
        out.push('\n');
    }
    out
}

/// A name in a path; what no name has is refused there.
fn escaped(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    name.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_part_of_the_path() {
        for (name, path) in [("b-1.x_", "b-1.x_"), ("a/b?c", "a%2Fb%3Fc"), ("..", ".."), ("\u{e4}", "%C3%A4")]
        {
            assert_eq!(escaped(name), path);
        }
    }

    #[test]
    fn answers_in_words() {
        let remove = PeersChange::Remove { name: "b".to_owned(), drain_ms: 1 };
        let done = json!({"name": "b", "pending": false, "saved": true});
        assert_eq!(told(&done, Some(&remove)), "b is removed, and everything of it has ended\n");
        let late = json!({"name": "b", "pending": true, "saved": false});
        assert_eq!(
            told(&late, Some(&remove)),
            "b is being removed; its transfers have not all ended yet\n\
             in use, but not saved: a restart of the dataplane loses it (see control's log)\n"
        );
        assert_eq!(list(&json!({"peers": [], "room": 9})), "no peers\nroom for 9 more\n");
    }
}
