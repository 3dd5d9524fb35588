//! Accepting on the local sockets: who may come in, how many at once, and a thread for each.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{FRAME_BYTES_MAX, Frame, Refused};
use railhead_ring::Word;
use railhead_shm::socket::{self, PeerCredentials};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::admin::LOCAL_VERSION;

/// How long somebody who is refused may take to say something.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// Refusals that are told at once.
const REFUSALS_MAX: usize = 16;

/// Open connections of one socket, so that they can be ended from outside.
#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Threads that say no.
    refusing: usize,
    sockets: HashMap<u64, Arc<OwnedFd>>,
}

/// One local socket's connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    name: &'static str,
    /// Users that may connect.
    uids: Vec<u32>,
    /// Connections at once.
    max: usize,
    open: Mutex<Open>,
    /// 1 once the dataplane stops.
    stopping: Word,
}

impl Acceptor {
    /// For up to `max` connections of these users at once. `name` names the threads.
    pub(crate) fn new(name: &'static str, uids: Vec<u32>, max: usize) -> Self {
        Self { name, uids, max, open: Mutex::default(), stopping: Word::new(0) }
    }

    /// Accepts until the listener is shut down; each connection gets a thread that runs `serve`. Who may not come in gets
    /// a refusal, of which `refused` is told.
    pub(crate) fn run<S, R>(self: &Arc<Self>, listener: &OwnedFd, serve: S, refused: R)
    where
        S: Fn(Arc<OwnedFd>, PeerCredentials) + Clone + Send + 'static,
        R: Fn(Code, PeerCredentials),
    {
        loop {
            let accepted = socket::accept(listener);
            if self.stopping.load_acquire() != 0 {
                return;
            }
            let Ok(connection) = accepted else {
                // Out of descriptors, or a client that is gone again: others may come.
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            let Ok(client) = socket::peer_credentials(&connection) else { continue };
            if let Err(code) = self.admit(&client) {
                refused(code, client);
                self.refuse(connection, code);
                continue;
            }
            self.spawn(connection, client, serve.clone());
        }
    }

    fn admit(&self, client: &PeerCredentials) -> Result<(), Code> {
        if !self.uids.contains(&client.uid) {
            return Err(Code::NotPermitted);
        }
        if self.lock().sockets.len() >= self.max {
            return Err(Code::SessionsFull);
        }
        Ok(())
    }

    /// Says no, on a thread of its own that waits for the first frame: a connection that is closed with something unread
    /// is reset, and the refusal lost. Beyond a few at once nobody is told anything.
    fn refuse(self: &Arc<Self>, connection: OwnedFd, code: Code) {
        if self.lock().refusing >= REFUSALS_MAX {
            return;
        }
        self.lock().refusing += 1;
        let acceptor = Arc::clone(self);
        let refusing = move || {
            tell(&connection, code);
            acceptor.lock().refusing -= 1;
        };
        if thread::Builder::new().name(self.name.to_owned()).spawn(refusing).is_err() {
            self.lock().refusing -= 1;
        }
    }

    fn spawn<S>(self: &Arc<Self>, connection: OwnedFd, client: PeerCredentials, serve: S)
    where
        S: FnOnce(Arc<OwnedFd>, PeerCredentials) + Send + 'static,
    {
        let connection = Arc::new(connection);
        let number = {
            let mut open = self.lock();
            open.next += 1;
            let number = open.next;
            open.sockets.insert(number, Arc::clone(&connection));
            number
        };
        let acceptor = Arc::clone(self);
        let serving = move || {
            serve(connection, client);
            acceptor.lock().sockets.remove(&number);
        };
        if let Err(error) = thread::Builder::new().name(self.name.to_owned()).spawn(serving) {
            tracing::error!(%error, socket = self.name, "no thread for a connection");
            self.lock().sockets.remove(&number);
        }
    }

    /// Ends all connections and, with its next wake-up, the accepting.
    pub(crate) fn stop(&self, listener: &OwnedFd) {
        self.stopping.store_release(1);
        // Wakes a blocked accept.
        let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        for connection in self.lock().sockets.values() {
            let _ = rustix::net::shutdown(&**connection, rustix::net::Shutdown::Both);
        }
    }

    /// Connections whose threads still run.
    pub(crate) fn count(&self) -> usize {
        self.lock().sockets.len()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Insertions and removals only: a panic elsewhere leaves a sound table.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one frame, whatever it is, and answers it with a refusal.
fn tell(connection: &OwnedFd, code: Code) {
    for which in [Timeout::Recv, Timeout::Send] {
        let _ = set_socket_timeout(connection, which, Some(REFUSAL_MAX));
    }
    let mut buffer = [0; FRAME_BYTES_MAX];
    // Nothing of it matters, and whoever has sent nothing is refused as well.
    let _ = socket::recv_frame(connection, &mut buffer, 0);
    let (bytes, count) = Frame::Refused(Refused::because(code, "")).encode(LOCAL_VERSION);
    let _ = socket::send_frame(connection, &bytes[..count], &[]);
}

#[cfg(test)]
mod tests {
    use railhead_abi::frame::Hello;

    use super::*;

    fn refusal_of(uids: Vec<u32>, max: usize) -> u16 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = socket::listen(&path, 4).unwrap();
        let acceptor = Arc::new(Acceptor::new("test", uids, max));
        let (running, taken) = (Arc::clone(&acceptor), listener.try_clone().unwrap());
        let thread = thread::spawn(move || running.run(&taken, |_, _| {}, |_, _| {}));
        let client = socket::connect(&path).unwrap();
        let (bytes, count) = Frame::Hello(Hello::default()).encode(LOCAL_VERSION);
        // Slower than the acceptor, as clients are: it must not hang up first.
        thread::sleep(Duration::from_millis(20));
        socket::send_frame(&client, &bytes[..count], &[]).unwrap();
        let mut buffer = [0; FRAME_BYTES_MAX];
        let answer = socket::recv_frame(&client, &mut buffer, 0).unwrap();
        acceptor.stop(&listener);
        thread.join().unwrap();
        match Frame::decode(LOCAL_VERSION, &buffer[..answer.bytes]).unwrap() {
            Frame::Refused(refused) => refused.code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_is_refused_learns_why_although_it_had_something_to_say() {
        let own = rustix::process::geteuid().as_raw();
        for _ in 0..20 {
            assert_eq!(refusal_of(vec![own + 1], 1), Code::NotPermitted.number());
            assert_eq!(refusal_of(vec![own], 0), Code::SessionsFull.number());
        }
    }
}
