//! A dataplane of one ordinary thread, for tests of clients: it speaks the session protocol of as many nodes as wanted and
//! serves writes between their regions by copying. It can be told to misbehave.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test stand-in: what fails here fails the test")]

mod session;
mod world;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use railhead_abi::Code;
use railhead_shm::eventfd;

/// What the fake shall do from now on.
#[derive(Debug)]
pub(crate) enum Command {
    /// Take submissions and complete none of them, or go on with all.
    Hold(bool),
    /// Complete this many of the held ones.
    Let(usize),
    /// Refuse the next hello.
    Refuse(Code, &'static str),
    /// Answer the next hello in another version.
    OtherVersion,
    /// Answer no frame.
    Mute,
    /// Say something wrong in the next welcome.
    WrongWelcome(Wrong),
    /// Complete everything twice, the second time with a cookie that nobody used.
    Strays,
    /// Complete the submissions of a turn in reverse order.
    Reverse,
    /// Change the destination's byte at this offset after each copy that covers it.
    Spoil(u64),
    /// Change the byte behind the destination too.
    Overrun,
    /// Fail every write of at least this many bytes.
    Fail(u64, Code),
    /// Store an impossible tail in every completion ring.
    SpoilRings,
    /// Answer with the number of regions that are registered.
    CountRegions(Sender<usize>),
    /// Answer once it sleeps, with all lanes' asleep words set.
    Asleep(Sender<()>),
}

/// A way for a welcome to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// One descriptor too few.
    Descriptors,
    /// More lanes than there can be.
    Lanes,
    /// No power of two.
    Entries,
    /// Other than in the session memory's header.
    Incarnation,
}

/// A running fake; it ends, abruptly for its clients, when dropped.
pub(crate) struct Fake {
    folder: tempfile::TempDir,
    nodes: Vec<String>,
    lanes: usize,
    commands: Option<Sender<(Command, Sender<()>)>>,
    waker: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Nodes with these names, each with this many lanes.
    pub(crate) fn start(nodes: &[&str], lanes: usize) -> Self {
        let mut fake = Self {
            folder: tempfile::tempdir().unwrap(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            lanes,
            commands: None,
            waker: Arc::new(eventfd::create().unwrap()),
            thread: None,
        };
        fake.spawn();
        fake
    }

    fn spawn(&mut self) {
        let (commands, receiver): (_, Receiver<(Command, Sender<()>)>) = channel();
        let nodes: Vec<&str> = self.nodes.iter().map(String::as_str).collect();
        let waker = Arc::clone(&self.waker);
        let world = world::World::new(self.folder.path(), &nodes, self.lanes, receiver, waker);
        self.commands = Some(commands);
        self.thread = Some(std::thread::spawn(move || world.run()));
    }

    /// Ends it as [`Self::kill`] does and starts a new one at the same paths, which knows nothing.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for node in &self.nodes {
            std::fs::remove_file(self.path(node)).unwrap();
        }
        self.spawn();
    }

    /// One node `a` with one lane.
    pub(crate) fn single() -> Self {
        Self::start(&["a"], 1)
    }

    /// The session socket of a node.
    pub(crate) fn path(&self, node: &str) -> PathBuf {
        socket_path(self.folder.path(), node)
    }

    /// Tells it something, which holds for everything that happens later.
    pub(crate) fn tell(&self, command: Command) {
        let (heard, hear) = channel();
        self.commands.as_ref().unwrap().send((command, heard)).unwrap();
        eventfd::ring(&*self.waker).unwrap();
        hear.recv().unwrap();
    }

    /// Regions that are registered.
    pub(crate) fn regions(&self) -> usize {
        let (sender, receiver) = channel();
        self.tell(Command::CountRegions(sender));
        receiver.recv().unwrap()
    }

    /// Returns when all lanes sleep.
    pub(crate) fn wait_asleep(&self) {
        let (sender, receiver) = channel();
        self.tell(Command::Asleep(sender));
        receiver.recv().unwrap();
    }

    /// Ends it: all sockets close, nothing in flight is completed.
    pub(crate) fn kill(&mut self) {
        self.commands = None;
        eventfd::ring(&*self.waker).unwrap();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.commands = None;
        let _ = eventfd::ring(&*self.waker);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake dataplane panicked");
        }
    }
}

fn socket_path(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.sock"))
}
