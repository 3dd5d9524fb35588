//! Accepting on the local sockets: who may come in, how many at once, and a thread for each.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use railhead_abi::Code;
use railhead_abi::frame::{Frame, Refused};
use railhead_ring::Word;
use railhead_shm::socket::{self, PeerCredentials};

use crate::admin::LOCAL_VERSION;

/// Open connections of one socket, so that they can be ended from outside.
#[derive(Debug, Default)]
struct Open {
    next: u64,
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
                refuse(&connection, code);
                refused(code, client);
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

/// Says no to somebody who gets no thread. The socket's buffer takes it or it is lost.
fn refuse(connection: &OwnedFd, code: Code) {
    let (bytes, count) = Frame::Refused(Refused::because(code, "")).encode(LOCAL_VERSION);
    let _ = socket::send_frame(connection, &bytes[..count], &[]);
}
