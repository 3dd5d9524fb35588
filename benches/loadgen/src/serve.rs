//! The receiving program: makes room for senders, and says what arrived.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use railhead_abi::frame::is_name;
use railhead_client::{
    AttachOptions, Events, Notify, Port, Region, RegionHandle, RegionOptions, Remote, Session, SessionError,
    SessionEvent, Write,
};

use crate::args::Serve;
use crate::digest;
use crate::error::{BenchError, Result};
use crate::exchange::{Areas, Command, HEAD_BYTES, HEAD_WORDS, Join, Reply, SLOTS, read_words, write_words};
use crate::pattern::{FILLED, Spec};
use crate::pump;
use crate::report::say;

/// How often to look whether silent senders are still there.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Between two looks for a restarted dataplane.
const RESTART_INTERVAL: Duration = Duration::from_millis(200);
/// Events taken at a time.
const BATCH: usize = 32;
/// The longest grant that a frame can carry.
const GRANT_BYTES_MAX: usize = 95;

/// A sender and what it was given.
struct Guest {
    label: String,
    data: Region,
    areas: Areas,
    reply: Remote,
    heard: Instant,
}

struct Server<'a> {
    options: &'a Serve,
    session: Session,
    port: Port,
    requests: Region,
    /// Where answers to joins are written from.
    scratch: Region,
    guests: BTreeMap<(u32, u32), Guest>,
    /// Data regions whose sender still holds them.
    leaving: Vec<RegionHandle>,
}

/// Runs until the dataplane ends (with `--stay` beyond that), or with `--once` until the first sender has left.
pub(crate) fn run(options: &Serve) -> Result<()> {
    let mut was_lost = false;
    loop {
        match serve(options) {
            Err(BenchError::Session { source: SessionError::DataplaneLost, .. }) if options.stay => {
                eprintln!("the dataplane is gone; waiting for its restart");
                was_lost = true;
            }
            // Not at the first attempt: then the path is wrong.
            Err(BenchError::Session { source: SessionError::Absent { .. }, .. }) if was_lost => {}
            result => return result,
        }
        std::thread::sleep(RESTART_INTERVAL);
    }
}

fn serve(options: &Serve) -> Result<()> {
    let name = format!("serve-{}", std::process::id());
    let attach = AttachOptions { name: &name, ports: 1, entries: 64, ..AttachOptions::default() };
    let session =
        Session::attach(&options.socket, &attach).map_err(BenchError::session("attach (--socket)"))?;
    let missing = || BenchError::Wrong("the dataplane granted no port".to_owned());
    let mut events = session.take_events().ok_or_else(missing)?;
    let requests = RegionOptions {
        bytes: SLOTS * HEAD_BYTES,
        name: &options.sink,
        grant: &options.grant,
        ..RegionOptions::default()
    };
    let requests =
        session.create_region(&requests).map_err(BenchError::session("request region (--sink, --grant)"))?;
    let scratch = RegionOptions { bytes: HEAD_BYTES, ..RegionOptions::default() };
    let scratch = session.create_region(&scratch).map_err(BenchError::session("scratch region"))?;
    say(&format!("serving {} on node {}\n", options.sink, session.node()));
    let port = session.take_port().ok_or_else(missing)?;
    let (guests, leaving) = (BTreeMap::new(), Vec::new());
    Server { options, session, port, requests, scratch, guests, leaving }.serve(&mut events)
}

impl Server<'_> {
    fn serve(&mut self, events: &mut Events) -> Result<()> {
        let mut batch = [SessionEvent::default(); BATCH];
        let mut served = 0;
        loop {
            let some = events.wait(Duration::from_secs(1)).map_err(BenchError::session("serve"))?;
            let count = if some { events.poll(&mut batch) } else { 0 };
            for event in &batch[..count] {
                served += u64::from(self.handle(event));
            }
            self.probe();
            self.leaving.retain(|region| self.session.deregister(*region).is_err());
            if self.options.once && served > 0 {
                return Ok(());
            }
        }
    }

    /// Whether a sender has left with this event. What a sender does wrong concerns only itself.
    fn handle(&mut self, event: &SessionEvent) -> bool {
        let key = (event.region_index, event.region_generation);
        let requests = self.requests.handle();
        if key == (requests.index, requests.generation) {
            if let Err(error) = self.join(event) {
                eprintln!("a sender could not be served: {error}");
            }
            return false;
        }
        let Some(mut guest) = self.guests.remove(&key) else { return false };
        match self.obey(&mut guest, event) {
            Ok(true) => {
                self.guests.insert(key, guest);
                false
            }
            Ok(false) => {
                say(&format!("{} has left\n", guest.label));
                self.forget(guest);
                true
            }
            Err(error) => {
                eprintln!("{} is not served any more: {error}", guest.label);
                self.forget(guest);
                false
            }
        }
    }

    fn join(&mut self, event: &SessionEvent) -> Result<()> {
        let words = read_words(&self.requests, event.offset, HEAD_WORDS);
        let join = words.ok().as_deref().and_then(Join::decode).filter(|join| join.nonce == event.value);
        let join = join.ok_or_else(|| BenchError::Wrong("its join is not understood".to_owned()))?;
        if ![&join.node, &join.session, &join.reply].into_iter().all(|name| is_name(name)) {
            return Err(BenchError::Wrong("its join carries no valid names".to_owned()));
        }
        let label = format!("{}/{}", join.node, join.session);
        let reply = self.session.open(&join.node, &join.reply);
        let reply = reply.map_err(BenchError::session(format!("reply region of {label}")))?;
        let answer = match self.make_room(&join) {
            Ok(data) => {
                say(&format!("{label} has joined with {} bytes\n", join.areas.payload_bytes));
                let region = format!("data-{:016x}", join.nonce);
                let handle = data.handle();
                let guest = Guest { label, data, areas: join.areas, reply, heard: Instant::now() };
                self.guests.insert((handle.index, handle.generation), guest);
                Reply { region, ..Reply::done(join.nonce) }
            }
            Err(text) => {
                eprintln!("{label} was refused: {text}");
                Reply::refused(join.nonce, text)
            }
        };
        let fits = write_words(&self.scratch, 0, &answer.encode());
        fits.map_err(|error| BenchError::Wrong(error.to_string()))?;
        let write = Write { local: self.scratch.handle(), bytes: HEAD_BYTES, ..reply_to(reply, join.nonce) };
        pump::transfer(&mut self.port, write, "answering a join").map(drop)
    }

    fn make_room(&self, join: &Join) -> core::result::Result<Region, String> {
        let (areas, most) = (join.areas, self.options.memory);
        if !areas.is_within(most) {
            return Err(format!("{} bytes are more than the {most} of --memory", areas.payload_bytes));
        }
        let named = format!("{}/{}", join.node, join.session);
        let grant = if named.len() <= GRANT_BYTES_MAX { named } else { format!("{}/*", join.node) };
        let options = RegionOptions {
            bytes: areas.total_bytes(),
            name: &format!("data-{:016x}", join.nonce),
            grant: &grant,
            ..RegionOptions::default()
        };
        self.session.create_region(&options).map_err(|error| error.to_string())
    }

    /// Does what the sender asks; false when it leaves.
    fn obey(&mut self, guest: &mut Guest, event: &SessionEvent) -> Result<bool> {
        guest.heard = Instant::now();
        let words = read_words(&guest.data, guest.areas.command_at(), HEAD_WORDS);
        let command =
            words.ok().as_deref().and_then(Command::decode).filter(|(_, sequence)| *sequence == event.value);
        let (command, sequence) =
            command.ok_or_else(|| BenchError::Wrong("its command is not understood".to_owned()))?;
        let answer = match command {
            Command::Poison { bytes, byte } => poison(guest, bytes, byte),
            Command::Digest { count } => digests(guest, count),
            Command::Verify(spec) => verify(guest, &spec),
            Command::Fill(spec) => fill(guest, &spec),
            Command::Leave => Ok((Reply::done(0), Vec::new())),
        };
        let (reply, payload) = answer.unwrap_or_else(|text| (Reply::refused(0, text), Vec::new()));
        let reply = Reply { sequence, payload_bytes: payload.len() as u64, ..reply };
        let at = guest.areas.reply_at();
        let fits = write_words(&guest.data, at, &reply.encode())
            .and_then(|()| guest.data.copy_in(at + HEAD_BYTES, &payload));
        fits.map_err(|error| BenchError::Wrong(error.to_string()))?;
        let write = Write {
            local: guest.data.handle(),
            local_offset: at,
            bytes: HEAD_BYTES + payload.len() as u64,
            ..reply_to(guest.reply, sequence)
        };
        pump::transfer(&mut self.port, write, "answering a command")?;
        Ok(command != Command::Leave)
    }

    /// Drops senders that are gone: an empty write to a reply region that is no more fails.
    fn probe(&mut self) {
        let silent = |guest: &Guest| guest.heard.elapsed() > PROBE_INTERVAL;
        let keys: Vec<_> =
            self.guests.iter().filter(|(_, guest)| silent(guest)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(mut guest) = self.guests.remove(&key) else { continue };
            let write =
                Write { local: self.scratch.handle(), remote: guest.reply.handle(), ..Write::default() };
            match pump::transfer(&mut self.port, write, "looking for it") {
                Ok(_) => {
                    guest.heard = Instant::now();
                    self.guests.insert(key, guest);
                }
                Err(error) => {
                    eprintln!("{} is gone: {error}", guest.label);
                    self.forget(guest);
                }
            }
        }
    }

    fn forget(&mut self, guest: Guest) {
        // It may be stale already; then there is nothing to give back.
        let _ = self.session.close(guest.reply.handle());
        let handle = guest.data.handle();
        if guest.data.release().is_err() {
            self.leaving.push(handle);
        }
    }
}

fn reply_to(reply: Remote, sequence: u64) -> Write {
    Write { remote: reply.handle(), notify: Notify::event(sequence), ..Write::default() }
}

type Answer = core::result::Result<(Reply, Vec<u8>), String>;

fn poison(guest: &Guest, bytes: u64, byte: u8) -> Answer {
    if bytes > guest.areas.payload_bytes {
        return Err(format!("{bytes} bytes are more than the payload has"));
    }
    guest.data.fill(0, bytes, byte).map_err(|error| error.to_string())?;
    Ok((Reply::done(0), Vec::new()))
}

fn fill(guest: &Guest, spec: &Spec) -> Answer {
    let bytes = Spec::total_bytes(spec.bytes, spec.slots).ok_or("the slots leave any memory")?;
    poison(guest, bytes, spec.poison)?;
    for slot in 0..spec.slots {
        let filled = spec.fill(&guest.data, slot).and_then(|()| spec.stamp(&guest.data, slot, FILLED));
        filled.map_err(|error| error.to_string())?;
    }
    Ok((Reply::done(0), Vec::new()))
}

/// Words that follow a command, if they fit its area.
fn extra(guest: &Guest, count: Option<u64>) -> core::result::Result<Vec<u64>, String> {
    let room = (guest.areas.command_bytes - HEAD_BYTES) / 8;
    let count = count.filter(|count| *count <= room).ok_or("the command is longer than its area")?;
    let at = guest.areas.command_at() + HEAD_BYTES;
    read_words(&guest.data, at, count as usize).map_err(|error| error.to_string())
}

fn digests(guest: &Guest, count: u64) -> Answer {
    let ranges = extra(guest, count.checked_mul(2))?;
    let room = (guest.areas.reply_bytes - HEAD_BYTES) / digest::DIGEST_BYTES as u64;
    if count > room {
        return Err("the digests are longer than the reply area".to_owned());
    }
    let (ranges, _) = ranges.as_chunks::<2>();
    let mut payload = Vec::with_capacity(ranges.len() * digest::DIGEST_BYTES);
    for &[offset, bytes] in ranges {
        if offset.checked_add(bytes).is_none_or(|end| end > guest.areas.payload_bytes) {
            return Err(format!("{bytes} bytes from {offset} on leave the payload"));
        }
        payload.extend(digest::of_region(&guest.data, offset, bytes).map_err(|error| error.to_string())?);
    }
    Ok((Reply::done(0), payload))
}

fn verify(guest: &Guest, spec: &Spec) -> Answer {
    let last = extra(guest, Some(spec.slots))?;
    if Spec::total_bytes(spec.bytes, spec.slots).is_none_or(|bytes| bytes > guest.areas.payload_bytes) {
        return Err("the slots leave the payload".to_owned());
    }
    let verdict = spec.verify(&guest.data, &last).map_err(|error| error.to_string())?;
    let text = verdict.text();
    let figures = [verdict.checked_bytes, verdict.wrong_bytes];
    Ok((Reply { figures, text, ..Reply::done(0) }, Vec::new()))
}
