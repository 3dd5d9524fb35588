//! Ends queue pairs for lanes: changing their state takes a system call and the device's time, which a lane has not.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use railhead_ring::sync::Word;
use railhead_shm::futex;

use crate::queue_pair::{QueuePair, WISH_DESTROY, WISH_FAIL, WISH_NONE};

/// How long the thread sleeps at most: it also drops what is left of queue pairs that are gone.
const SLEEP: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    /// Counts calls; odd bit patterns mean nothing. Added to by lanes (release), slept on by the thread.
    calls: Word,
    is_stopping: Word,
    pairs: Mutex<Vec<Weak<QueuePair>>>,
}

/// The thread that ends queue pairs. One serves all lanes of a node; it ends with its last owner.
#[derive(Debug)]
pub struct Closer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A lane's way to call the closer.
#[derive(Debug, Clone)]
pub(crate) struct Caller(Arc<Shared>);

impl Caller {
    /// Says that a queue pair's wish has changed. One system call, nothing that waits.
    pub(crate) fn call(&self) {
        self.0.calls.fetch_add_release(1);
        futex::wake(&self.0.calls, 1);
    }
}

impl Closer {
    /// Starts the thread.
    ///
    /// # Errors
    /// That of starting a thread.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            calls: Word::new(0),
            is_stopping: Word::new(0),
            pairs: Mutex::new(Vec::new()),
        });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("verbs-closer".into()).spawn(move || its.run())?;
        Ok(Arc::new(Self { shared, thread: Some(thread) }))
    }

    /// Lets lanes wish things of a queue pair.
    pub(crate) fn watch(&self, pair: &Arc<QueuePair>) {
        self.shared.pairs.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pair));
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.shared))
    }
}

impl Shared {
    fn run(&self) {
        loop {
            // Read before the wishes: a call that comes meanwhile changes it, and the wait does not sleep.
            let calls = self.calls.load_acquire();
            if self.is_stopping.load_acquire() != 0 {
                return;
            }
            self.grant();
            #[expect(clippy::cast_possible_truncation, reason = "the futex compares the low half")]
            let calls = calls as u32;
            futex::wait(&self.calls, calls, Some(SLEEP));
        }
    }

    /// Does what lanes wish.
    fn grant(&self) {
        let pairs: Vec<_> = {
            let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
            pairs.retain(|pair| pair.strong_count() > 0);
            pairs.iter().filter_map(Weak::upgrade).collect()
        };
        for pair in pairs {
            match pair.wish.swap_acq_rel(WISH_NONE) {
                // A device that is gone refuses: then nothing is flushed, and the lane asks for destruction.
                WISH_FAIL if pair.fail().is_ok() => pair.say_failed(),
                WISH_DESTROY => pair.destroy(),
                _ => {}
            }
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.is_stopping.store_release(1);
        Caller(Arc::clone(&self.shared)).call();
        if let Some(thread) = self.thread.take() {
            // It panics only where a lock is poisoned by a bug of this crate.
            let _ = thread.join();
        }
    }
}
