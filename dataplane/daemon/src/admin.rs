//! The admin socket: hands the control segment out, to one control process at a time that may write settings, and to
//! others that only look; carries out the commands of the one that holds ([`command`]).
//!
//! The holder is whoever's connection is open: when it dies, the kernel closes the connection and the next one can hold.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use railhead_abi::frame::{
    AdminAnswer, AdminCommand, AdminHello, AdminWelcome, FRAME_BYTES_MAX, Frame, Refused, name_words,
    text_words,
};
use railhead_abi::observe::EventCode;
use railhead_abi::{ABI_VERSION, Code};
use railhead_ring::Word;
use railhead_shm::socket::{self, SocketError};

use crate::events::{Event, EventLog};
use crate::segment::ControlSegment;
use crate::settings::Knock;

pub(crate) mod command;

use command::{Command, Refusal};

/// Version of frames on this node's own sockets.
#[expect(clippy::cast_possible_truncation, reason = "checked by the assertion below")]
pub(crate) const LOCAL_VERSION: u16 = ABI_VERSION as u16;
const _: () = assert!(ABI_VERSION <= u16::MAX as u32);

/// How long a hold that is taken is waited for: its holder may have died, and the end of its connection not been noticed.
const HOLD_WAIT: Duration = Duration::from_millis(500);

/// Commands at once: each has a thread, so that a slow one delays neither another nor a wake-up.
const COMMANDS_MAX: u64 = 8;

/// What carries commands out.
pub(crate) type CarryOut = Box<dyn Fn(Command) -> Result<u64, Refusal> + Send + Sync>;

/// What the admin threads share.
pub(crate) struct AdminDesk {
    segment: Arc<ControlSegment>,
    events: Arc<EventLog>,
    settings: flume::Sender<Knock>,
    node: String,
    carry_out: CarryOut,
    /// Commands that are being carried out.
    commands: Word,
    /// Process id of the control process that holds the dataplane.
    holder: Mutex<Option<u32>>,
    /// Rung when a hold ends.
    released: Condvar,
}

/// The hold of one control process; it ends when this is dropped.
#[derive(Debug)]
struct Hold<'a> {
    desk: &'a AdminDesk,
    pid: u32,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        *self.desk.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.desk.released.notify_all();
        self.desk.events.emit(Event::new(EventCode::ControlDetached).figures(u64::from(self.pid), 0));
        // It may have published and died before it rang.
        self.desk.look();
    }
}

impl AdminDesk {
    /// A desk that nobody holds.
    pub(crate) fn new(
        segment: Arc<ControlSegment>,
        events: Arc<EventLog>,
        settings: flume::Sender<Knock>,
        node: &str,
        carry_out: CarryOut,
    ) -> Self {
        Self {
            segment,
            events,
            settings,
            node: node.to_owned(),
            carry_out,
            commands: Word::new(0),
            holder: Mutex::new(None),
            released: Condvar::new(),
        }
    }

    /// Serves one connection until it ends. One thread each.
    pub(crate) fn serve(self: &Arc<Self>, connection: &Arc<OwnedFd>) {
        let hello = match self.read(connection) {
            Ok(Frame::AdminHello(hello)) => hello,
            Ok(_) => return refuse(connection, Code::FrameMalformed, "the first frame is not AdminHello"),
            Err(Some(code)) => return refuse(connection, code, "the first frame"),
            Err(None) => return,
        };
        // What the kernel says counts; it says nothing of a process of another namespace.
        let pid = socket::peer_credentials(connection).ok().and_then(|peer| peer.pid).unwrap_or(hello.pid);
        let hold = match self.admit(&hello, pid) {
            Ok(hold) => hold,
            Err(holder) => {
                self.events
                    .emit(Event::new(EventCode::ControlRefused).figures(u64::from(holder), u64::from(pid)));
                let detail = format!("process {holder} holds it");
                let refused =
                    Refused { figure: u64::from(holder), ..Refused::because(Code::ControlHeld, &detail) };
                return send(connection, &Frame::Refused(refused), &[]);
            }
        };
        let header = self.segment.header();
        let welcome = AdminWelcome {
            incarnation: header.incarnation,
            segment_words: header.segment_words,
            pid: header.pid,
            lanes: header.lanes,
            node: name_words(&self.node),
        };
        send(connection, &Frame::AdminWelcome(welcome), &[self.segment.file()]);
        loop {
            match self.read(connection) {
                Ok(Frame::AdminWake(_)) if hold.is_some() => self.look(),
                Ok(Frame::AdminCommand(command)) if hold.is_some() => self.begin(command, connection),
                Ok(_) => {
                    return refuse(
                        connection,
                        Code::FrameMalformed,
                        "only a holder's AdminWake and AdminCommand follow the hello",
                    );
                }
                Err(Some(code)) => return refuse(connection, code, "after the hello"),
                Err(None) => return,
            }
        }
    }

    /// Gives the hold if it is asked for and free, or free in a moment: control may have been killed and started again
    /// faster than its first connection's end was noticed. Else the holder's process id.
    fn admit(&self, hello: &AdminHello, pid: u32) -> Result<Option<Hold<'_>>, u32> {
        if hello.hold == 0 {
            return Ok(None);
        }
        let holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.released.wait_timeout_while(holder, HOLD_WAIT, |holder| holder.is_some());
        let (mut holder, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = *holder {
            return Err(holder);
        }
        *holder = Some(pid);
        drop(holder);
        self.events.emit(Event::new(EventCode::ControlAttached).figures(u64::from(pid), 0));
        Ok(Some(Hold { desk: self, pid }))
    }

    /// Carries a command out on a thread of its own, which answers it.
    fn begin(self: &Arc<Self>, command: AdminCommand, connection: &Arc<OwnedFd>) {
        let cookie = command.cookie;
        if self.commands.fetch_add_release(1) >= COMMANDS_MAX {
            self.commands.fetch_add_release(u64::MAX);
            let refusal = Refusal::new(Code::QuotaExceeded, "", "too many commands at once");
            return answer(connection, cookie, Err(refusal));
        }
        let (desk, connection) = (Arc::clone(self), Arc::clone(connection));
        let carry = move || {
            let outcome = Command::read(&command).and_then(|command| (desk.carry_out)(command));
            // A decrement, as the words have no subtraction of their own.
            desk.commands.fetch_add_release(u64::MAX);
            answer(&connection, cookie, outcome);
        };
        if thread::Builder::new().name("railhead-command".to_owned()).spawn(carry).is_err() {
            // Its control will say that no answer came.
            self.commands.fetch_add_release(u64::MAX);
        }
    }

    fn look(&self) {
        // Full means that it is about to look; disconnected, that the dataplane stops.
        let _ = self.settings.try_send(Knock::Look);
    }

    /// The next frame; an error without a code is the end of the connection.
    fn read(&self, connection: &OwnedFd) -> Result<Frame, Option<Code>> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        match socket::recv_frame(connection, &mut buffer, 0) {
            Ok(frame) => Frame::decode(LOCAL_VERSION, &buffer[..frame.bytes]).map_err(Some),
            Err(SocketError::Oversized { .. } | SocketError::Descriptors { .. }) => {
                Err(Some(Code::FrameMalformed))
            }
            Err(_) => Err(None),
        }
    }
}

impl core::fmt::Debug for AdminDesk {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("AdminDesk").field("holder", &self.holder).finish_non_exhaustive()
    }
}

fn answer(connection: &OwnedFd, cookie: u64, outcome: Result<u64, Refusal>) {
    let answer = match outcome {
        Ok(figure) => AdminAnswer { cookie, figure, ..AdminAnswer::default() },
        Err(refusal) => AdminAnswer {
            cookie,
            status: refusal.code.number(),
            field: text_words(&refusal.field),
            detail: text_words(&refusal.detail),
            ..AdminAnswer::default()
        },
    };
    send(connection, &Frame::AdminAnswer(answer), &[]);
}

fn refuse(connection: &OwnedFd, code: Code, detail: &str) {
    send(connection, &Frame::Refused(Refused::because(code, detail)), &[]);
}

/// Sends an answer. A process that does not take it is gone or about to be closed, which the next read shows.
fn send(connection: &OwnedFd, frame: &Frame, fds: &[std::os::fd::BorrowedFd<'_>]) {
    let (bytes, count) = frame.encode(LOCAL_VERSION);
    if let Err(error) = socket::send_frame(connection, &bytes[..count], fds) {
        tracing::debug!(%error, "an answer on the admin socket was not taken");
    }
}

#[cfg(test)]
mod tests;
