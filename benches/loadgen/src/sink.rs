//! The sender's end of the exchange with a serving program.

use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use railhead_client::{
    ACCESS_READ, ACCESS_WRITE, AttachOptions, Code, Events, Port, Region, RegionOptions, Remote, Session,
    SessionError, SessionEvent, Write,
};

use crate::args::Connection;
use crate::error::{BenchError, Result};
use crate::exchange::{Areas, Command, HEAD_BYTES, HEAD_WORDS, Join, Reply, SLOTS, read_words, write_words};
use crate::pump;

/// Between two attempts to reach a peer that is not there yet.
const RETRY: Duration = Duration::from_millis(100);

/// A serving program that has made room for us.
#[derive(Debug)]
pub(crate) struct Sink {
    session: Session,
    /// Our side of payload and commands.
    pub(crate) source: Region,
    /// Its side.
    pub(crate) remote: Remote,
    replies: Region,
    events: Events,
    areas: Areas,
    sequence: u64,
    node: String,
    timeout: Duration,
}

/// Attaches to this node's dataplane.
pub(crate) fn attach(connection: &Connection, ports: u32) -> Result<Session> {
    let name = connection.name.clone().unwrap_or_else(|| format!("bench-{}", std::process::id()));
    let entries = connection.outstanding.next_power_of_two().max(16);
    let options = AttachOptions { name: &name, ports, entries, ..AttachOptions::default() };
    Session::attach(&connection.socket, &options).map_err(BenchError::session("attach (--socket)"))
}

/// The session's next port.
pub(crate) fn take_port(session: &Session, connection: &Connection) -> Result<Port> {
    let missing = || BenchError::Wrong("the dataplane granted fewer ports than were asked for".to_owned());
    let mut port = session.take_port().ok_or_else(missing)?;
    port.set_spin(Duration::from_micros(connection.spin_us));
    Ok(port)
}

impl Sink {
    /// Finds the serving program and has it make room.
    pub(crate) fn join(
        connection: &Connection,
        session: &Session,
        port: &mut Port,
        areas: Areas,
    ) -> Result<Self> {
        let requests = open_when_up(session, &connection.to, &connection.sink, connection.wait)?;
        let node = if connection.to == "self" { session.node() } else { &connection.to };
        let nonce = std::hash::RandomState::new().build_hasher().finish();
        let reply_name = format!("reply-{nonce:016x}");
        let source = RegionOptions { bytes: areas.total_bytes(), ..RegionOptions::default() };
        let source = session.create_region(&source).map_err(BenchError::session("source region"))?;
        let grant = format!("{node}/*");
        let replies = RegionOptions {
            bytes: areas.reply_bytes,
            name: &reply_name,
            grant: &grant,
            ..RegionOptions::default()
        };
        let replies = session.create_region(&replies).map_err(BenchError::session("reply region"))?;
        let taken = || BenchError::Wrong("the session's events were taken already".to_owned());
        let mut sink = Self {
            session: session.clone(),
            source,
            remote: requests,
            replies,
            events: session.take_events().ok_or_else(taken)?,
            areas,
            sequence: 0,
            node: node.to_owned(),
            timeout: connection.timeout,
        };
        let join = Join {
            nonce,
            areas,
            node: session.node().to_owned(),
            session: session.name().to_owned(),
            reply: reply_name,
        };
        let slot = (nonce % SLOTS) * HEAD_BYTES;
        let (reply, _) = sink.ask(port, &join.encode(), slot, nonce, "the answer to the join")?;
        let data = session.open_for(&connection.to, &reply.region, ACCESS_READ | ACCESS_WRITE);
        let data = data.map_err(BenchError::session(format!("open data region of {node}")))?;
        // Only for its events' sake was the request region needed.
        session.close(requests.handle()).map_err(BenchError::session("close request region"))?;
        sink.remote = data;
        Ok(sink)
    }

    /// Has a command done and returns its answer with the bytes that follow it.
    pub(crate) fn command(
        &mut self,
        port: &mut Port,
        command: &Command,
        extra: &[u64],
    ) -> Result<(Reply, Vec<u8>)> {
        self.sequence += 1;
        let mut words = command.encode(self.sequence);
        words.extend_from_slice(extra);
        let (at, sequence) = (self.areas.command_at(), self.sequence);
        self.ask(port, &words, at, sequence, "the answer to a command")
    }

    /// Tells the serving program that it can forget us, and gives everything back. The result stands by now, and the
    /// session's end gives back what this does not: so a failure is only told.
    pub(crate) fn leave(mut self, port: &mut Port) {
        let mut end = || {
            self.command(port, &Command::Leave, &[])?;
            self.session.close(self.remote.handle()).map_err(BenchError::session("close data region"))
        };
        let ended = end();
        let released = [self.source.release(), self.replies.release()];
        let released = released
            .into_iter()
            .try_for_each(|result| result.map_err(BenchError::session("release regions")));
        if let Err(error) = ended.and(released) {
            eprintln!("railhead-bench: leaving {}: {error}", self.node);
        }
    }

    fn ask(
        &mut self,
        port: &mut Port,
        words: &[u64],
        remote_offset: u64,
        sequence: u64,
        what: &'static str,
    ) -> Result<(Reply, Vec<u8>)> {
        let at = self.areas.command_at();
        let fits = write_words(&self.source, at, words);
        fits.map_err(|error| BenchError::Wrong(format!("a command does not fit: {error}")))?;
        let write = Write {
            local: self.source.handle(),
            local_offset: at,
            remote: self.remote.handle(),
            remote_offset,
            bytes: 8 * words.len() as u64,
            notify: railhead_client::Notify::event(sequence),
            ..Write::default()
        };
        pump::transfer(port, write, "telling the serving program")?;
        let reply = self.reply(sequence, what)?;
        if reply.refused {
            return Err(BenchError::Refused { node: self.node.clone(), text: reply.text });
        }
        if reply.payload_bytes > self.areas.reply_bytes - HEAD_BYTES {
            return Err(BenchError::Answer("it is longer than its region"));
        }
        let mut payload = vec![0; reply.payload_bytes as usize];
        let inside = self.replies.copy_out(HEAD_BYTES, &mut payload);
        inside.map_err(|_| BenchError::Answer("it is longer than its region"))?;
        Ok((reply, payload))
    }

    fn reply(&mut self, sequence: u64, what: &'static str) -> Result<Reply> {
        let start = Instant::now();
        let mut events = [SessionEvent::default(); 8];
        let own = self.replies.handle();
        loop {
            let rest = self.timeout.saturating_sub(start.elapsed());
            if !self.events.wait(rest).map_err(BenchError::session(what))? {
                return Err(BenchError::Silent { node: self.node.clone(), what, after: self.timeout });
            }
            let count = self.events.poll(&mut events);
            let is_ours = |event: &SessionEvent| {
                event.value == sequence
                    && (event.region_index, event.region_generation) == (own.index, own.generation)
            };
            if events[..count].iter().any(is_ours) {
                let words = read_words(&self.replies, 0, HEAD_WORDS);
                let reply = words.ok().as_deref().and_then(Reply::decode);
                return reply
                    .filter(|reply| reply.sequence == sequence)
                    .ok_or(BenchError::Answer("no reply"));
            }
        }
    }
}

/// Opens the region, waiting for a peer and a program that are still starting.
fn open_when_up(session: &Session, node: &str, region: &str, wait: Duration) -> Result<Remote> {
    let start = Instant::now();
    let mut told = false;
    loop {
        match session.open(node, region) {
            Ok(remote) => return Ok(remote),
            Err(SessionError::Refused { code: Code::PeerNotConnected | Code::RegionUnknown, .. })
                if start.elapsed() < wait =>
            {
                if !told {
                    eprintln!("waiting up to {wait:?} for region {region} of node {node}");
                    told = true;
                }
                std::thread::sleep(RETRY);
            }
            Err(source) => {
                let doing = format!(
                    "open region {region} of node {node} (--sink, --to; is `railhead-bench serve` running there?)"
                );
                return Err(BenchError::Session { doing, source });
            }
        }
    }
}
