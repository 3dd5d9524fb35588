//! The part of a control that publishing settings takes: hold a node's control segment, publish, watch the lanes.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use railhead_abi::frame::{AdminHello, Empty, FRAME_BYTES_MAX, Frame, Refused, Text};
use railhead_abi::segment::{LaneStatus, Prepared};
use railhead_abi::settings::{SETTINGS_WORDS, Settings};
use railhead_abi::{ABI_VERSION, Code};
use railhead_shm::segment::ControlView;
use railhead_shm::{Words, socket};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::problem::{Problem, Tried};

#[expect(clippy::cast_possible_truncation, reason = "checked just below")]
const VERSION: u16 = ABI_VERSION as u16;
const _: () = assert!(ABI_VERSION <= u16::MAX as u32);

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// A snapshot that is not acknowledged by then never will be.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at the lanes. Busy polling would take a core from them.
const LOOK: Duration = Duration::from_micros(20);
const READ_TRIES: u32 = 100;

/// The hold on a node's settings.
#[derive(Debug)]
pub(crate) struct Holder {
    view: ControlView,
    admin: OwnedFd,
    settings: Settings,
    generation: u64,
}

impl Holder {
    /// Attaches as the node's control.
    pub(crate) fn attach(admin_socket: &Path) -> Result<Self, Problem> {
        let admin =
            socket::connect(admin_socket).tried(format!("connecting to {}", admin_socket.display()))?;
        set_socket_timeout(&admin, Timeout::Recv, Some(ANSWER_TIMEOUT)).tried("SO_RCVTIMEO")?;
        send(&admin, &Frame::AdminHello(AdminHello { hold: 1, pid: std::process::id() }))?;
        let mut buffer = [0; FRAME_BYTES_MAX];
        let received = socket::recv_frame(&admin, &mut buffer, 1).tried("the answer on the admin socket")?;
        let frame = Frame::decode(VERSION, &buffer[..received.bytes])
            .map_err(|code| Problem::new(format!("the answer on the admin socket: {}", code.name())))?;
        let file = match (frame, received.fds.first()) {
            (Frame::AdminWelcome(_), Some(file)) => file,
            (Frame::Refused(refused), _) => return Err(refusal(&refused)),
            _ => return Err(Problem::new("the admin socket gave no control segment")),
        };
        let view = ControlView::open(file).tried("the control segment")?;
        let mut settings = Settings { words: [0; SETTINGS_WORDS] };
        let mut generation = view.current.read(&mut settings.words, READ_TRIES).tried("the settings")?;
        if generation == 0 {
            // Nobody has published yet: the lanes run on what the dataplane read from its file.
            settings = Settings::default();
            generation = view.lanes.iter().map(acknowledged).max().unwrap_or_default();
        }
        Ok(Self { view, admin, settings, generation })
    }

    /// The settings to start from.
    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Publishes and waits until every lane has acknowledged; how long that took.
    pub(crate) fn publish(&mut self, settings: &Settings) -> Result<Duration, Problem> {
        self.generation += 1;
        let start = Instant::now();
        self.view.settings.publish(self.generation, &settings.words).tried("publishing settings")?;
        send(&self.admin, &Frame::AdminWake(Empty { figure: self.generation }))?;
        while self.view.lanes.iter().any(|lane| acknowledged(lane) < self.generation) {
            if start.elapsed() > ACKNOWLEDGE_TIMEOUT {
                return Err(Problem::new(self.pending()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(start.elapsed())
    }

    fn pending(&self) -> String {
        let prepared = Prepared::decode(&load(&self.view.prepared));
        if prepared.refused_generation == self.generation {
            let code = Code::from_number(prepared.refusal_code).map_or("unknown", Code::name);
            return format!("the settings were refused: {code}, word {}", prepared.refusal_word);
        }
        format!(
            "generation {} was not acknowledged within {} s (prepared: {})",
            self.generation,
            ACKNOWLEDGE_TIMEOUT.as_secs(),
            prepared.prepared_generation
        )
    }
}

fn acknowledged(lane: &railhead_shm::segment::LaneView) -> u64 {
    // Acquire pairs with the lane's release store; only the number itself is used.
    LaneStatus::decode(&load(&lane.status)).acknowledged
}

fn load<const N: usize>(words: &Words) -> [u64; N] {
    let mut values = [0; N];
    for (value, word) in values.iter_mut().zip(words.iter()) {
        *value = word.load_acquire();
    }
    values
}

fn send(admin: &OwnedFd, frame: &Frame) -> Result<(), Problem> {
    let (bytes, count) = frame.encode(VERSION);
    socket::send_frame(admin, &bytes[..count], &[]).tried("the admin socket")
}

fn refusal(refused: &Refused) -> Problem {
    let code = Code::from_number(refused.code).map_or("unknown", Code::name);
    Problem::new(format!("the dataplane refused a control: {code} {}", Text::of(&refused.detail).as_str()))
}
