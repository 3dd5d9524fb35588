//! The notices thread: reads what comes home from the lanes and passes it on.
//!
//! Answers go to whoever waits for them, notices to the registrar, and spare boxes back to their lane. Nothing here may
//! wait for a lane's answer: this thread is the one that reads it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railhead_ring::Word;
use railhead_shm::handoff::Taker;
use railhead_shm::{eventfd, guard};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::lane::handle::Lanes;
use crate::lane::mail::{Content, Parcel};
use crate::registrar::Registrar;

/// How often the thread looks, at least, whether it shall stop and whether client memory was lost.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the notices thread works with.
#[derive(Debug)]
pub(crate) struct Notices {
    lanes: Arc<Lanes>,
    returns: Vec<Taker<Parcel>>,
    doorbell: Arc<OwnedFd>,
}

impl Notices {
    /// Over the lanes' returns, in the order of the lanes.
    pub(crate) fn new(lanes: Arc<Lanes>, returns: Vec<Taker<Parcel>>, doorbell: Arc<OwnedFd>) -> Self {
        Self { lanes, returns, doorbell }
    }

    /// Runs until `stop` is not zero and all lanes are silent.
    pub(crate) fn run(mut self, registrar: &Registrar, stop: &Word) {
        let mut losses = 0;
        loop {
            // A lane that loses memory of a client can tell nobody where it happens: in a signal handler.
            let now = guard::losses();
            if now != losses {
                losses = now;
                registrar.report_losses();
            }
            let is_stopping = stop.load_acquire() != 0;
            let is_busy = self.look(registrar);
            if is_busy {
                continue;
            }
            if is_stopping {
                return;
            }
            self.wait();
        }
    }

    /// Waits until a lane has given something.
    fn wait(&self) {
        let mut descriptors = [PollFd::new(&*self.doorbell, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()) };
        // An error is an interruption: look again.
        let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
        // Drained before the rings are read, so that a ring that comes between is seen at the next wait.
        if let Err(errno) = eventfd::drain(&*self.doorbell) {
            tracing::error!(%errno, "the notices' doorbell cannot be read");
        }
    }

    /// Reads what is there; false if there was nothing.
    fn look(&mut self, registrar: &Registrar) -> bool {
        let mut is_busy = false;
        for (lane, returns) in self.returns.iter_mut().enumerate() {
            while let Some(mut parcel) = returns.take() {
                is_busy = true;
                match parcel.take() {
                    Content::Answer(answer) => {
                        if let Some(reply) = parcel.reply.take() {
                            // Whoever gave up waiting is not there any more.
                            let _ = reply.try_send((lane, answer));
                        }
                    }
                    Content::Notice(notice) => {
                        registrar.notice(lane, notice);
                        if self.lanes.get(lane).post(parcel).is_err() {
                            tracing::error!(lane, "a lane does not take its spare box back");
                        }
                    }
                    Content::Retired(ready) => {
                        drop(ready);
                        if self.lanes.get(lane).post(parcel).is_err() {
                            tracing::error!(lane, "a lane does not take its spare box back");
                        }
                    }
                    Content::Command(_) | Content::Empty => {}
                }
            }
        }
        is_busy
    }
}
