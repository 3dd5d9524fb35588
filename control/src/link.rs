//! The way to the dataplane: one thread that attaches, notices when the dataplane goes away, and attaches again.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use railhead_abi::frame::{AdminAnswer, AdminCommand, AdminHello, Empty, FRAME_BYTES_MAX, Frame, Text};
use railhead_abi::{ABI_VERSION, Code};
use railhead_shm::Word;
use railhead_shm::socket::{self, SocketError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::sync::{oneshot, watch};

use crate::segment::{BadSegment, Segment};
use crate::writer::Writer;

/// Version of frames on local sockets.
#[expect(clippy::cast_possible_truncation, reason = "checked just below")]
pub const FRAME_VERSION: u16 = ABI_VERSION as u16;
const _: () = assert!(ABI_VERSION <= u16::MAX as u32);

/// How long the dataplane may take to answer the first frame.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(2);
/// A wake-up that cannot be sent for this long is not needed: the socket is full of earlier ones.
const WAKE_TIMEOUT: Duration = Duration::from_millis(100);
/// Between two attempts to attach.
const RETRY: Duration = Duration::from_millis(100);

/// A dataplane that this control holds.
#[derive(Debug)]
pub struct Attachment {
    /// Its control segment.
    pub segment: Segment,
    /// Its process id.
    pub pid: u32,
    socket: OwnedFd,
    /// 1 once the dataplane is known to be gone.
    closed: Word,
    waiting: Mutex<Waiting>,
}

/// Commands that the dataplane has not answered yet, by their cookies.
#[derive(Debug, Default)]
struct Waiting {
    cookie: u64,
    commands: HashMap<u64, oneshot::Sender<AdminAnswer>>,
}

/// Why a command has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The dataplane went away: whether it was carried out is not known.
    Lost,
    /// The time is over; the dataplane goes on with it.
    Late,
}

impl Attachment {
    /// Has the dataplane carry out a command and waits for its answer. A command that is not answered in time is carried
    /// out all the same.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn command(&self, command: AdminCommand, limit: Duration) -> Result<AdminAnswer, Unanswered> {
        let (sender, answer) = oneshot::channel();
        let cookie = {
            let mut waiting = self.waiting();
            waiting.cookie += 1;
            let cookie = waiting.cookie;
            waiting.commands.insert(cookie, sender);
            cookie
        };
        let (bytes, length) = Frame::AdminCommand(AdminCommand { cookie, ..command }).encode(FRAME_VERSION);
        if self.is_closed() || socket::send_frame(&self.socket, &bytes[..length], &[]).is_err() {
            self.waiting().commands.remove(&cookie);
            return Err(Unanswered::Lost);
        }
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|_| Unanswered::Lost),
            Err(_) => {
                self.waiting().commands.remove(&cookie);
                Err(Unanswered::Late)
            }
        }
    }

    fn answered(&self, answer: AdminAnswer) {
        if let Some(waiter) = self.waiting().commands.remove(&answer.cookie) {
            // Whoever gave up waiting is not there any more.
            let _ = waiter.send(answer);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Insertions and removals only: a panic elsewhere leaves a sound table.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the dataplane that a snapshot was published. Best effort: it also looks by itself.
    pub fn wake(&self, generation: u64) {
        let (bytes, length) = Frame::AdminWake(Empty { figure: generation }).encode(FRAME_VERSION);
        if let Err(error) = socket::send_frame(&self.socket, &bytes[..length], &[]) {
            tracing::debug!(%error, "dataplane could not be woken");
        }
    }

    /// Whether the dataplane is known to be gone: what its segment says then is its last word.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // No order is needed: who misses it looks again.
        self.closed.load_relaxed() == 1
    }

    /// Random number of this start of the dataplane.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.segment.header().incarnation
    }
}

/// Why there is no attachment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", code.name())]
pub struct Detached {
    /// The stable code.
    pub code: Code,
    /// What happened.
    pub what: String,
}

/// The state of the link.
pub type State = Result<Arc<Attachment>, Detached>;

/// The link's handle. Dropping it ends the thread and lets the dataplane go.
#[derive(Debug)]
pub struct Link {
    state: watch::Receiver<State>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    /// Set, and the socket that the thread reads from now.
    asked: Mutex<(bool, Option<Arc<Attachment>>)>,
    changed: Condvar,
}

impl Link {
    /// Attaches in a thread of its own, again and again. `writer` is told of each attachment before anyone else.
    ///
    /// # Errors
    /// That of starting a thread.
    pub fn start(admin_socket: &Path, writer: Arc<Writer>) -> io::Result<Self> {
        let first = Detached { code: Code::DataplaneAbsent, what: "not attached yet".to_owned() };
        let (sender, state) = watch::channel(Err(first));
        let stop = Arc::new(Stop::default());
        let thread = {
            let (path, stop) = (admin_socket.to_owned(), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("link".to_owned())
                .spawn(move || run(&path, &writer, &sender, &stop))?
        };
        Ok(Self { state, stop, thread: Some(thread) })
    }

    /// The state now.
    ///
    /// # Errors
    /// [`Detached`] while no dataplane is attached.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// For waiting until the state changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut asked = self.stop.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.0 = true;
        if let Some(attachment) = asked.1.take() {
            // Wakes the thread out of its read.
            let _ = rustix::net::shutdown(&attachment.socket, rustix::net::Shutdown::Both);
        }
        drop(asked);
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Stop {
    /// Waits before the next attempt; true if there shall be none.
    fn wait(&self, duration: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.wait_timeout_while(asked, duration, |asked| !asked.0).map_or(true, |(asked, _)| asked.0)
    }

    /// Registers the socket that is about to be read; false if the thread shall end instead.
    fn enter(&self, attachment: Option<Arc<Attachment>>) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.1 = attachment;
        !asked.0
    }
}

fn run(path: &Path, writer: &Writer, sender: &watch::Sender<State>, stop: &Stop) {
    loop {
        let detached = match attach(path) {
            Ok(attachment) => {
                let attachment = Arc::new(attachment);
                if !stop.enter(Some(Arc::clone(&attachment))) {
                    return;
                }
                let incarnation = crate::text::hex(attachment.incarnation());
                tracing::info!(pid = attachment.pid, incarnation, "attached to the dataplane");
                writer.attach(&attachment);
                drop(sender.send_replace(Ok(Arc::clone(&attachment))));
                let what = until_closed(&attachment);
                attachment.closed.store_relaxed(1);
                // Dropping the senders tells those who wait.
                attachment.waiting().commands.clear();
                writer.detach();
                stop.enter(None);
                Detached { code: Code::DataplaneAbsent, what }
            }
            Err(detached) => detached,
        };
        let changed = sender.borrow().as_ref().err() != Some(&detached);
        if changed {
            tracing::warn!(code = detached.code.name(), "{}", detached.what);
            drop(sender.send_replace(Err(detached)));
        }
        if stop.wait(RETRY) {
            return;
        }
    }
}

/// Blocks until the dataplane closes the socket; says why.
fn until_closed(attachment: &Attachment) -> String {
    let mut buffer = [0; FRAME_BYTES_MAX];
    loop {
        match socket::recv_frame(&attachment.socket, &mut buffer, 0) {
            Ok(received) => {
                // Anything else is of a newer dataplane and not for this version.
                if let Ok(Frame::AdminAnswer(answer)) =
                    Frame::decode(FRAME_VERSION, &buffer[..received.bytes])
                {
                    attachment.answered(answer);
                }
            }
            Err(SocketError::Closed) => return format!("the dataplane (pid {}) went away", attachment.pid),
            Err(error) => return format!("the admin socket failed: {error}"),
        }
    }
}

/// One attempt.
fn attach(path: &Path) -> Result<Attachment, Detached> {
    let detached = |code, what: String| Detached { code, what };
    let failed = |error: SocketError| detached(Code::DataplaneAbsent, absent(path, error));
    let socket = socket::connect(path).map_err(failed)?;
    for (which, timeout) in [(Timeout::Recv, WELCOME_TIMEOUT), (Timeout::Send, WAKE_TIMEOUT)] {
        set_socket_timeout(&socket, which, Some(timeout))
            .map_err(|errno| failed(SocketError::System { call: "setsockopt", errno }))?;
    }
    let hello = AdminHello { hold: 1, pid: std::process::id() };
    let (bytes, length) = Frame::AdminHello(hello).encode(FRAME_VERSION);
    socket::send_frame(&socket, &bytes[..length], &[]).map_err(failed)?;
    let mut buffer = [0; FRAME_BYTES_MAX];
    let received = socket::recv_frame(&socket, &mut buffer, 1).map_err(failed)?;
    let frame = Frame::decode(FRAME_VERSION, &buffer[..received.bytes])
        .map_err(|code| detached(code, format!("the answer on {} was not understood", path.display())))?;
    match (frame, received.fds.first()) {
        (Frame::AdminWelcome(welcome), Some(file)) => {
            let segment = Segment::map(file).map_err(|BadSegment { code, what }| detached(code, what))?;
            if segment.header().incarnation != welcome.incarnation {
                return Err(detached(
                    Code::MappingFailed,
                    "the control segment is of another start".to_owned(),
                ));
            }
            set_socket_timeout(&socket, Timeout::Recv, None)
                .map_err(|errno| failed(SocketError::System { call: "setsockopt", errno }))?;
            Ok(Attachment {
                segment,
                pid: welcome.pid,
                socket,
                closed: Word::new(0),
                waiting: Mutex::default(),
            })
        }
        (Frame::Refused(refused), _) => {
            let code = Code::from_number(refused.code).unwrap_or(Code::FrameMalformed);
            let detail = Text::of(&refused.detail);
            let what = match code {
                Code::ControlHeld => format!("another control (pid {}) holds this dataplane", refused.figure),
                _ if detail.as_str().is_empty() => code.text().to_owned(),
                _ => format!("{}: {}", code.text(), detail.as_str()),
            };
            Err(detached(code, what))
        }
        _ => Err(detached(
            Code::FrameMalformed,
            format!("{} did not answer as an admin socket", path.display()),
        )),
    }
}

fn absent(path: &Path, error: SocketError) -> String {
    use rustix::io::Errno;
    let path = PathBuf::from(path);
    match error {
        SocketError::System { errno: Errno::NOENT, .. } => {
            format!("there is no admin socket at {}", path.display())
        }
        SocketError::System { errno: Errno::CONNREFUSED, .. } => {
            format!("nobody listens at {}", path.display())
        }
        SocketError::System { errno: Errno::ACCESS, .. } => {
            format!("this user may not open {}", path.display())
        }
        SocketError::NotReady => format!("the dataplane at {} does not answer", path.display()),
        error => format!("{}: {error}", path.display()),
    }
}
