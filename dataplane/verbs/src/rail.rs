//! A NIC as one lane uses it, and how its connections are made.
//!
//! ```text
//! this node                         over the authenticated channel                    the peer
//! rail.prepare(connection) -> Endpoint;  endpoint.info() <----------> info of its endpoint
//! endpoint.connect(&its info) -> Ready                                   the same
//! lane: fabric.attach(Ready, ...)                                        the same
//! ```
//!
//! Each end may post as soon as its own is attached: a peer that is not there yet is asked again for some hundred
//! milliseconds, and what comes before an end is attached is kept for it.

use std::sync::Arc;
use std::time::Duration;

use railhead_core::port::ConnectionIndex;
use railhead_ring::sync::Word;
use rdma_core_sys::{ibv_recv_wr, ibv_sge};

use crate::closer::Closer;
use crate::completion_queue::CompletionQueue;
use crate::connection::Queues;
use crate::device::mtu_code;
use crate::domain::LaneDomain;
use crate::error::VerbsError;
use crate::gid::Gid;
use crate::identity::{Identity, Queue, STAMP_MASK};
use crate::mailbox::{Mailbox, RECEIVE_BYTES};
use crate::message::MESSAGE_BYTES_MAX;
use crate::nic::Nic;
use crate::queue_pair::{Path, QueuePair, QueueSizes};

/// Tries at a path, and the pause between two.
const PATH_TRIES: u32 = 4;
const PATH_PAUSE: Duration = Duration::from_millis(200);

/// Sizes of every connection of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionSizes {
    /// Posts (writes, reads, confirms) that a connection takes.
    pub posts_max: u16,
    /// Records that a connection takes.
    pub records_max: u16,
    /// Messages that the peer may have under way to us: its records, and two of its adapter.
    pub receives: u16,
}

impl Default for ConnectionSizes {
    fn default() -> Self {
        Self { posts_max: 256, records_max: 256, receives: 258 }
    }
}

impl ConnectionSizes {
    /// Work requests that the send queue holds: posts, records, and the adapter's credit, farewell and marker.
    pub(crate) fn sends(self) -> u32 {
        u32::from(self.posts_max) + u32::from(self.records_max) + 3
    }

    /// Completions that a connection can have outstanding.
    #[must_use]
    pub fn completions(self) -> u32 {
        self.sends() + u32::from(self.receives)
    }
}

/// One end of a connection as the other needs to know it. Made to be sent over an authenticated channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    /// The queue pair's number.
    pub number: u32,
    /// Where its packets begin to count.
    pub psn: u32,
    /// Its address.
    pub gid: Gid,
    /// Its InfiniBand address; 0 on RoCE.
    pub lid: u16,
    /// Bytes of payload of a packet that it allows.
    pub mtu_bytes: u16,
    /// Reads that it makes at a time.
    pub reads_made: u8,
    /// Reads that it serves at a time.
    pub reads_served: u8,
    /// Messages that may be under way to it.
    pub receives: u16,
    /// Whether it is addressed by GID.
    pub is_ethernet: bool,
}

/// Words of an [`EndpointInfo`] on the wire.
pub const INFO_WORDS: usize = 5;

impl EndpointInfo {
    /// As words for a frame.
    #[must_use]
    pub fn to_words(self) -> [u64; INFO_WORDS] {
        let gid = u128::from_le_bytes(self.gid.0);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let (low, high) = (gid as u64, (gid >> 64) as u64);
        let lengths = u64::from(self.lid) | u64::from(self.mtu_bytes) << 16 | u64::from(self.receives) << 32;
        let reads = u64::from(self.reads_made) | u64::from(self.reads_served) << 8;
        [
            u64::from(self.number) | u64::from(self.psn) << 32,
            low,
            high,
            lengths,
            reads | u64::from(self.is_ethernet) << 16,
        ]
    }

    /// From the words of a frame. `None` if the words are of a newer version or nonsense.
    #[must_use]
    pub fn from_words(words: [u64; INFO_WORDS]) -> Option<Self> {
        let [numbers, low, high, lengths, rest] = words;
        if lengths >> 48 != 0 || rest >> 17 != 0 || numbers >> 56 != 0 || (numbers >> 24) & 0xff != 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "these bits are the field")]
        let info = Self {
            number: numbers as u32,
            psn: (numbers >> 32) as u32,
            gid: Gid((u128::from(low) | u128::from(high) << 64).to_le_bytes()),
            lid: lengths as u16,
            mtu_bytes: (lengths >> 16) as u16,
            receives: (lengths >> 32) as u16,
            reads_made: rest as u8,
            reads_served: (rest >> 8) as u8,
            is_ethernet: rest >> 16 & 1 != 0,
        };
        Some(info)
    }
}

/// A NIC as one lane uses it. Made before the lane is sealed; makes connections for it later, on registrar threads.
#[derive(Debug)]
pub struct Rail {
    nic: Arc<Nic>,
    domain: Arc<LaneDomain>,
    completions: Arc<CompletionQueue>,
    closer: Arc<Closer>,
    sizes: ConnectionSizes,
    /// Tells the connections of one index apart. Added to by registrar threads; nothing else depends on it.
    stamps: Word,
}

impl Rail {
    /// Room for `connections` connections of these sizes, and for the flushes of a lane. Slow.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the device has no completion queue so long.
    pub fn new(
        nic: &Arc<Nic>,
        closer: &Arc<Closer>,
        connections: u32,
        sizes: ConnectionSizes,
    ) -> Result<Arc<Self>, VerbsError> {
        let entries =
            connections.saturating_mul(sizes.completions()).saturating_add(crate::flush::COMPLETIONS);
        Ok(Arc::new(Self {
            nic: Arc::clone(nic),
            domain: LaneDomain::new(nic.domain()),
            completions: CompletionQueue::new(nic.device(), entries)?,
            closer: Arc::clone(closer),
            sizes,
            stamps: Word::new(1),
        }))
    }

    /// The NIC.
    #[must_use]
    pub const fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Sizes of its connections.
    #[must_use]
    pub const fn sizes(&self) -> ConnectionSizes {
        self.sizes
    }

    /// Whether the provider gave the lane a thread domain.
    #[must_use]
    pub fn is_threaded(&self) -> bool {
        self.domain.is_threaded()
    }

    pub(crate) const fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    pub(crate) const fn closer(&self) -> &Arc<Closer> {
        &self.closer
    }

    pub(crate) const fn lane_domain(&self) -> &Arc<LaneDomain> {
        &self.domain
    }

    /// Makes this node's end of connection `connection`: a queue pair with its receives posted. Slow (some milliseconds).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] or [`VerbsError::Memlock`] when there is no room, else that of the call.
    pub fn prepare(&self, connection: ConnectionIndex) -> Result<Endpoint, VerbsError> {
        let sizes = QueueSizes {
            sends: self.sizes.sends(),
            receives: self.sizes.receives.into(),
            inline_bytes: MESSAGE_BYTES_MAX as u32,
        };
        let pair = QueuePair::new(&self.domain, &self.completions, self.nic.config(), sizes)?;
        let mailbox = Mailbox::new(
            self.nic.domain(),
            self.sizes.receives.into(),
            u32::from(self.sizes.records_max) + 2,
        )?;
        let stamp = self.stamps.fetch_add_release(1) & STAMP_MASK;
        let stamp = stamp as u16;
        post_all_receives(&pair, &mailbox, connection, stamp)
            .map_err(|code| VerbsError::returned("ibv_post_recv", self.nic.device().name(), code))?;
        self.closer.watch(&pair);
        let (state, gid, limits) = (self.nic.port(), self.nic.gid(), self.nic.device().limits());
        let reads_max = self.nic.config().reads_max;
        let info = EndpointInfo {
            number: pair.number(),
            psn: random() & 0xff_ffff,
            gid: gid.gid,
            lid: state.lid,
            mtu_bytes: u16::try_from(self.nic.mtu_bytes()).unwrap_or(u16::MAX),
            reads_made: limits.reads_made.min(reads_max),
            reads_served: limits.reads_served.min(reads_max),
            receives: self.sizes.receives,
            is_ethernet: state.is_ethernet,
        };
        let gid_index =
            u8::try_from(gid.index).map_err(|_| VerbsError::Peer("our GID's index is above 255"))?;
        let message_bytes_max = state.message_bytes_max;
        Ok(Endpoint {
            nic: Arc::clone(&self.nic),
            pair,
            mailbox,
            queues: Box::new(Queues::new(self.sizes)),
            connection,
            stamp,
            info,
            gid_index,
            message_bytes_max,
        })
    }
}

fn post_all_receives(
    pair: &QueuePair,
    mailbox: &Mailbox,
    connection: ConnectionIndex,
    stamp: u16,
) -> Result<(), i32> {
    for slot in 0..mailbox.receives() {
        let identity = Identity { queue: Queue::Receive, stamp, connection: connection.0, number: slot };
        let (addr, lkey) = (mailbox.receive_address(slot), mailbox.local_key());
        let mut sge = ibv_sge { addr, length: RECEIVE_BYTES, lkey };
        let mut request = ibv_recv_wr {
            wr_id: identity.pack(),
            next: core::ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        // SAFETY: nobody else has the queue pair yet; the request and its list outlive the call.
        unsafe { pair.post_receives(&mut request) }.map_err(|(code, _)| code)?;
    }
    Ok(())
}

/// A random number, for packet numbers that an earlier connection's packets do not meet.
fn random() -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: the buffer has the length that is said. Without entropy it stays zero, which is allowed.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u32::from_le_bytes(bytes)
}

/// This node's end of a connection, not connected yet. Dropping it takes it back.
#[derive(Debug)]
pub struct Endpoint {
    nic: Arc<Nic>,
    pair: Arc<QueuePair>,
    mailbox: Mailbox,
    queues: Box<Queues>,
    connection: ConnectionIndex,
    stamp: u16,
    info: EndpointInfo,
    gid_index: u8,
    message_bytes_max: u32,
}

impl Endpoint {
    /// What the peer has to know of it.
    #[must_use]
    pub const fn info(&self) -> EndpointInfo {
        self.info
    }

    /// Connects it with the peer's end. Slow.
    ///
    /// # Errors
    /// [`VerbsError::Peer`] if what the peer says cannot be, else that of the call.
    pub fn connect(self, peer: &EndpointInfo) -> Result<Ready, VerbsError> {
        if peer.is_ethernet != self.info.is_ethernet {
            return Err(VerbsError::Peer("one end is RoCE, the other InfiniBand"));
        }
        if peer.receives < 4 || peer.mtu_bytes < 256 || peer.number > 0xff_ffff {
            return Err(VerbsError::Peer("a size is out of range"));
        }
        if peer.is_ethernet && peer.gid.is_zero() {
            return Err(VerbsError::Peer("it has no address"));
        }
        let config = self.nic.config();
        let path = Path {
            port: config.port,
            gid_index: self.gid_index,
            is_ethernet: self.info.is_ethernet,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            mtu_code: mtu_code(u32::from(peer.mtu_bytes.min(self.info.mtu_bytes))),
            peer_gid: peer.gid,
            peer_lid: peer.lid,
            peer_number: peer.number,
            peer_psn: peer.psn,
            psn: self.info.psn,
            reads_made: self.info.reads_made.min(peer.reads_served),
            reads_served: self.info.reads_served.min(peer.reads_made),
            patience: config.patience,
        };
        connect(&self.pair, &path)?;
        let facts = ConnectionFacts {
            number: self.info.number,
            peer_number: peer.number,
            peer_gid: peer.gid,
            mtu_bytes: crate::device::mtu_bytes(path.mtu_code),
            reads_made: path.reads_made,
            reads_served: path.reads_served,
            inline_bytes: self.pair.inline_bytes(),
        };
        let Self { pair, mailbox, queues, connection, stamp, message_bytes_max, .. } = self;
        Ok(Ready {
            pair,
            mailbox,
            queues,
            connection,
            stamp,
            peer_receives: peer.receives,
            message_bytes_max,
            facts,
        })
    }
}

/// Connects, again when nobody answers for the peer's address: a link that has just come up takes a moment.
fn connect(pair: &QueuePair, path: &Path) -> Result<(), VerbsError> {
    for _ in 1..PATH_TRIES {
        match pair.connect(path) {
            Err(error) if error.is_unreachable() => std::thread::sleep(PATH_PAUSE),
            connected => return connected,
        }
    }
    pair.connect(path)
}

/// What was agreed on for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// Our queue pair's number.
    pub number: u32,
    /// The peer's.
    pub peer_number: u32,
    /// The peer's address.
    pub peer_gid: Gid,
    /// Bytes of payload of a packet.
    pub mtu_bytes: u32,
    /// Reads that we make at a time.
    pub reads_made: u8,
    /// Reads that we serve at a time.
    pub reads_served: u8,
    /// Bytes that a post can carry itself.
    pub inline_bytes: u32,
}

/// A connection for a lane to attach, and what the lane gives back after its end: drop it on a registrar thread.
#[derive(Debug)]
pub struct Ready {
    pub(crate) pair: Arc<QueuePair>,
    pub(crate) mailbox: Mailbox,
    pub(crate) queues: Box<Queues>,
    pub(crate) connection: ConnectionIndex,
    pub(crate) stamp: u16,
    pub(crate) peer_receives: u16,
    pub(crate) message_bytes_max: u32,
    pub(crate) facts: ConnectionFacts,
}

impl Ready {
    /// Which connection it is of.
    #[must_use]
    pub const fn connection(&self) -> ConnectionIndex {
        self.connection
    }

    /// What was agreed on.
    #[must_use]
    pub const fn facts(&self) -> ConnectionFacts {
        self.facts
    }

    /// The queue pair, so that a registrar can end the connection from outside: [`QueuePair::fail`].
    #[must_use]
    pub const fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infos_come_back_and_nonsense_does_not() {
        let info = EndpointInfo {
            number: 0x00ab_cdef,
            psn: 0x0012_3456,
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]),
            lid: 7,
            mtu_bytes: 4096,
            reads_made: 16,
            reads_served: 15,
            receives: 258,
            is_ethernet: true,
        };
        let words = info.to_words();
        assert_eq!(EndpointInfo::from_words(words), Some(info));
        for (word, bit) in [(0, 24), (0, 56), (3, 48), (4, 17), (4, 63)] {
            let mut wrong = words;
            wrong[word] |= 1 << bit;
            assert_eq!(EndpointInfo::from_words(wrong), None, "bit {bit} of word {word}");
        }
    }
}
