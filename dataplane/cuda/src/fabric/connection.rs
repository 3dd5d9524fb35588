//! One direction of a pair: what was posted and has not been told the end of.

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{Place, PostError, PostId};

use super::keys::Stamped;

/// What was posted, in order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Posted {
    Write { own: Stamped, keyed: Place, epoch: u32, bytes: u32, slot: u16, post: PostId },
    Read { own: Stamped, keyed: Place, epoch: u32, bytes: u32, post: PostId },
    Flush { post: PostId },
    Record(RawRecord),
}

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// No more posts; what was posted ends with events, then `Down` is said.
    Closing,
    Down,
}

/// How something went at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) refused: Option<Code>,
    pub(super) status: Code,
}

impl Outcome {
    pub(super) const OK: Self = Self { refused: None, status: Code::Ok };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Copying,
    /// Over; its events wait for their turn or for room.
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) posted: Posted,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// Copies under way.
    pub(super) copying: usize,
    queue: Box<[Option<Entry>]>,
    head: usize,
    count: usize,
    /// Entries from the head on that have begun.
    begun: usize,
    posts: u16,
    records: u16,
}

impl Connection {
    pub(super) fn new(posts: usize) -> Self {
        Self {
            state: State::Open,
            copying: 0,
            queue: vec![None; posts].into(),
            head: 0,
            count: 0,
            begun: 0,
            posts: 0,
            records: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, posted: Posted, posts_max: u16, records_max: u16) -> Result<(), PostError> {
        let (used, most) = match posted {
            Posted::Record(_) => (&mut self.records, records_max),
            _ => (&mut self.posts, posts_max),
        };
        if *used == most {
            return Err(PostError::Full);
        }
        *used += 1;
        let at = (self.head + self.count) % self.queue.len();
        self.queue[at] = Some(Entry { posted, phase: Phase::Waiting });
        self.count += 1;
        Ok(())
    }

    pub(super) fn first(&self) -> Option<Entry> {
        self.queue[self.head]
    }

    /// The first entry that has not begun, and its place.
    #[expect(clippy::cast_possible_truncation, reason = "a queue has at most u16::MAX places")]
    pub(super) fn next_to_begin(&self) -> Option<(u16, Entry)> {
        if self.begun == self.count {
            return None;
        }
        let at = (self.head + self.begun) % self.queue.len();
        self.queue[at].map(|entry| (at as u16, entry))
    }

    /// That entry is copied, or has ended without.
    pub(super) fn begun(&mut self, phase: Phase) {
        let at = (self.head + self.begun) % self.queue.len();
        if let Some(entry) = &mut self.queue[at] {
            entry.phase = phase;
        }
        self.begun += 1;
        self.copying += usize::from(phase == Phase::Copying);
    }

    pub(super) fn copying_at(&self, place: u16) -> Option<Entry> {
        (*self.queue.get(usize::from(place))?).filter(|entry| entry.phase == Phase::Copying)
    }

    pub(super) fn ended(&mut self, place: u16, outcome: Outcome) {
        if let Some(entry) = &mut self.queue[usize::from(place)] {
            entry.phase = Phase::Ended(outcome);
            self.copying -= 1;
        }
    }

    /// The first of the events of the entry at the head was handed out.
    pub(super) fn told(&mut self, outcome: Outcome) {
        if let Some(entry) = &mut self.queue[self.head] {
            entry.phase = Phase::Ended(outcome);
        }
    }

    pub(super) fn pop(&mut self) {
        match self.queue[self.head].take() {
            Some(Entry { posted: Posted::Record(_), .. }) => self.records -= 1,
            Some(_) => self.posts -= 1,
            None => return,
        }
        self.head = (self.head + 1) % self.queue.len();
        self.count -= 1;
        self.begun = self.begun.saturating_sub(1);
    }
}
