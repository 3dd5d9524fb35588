//! A dataplane for tests: a real control segment behind a real admin socket, with lanes that are one thread.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use railhead_abi::frame::{
    ADMIN_PEER_ADD, AdminAnswer, AdminCommand, AdminWelcome, FRAME_BYTES_MAX, Frame, Refused, name_words,
};
use railhead_abi::observe::{EventEntry, Flight};
use railhead_abi::segment::{
    CONTROL_MAGIC, ControlHeader, ControlShape, FLIGHT_ENTRIES, LANE_SEALED, LaneStatus, PEER_ABSENT,
    PEER_DOWN, PeerStatus, REGISTRAR_EVENT_ENTRIES,
};
use railhead_abi::settings::{SETTINGS_WORDS, Settings};
use railhead_abi::{ABI_VERSION, Code};
use railhead_config::Config;
use railhead_control::Control;
use railhead_control::link::FRAME_VERSION;
use railhead_ring::{CellReader, CellWriter, LogWriter, cell_words};
use railhead_shm::memfd::{self, Huge};
use railhead_shm::socket::{self, SocketError};
use railhead_shm::{Access, Mapping, Words};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value as Json;
use tokio::sync::watch;
use tower::ServiceExt;

/// Anything that is waited for comes within this, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How the fake behaves; changed while it runs.
#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    /// Refuse the next snapshots, so many times.
    pub(crate) refuse: usize,
    /// With this.
    pub(crate) refusal: (u16, u32),
    /// Say nothing of new snapshots.
    pub(crate) mute: bool,
    /// Lanes that acknowledge nothing.
    pub(crate) stalled: HashSet<usize>,
    /// Generations that were prepared, in order.
    pub(crate) prepared: Vec<(u64, Settings)>,
    /// Frames other than the first.
    pub(crate) wakes: Vec<u64>,
    /// Commands that came.
    pub(crate) commands: Vec<AdminCommand>,
    /// Answer the next command with this, and do not carry it out.
    pub(crate) refuse_command: Option<AdminAnswer>,
    /// Answer no command.
    pub(crate) mute_commands: bool,
    stop: bool,
    holder: Option<u32>,
}

/// One start of a fake dataplane.
pub(crate) struct Fake {
    pub(crate) words: Words,
    pub(crate) shape: ControlShape,
    behaviour: Arc<Mutex<Behaviour>>,
    threads: Vec<JoinHandle<()>>,
    path: PathBuf,
}

impl Fake {
    /// Starts at a path with an initial snapshot (none leaves the cell empty).
    pub(crate) fn start(
        path: &Path,
        lanes: usize,
        incarnation: u64,
        initial: Option<(u64, Settings)>,
    ) -> Self {
        let shape = ControlShape { lanes };
        let file = memfd::create("fake", 8 * shape.words() as u64, Huge::No).unwrap();
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite).unwrap();
        let words = mapping.words(0, shape.words()).unwrap();
        let mut cores = [0; 16];
        cores[0] = 0b1111;
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            abi_version: ABI_VERSION,
            lanes: lanes as u32,
            segment_words: shape.words() as u64,
            incarnation,
            pid: std::process::id(),
            numa_nodes: 1,
            started_unix_ns: 1_700_000_000_000_000_000,
            started_ns: 1_000_000,
            small_bytes: 16 << 10,
            large_bytes: 256 << 10,
            pool_page_bytes: 4096,
            pool_bytes: 64 << 20,
            peers_max: 9,
            cores,
            node: name_words("fake"),
            listen: name_words("127.0.0.1:7410"),
        };
        store(&words, 0, &header.encode());
        for lane in 0..lanes {
            let status = LaneStatus {
                state: LANE_SEALED,
                small_send: 64,
                small_send_free: 60,
                large_receive: 32,
                large_receive_free: 32,
                page_bytes: 4096,
                ..LaneStatus::default()
            };
            store(&words, shape.lane(lane), &status.encode());
        }
        if let Some((generation, settings)) = initial {
            cell(&words).publish(generation, &settings.words).unwrap();
            words[ControlShape::PREPARED].store_release(generation);
            (0..lanes).for_each(|lane| words[shape.lane(lane)].store_release(generation));
        }
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let _ = std::fs::remove_file(path);
        let listener = socket::listen(path, 8).unwrap();
        set_socket_timeout(&listener, Timeout::Recv, Some(Duration::from_millis(20))).unwrap();
        let threads = vec![
            spawn({
                let (words, behaviour) = (words.clone(), Arc::clone(&behaviour));
                move || run_settings(&words, shape, &behaviour)
            }),
            spawn({
                let (words, behaviour) = (words.clone(), Arc::clone(&behaviour));
                let welcome = AdminWelcome {
                    incarnation,
                    segment_words: shape.words() as u64,
                    pid: std::process::id(),
                    lanes: lanes as u32,
                    node: name_words("fake"),
                };
                move || run_admin(&listener, &file, welcome, &words, &behaviour)
            }),
        ];
        Self { words, shape, behaviour, threads, path: path.to_owned() }
    }

    pub(crate) fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap()
    }

    /// Publishes as a control does that is gone since.
    pub(crate) fn publish(&self, generation: u64, settings: &Settings) {
        cell(&self.words).publish(generation, &settings.words).unwrap();
    }

    /// The published snapshot.
    pub(crate) fn published(&self) -> (u64, Settings) {
        let mut settings = Settings { words: [0; SETTINGS_WORDS] };
        let generation = reader(&self.words).read(&mut settings.words, 1000).unwrap();
        (generation, settings)
    }

    pub(crate) fn set_peer(&self, slot: usize, peer: &PeerStatus) {
        store(&self.words, ControlShape::PEERS + slot * PeerStatus::WORDS, &peer.encode());
    }

    pub(crate) fn add_event(&self, entry: &EventEntry) {
        let words =
            self.words.part(ControlShape::REGISTRAR_EVENTS, ControlShape::REGISTRAR_EVENTS_WORDS).unwrap();
        LogWriter::<_, { EventEntry::WORDS }>::new(words, REGISTRAR_EVENT_ENTRIES)
            .unwrap()
            .append(&entry.encode());
    }

    pub(crate) fn add_flight(&self, lane: usize, flight: &Flight) {
        let first = self.shape.lane(lane) + ControlShape::LANE_FLIGHT;
        let words = self.words.part(first, ControlShape::LANE_FLIGHT_WORDS).unwrap();
        LogWriter::<_, { Flight::WORDS }>::new(words, FLIGHT_ENTRIES).unwrap().append(&flight.encode());
    }

    pub(crate) fn set_counter(&self, lane: usize, counter: railhead_abi::observe::Counter, value: u64) {
        let first = self.shape.lane(lane) + ControlShape::LANE_COUNTERS;
        self.words[first + counter as usize].store_relaxed(value);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.behaviour().stop = true;
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(run)
}

pub(crate) fn store(words: &Words, first: usize, values: &[u64]) {
    for (word, value) in words[first..].iter().zip(values) {
        word.store_relaxed(*value);
    }
}

fn cell_memory(words: &Words) -> Words {
    words.part(ControlShape::SETTINGS, cell_words(SETTINGS_WORDS)).unwrap()
}

fn cell(words: &Words) -> CellWriter<Words> {
    CellWriter::new(cell_memory(words)).unwrap()
}

fn reader(words: &Words) -> CellReader<Words> {
    CellReader::new(cell_memory(words)).unwrap()
}

/// The settings thread and all lanes.
fn run_settings(words: &Words, shape: ControlShape, behaviour: &Mutex<Behaviour>) {
    let reader = reader(words);
    loop {
        std::thread::sleep(Duration::from_micros(200));
        let mut behaviour = behaviour.lock().unwrap();
        if behaviour.stop {
            return;
        }
        let (prepared, refused) = (&words[ControlShape::PREPARED], &words[ControlShape::PREPARED + 1]);
        let seen = prepared.load_acquire().max(refused.load_acquire());
        let mut settings = Settings { words: [0; SETTINGS_WORDS] };
        let newer = !behaviour.mute && reader.generation() > seen;
        if let Some(Ok(generation)) = newer.then(|| reader.read(&mut settings.words, 100)) {
            if behaviour.refuse > 0 {
                behaviour.refuse -= 1;
                let (code, word) = behaviour.refusal;
                words[ControlShape::PREPARED + 2].store_relaxed(u64::from(code) | u64::from(word) << 32);
                refused.store_release(generation);
            } else {
                behaviour.prepared.push((generation, settings));
                prepared.store_release(generation);
            }
        }
        for lane in (0..shape.lanes).filter(|lane| !behaviour.stalled.contains(lane)) {
            words[shape.lane(lane)].store_release(prepared.load_acquire());
        }
    }
}

fn run_admin(
    listener: &OwnedFd,
    file: &OwnedFd,
    welcome: AdminWelcome,
    words: &Words,
    behaviour: &Arc<Mutex<Behaviour>>,
) {
    let mut held: Option<(OwnedFd, u32)> = None;
    loop {
        if behaviour.lock().unwrap().stop {
            return;
        }
        if let Some((socket, _)) = &held {
            let mut buffer = [0; FRAME_BYTES_MAX];
            match socket::recv_frame(socket, &mut buffer, 0) {
                Ok(frame) => match Frame::decode(FRAME_VERSION, &buffer[..frame.bytes]) {
                    Ok(Frame::AdminWake(wake)) => behaviour.lock().unwrap().wakes.push(wake.figure),
                    Ok(Frame::AdminCommand(command)) => {
                        if let Some(answer) = carry_out(words, command, &mut behaviour.lock().unwrap()) {
                            let (bytes, length) = Frame::AdminAnswer(answer).encode(FRAME_VERSION);
                            socket::send_frame(socket, &bytes[..length], &[]).unwrap();
                        }
                    }
                    _ => {}
                },
                Err(SocketError::NotReady) => {}
                Err(_) => held = None,
            }
        }
        match socket::accept(listener) {
            Ok(socket) => greet(socket, file, welcome, &mut held),
            Err(SocketError::NotReady) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Adds and removes peers as a dataplane does: in the segment, before it answers.
fn carry_out(words: &Words, command: AdminCommand, behaviour: &mut Behaviour) -> Option<AdminAnswer> {
    behaviour.commands.push(command);
    if behaviour.mute_commands {
        return None;
    }
    if let Some(answer) = behaviour.refuse_command.take() {
        return Some(AdminAnswer { cookie: command.cookie, ..answer });
    }
    let at = |slot: usize| ControlShape::PEERS + slot * PeerStatus::WORDS;
    let status =
        |slot| PeerStatus::decode(&std::array::from_fn(|word| words[at(slot) + word].load_acquire()));
    let is_meant = |slot: &usize| {
        let peer = status(*slot);
        if command.command == ADMIN_PEER_ADD {
            peer.state == PEER_ABSENT
        } else {
            peer.state != PEER_ABSENT && peer.name == command.name
        }
    };
    let slot = (1..64).find(is_meant).unwrap();
    let state = if command.command == ADMIN_PEER_ADD { PEER_DOWN } else { PEER_ABSENT };
    let peer = PeerStatus { name: command.name, address: command.address, state, ..PeerStatus::default() };
    store(words, at(slot), &peer.encode());
    Some(AdminAnswer { cookie: command.cookie, figure: slot as u64, ..AdminAnswer::default() })
}

fn greet(socket: OwnedFd, file: &OwnedFd, welcome: AdminWelcome, held: &mut Option<(OwnedFd, u32)>) {
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(1))).unwrap();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let deadline = Instant::now() + Duration::from_secs(1);
    let hello = loop {
        match socket::recv_frame(&socket, &mut buffer, 0) {
            Ok(frame) => match Frame::decode(FRAME_VERSION, &buffer[..frame.bytes]).unwrap() {
                Frame::AdminHello(hello) => break hello,
                other => panic!("{other:?}"),
            },
            Err(SocketError::NotReady) if Instant::now() < deadline => {}
            Err(_) => return,
        }
    };
    let answer = match held {
        Some((_, pid)) => {
            let refused = Refused { figure: u64::from(*pid), ..Refused::because(Code::ControlHeld, "") };
            Frame::Refused(refused)
        }
        None => Frame::AdminWelcome(welcome),
    };
    let (bytes, length) = answer.encode(FRAME_VERSION);
    let files = [file.as_fd()];
    let _ = socket::send_frame(&socket, &bytes[..length], if held.is_none() { &files } else { &[] });
    if held.is_none() {
        *held = Some((socket, hello.pid));
    }
}

/// A state directory with a configuration in it.
pub(crate) struct Home {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: Config,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With more lines in `[settings]`.
    pub(crate) fn with(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[node]\nname = \"fake\"\nstate_dir = \"state\"\n[dataplane]\nlanes = 2\n[fabric]\nkey_file = \"key\"\n\
             [control]\nlisten = \"unix:control.sock\"\n[settings]\n{settings}"
        );
        let path = folder.path().join("node.toml");
        std::fs::write(&path, &text).unwrap();
        let config = Config::parse(&path, &text).unwrap();
        std::fs::create_dir_all(&config.node.state_dir).unwrap();
        Self { folder, config }
    }

    pub(crate) fn fake(&self, incarnation: u64, initial: Option<(u64, Settings)>) -> Fake {
        Fake::start(&self.config.dataplane.admin_socket, 2, incarnation << 32, initial)
    }

    /// A fresh dataplane that runs the defaults as generation 1.
    pub(crate) fn first_fake(&self) -> Fake {
        self.fake(0xaaaa, Some((1, Settings::default())))
    }

    pub(crate) fn control(&self) -> Rest {
        let control = Control::start(&self.config).unwrap();
        let (sender, stopping) = watch::channel(false);
        let router = control.router(stopping, true);
        Rest { control, router, _stop: sender }
    }
}

/// A control without a socket: requests go straight to its routes.
pub(crate) struct Rest {
    pub(crate) control: Control,
    pub(crate) router: Router,
    _stop: watch::Sender<bool>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn etag(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }

    /// The problem's code and field, with what every problem must have checked.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String, Option<String>) {
        let body = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json", "{body}");
        assert_eq!(body["status"], self.status.as_u16());
        for member in ["type", "title", "detail", "remedy"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {body}");
        }
        let field = body["field"].as_str().map(str::to_owned);
        (self.status.as_u16(), body["code"].as_str().unwrap().to_owned(), field)
    }
}

impl Rest {
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        send(self.router.clone(), request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn patch(&self, path: &str, body: impl std::borrow::Borrow<Json>) -> Answer {
        self.send(Request::patch(path).body(Body::from(body.borrow().to_string())).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl std::borrow::Borrow<Json>) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.borrow().to_string())).unwrap()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    /// Waits until a dataplane of this incarnation is attached.
    pub(crate) async fn attached(&self, incarnation: u64) {
        until("attached", || {
            self.control.link().state().is_ok_and(|attachment| attachment.incarnation() == incarnation << 32)
        })
        .await;
    }

    /// Waits until no dataplane is attached.
    pub(crate) async fn detached(&self) {
        until("detached", || self.control.link().state().is_err()).await;
    }
}

pub(crate) async fn send(router: Router, request: Request<Body>) -> Answer {
    let response = router.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not {what} in time");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
