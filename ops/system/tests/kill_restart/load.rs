//! A client that keeps transfers in flight and keeps the books: exactly one completion for each accepted submission.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use railhead_client::{Code, Completion, Port, Region, Remote, Session, Write, outcome};

use crate::support::*;

/// Transfers that a load keeps in flight.
const DEPTH: u64 = 8;
/// Bytes of a load's regions.
pub(crate) const REGION_BYTES: u64 = 2 << 20;
const SIZES: [u64; 4] = [100, 16_384, 300_000, REGION_BYTES];

/// How the transfers of one load ended.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) done: u64,
    /// Failures by the name of their code.
    pub(crate) failed: BTreeMap<&'static str, u64>,
}

impl Books {
    #[track_caller]
    pub(crate) fn assert_no_failure(&self) {
        assert!(self.failed.is_empty() && self.done > 0, "{self:?}");
    }

    /// All failures are of these kinds.
    #[track_caller]
    pub(crate) fn assert_only(&self, codes: &[Code]) {
        let known = |name: &&str| codes.iter().any(|code| code.name() == *name);
        assert!(self.failed.keys().all(known), "{self:?}, allowed: {codes:?}");
    }
}

/// The thread of one load.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Sender<()>,
    thread: JoinHandle<(Books, Session)>,
}

impl Load {
    /// Starts writing to a remote region. When `until_failure`, it submits nothing more after the first failure.
    pub(crate) fn start(session: Session, node: &str, name: &str, until_failure: bool) -> Self {
        let remote = open(&session, node, name);
        let source = region(&session, "", REGION_BYTES);
        let port = session.take_port().expect("a port for the load");
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let books = run(port, &source, &remote, until_failure, &stopped);
            drop(source);
            (books, session)
        });
        Self { stop, thread }
    }

    /// Submits nothing more, waits for what is in flight, and returns the books.
    #[track_caller]
    pub(crate) fn finish(self) -> Books {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.thread.join().expect("the load's books are in order").0
    }

    /// Waits until it ended by itself, after its first failure.
    #[track_caller]
    pub(crate) fn wait_for_failure(self) -> Books {
        let books = self.thread.join().expect("the load's books are in order").0;
        drop(self.stop);
        books
    }
}

fn run(mut port: Port, source: &Region, remote: &Remote, until_failure: bool, stop: &Receiver<()>) -> Books {
    let mut books = Books::default();
    let mut open = BTreeSet::new();
    let mut next = 0;
    let mut some = [Completion::default(); 16];
    let mut ending = false;
    loop {
        ending |= !matches!(stop.try_recv(), Err(TryRecvError::Empty));
        ending |= until_failure && !books.failed.is_empty();
        while !ending && (open.len() as u64) < DEPTH {
            let (send_leg, receive_leg) = ROUTES[usize::try_from(next % 4).unwrap()];
            let bytes = SIZES[usize::try_from(next / 4 % 4).unwrap()];
            port.submit(&Write { send_leg, receive_leg, ..write(next, source, remote, bytes) })
                .expect("room");
            open.insert(next);
            next += 1;
        }
        if open.is_empty() {
            break;
        }
        assert!(port.wait(LIMIT), "no completion of {open:?} within {LIMIT:?}; {books:?}");
        let count = port.poll(&mut some);
        for completion in &some[..count] {
            assert!(open.remove(&completion.cookie), "completed twice, or never submitted: {completion:?}");
            match outcome(completion) {
                Ok(()) => books.done += 1,
                Err(failure) => {
                    *books.failed.entry(failure.code.map_or("unknown code", Code::name)).or_default() += 1
                }
            }
        }
    }
    assert_eq!((port.in_flight(), port.strays()), (0, 0));
    assert_eq!(books.done + books.failed.values().sum::<u64>(), next, "one completion each");
    books
}
