//! Handing work to the NIC and taking back what it says: chains of requests under one doorbell, and completions.

use railhead_abi::Code;
use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::connection::{Connection, Posted, State, Work, code_of};
use crate::counters::RailCounters;
use crate::fabric::{Early, VerbsFabric};
use crate::identity::{Identity, Queue};
use crate::mailbox::RECEIVE_BYTES;
use crate::message::{Head, Kind};
use crate::rail::Ready;

/// Requests under one doorbell at most.
const CHAIN: usize = 256;
/// Requests after which a completion is asked for at the latest.
const UNSIGNALLED_MAX: u32 = 64;

/// Room to build chains in.
pub(crate) struct Chain {
    sends: Box<[ibv_send_wr]>,
    receives: Box<[ibv_recv_wr]>,
    pieces: Box<[ibv_sge]>,
}

// SAFETY: the pointers in the requests point into `pieces` and the requests themselves, and are set anew for each use.
unsafe impl Send for Chain {}

impl core::fmt::Debug for Chain {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Chain")
    }
}

impl Chain {
    pub(crate) fn new() -> Self {
        Self {
            sends: vec![ibv_send_wr::default(); CHAIN].into(),
            receives: vec![ibv_recv_wr::default(); CHAIN].into(),
            pieces: vec![ibv_sge::default(); CHAIN].into(),
        }
    }

    /// Links the first `count` requests.
    fn link_sends(&mut self, count: usize) -> *mut ibv_send_wr {
        let (pieces, sends) = (self.pieces.as_mut_ptr(), self.sends.as_mut_ptr());
        for at in 0..count {
            // SAFETY: both have room for `count`, and nothing else refers to them.
            unsafe {
                (*sends.add(at)).sg_list = pieces.add(at);
                (*sends.add(at)).num_sge = 1;
                (*sends.add(at)).next =
                    if at + 1 < count { sends.add(at + 1) } else { core::ptr::null_mut() };
            }
        }
        sends
    }

    fn link_receives(&mut self, count: usize) -> *mut ibv_recv_wr {
        let (pieces, receives) = (self.pieces.as_mut_ptr(), self.receives.as_mut_ptr());
        for at in 0..count {
            // SAFETY: as above.
            unsafe {
                (*receives.add(at)).sg_list = pieces.add(at);
                (*receives.add(at)).num_sge = 1;
                (*receives.add(at)).next =
                    if at + 1 < count { receives.add(at + 1) } else { core::ptr::null_mut() };
            }
        }
        receives
    }
}

impl Connection {
    /// Requests without a completion that may follow each other: few enough that the queue never fills with them.
    fn unsignalled_max(records_max: u16) -> u32 {
        UNSIGNALLED_MAX.min(u32::from(records_max / 2)).max(1)
    }

    /// Builds one request. `is_last`: nothing is queued behind it.
    fn build(
        &mut self,
        posted: &Posted,
        is_last: bool,
        unsignalled_max: u32,
        counters: &mut RailCounters,
    ) -> Option<(ibv_send_wr, ibv_sge)> {
        let ready = self.ready.as_ref()?;
        let (request, piece) = match posted.work {
            Work::Write | Work::Read | Work::Confirm => {
                let is_write = posted.work == Work::Write;
                match posted.work {
                    Work::Write => counters.bytes_written += u64::from(posted.bytes),
                    Work::Read => counters.bytes_read += u64::from(posted.bytes),
                    _ => counters.confirms += 1,
                }
                let request = ibv_send_wr {
                    opcode: if is_write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ },
                    send_flags: if posted.is_inline { IBV_SEND_INLINE } else { 0 },
                    remote_addr: posted.remote.address,
                    rkey: posted.remote.key,
                    ..ibv_send_wr::default()
                };
                (
                    request,
                    ibv_sge { addr: posted.local.address, length: posted.bytes, lkey: posted.local.key },
                )
            }
            Work::Record { .. } | Work::Credit { .. } | Work::Bye { .. } => {
                let returned = core::mem::take(&mut self.owed);
                message_request(ready, posted.work, returned)
            }
            Work::Refused(_) => return None,
        };
        self.wants_signal |= !matches!(posted.work, Work::Record { .. });
        self.unsignalled += 1;
        let is_signalled = (is_last && self.wants_signal) || self.unsignalled >= unsignalled_max;
        if is_signalled {
            (self.unsignalled, self.wants_signal) = (0, false);
            counters.signalled += 1;
        }
        let number = posted.needs.wrapping_sub(1);
        let connection = ready.connection.0;
        let wr_id = Identity { queue: Queue::Send, stamp: ready.stamp, connection, number }.pack();
        let flags = request.send_flags | if is_signalled { IBV_SEND_SIGNALED } else { 0 };
        counters.inline += u64::from(flags & IBV_SEND_INLINE != 0);
        Some((ibv_send_wr { wr_id, send_flags: flags, ..request }, piece))
    }
}

/// The request of a message, with its head written into its slot.
fn message_request(ready: &Ready, work: Work, returned: u16) -> (ibv_send_wr, ibv_sge) {
    let (kind, words) = match work {
        Work::Record { words, .. } => (Kind::Record, words),
        Work::Bye { .. } => (Kind::Bye, 0),
        _ => (Kind::Credit, 0),
    };
    let slot = work.slot().unwrap_or(0);
    ready.mailbox.write(slot, &Head { kind, words, returned }.encode());
    let length = 8 + 8 * u32::from(words);
    let is_inline = length <= ready.facts.inline_bytes;
    let request = ibv_send_wr {
        opcode: IBV_WR_SEND,
        send_flags: if is_inline { IBV_SEND_INLINE } else { 0 },
        ..ibv_send_wr::default()
    };
    (request, ibv_sge { addr: ready.mailbox.send_address(slot), length, lkey: ready.mailbox.local_key() })
}

impl VerbsFabric {
    /// Hands everything queued to the NICs.
    pub(crate) fn post_queued(&mut self) {
        let mut from = 0;
        while let Some(at) = self.queued.next(from) {
            self.post(at);
            from = at + 1;
        }
    }

    fn post(&mut self, at: usize) {
        self.queued.set(at, false);
        if !matches!(self.connections[at].state, State::Open | State::Leaving { .. }) {
            return;
        }
        self.queue_credit(at);
        while self.connections[at].handed < self.connections[at].queue.len() {
            if !self.post_chain(at) {
                return;
            }
        }
    }

    /// Queues a message that gives receives back, if half of them are owed and no record is there to carry it.
    fn queue_credit(&mut self, at: usize) {
        let half = self.sizes.receives / 2;
        let connection = &mut self.connections[at];
        if connection.owed < half || connection.has_credit || connection.credits == 0 {
            return;
        }
        let carried = (connection.handed..connection.queue.len())
            .any(|index| connection.queue.get(index).is_some_and(|posted| posted.work.slot().is_some()));
        let Some(sends) = connection.ready.as_ref().filter(|_| !carried).map(|ready| ready.mailbox.sends())
        else {
            return;
        };
        let slot = connection.take_slot(sends);
        connection.credits -= 1;
        connection.queue(Posted { work: Work::Credit { slot }, ..Posted::NOTHING });
        self.rails[usize::from(connection.rail)].counters.credits_sent += 1;
    }

    /// Posts one chain. False if the connection failed.
    fn post_chain(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let counters = &mut self.rails[usize::from(connection.rail)].counters;
        let unsignalled_max = Connection::unsignalled_max(self.sizes.records_max);
        let mut count = 0;
        while count < CHAIN && connection.handed < connection.queue.len() {
            let Some(posted) = connection.queue.get(connection.handed).copied() else { break };
            // Whatever else is queued with a request of its own counts it further.
            let is_last = posted.needs == connection.requests_queued || count + 1 == CHAIN;
            if let Some((request, piece)) = connection.build(&posted, is_last, unsignalled_max, counters) {
                (self.chain.sends[count], self.chain.pieces[count]) = (request, piece);
                count += 1;
            }
            connection.handed += 1;
        }
        let Some(ready) = connection.ready.as_ref().filter(|_| count > 0) else { return true };
        let first = self.chain.link_sends(count);
        counters.doorbells += 1;
        // SAFETY: only this lane posts, and never after it wished the queue pair destroyed (the state above). Inline
        // payload lies in the mailbox or in memory whose owner stands in the table: `install` and `remove` post first.
        let taken = match unsafe { ready.pair.post_sends(first) } {
            Ok(()) => count,
            Err((_, bad)) => {
                // SAFETY: `bad` is null or one of the requests.
                usize::try_from(unsafe { bad.offset_from(first) }).unwrap_or(0).min(count)
            }
        };
        counters.requests += taken as u64;
        #[expect(clippy::cast_possible_truncation, reason = "at most CHAIN")]
        let taken_requests = taken as u32;
        connection.requests_handed = connection.requests_handed.wrapping_add(taken_requests);
        if taken < count {
            self.fail(at, Code::DeviceError);
        }
        taken == count
    }

    /// Posts a request on a queue pair that has failed. It comes back as flushed, behind everything before it.
    pub(crate) fn post_marker(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let Some(ready) = &connection.ready else { return };
        let number = connection.requests_handed;
        let identity =
            Identity { queue: Queue::Send, stamp: ready.stamp, connection: ready.connection.0, number };
        let (addr, lkey) = (ready.mailbox.scratch_address(), ready.mailbox.local_key());
        self.chain.pieces[0] = ibv_sge { addr, length: 1, lkey };
        self.chain.sends[0] = ibv_send_wr {
            wr_id: identity.pack(),
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        let first = self.chain.link_sends(1);
        // SAFETY: only this lane posts, and destruction is wished only later; the request names the mailbox. A refusal
        // leaves what is missing to the destruction of the queue pair.
        if unsafe { ready.pair.post_sends(first) }.is_ok() {
            connection.requests_handed = number.wrapping_add(1);
        }
    }

    /// Posts spare receives anew, a batch at a time.
    pub(crate) fn post_receives(&mut self, at: usize) {
        let batch = usize::from(self.sizes.receives / 8).clamp(1, CHAIN);
        let half = self.sizes.receives / 2;
        let connection = &mut self.connections[at];
        if !matches!(connection.state, State::Open | State::Leaving { .. }) {
            connection.spare.clear();
            return;
        }
        while connection.spare.len() >= batch {
            let Some(ready) = &connection.ready else { return };
            let mut count = 0;
            while count < batch {
                let Some(slot) = connection.spare.pop() else { break };
                let identity = Identity {
                    queue: Queue::Receive,
                    stamp: ready.stamp,
                    connection: ready.connection.0,
                    number: slot,
                };
                let (addr, lkey) = (ready.mailbox.receive_address(slot), ready.mailbox.local_key());
                self.chain.pieces[count] = ibv_sge { addr, length: RECEIVE_BYTES, lkey };
                self.chain.receives[count] = ibv_recv_wr { wr_id: identity.pack(), ..ibv_recv_wr::default() };
                count += 1;
            }
            let first = self.chain.link_receives(count);
            // SAFETY: as in `post_chain`; receive slots are the mailbox's, which lives with the queue pair.
            if unsafe { ready.pair.post_receives(first) }.is_err() {
                self.fail(at, Code::DeviceError);
                return;
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most CHAIN")]
            let count = count as u16;
            connection.receives += u32::from(count);
            connection.owed += count;
        }
        if connection.owed >= half {
            self.queued.set(at, true);
        }
    }

    /// Takes one completion in.
    pub(crate) fn take_completion(&mut self, rail: usize, completion: &ibv_wc) {
        let counters = &mut self.rails[rail].counters;
        counters.errors += u64::from(completion.status != IBV_WC_SUCCESS);
        let Some(identity) = Identity::unpack(completion.wr_id) else { return };
        if identity.queue == Queue::Flush {
            self.rails[rail].flushes.completed(identity, completion.status);
            return;
        }
        let name = railhead_core::port::ConnectionIndex(identity.connection);
        let Some(at) = self.index(name) else { return };
        let stamp = self.connections[at].ready.as_ref().map(|ready| ready.stamp);
        if stamp != Some(identity.stamp) {
            let is_of_before =
                self.connections[at].retired.as_ref().is_some_and(|ready| ready.stamp == identity.stamp);
            // Of a connection that is not attached yet, or of one that is gone. Where there is no more room, the next
            // attachment is refused.
            if !is_of_before && self.early.len() < self.early.capacity() {
                self.early.push(Early { at, stamp: identity.stamp, completion: *completion });
            }
            return;
        }
        self.take_own(at, identity, completion);
    }

    /// Takes in what came for a connection before it was attached, and forgets what came for those before it.
    pub(crate) fn take_early(&mut self, at: usize, stamp: u16) {
        let mut index = 0;
        while index < self.early.len() {
            let early = self.early[index];
            if early.at != at {
                index += 1;
                continue;
            }
            // In order: `remove` keeps it.
            self.early.remove(index);
            if let Some(identity) = Identity::unpack(early.completion.wr_id).filter(|_| early.stamp == stamp)
            {
                self.take_own(at, identity, &early.completion);
            }
        }
    }

    fn take_own(&mut self, at: usize, identity: Identity, completion: &ibv_wc) {
        self.busy.set(at, true);
        let connection = &mut self.connections[at];
        connection.note_fault(completion);
        if identity.queue == Queue::Send {
            connection.send_completed(identity.number, completion);
            if let Some(cause) = connection.fault() {
                self.fail(at, cause);
            }
            return;
        }
        connection.receives = connection.receives.saturating_sub(1);
        if completion.status != IBV_WC_SUCCESS {
            self.fail(at, code_of(completion.status));
            return;
        }
        self.rails[usize::from(connection.rail)].counters.messages += 1;
        match connection.message_arrived(identity.number, completion.byte_len) {
            Ok(Some(Kind::Bye)) => self.fail(at, Code::ConnectionReset),
            Ok(_) => {}
            Err(()) => self.fail(at, Code::ProtocolViolation),
        }
    }
}
