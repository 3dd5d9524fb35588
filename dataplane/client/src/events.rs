//! What peers tell this session: events and signals.

use core::cell::Cell;
use core::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railhead_abi::segment::{EVENT_ENTRIES, LINE_WORDS, SessionShape};
use railhead_abi::submission::SessionEvent;
use railhead_ring::{Bell, Consumer, Corrupt};
use railhead_shm::{Words, futex};

use crate::error::SessionError;
use crate::port::SLEEP_MAX;
use crate::shared::Shared;

/// How long a wait polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// The receiving end of a session's event rings, one a lane, and the one place to sleep for events and signals. Belongs to
/// one thread at a time: `Send`, not `Sync`.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    rings: Vec<Consumer<Words, { SessionEvent::WORDS }>>,
    /// The ring to look at first, so that a busy lane does not starve the others.
    hand: usize,
    bell: Bell<Words>,
    bell_words: Words,
    not_sync: PhantomData<Cell<()>>,
}

impl Events {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, SessionError> {
        let broken = |_| SessionError::Answer { what: "an event ring is not empty" };
        let mut rings = Vec::new();
        for lane in 0..shared.shape().lanes {
            let words = shared.words(shared.shape().events(lane), SessionShape::EVENT_RING_WORDS)?;
            rings.push(Consumer::new(words, EVENT_ENTRIES).map_err(broken)?);
        }
        let bell_words = shared.words(SessionShape::EVENT_BELL, LINE_WORDS)?;
        let bell = Bell::new(bell_words.clone()).map_err(broken)?;
        Ok(Self { shared, rings, hand: 0, bell, bell_words, not_sync: PhantomData })
    }

    /// Takes events, as many as there are and fit, and returns how many. Events of one lane come in order. Each event
    /// taken gives its sender room for another.
    pub fn poll(&mut self, events: &mut [SessionEvent]) -> usize {
        let mut count = 0;
        let lanes = self.rings.len();
        for step in 0..lanes {
            let lane = (self.hand + step) % lanes;
            let ring = &mut self.rings[lane];
            while count < events.len() {
                match ring.pop() {
                    Ok(Some(words)) => {
                        events[count] = SessionEvent::decode(&words);
                        count += 1;
                    }
                    Ok(None) => break,
                    Err(Corrupt) => {
                        self.shared.condemn();
                        break;
                    }
                }
            }
            if ring.release() > 0 {
                // A transfer that waits for room is waiting in the lane.
                self.shared.ring(lane);
            }
        }
        self.hand = (self.hand + 1) % lanes;
        count
    }

    /// Waits until there is an event to poll; true if there is.
    ///
    /// # Errors
    /// [`SessionError::DataplaneLost`] when none is left and none will come.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, SessionError> {
        self.sleep_until(timeout, |events| events.rings.iter().any(|ring| !ring.is_empty()))
    }

    /// Waits until signal word `index` has reached `value` (counted with wrap-around); true if it has.
    ///
    /// # Errors
    /// [`SessionError::Argument`] if there is no such word; [`SessionError::DataplaneLost`].
    pub fn wait_signal(&mut self, index: usize, value: u64, timeout: Duration) -> Result<bool, SessionError> {
        if self.shared.signal(index).is_none() {
            let problem = format!("there is no signal word {index}");
            return Err(SessionError::argument("index", railhead_abi::Code::NotificationUnknown, problem));
        }
        self.sleep_until(timeout, |events| {
            let now = events.shared.signal(index).unwrap_or_default();
            now.wrapping_sub(value).cast_signed() >= 0
        })
    }

    fn sleep_until(
        &mut self,
        timeout: Duration,
        ready: impl Fn(&Self) -> bool,
    ) -> Result<bool, SessionError> {
        let start = Instant::now();
        loop {
            if ready(self) {
                return Ok(true);
            }
            let elapsed = start.elapsed();
            if elapsed < SPIN.min(timeout) {
                core::hint::spin_loop();
                continue;
            }
            if self.shared.look() {
                // What came before the end can still be taken.
                return if ready(self) { Ok(true) } else { Err(SessionError::DataplaneLost) };
            }
            let Some(rest) = timeout.checked_sub(elapsed).filter(|rest| !rest.is_zero()) else {
                return Ok(false);
            };
            self.bell.prepare();
            // Partner: the lane publishes the event or adds to the signal, fences, then takes the bell.
            if !ready(self) {
                let _ = futex::wait(&self.bell_words[0], 1, Some(rest.min(SLEEP_MAX)));
            }
            self.bell.end();
        }
    }
}
