//! A lane as registrar threads see it: commands in, answers out, and how it is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_ring::Bell;
use railhead_shm::handoff::{Giver, Taker, channel};
use railhead_shm::{Words, eventfd};
use rustix::event::epoll;

use super::mail::{Answer, COMMANDS_MAX, Command, Parcel, RETURNS_MAX};

/// How long a lane may take for a command before it counts as stuck. A turn takes microseconds; only a machine that does
/// not run the lane at all comes near this.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Token of the lane's doorbell in its epoll set; sessions and sockets use others.
pub(crate) const TOKEN_DOORBELL: u64 = u64::MAX;
/// Token of the fabric's own epoll set.
pub(crate) const TOKEN_FABRIC: u64 = u64::MAX - 2;
/// Token of sessions' doorbells: which session rang does not matter, the lane looks at all ports.
pub(crate) const TOKEN_SESSION: u64 = u64::MAX - 1;

/// The lane's ends of what [`LaneHandle`] has the other ends of.
#[derive(Debug)]
pub(crate) struct LaneMail {
    /// Commands, oldest first.
    pub(crate) commands: Taker<Parcel>,
    /// Boxes on their way home.
    pub(crate) returns: Giver<Parcel>,
}

/// One lane, for any registrar thread.
#[derive(Debug)]
pub(crate) struct LaneHandle {
    index: usize,
    commands: Mutex<Giver<Parcel>>,
    bell: Bell<Words>,
    doorbell: OwnedFd,
    epoll: OwnedFd,
}

impl LaneHandle {
    /// A lane whose word of the lanes' page is `bell`, the lane's own ends, and what it gives back.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(index: usize, bell: Words) -> rustix::io::Result<(Self, LaneMail, Taker<Parcel>)> {
        let doorbell = eventfd::create()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(TOKEN_DOORBELL);
        epoll::add(&epoll, &doorbell, token, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let (giver, taker) = channel(COMMANDS_MAX);
        let (returns_giver, returns_taker) = channel(RETURNS_MAX);
        let bell = Bell::new(bell).map_err(|_| rustix::io::Errno::INVAL)?;
        let handle = Self { index, commands: Mutex::new(giver), bell, doorbell, epoll };
        Ok((handle, LaneMail { commands: taker, returns: returns_giver }, returns_taker))
    }

    /// The lane's epoll set.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Wakes the lane if it sleeps. Call it after whatever it shall look at was published.
    pub(crate) fn wake(&self) {
        // Partner: `Bell::prepare` in the lane's idle wait.
        if self.bell.take() {
            self.ring();
        }
    }

    /// Rings the lane's doorbell whether it sleeps or not.
    pub(crate) fn ring(&self) {
        if let Err(errno) = eventfd::ring(&self.doorbell) {
            tracing::error!(lane = self.index, %errno, "a lane's doorbell cannot be rung");
        }
    }

    /// Lets a descriptor wake the lane, edge by edge. It leaves the set when it is closed everywhere.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub(crate) fn watch(&self, descriptor: impl AsFd) -> rustix::io::Result<()> {
        let token = epoll::EventData::new_u64(TOKEN_SESSION);
        epoll::add(&self.epoll, descriptor, token, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Ends what [`Self::watch`] began: a client may keep its copy of the descriptor open, so closing ours is not enough.
    pub(crate) fn unwatch(&self, descriptor: impl AsFd) {
        // It may have gone already; there is nothing to do about it.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Posts a parcel and wakes the lane; waits while its ring is full.
    ///
    /// # Errors
    /// [`Code::DataplaneLost`] if the lane takes nothing for too long.
    pub(crate) fn post(&self, mut parcel: Box<Parcel>) -> Result<(), Code> {
        let started = Instant::now();
        loop {
            let given = self.commands.lock().unwrap_or_else(PoisonError::into_inner).give(parcel);
            self.wake();
            match given {
                Ok(()) => return Ok(()),
                Err(back) if started.elapsed() < ANSWER_MAX => parcel = back,
                Err(_) => return Err(Code::DataplaneLost),
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// All lanes, for any registrar thread.
#[derive(Debug)]
pub(crate) struct Lanes {
    handles: Vec<LaneHandle>,
}

impl Lanes {
    /// Of these handles, in the order of the lanes' numbers.
    pub(crate) fn new(handles: Vec<LaneHandle>) -> Self {
        Self { handles }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// One lane.
    ///
    /// # Panics
    /// If there is no such lane: numbers come from [`Self::count`].
    pub(crate) fn get(&self, lane: usize) -> &LaneHandle {
        &self.handles[lane]
    }

    /// Wakes every lane that sleeps.
    pub(crate) fn wake_all(&self) {
        self.handles.iter().for_each(LaneHandle::wake);
    }

    /// Has one lane do something and waits until it is done.
    ///
    /// # Errors
    /// The lane's refusal, or [`Code::DataplaneLost`] if it does not answer.
    pub(crate) fn call(&self, lane: usize, command: Command) -> Result<Answer, Code> {
        let (reply, answers) = flume::bounded(1);
        self.get(lane).post(Parcel::command(command, reply))?;
        match answers.recv_timeout(ANSWER_MAX) {
            Ok((_, Answer::Refused(code))) => Err(code),
            Ok((_, answer)) => Ok(answer),
            Err(_) => Err(Code::DataplaneLost),
        }
    }

    /// Has every lane do something and waits until all have done it.
    ///
    /// # Errors
    /// The first refusal; other lanes may have done it all the same: see [`Self::ask_all`].
    pub(crate) fn call_all(&self, command: impl FnMut(usize) -> Command) -> Result<(), Code> {
        self.ask_all(command).1
    }

    /// As [`Self::call_all`], and also says which lanes have done it, one bit each.
    pub(crate) fn ask_all(&self, mut command: impl FnMut(usize) -> Command) -> (u64, Result<(), Code>) {
        let (reply, answers) = flume::bounded(self.count());
        let mut outcome = Ok(());
        let mut posted = 0;
        for (lane, handle) in self.handles.iter().enumerate() {
            match handle.post(Parcel::command(command(lane), reply.clone())) {
                Ok(()) => posted += 1,
                Err(code) => outcome = outcome.and(Err(code)),
            }
        }
        let mut done = 0;
        for _ in 0..posted {
            match answers.recv_timeout(ANSWER_MAX) {
                Ok((_, Answer::Refused(code))) => outcome = outcome.and(Err(code)),
                Ok((lane, _)) => done |= 1 << lane,
                Err(_) => return (done, Err(Code::DataplaneLost)),
            }
        }
        (done, outcome)
    }
}
