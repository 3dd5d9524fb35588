//! One client of the fake.

use std::os::fd::{AsFd, OwnedFd};

use railhead_abi::ABI_VERSION;
use railhead_abi::frame::{Hello, Text, Welcome, name_words};
use railhead_abi::segment::{EVENT_ENTRIES, LINE_WORDS, SESSION_MAGIC, SIGNALS, SessionHeader, SessionShape};
use railhead_abi::submission::{Completion, SessionEvent, Submission};
use railhead_ring::{Bell, Consumer, Producer};
use railhead_shm::memfd::{self, Huge};
use railhead_shm::socket::send_frame;
use railhead_shm::{Access, Mapping, Words, eventfd, futex};

use super::Wrong;

/// A port, seen from the lane.
pub(crate) struct PortEnd {
    pub(crate) submissions: Consumer<Words, { Submission::WORDS }>,
    pub(crate) completions: Producer<Words, { Completion::WORDS }>,
    bell: Bell<Words>,
    bell_words: Words,
}

impl PortEnd {
    pub(crate) fn complete(&mut self, completion: &Completion) {
        self.completions
            .push_publish(&completion.encode())
            .expect("in-flight is capped by the ring's capacity");
        if self.bell.take() {
            futex::wake(&self.bell_words[0], 1);
        }
    }
}

/// An attached client.
pub(crate) struct Session {
    pub(crate) node: usize,
    pub(crate) name: String,
    pub(crate) connection: OwnedFd,
    pub(crate) memory: Words,
    pub(crate) ports: Vec<PortEnd>,
    pub(crate) bells: Vec<OwnedFd>,
    /// Remote handles: region slot and generation.
    pub(crate) remotes: Vec<(u32, u32)>,
    events: Vec<Producer<Words, { SessionEvent::WORDS }>>,
    event_bell: Bell<Words>,
    event_bell_words: Words,
}

impl Session {
    /// Makes the session memory and welcomes the client; `None` for a welcome that was made wrong on purpose.
    pub(crate) fn welcome(
        connection: OwnedFd,
        hello: &Hello,
        slot: u32,
        node: (usize, &str),
        lanes_page: &OwnedFd,
        lanes: usize,
        wrong: Option<Wrong>,
    ) -> Option<Self> {
        let entries = if hello.entries == 0 { 256 } else { hello.entries as usize };
        let shape = SessionShape { lanes, ports: hello.ports as usize, entries };
        let name = match Text::of(&hello.name).as_str() {
            "" => format!("pid-{}", std::process::id()),
            name => name.to_owned(),
        };
        let file = memfd::create("fake-session", 8 * shape.words() as u64, Huge::No).unwrap();
        let memory = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, shape.words()).unwrap();
        let header = SessionHeader {
            magic: SESSION_MAGIC,
            abi_version: ABI_VERSION,
            lanes: lanes as u32,
            segment_words: shape.words() as u64,
            incarnation: 0x1234,
            ports: hello.ports,
            entries: entries as u32,
        };
        for (word, value) in memory.iter().zip(header.encode()) {
            word.store_release(value);
        }
        let bells: Vec<OwnedFd> = (0..lanes).map(|_| eventfd::create().unwrap()).collect();
        let mut welcome = Welcome {
            incarnation: 0x1234,
            session: slot,
            lanes: lanes as u32,
            ports: hello.ports,
            entries: entries as u32,
            event_entries: EVENT_ENTRIES as u32,
            signals: SIGNALS as u32,
            node: name_words(node.1),
            name: name_words(&name),
        };
        let mut fds = vec![file.as_fd(), lanes_page.as_fd()];
        fds.extend(bells.iter().map(AsFd::as_fd));
        match wrong {
            Some(Wrong::Descriptors) => drop(fds.pop()),
            Some(Wrong::Lanes) => welcome.lanes = 65,
            Some(Wrong::Entries) => welcome.entries = 3,
            Some(Wrong::Incarnation) => welcome.incarnation += 1,
            None => {}
        }
        let (bytes, count) = railhead_abi::frame::Frame::Welcome(welcome).encode(ABI_VERSION as u16);
        send_frame(&connection, &bytes[..count], &fds).ok()?;
        drop(fds);
        let event_bell_words = memory.part(SessionShape::EVENT_BELL, LINE_WORDS).unwrap();
        let session = Self {
            node: node.0,
            name,
            connection,
            ports: (0..shape.ports).map(|port| port_end(&memory, &shape, port)).collect(),
            bells,
            remotes: Vec::new(),
            events: (0..lanes).map(|lane| event_ring(&memory, &shape, lane)).collect(),
            event_bell: Bell::new(event_bell_words.clone()).unwrap(),
            event_bell_words,
            memory,
        };
        wrong.is_none().then_some(session)
    }

    pub(crate) fn signal(&self, index: usize, value: u64) {
        self.memory[SessionShape::SIGNALS + index].fetch_add_release(value);
        self.wake_events();
    }

    /// False without room.
    pub(crate) fn event(&mut self, lane: usize, event: &SessionEvent) -> bool {
        let sent = self.events[lane].push_publish(&event.encode()).is_ok();
        if sent {
            self.wake_events();
        }
        sent
    }

    fn wake_events(&self) {
        if self.event_bell.take() {
            futex::wake(&self.event_bell_words[0], 1);
        }
    }
}

fn port_end(memory: &Words, shape: &SessionShape, port: usize) -> PortEnd {
    let part = |offset, count| memory.part(shape.port(port) + offset, count).unwrap();
    let bell_words = part(SessionShape::PORT_BELL, LINE_WORDS);
    let submissions = part(SessionShape::PORT_SUBMISSIONS, shape.submission_ring_words());
    let completions = part(shape.port_completions(), shape.completion_ring_words());
    PortEnd {
        submissions: Consumer::new(submissions, shape.entries).unwrap(),
        completions: Producer::new(completions, shape.entries).unwrap(),
        bell: Bell::new(bell_words.clone()).unwrap(),
        bell_words,
    }
}

fn event_ring(memory: &Words, shape: &SessionShape, lane: usize) -> Producer<Words, { SessionEvent::WORDS }> {
    let words = memory.part(shape.events(lane), SessionShape::EVENT_RING_WORDS).unwrap();
    Producer::new(words, EVENT_ENTRIES).unwrap()
}
