//! One connection: what was posted on it, what came, and how far it is from its end.

use railhead_abi::Code;
use railhead_core::port::{Nanos, PostId};
use rdma_core_sys::{
    IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc,
};

use crate::fault::Fault;
use crate::message::{Head, Kind};
use crate::queue_pair::{WISH_DESTROY, WISH_FAIL};
use crate::rail::{ConnectionSizes, Ready};
use crate::ring::Ring;
use crate::tables::{Address, RemoteMemory};

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    /// We end it: the farewell is on its way, and no more is taken.
    Leaving {
        until: Nanos,
    },
    /// Its queue pair has failed or is made to fail: all that is posted comes back, then `Down` is said.
    Failing {
        until: Nanos,
        step: Step,
    },
}

/// What was done to get back what the NIC has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The closer was asked to make the queue pair fail.
    Asked,
    /// A marker was posted behind everything. Requests whose completion was not asked for, and that went well before the
    /// failure, say nothing; that the marker comes back says that they have.
    Marked,
    /// The closer was asked to destroy the queue pair.
    Destroying,
}

/// What was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Write,
    Read,
    Confirm,
    /// Ended here, without the NIC.
    Refused(Code),
    Record {
        slot: u32,
        words: u8,
    },
    Credit {
        slot: u32,
    },
    Bye {
        slot: u32,
    },
}

impl Work {
    /// Whether its end is told to the engine.
    pub(crate) const fn is_post(self) -> bool {
        matches!(self, Work::Write | Work::Read | Work::Confirm | Work::Refused(_))
    }

    /// The send slot of a message.
    pub(crate) const fn slot(self) -> Option<u32> {
        match self {
            Work::Record { slot, .. } | Work::Credit { slot } | Work::Bye { slot } => Some(slot),
            _ => None,
        }
    }
}

/// An entry of the queue of what was posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posted {
    pub(crate) work: Work,
    pub(crate) post: PostId,
    /// Work requests that must have come back before this has ended: up to and with its own.
    pub(crate) needs: u32,
    pub(crate) bytes: u32,
    pub(crate) local: Address,
    pub(crate) remote: Address,
    /// The payload travels in the request.
    pub(crate) is_inline: bool,
}

impl Posted {
    pub(crate) const NOTHING: Self = Self {
        work: Work::Write,
        post: PostId(0),
        needs: 0,
        bytes: 0,
        local: Address { address: 0, key: 0 },
        remote: Address { address: 0, key: 0 },
        is_inline: false,
    };
}

/// Whether count `a` has reached `b`; counts wrap.
const fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

/// The code for a completion's status.
pub(crate) const fn code_of(status: u32) -> Code {
    match status {
        IBV_WC_SUCCESS => Code::Ok,
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR => Code::RemoteRefused,
        IBV_WC_WR_FLUSH_ERR | IBV_WC_RETRY_EXC_ERR => Code::ConnectionReset,
        IBV_WC_RNR_RETRY_EXC_ERR => Code::ProtocolViolation,
        IBV_WC_LOC_PROT_ERR => Code::RegionLost,
        _ => Code::DeviceError,
    }
}

/// The queues of a connection, made with its queue pair by a registrar.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queue: Ring<Posted>,
    arrived: Ring<(u32, u8)>,
    spare: Ring<u32>,
}

impl Queues {
    pub(crate) fn new(sizes: ConnectionSizes) -> Self {
        let receives = usize::from(sizes.receives);
        Self {
            queue: Ring::new(sizes.sends() as usize, Posted::NOTHING),
            arrived: Ring::new(receives, (0, 0)),
            spare: Ring::new(receives, 0),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) ready: Option<Ready>,
    /// After its end, until the lane takes it away.
    pub(crate) retired: Option<Ready>,
    pub(crate) peer: u8,
    pub(crate) rail: u8,
    pub(crate) arena: RemoteMemory,
    /// What was posted and has not been told to have ended.
    pub(crate) queue: Ring<Posted>,
    /// Entries of `queue` that the NIC has; the others wait for a kick.
    pub(crate) handed: usize,
    /// Counts of work requests: queued, handed to the NIC, come back, and come back well.
    pub(crate) requests_queued: u32,
    pub(crate) requests_handed: u32,
    pub(crate) requests_back: u32,
    requests_good: u32,
    /// The request (counted from 1) that failed first, and why.
    fault: Option<(u32, Code)>,
    /// Posts, records and credit messages in `queue`.
    pub(crate) posts: u16,
    pub(crate) records: u16,
    pub(crate) has_credit: bool,
    /// Flushes of this connection that have not been told to have ended.
    pub(crate) flushes: u16,
    /// Requests since the last whose completion was asked for, and whether one of them must be told.
    pub(crate) unsignalled: u32,
    pub(crate) wants_signal: bool,
    /// Next send slot: messages leave in order, so slots are used in turn.
    next_slot: u32,
    /// Messages that the peer has receives for.
    pub(crate) credits: u16,
    /// Slots of messages that arrived and have not been told.
    pub(crate) arrived: Ring<(u32, u8)>,
    /// Receive slots to post anew.
    pub(crate) spare: Ring<u32>,
    /// Receives that the NIC has.
    pub(crate) receives: u32,
    /// Receives posted anew that the peer has not been told of.
    pub(crate) owed: u16,
    pub(crate) cause: Option<Code>,
    /// The first error that its NIC said; stays until the next connection of this index.
    pub(crate) first_fault: Option<Fault>,
}

impl Connection {
    /// A connection that never was. It has no queues: they come and go with its queue pair.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Free,
            ready: None,
            retired: None,
            peer: 0,
            rail: 0,
            arena: RemoteMemory::default(),
            queue: Ring::default(),
            handed: 0,
            requests_queued: 0,
            requests_handed: 0,
            requests_back: 0,
            requests_good: 0,
            fault: None,
            posts: 0,
            records: 0,
            has_credit: false,
            flushes: 0,
            unsignalled: 0,
            wants_signal: false,
            next_slot: 0,
            credits: 0,
            arrived: Ring::default(),
            spare: Ring::default(),
            receives: 0,
            owed: 0,
            cause: None,
            first_fault: None,
        }
    }

    /// Begins anew with a connected queue pair.
    pub(crate) fn start(&mut self, mut ready: Ready, rail: u8, peer: u8, arena: RemoteMemory) {
        let Queues { queue, arrived, spare } = core::mem::take(&mut *ready.queues);
        (self.queue, self.arrived, self.spare) = (queue, arrived, spare);
        self.handed = 0;
        (self.requests_queued, self.requests_handed, self.requests_back, self.requests_good) = (0, 0, 0, 0);
        self.fault = None;
        (self.posts, self.records, self.has_credit, self.flushes) = (0, 0, false, 0);
        (self.unsignalled, self.wants_signal, self.next_slot) = (0, false, 0);
        self.credits = ready.peer_receives;
        self.receives = ready.mailbox.receives();
        self.owed = 0;
        (self.cause, self.first_fault) = (None, None);
        self.state = State::Open;
        (self.rail, self.peer, self.arena) = (rail, peer, arena);
        self.ready = Some(ready);
    }

    /// After `Down`: what is left of it, its queues too, goes to whoever drops it.
    pub(crate) fn retire(&mut self) {
        self.state = State::Free;
        self.retired = self.ready.take();
        if let Some(retired) = &mut self.retired {
            *retired.queues = Queues {
                queue: core::mem::take(&mut self.queue),
                arrived: core::mem::take(&mut self.arrived),
                spare: core::mem::take(&mut self.spare),
            };
        }
    }

    /// Adds work with a request of its own (none for refused work).
    pub(crate) fn queue(&mut self, mut posted: Posted) {
        match posted.work {
            Work::Record { .. } => self.records += 1,
            Work::Credit { .. } => self.has_credit = true,
            Work::Bye { .. } => {}
            _ => self.posts += 1,
        }
        if !matches!(posted.work, Work::Refused(_)) {
            self.requests_queued = self.requests_queued.wrapping_add(1);
        }
        posted.needs = self.requests_queued;
        self.queue.push(posted);
    }

    /// Takes the next send slot.
    pub(crate) fn take_slot(&mut self, sends: u32) -> u32 {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % sends;
        slot
    }

    /// Requests that the NIC has.
    pub(crate) const fn outstanding(&self) -> u32 {
        self.requests_handed.wrapping_sub(self.requests_back)
    }

    /// Whether the NIC has given everything back.
    pub(crate) const fn is_quiet(&self) -> bool {
        self.outstanding() == 0 && self.receives == 0
    }

    /// A send came back.
    pub(crate) fn send_completed(&mut self, request: u32, completion: &ibv_wc) {
        let through = request.wrapping_add(1);
        if !reached(through, self.requests_back) || !reached(self.requests_handed, through) {
            // The device says the same twice, or what was never posted: nothing of ours ends by it.
            return;
        }
        self.requests_back = through;
        match completion.status {
            IBV_WC_SUCCESS if self.fault.is_none() => self.requests_good = through,
            IBV_WC_SUCCESS => {}
            status => {
                if self.fault.is_none() {
                    self.fault = Some((through, code_of(status)));
                    // What fails by itself fails in its turn, so all before it went well. What is flushed says nothing of
                    // those before it whose completion was not asked for.
                    if status != IBV_WC_WR_FLUSH_ERR {
                        self.requests_good = request;
                    }
                }
            }
        }
    }

    /// Keeps the first error. A receive may come back as flushed before the send whose failure flushed it: then the send's
    /// own error takes its place.
    pub(crate) fn note_fault(&mut self, completion: &ibv_wc) {
        let (status, vendor_error) = (completion.status, completion.vendor_err);
        let is_flushed = |status| status == IBV_WC_WR_FLUSH_ERR;
        match self.first_fault {
            _ if status == IBV_WC_SUCCESS => {}
            None => self.first_fault = Some(Fault { status, vendor_error }),
            Some(first) if is_flushed(first.status) && !is_flushed(status) => {
                self.first_fault = Some(Fault { status, vendor_error });
                if self.cause == Some(Code::ConnectionReset) {
                    self.cause = Some(code_of(status));
                }
            }
            Some(_) => {}
        }
    }

    /// Why sends failed, if one did.
    pub(crate) fn fault(&self) -> Option<Code> {
        self.fault.map(|(_, code)| code)
    }

    /// Nothing comes back any more: the queue pair is destroyed.
    pub(crate) const fn give_up(&mut self) {
        self.requests_back = self.requests_handed;
        self.receives = 0;
    }

    /// Whether the next entry has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.first().is_some_and(|first| reached(self.requests_back, first.needs))
    }

    /// Takes the next entry that has ended off the queue, with its status.
    pub(crate) fn next_ended(&mut self) -> Option<(Posted, Code)> {
        let first = *self.queue.first()?;
        let failing = matches!(self.state, State::Failing { .. });
        // What the NIC never got ends when it has given back the rest.
        let is_back = reached(self.requests_back, first.needs)
            || (failing && self.outstanding() == 0 && !reached(self.requests_handed, first.needs));
        // Refused work waits for its turn only.
        if !is_back {
            return None;
        }
        let status = match (first.work, self.fault) {
            (Work::Refused(code), _) => code,
            _ if reached(self.requests_good, first.needs) => Code::Ok,
            (_, Some((request, code))) if request == first.needs => code,
            _ => Code::ConnectionReset,
        };
        self.queue.pop();
        self.handed = self.handed.saturating_sub(1);
        match first.work {
            Work::Record { .. } => self.records -= 1,
            Work::Credit { .. } => self.has_credit = false,
            Work::Bye { .. } => {}
            _ => self.posts -= 1,
        }
        Some((first, status))
    }

    /// A message arrived. An error is a peer that breaks the protocol.
    pub(crate) fn message_arrived(&mut self, slot: u32, bytes: u32) -> Result<Option<Kind>, ()> {
        let Some(ready) = &self.ready else { return Ok(None) };
        let mut head = [0; 8];
        ready.mailbox.read(slot, &mut head);
        let head = Head::decode(head, bytes as usize).ok_or(())?;
        self.credits =
            self.credits.checked_add(head.returned).filter(|all| *all <= ready.peer_receives).ok_or(())?;
        match head.kind {
            Kind::Record => self.arrived.push((slot, head.words)),
            Kind::Credit | Kind::Bye => self.spare.push(slot),
        }
        Ok(Some(head.kind))
    }

    /// Starts the end: from here on nothing is posted.
    pub(crate) fn fail(&mut self, cause: Code, until: Nanos) -> bool {
        if matches!(self.state, State::Free | State::Failing { .. }) {
            return false;
        }
        self.cause.get_or_insert(cause);
        self.state = State::Failing { until, step: Step::Asked };
        if let Some(ready) = &self.ready {
            // Read by the closer after its call (swap, acquire).
            ready.pair.wish.store_release(WISH_FAIL);
        }
        true
    }

    /// The device gives nothing back: wishes the queue pair destroyed.
    pub(crate) fn destroy(&mut self, until: Nanos) {
        self.state = State::Failing { until, step: Step::Destroying };
        if let Some(ready) = &self.ready {
            ready.pair.wish.store_release(WISH_DESTROY);
        }
    }
}
