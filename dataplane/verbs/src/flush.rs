//! Flushes: a one-byte RDMA read of this node's own memory, through the NIC whose writes are to be made visible.
//!
//! The read travels the path that the writes took and cannot overtake them, so when it is done they have been placed. It
//! goes over two queue pairs of the same port that are connected with each other. Flushes that are asked for while one is
//! on its way share the next one.

use std::sync::Arc;

use railhead_abi::Code;
use railhead_core::port::{ConnectionIndex, FabricEvent, PostId};
use rdma_core_sys::{IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, ibv_send_wr, ibv_sge};

use crate::counters::RailCounters;
use crate::device::mtu_code;
use crate::error::VerbsError;
use crate::fabric::{Events, VerbsFabric};
use crate::identity::{Identity, Queue};
use crate::mailbox::Mailbox;
use crate::queue_pair::{Path, QueuePair, QueueSizes};
use crate::rail::Rail;

/// Memories that one flush reads at most: one for each GPU.
pub const FLUSH_TARGETS_MAX: usize = 8;
/// Rounds of reads on their way at a time.
const ROUNDS: u32 = 4;
const SENDS: u32 = ROUNDS * FLUSH_TARGETS_MAX as u32;
/// Completions that a flusher and one that replaces it can have outstanding.
pub(crate) const COMPLETIONS: u32 = 2 * 2 * (SENDS + 1);
/// Flushes of a lane and rail that are open.
const REQUESTS: usize = 4096;

/// Memory that a flush reads one byte of, registered with the rail's NIC for remote reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushTarget {
    /// Address of the byte in posts.
    pub address: u64,
    /// The registration's remote key.
    pub remote_key: u32,
}

/// The queue pairs that flushes of a rail go over. Made on a registrar thread.
#[derive(Debug)]
pub struct Flusher {
    near: Arc<QueuePair>,
    /// Answers; never posted on.
    _far: Arc<QueuePair>,
    scratch: Mailbox,
}

impl Flusher {
    /// Makes two queue pairs and connects them with each other. Slow.
    ///
    /// # Errors
    /// As [`Rail::prepare`].
    pub fn new(rail: &Rail) -> Result<Self, VerbsError> {
        let nic = rail.nic();
        let sizes = QueueSizes { sends: SENDS, receives: 1, inline_bytes: 0 };
        let make = || QueuePair::new(rail.lane_domain(), rail.completions(), nic.config(), sizes);
        let (near, far) = (make()?, make()?);
        let (port, gid) = (nic.port(), nic.gid());
        let gid_index =
            u8::try_from(gid.index).map_err(|_| VerbsError::Peer("our GID's index is above 255"))?;
        let limits = nic.device().limits();
        let reads = limits.reads_made.min(limits.reads_served).min(nic.config().reads_max).max(1);
        let path = |peer: &QueuePair| Path {
            port: nic.config().port,
            gid_index,
            is_ethernet: port.is_ethernet,
            traffic_class: nic.config().traffic_class,
            service_level: nic.config().service_level,
            mtu_code: mtu_code(nic.mtu_bytes()),
            peer_gid: gid.gid,
            peer_lid: port.lid,
            peer_number: peer.number(),
            peer_psn: 0,
            psn: 0,
            reads_made: reads,
            reads_served: reads,
            patience: nic.config().patience,
        };
        near.connect(&path(&far))?;
        far.connect(&path(&near))?;
        let scratch = Mailbox::new(nic.domain(), 0, 0)?;
        Ok(Self { near, _far: far, scratch })
    }
}

#[derive(Debug, Clone, Copy)]
struct Request {
    at: usize,
    post: PostId,
    /// The round that answers it.
    round: u32,
}

/// A lane's flushes over one rail.
#[derive(Debug)]
pub(crate) struct Flushes {
    flusher: Option<Flusher>,
    targets: [FlushTarget; FLUSH_TARGETS_MAX],
    target_count: usize,
    requests: crate::ring::Ring<Request>,
    /// Rounds asked for, posted and done. A round is posted once, with all that asked before.
    round_wanted: u32,
    round_posted: u32,
    round_done: u32,
    /// Counts flushers, so that completions of an earlier one mean nothing.
    stamp: u16,
    is_broken: bool,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            flusher: None,
            targets: [FlushTarget::default(); FLUSH_TARGETS_MAX],
            target_count: 0,
            requests: crate::ring::Ring::new(REQUESTS, Request { at: 0, post: PostId(0), round: 0 }),
            round_wanted: 0,
            round_posted: 0,
            round_done: 0,
            stamp: 0,
            is_broken: false,
        }
    }

    pub(crate) fn set(&mut self, flusher: Flusher, targets: &[FlushTarget]) -> Option<Flusher> {
        self.targets = [FlushTarget::default(); FLUSH_TARGETS_MAX];
        self.targets[..targets.len()].copy_from_slice(targets);
        self.target_count = targets.len();
        self.stamp = self.stamp.wrapping_add(1) & 0x3fff;
        // What was on its way over the earlier one is asked for again.
        self.round_posted = self.round_done;
        self.is_broken = false;
        self.flusher.replace(flusher)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Asks for a flush. False if there is no room.
    pub(crate) fn request(&mut self, at: usize, post: PostId) -> bool {
        if self.requests.is_full() {
            return false;
        }
        self.round_wanted = self.round_posted.wrapping_add(1);
        self.requests.push(Request { at, post, round: self.round_wanted });
        true
    }

    /// Posts a round if one is wanted and there is room.
    pub(crate) fn post(&mut self, counters: &mut RailCounters) {
        let is_wanted = self.round_wanted != self.round_posted && !self.requests.is_empty();
        let Some(flusher) = self.flusher.as_ref().filter(|_| is_wanted && !self.is_broken) else { return };
        if self.round_posted.wrapping_sub(self.round_done) >= ROUNDS || self.target_count == 0 {
            return;
        }
        let round = self.round_posted.wrapping_add(1);
        let mut pieces = [ibv_sge::default(); FLUSH_TARGETS_MAX];
        let mut sends = [ibv_send_wr::default(); FLUSH_TARGETS_MAX];
        let (local, count) = (&flusher.scratch, self.target_count);
        let first_piece = pieces.as_mut_ptr();
        let first = sends.as_mut_ptr();
        for (at, target) in self.targets[..count].iter().enumerate() {
            let is_last = at + 1 == count;
            let wr_id =
                Identity { queue: Queue::Flush, stamp: self.stamp, connection: 0, number: round }.pack();
            // SAFETY: both arrays have room for all targets; raw pointers, since the requests point to each other.
            unsafe {
                *first_piece.add(at) =
                    ibv_sge { addr: local.scratch_address(), length: 1, lkey: local.local_key() };
                *first.add(at) = ibv_send_wr {
                    wr_id,
                    next: if is_last { core::ptr::null_mut() } else { first.add(at + 1) },
                    sg_list: first_piece.add(at),
                    num_sge: 1,
                    opcode: IBV_WR_RDMA_READ,
                    send_flags: if is_last { IBV_SEND_SIGNALED } else { 0 },
                    remote_addr: target.address,
                    rkey: target.remote_key,
                    ..ibv_send_wr::default()
                };
            }
        }
        // SAFETY: only this lane posts on the flusher, which is destroyed only after it was taken from here; the list
        // outlives the call.
        match unsafe { flusher.near.post_sends(first) } {
            Ok(()) => {
                self.round_posted = round;
                counters.doorbells += 1;
                counters.flush_reads += count as u64;
            }
            Err(_) => self.is_broken = true,
        }
    }

    /// A read came back.
    pub(crate) fn completed(&mut self, identity: Identity, status: u32) {
        if identity.stamp != self.stamp {
            return;
        }
        if status == IBV_WC_SUCCESS {
            self.round_done = identity.number;
        } else {
            self.is_broken = true;
        }
    }

    /// Takes the next flush that has ended: its connection, its post, its status.
    fn next_ended(&mut self) -> Option<(usize, PostId, Code)> {
        let first = *self.requests.first()?;
        let is_done = self.round_done.wrapping_sub(first.round) < 1 << 31;
        // Without a target there is nothing whose visibility could lag.
        let is_free = self.target_count == 0 && !self.is_broken;
        if !(is_done || is_free || self.is_broken) {
            return None;
        }
        let status = if is_done || is_free { Code::Ok } else { Code::DeviceError };
        self.requests.pop();
        Some((first.at, first.post, status))
    }
}

impl VerbsFabric {
    /// Says which flushes have ended.
    pub(crate) fn tell_flushed(&mut self, events: &mut Events<'_>) {
        for rail in 0..self.rails.len() {
            while !events.is_full() {
                let Some((at, post, status)) = self.rails[rail].flushes.next_ended() else { break };
                let connection: ConnectionIndex = self.name(at);
                // `Down` waits for these, so the connection is the one that asked.
                self.connections[at].flushes -= 1;
                self.busy.set(at, true);
                events.push(FabricEvent::Done { connection, post, status });
            }
        }
    }
}
