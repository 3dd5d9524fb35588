//! The session socket: clients attach, register memory, open remote regions.
//!
//! One thread a connection, blocking on its socket: requests of one client are slow and in order, and never in the way
//! of another's. The number of threads is that of sessions, which is bounded. A client that dies closes its socket, and
//! its thread gives back everything that it held.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{
    Empty, FRAME_BYTES_MAX, FRAME_WORDS_MAX, Frame, Hello, Open, PREFIX_WORDS, Refused, Register, Release,
    Text,
};
use railhead_abi::observe::EventCode;
use railhead_abi::segment::SESSIONS_MAX;
use railhead_abi::words::reserved_is_zero;
use railhead_shm::socket::{self, PeerCredentials, SocketError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::admin::LOCAL_VERSION;
use crate::events::Event;
use crate::registrar::{Registrar, Registration};

pub(crate) mod memory;

use memory::SessionMemory;

/// How long a client may take between connecting and its hello, and to take an answer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    registrar: Arc<Registrar>,
    socket: Arc<OwnedFd>,
    client: PeerCredentials,
}

impl Connection {
    /// A connection that was accepted.
    pub(crate) fn new(registrar: Arc<Registrar>, socket: Arc<OwnedFd>, client: PeerCredentials) -> Self {
        Self { registrar, socket, client }
    }

    /// Serves the client until it goes away, then takes back what it held.
    pub(crate) fn serve(&self) {
        for which in [Timeout::Recv, Timeout::Send] {
            let _ = set_socket_timeout(&*self.socket, which, Some(HANDSHAKE_MAX));
        }
        let slot = self.registrar.tables().add_session();
        let session = match slot {
            Ok(session) => session,
            Err(code) => {
                // Its hello is read first: a socket that is closed with something unread loses the refusal.
                let _ = self.read(0);
                return self.refuse_client(code, "session.max");
            }
        };
        let memory = self.attach(session);
        if let Some(memory) = &memory {
            self.requests(session);
            // Before anything is taken back, so that the client's other threads see the end at once.
            let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
            let event = Event::new(EventCode::SessionClosed).text(&memory.name);
            self.registrar.end_session(session, Some(memory));
            self.registrar.events.emit(event.figures(u64::from(session), u64::from(self.pid())));
        } else {
            self.registrar.end_session(session, None);
        }
    }

    /// Refuses the client before it has a session.
    pub(crate) fn refuse_client(&self, code: Code, detail: &str) {
        let event = Event::new(EventCode::SessionRefused).reason(code).text(detail);
        self.registrar.events.emit(event.figures(u64::from(self.client.uid), u64::from(self.pid())));
        self.answer(&Frame::Refused(Refused::because(code, detail)), &[]);
    }

    fn pid(&self) -> u32 {
        self.client.pid.unwrap_or(0)
    }

    /// Takes the hello and answers it. `None` if there is no session afterwards.
    fn attach(&self, session: u32) -> Option<SessionMemory> {
        let hello = match self.read(0) {
            Ok((Frame::Hello(hello), _)) => hello,
            Ok(_) => return self.refuse_hello(Code::FrameMalformed, "the first frame is not Hello"),
            Err(Some(code)) => return self.refuse_hello(code, "the first frame"),
            Err(None) => return None,
        };
        let _ = set_socket_timeout(&*self.socket, Timeout::Recv, None);
        match self.admit(session, &hello) {
            Ok(memory) => Some(memory),
            Err((code, detail)) => self.refuse_hello(code, &detail),
        }
    }

    fn refuse_hello(&self, code: Code, detail: &str) -> Option<SessionMemory> {
        self.refuse_client(code, detail);
        None
    }

    fn admit(&self, session: u32, hello: &Hello) -> Result<SessionMemory, (Code, String)> {
        let name =
            self.name(session, Text::of(&hello.name).as_str()).map_err(|code| (code, "name".to_owned()))?;
        let memory = self.registrar.begin_session(session, &name, hello)?;
        let event = Event::new(EventCode::SessionOpened).text(&name);
        self.registrar.events.emit(event.figures(u64::from(session), u64::from(self.pid())));
        let welcome = memory.welcome(session, self.registrar.incarnation, &self.registrar.node);
        if !self.answer(&Frame::Welcome(welcome), &memory.descriptors(&self.registrar.lanes_page)) {
            // Without its memory it has no session: what it may ask is not read any more, and its end follows at once.
            let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
        }
        Ok(memory)
    }

    /// Gives the session the name that it asked for, or one after its process.
    fn name(&self, session: u32, wanted: &str) -> Result<String, Code> {
        if !wanted.is_empty() {
            self.registrar.with_name(|tables| tables.name_session(session, wanted))?;
            return Ok(wanted.to_owned());
        }
        let mut tables = self.registrar.tables();
        let own = |at: usize| {
            if at == 0 { format!("pid-{}", self.pid()) } else { format!("pid-{}.{at}", self.pid()) }
        };
        // A process may attach several times. There are fewer sessions than numbers here.
        let mut names = (0..=SESSIONS_MAX).map(own);
        names.find(|name| tables.name_session(session, name).is_ok()).ok_or(Code::NameTaken)
    }

    /// Answers requests until the client goes away or breaks the protocol.
    fn requests(&self, session: u32) {
        loop {
            let (frame, mut files) = match self.read(1) {
                Ok(request) => request,
                Err(Some(code)) => {
                    self.answer(&Frame::Refused(Refused::because(code, "a request")), &[]);
                    return;
                }
                Err(None) => return,
            };
            let answer = match (frame, files.pop()) {
                (Frame::Register(frame), Some(file)) => {
                    let registration = Registration { frame, file };
                    self.registrar.register(session, &registration).map(Frame::Registered)
                }
                (Frame::Register(_), None) => {
                    Err((Code::SealsMissing, "no memory file came with it".to_owned()))
                }
                (Frame::Open(open), None) => self.registrar.open(session, &open).map(Frame::Opened),
                (Frame::Release(release), None) => self.release(session, &release),
                _ => Err((Code::FrameMalformed, "not a request, or with a descriptor too many".to_owned())),
            };
            let answer =
                answer.unwrap_or_else(|(code, detail)| Frame::Refused(Refused::because(code, &detail)));
            if !self.answer(&answer, &[]) {
                return;
            }
        }
    }

    fn release(&self, session: u32, release: &Release) -> Result<Frame, (Code, String)> {
        let (index, generation) = (release.index, release.generation);
        let released = match release.remote {
            0 => self.registrar.deregister(session, index, generation),
            1 => self.registrar.close_remote(session, index, generation),
            _ => Err(Code::FrameMalformed),
        };
        let released = released.map_err(|code| (code, format!("handle {index}, generation {generation}")));
        released.map(|()| Frame::Released(Empty { figure: u64::from(index) }))
    }

    /// The next frame with its descriptors; an error without a code is the end of the connection.
    fn read(&self, fds_max: usize) -> Result<(Frame, Vec<OwnedFd>), Option<Code>> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        match socket::recv_frame(&*self.socket, &mut buffer, fds_max) {
            Ok(received) => {
                let bytes = &buffer[..received.bytes];
                let frame = Frame::decode(LOCAL_VERSION, bytes).map_err(Some)?;
                if !is_clean(&frame, bytes) {
                    return Err(Some(Code::ReservedNotZero));
                }
                Ok((frame, received.fds))
            }
            Err(SocketError::Oversized { .. } | SocketError::Descriptors { .. }) => {
                Err(Some(Code::FrameMalformed))
            }
            Err(_) => Err(None),
        }
    }

    /// Sends an answer; false if the client does not take it.
    fn answer(&self, frame: &Frame, fds: &[std::os::fd::BorrowedFd<'_>]) -> bool {
        let (bytes, count) = frame.encode(LOCAL_VERSION);
        socket::send_frame(&*self.socket, &bytes[..count], fds).is_ok()
    }
}

/// Whether nothing is set that this version has no meaning for.
fn is_clean(frame: &Frame, bytes: &[u8]) -> bool {
    let mut words = [0; FRAME_WORDS_MAX];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(core::array::from_fn(|at| chunk[at]));
    }
    let body = &words[PREFIX_WORDS..];
    match frame {
        Frame::Hello(_) => reserved_is_zero::<Hello>(body),
        Frame::Register(_) => reserved_is_zero::<Register>(body),
        Frame::Open(_) => reserved_is_zero::<Open>(body),
        Frame::Release(_) => reserved_is_zero::<Release>(body),
        // Not a request, and refused as such.
        _ => true,
    }
}

#[cfg(test)]
mod tests;
