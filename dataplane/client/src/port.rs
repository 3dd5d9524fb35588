//! A port: where one thread submits transfers and learns how they ended.

use core::cell::Cell;
use core::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_abi::segment::{LINE_WORDS, SessionShape};
use railhead_abi::submission::{Completion, SIDE_LOCAL, Submission};
use railhead_ring::{Bell, Consumer, Full, Producer};
use railhead_shm::{Words, futex};

use crate::cookies::Cookies;
use crate::error::SessionError;
use crate::shared::Shared;
use crate::write::{Read, Write};

/// How often a port that finds nothing asks the kernel whether the dataplane lives.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The longest sleep between two such looks.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(50);
/// How long a wait polls before it sleeps where there are cores to spare: about what a wake-up costs.
const SPIN: Duration = Duration::from_micros(20);
/// Looks between two looks at the clock while polling.
const LOOKS_PER_CLOCK: u32 = 32;

/// Polling takes a core; where the lanes and one client thread need all there are, it takes it from them.
fn default_spin(lanes: usize) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    if cores > 2 * lanes + 1 { SPIN } else { Duration::ZERO }
}

/// A submission and a completion ring to one lane. Belongs to one thread at a time: `Send`, not `Sync`.
///
/// Each accepted submission gets exactly one completion. When the dataplane dies, those still open complete as
/// `dataplane_lost`, within about 50 ms of the next [`Port::poll`] or [`Port::wait`]; so do submissions made later.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
    index: usize,
    lane: usize,
    submissions: Producer<Words, { Submission::WORDS }>,
    completions: Consumer<Words, { Completion::WORDS }>,
    bell: Bell<Words>,
    /// The bell's word, to sleep on.
    bell_words: Words,
    open: Cookies,
    entries: usize,
    spin: Duration,
    looked: Instant,
    /// Set once: the ring is drained, then what is open completes as lost.
    lost: bool,
    strays: u64,
    not_sync: PhantomData<Cell<()>>,
}

impl Port {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Result<Self, SessionError> {
        let shape: SessionShape = *shared.shape();
        let first = shape.port(index);
        let part = |offset: usize, count: usize| shared.words(first + offset, count);
        let broken = |_| SessionError::Answer { what: "a port's rings are not empty" };
        let bell_words = part(SessionShape::PORT_BELL, LINE_WORDS)?;
        let submissions = part(SessionShape::PORT_SUBMISSIONS, shape.submission_ring_words())?;
        let completions = part(shape.port_completions(), shape.completion_ring_words())?;
        Ok(Self {
            index,
            lane: index % shape.lanes,
            submissions: Producer::new(submissions, shape.entries).map_err(broken)?,
            completions: Consumer::new(completions, shape.entries).map_err(broken)?,
            bell: Bell::new(bell_words.clone()).map_err(broken)?,
            bell_words,
            open: Cookies::new(shape.entries),
            entries: shape.entries,
            spin: default_spin(shape.lanes),
            looked: Instant::now(),
            lost: false,
            strays: 0,
            not_sync: PhantomData,
            shared,
        })
    }

    /// Number of this port in its session.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The lane that serves it.
    #[must_use]
    pub const fn lane(&self) -> usize {
        self.lane
    }

    /// Submissions accepted and not yet completed.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// Submissions that could be accepted now.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.entries - self.open.len()
    }

    /// Completions that belonged to no open submission and were dropped: always 0 with a sound dataplane.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    /// How long [`Self::wait`] polls before it sleeps: 20 us unless the dataplane's lanes, those of a peer on the same
    /// machine and this thread need all cores, else not at all.
    pub const fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Stages a write; the lane sees it after [`Self::ring`]. Refused entries complete too, with a code.
    ///
    /// # Errors
    /// [`Full`] when as many are in flight as the port has entries: ring, poll, and try again. Not a failure.
    #[inline]
    pub fn submit(&mut self, write: &Write) -> Result<(), Full> {
        self.stage(write.cookie, &write.submission())
    }

    /// Stages a read; as for [`Self::submit`].
    ///
    /// # Errors
    /// [`Full`], as there.
    #[inline]
    pub fn submit_read(&mut self, read: &Read) -> Result<(), Full> {
        self.stage(read.cookie, &read.submission())
    }

    #[inline]
    fn stage(&mut self, cookie: u64, submission: &Submission) -> Result<(), Full> {
        if self.open.len() == self.entries {
            return Err(Full);
        }
        // A dead dataplane takes nothing from the ring; the entry is accepted all the same, and completes as lost.
        if !self.lost {
            self.submissions.push(&submission.encode())?;
        }
        self.open.insert(cookie);
        Ok(())
    }

    /// Shows what was staged to the lane, and wakes it if it sleeps. Once per batch. Returns how many were staged.
    #[inline]
    pub fn ring(&mut self) -> usize {
        let count = self.submissions.publish();
        if count > 0 {
            self.shared.ring(self.lane);
        }
        count
    }

    /// Takes completions, as many as there are and fit, and returns how many. Does not block.
    #[inline]
    pub fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = self.drain(completions);
        if count == 0 && !self.lost && self.open.len() > 0 && self.is_dataplane_gone() {
            self.lost = true;
            // What it completed before its end is in the ring, and counts.
            count = self.drain(completions);
        }
        if self.lost {
            count += self.complete_lost(&mut completions[count..]);
        }
        count
    }

    /// Rings, then waits until there is something to poll; true if there is. Returns false after `timeout`, and at once
    /// when nothing is in flight.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.ring();
        if self.is_ready() {
            return true;
        }
        if self.open.len() == 0 {
            return false;
        }
        let start = Instant::now();
        while !self.spin.is_zero() && start.elapsed() < self.spin.min(timeout) {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.is_ready() {
                    return true;
                }
                core::hint::spin_loop();
            }
        }
        loop {
            if self.is_dataplane_gone() {
                return true;
            }
            let Some(rest) = timeout.checked_sub(start.elapsed()).filter(|rest| !rest.is_zero()) else {
                return self.is_ready();
            };
            self.bell.prepare();
            // Partner: the lane publishes completions, fences, then takes the bell.
            if self.completions.is_empty() {
                let _ = futex::wait(&self.bell_words[0], 1, Some(rest.min(SLEEP_MAX)));
            }
            self.bell.end();
            if self.is_ready() {
                return true;
            }
        }
    }

    fn is_ready(&self) -> bool {
        !self.completions.is_empty() || (self.open.len() > 0 && (self.lost || self.shared.is_lost()))
    }

    /// Asks the kernel, at a bounded rate.
    fn is_dataplane_gone(&mut self) -> bool {
        if self.lost || self.shared.is_lost() {
            return true;
        }
        if self.looked.elapsed() < LOOK_INTERVAL {
            return false;
        }
        self.looked = Instant::now();
        self.shared.look()
    }

    fn drain(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < completions.len() {
            match self.completions.pop() {
                Ok(Some(words)) => {
                    let completion = Completion::decode(&words);
                    if self.open.remove(completion.cookie) {
                        completions[count] = completion;
                        count += 1;
                    } else {
                        self.strays += 1;
                    }
                }
                Ok(None) => break,
                Err(railhead_ring::Corrupt) => {
                    self.shared.condemn();
                    self.lost = true;
                    break;
                }
            }
        }
        self.completions.release();
        count
    }

    /// Completes open submissions of a dead dataplane. The ring has been drained: what is in it came first.
    #[cold]
    fn complete_lost(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        for slot in completions {
            let Some(cookie) = self.open.take_any() else { break };
            let status = Code::DataplaneLost.number();
            *slot = Completion { cookie, status, side: SIDE_LOCAL, ..Completion::default() };
            count += 1;
        }
        count
    }
}
