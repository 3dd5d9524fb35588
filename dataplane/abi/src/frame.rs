//! Frames: messages on the session socket, the admin socket and the handshake channel of two nodes.
//!
//! A frame is a prefix of 16 bytes that never changes and a body of words, all little-endian.

use crate::codes::Code;
use crate::words::{Layout, words};

mod text;

pub use text::{NAME_BYTES_MAX, NAME_WORDS, Name, Text, is_name, name_words, text_words};

/// First four bytes of every frame: `RHD1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RHD1");
/// Words of the prefix.
pub const PREFIX_WORDS: usize = 2;
/// Largest frame in words, prefix included.
pub const FRAME_WORDS_MAX: usize = 64;
/// Largest frame in bytes.
pub const FRAME_BYTES_MAX: usize = FRAME_WORDS_MAX * 8;

words! {
    /// The frozen prefix.
    pub struct Prefix: 2 {
        /// [`MAGIC`].
        magic: u32 = 0, 0;
        /// [`crate::ABI_VERSION`] on local sockets, the protocol's major version between nodes.
        version: u16 = 0, 32;
        /// Which frame.
        kind: u16 = 0, 48;
        /// Bytes of the whole frame.
        length: u32 = 1, 0;
    }
}

words! {
    /// Client: I want to attach.
    pub struct Hello: 12 {
        /// Session name; empty is replaced by `pid-N`.
        name: Name = 0, 0;
        /// Ports wanted, spread over the lanes.
        ports: u32 = 8, 0;
        /// Submissions and completions that each port's rings hold, a power of two up to 1,024; 0 is 256.
        entries: u32 = 8, 32;
    }
}

words! {
    /// Dataplane: attached. Carries the session memory, the lanes' page, then one eventfd per lane.
    pub struct Welcome: 24 {
        /// Incarnation of the dataplane.
        incarnation: u64 = 0, 0;
        /// Session slot.
        session: u32 = 1, 0;
        /// Lanes of the dataplane.
        lanes: u32 = 1, 32;
        /// Ports granted.
        ports: u32 = 2, 0;
        /// Entries of each ring.
        entries: u32 = 2, 32;
        /// Entries of each event ring.
        event_entries: u32 = 3, 0;
        /// Signal words.
        signals: u32 = 3, 32;
        /// This node's name.
        node: Name = 4, 0;
        /// The session's name.
        name: Name = 12, 0;
    }
}

/// The region may be read by transfers.
pub const ACCESS_READ: u32 = 1;
/// The region may be written by transfers.
pub const ACCESS_WRITE: u32 = 2;

words! {
    /// Client: register the memory file that comes with this frame.
    pub struct Register: 24 {
        /// First byte of the region in the file; a multiple of its page size.
        offset: u64 = 0, 0;
        /// Bytes of the region.
        bytes: u64 = 1, 0;
        /// [`ACCESS_READ`] | [`ACCESS_WRITE`].
        access: u32 = 2, 0;
        /// Name; empty means that nobody else can open it.
        name: Name = 3, 0;
        /// Who may open it: `NODE/NAME` of a session, `NODE/*`, or `*`; empty: nobody.
        grant: [u64; 12] = 11, 0;
    }
}

words! {
    /// Dataplane: a handle.
    pub struct Handle: 8 {
        /// Slot.
        index: u32 = 0, 0;
        /// Generation.
        generation: u32 = 0, 32;
        /// Bytes of the region.
        bytes: u64 = 1, 0;
        /// Bytes of the pages that it lies on.
        page_bytes: u64 = 2, 0;
        /// Peer slot for remote handles, `u32::MAX` for local ones.
        peer: u32 = 3, 0;
        /// The remote session that owns it, for notifications.
        session: u32 = 3, 32;
    }
}

words! {
    /// Client: give this handle back.
    pub struct Release: 2 {
        /// Slot.
        index: u32 = 0, 0;
        /// Generation.
        generation: u32 = 0, 32;
        /// 0 for a region, 1 for a remote handle.
        remote: u32 = 1, 0;
    }
}

words! {
    /// Client: open a remote region. The peer `self` or this node's own name is this node.
    pub struct Open: 20 {
        /// The peer's name.
        node: Name = 0, 0;
        /// The region's name.
        region: Name = 8, 0;
        /// [`ACCESS_READ`] | [`ACCESS_WRITE`]: what it is opened for.
        access: u32 = 16, 0;
    }
}

words! {
    /// No, and why.
    pub struct Refused: 26 {
        /// A [`Code`] number.
        code: u16 = 0, 0;
        /// A figure that belongs to the code, such as the holder's pid.
        figure: u64 = 1, 0;
        /// The field or the cause, zero-padded UTF-8.
        detail: [u64; 24] = 2, 0;
    }
}

words! {
    /// A frame without content.
    pub struct Empty: 1 {
        /// A figure that belongs to the kind.
        figure: u64 = 0, 0;
    }
}

words! {
    /// Control: I want to hold this dataplane.
    pub struct AdminHello: 4 {
        /// 1 to write settings, 0 to look only.
        hold: u32 = 0, 0;
        /// Process id.
        pid: u32 = 0, 32;
    }
}

words! {
    /// Dataplane: the control segment comes with this frame.
    pub struct AdminWelcome: 20 {
        /// Incarnation of the dataplane.
        incarnation: u64 = 0, 0;
        /// Words of the control segment.
        segment_words: u64 = 1, 0;
        /// Process id of the dataplane.
        pid: u32 = 2, 0;
        /// Lanes.
        lanes: u32 = 2, 32;
        /// This node's name.
        node: Name = 4, 0;
    }
}

/// [`AdminCommand::command`]: add the peer `name` at `address`.
pub const ADMIN_PEER_ADD: u16 = 1;
/// [`AdminCommand::command`]: remove the peer `name`; its transfers may end by themselves for `limit_ms`.
pub const ADMIN_PEER_REMOVE: u16 = 2;

words! {
    /// Control, which holds the dataplane: do something that is not a number of a snapshot. Answered in any order.
    pub struct AdminCommand: 36 {
        /// Given back in the answer.
        cookie: u64 = 0, 0;
        /// [`ADMIN_PEER_ADD`] ..
        command: u16 = 1, 0;
        /// How long what is under way may take to end by itself.
        limit_ms: u32 = 1, 32;
        /// Name of what it is about.
        name: Name = 2, 0;
        /// An address as text, zero-padded.
        address: Name = 10, 0;
    }
}

words! {
    /// Dataplane: the command was carried out, or refused and nothing changed.
    pub struct AdminAnswer: 36 {
        /// Of the command.
        cookie: u64 = 0, 0;
        /// A [`Code`] number; 0 is success.
        status: u16 = 1, 0;
        /// A figure that belongs to the command, such as the slot of a peer.
        figure: u64 = 2, 0;
        /// The field of the command to blame, empty if none is.
        field: [u64; 4] = 4, 0;
        /// What is wrong this time, zero-padded UTF-8.
        detail: [u64; 24] = 8, 0;
    }
}

words! {
    /// Node to node, inside the authenticated channel: who I am.
    pub struct NodeHello: 16 {
        /// This node's name.
        node: Name = 0, 0;
        /// Incarnation.
        incarnation: u64 = 8, 0;
        /// Major version of the protocol.
        major: u16 = 9, 0;
        /// Minor version.
        minor: u16 = 9, 16;
        /// Lanes of this node.
        lanes: u32 = 9, 32;
        /// Feature bits.
        features: u64 = 10, 0;
        /// Slots that each data connection has.
        slots: u16 = 11, 0;
        /// RDMA rails that every lane of this node has; 0 means that it is reached over TCP.
        rails: u16 = 11, 16;
        /// Bytes of a small block.
        small_bytes: u32 = 11, 32;
        /// Bytes of a large block.
        large_bytes: u32 = 12, 0;
        /// Random token that data connections of this channel are bound to.
        token: u64 = 13, 0;
    }
}

words! {
    /// Node to node: open a region of yours for a session of mine.
    pub struct NodeOpen: 24 {
        /// Given back in the answer.
        cookie: u64 = 0, 0;
        /// The region's name.
        region: Name = 1, 0;
        /// The session's name at the asking node.
        session: Name = 9, 0;
        /// [`ACCESS_READ`] | [`ACCESS_WRITE`]: what it is opened for.
        access: u32 = 17, 0;
        /// My connections that have ended here, one bit a lane: end your ends of them before you answer, so that nothing of
        /// earlier transfers lands any more. By class; sockets first, then RDMA.
        dead: [u64; 4] = 18, 0;
    }
}

words! {
    /// Node to node: the region is yours to use.
    pub struct NodeOpened: 12 {
        /// Of the request.
        cookie: u64 = 0, 0;
        /// A [`Code`] number; 0 is success.
        status: u16 = 1, 0;
        /// Key: slot.
        index: u32 = 2, 0;
        /// Key: epoch.
        epoch: u32 = 2, 32;
        /// Bytes of the region.
        bytes: u64 = 3, 0;
        /// Session that owns it.
        session: u32 = 4, 0;
        /// 1 if direct is possible.
        direct_possible: u8 = 4, 32;
        /// Mode of the receive leg of writes.
        mode: u8 = 4, 40;
        /// Mode of the send leg of reads.
        send_mode: u8 = 4, 48;
        /// In mode auto, direct from this many bytes.
        direct_from_bytes: u64 = 5, 0;
        /// Generation of this plan.
        plan_generation: u64 = 6, 0;
        /// RDMA: address of the first byte.
        address: u64 = 7, 0;
        /// RDMA: the memory key at each rail, two a word, low half first; 0 where it is not registered.
        keys: [u64; 2] = 8, 0;
        /// RDMA: [`ACCESS_READ`] | [`ACCESS_WRITE`], what the keys permit.
        access: u32 = 10, 0;
        /// Of the send leg, in mode auto, direct from this many bytes.
        send_direct_from_bytes: u64 = 11, 0;
    }
}

words! {
    /// Node to node: one end of an RDMA connection. The initiator offers its end, the target answers with its own.
    pub struct NodeEndpoint: 16 {
        /// Of the initiator; given back in the answer.
        cookie: u64 = 0, 0;
        /// Lane of who dials.
        lane: u32 = 1, 0;
        /// Lane of the other.
        target_lane: u32 = 1, 32;
        /// Class.
        class: u8 = 2, 0;
        /// Which rail of both nodes.
        rail: u8 = 2, 8;
        /// Answer: a [`Code`] number; 0 is success.
        status: u16 = 2, 16;
        /// The queue pair: number, packet number, addresses, MTU, depths, as the adapter packs them.
        endpoint: [u64; 5] = 3, 0;
        /// The lane's staging arena: address of its first byte.
        arena_address: u64 = 8, 0;
        /// Its bytes.
        arena_bytes: u64 = 9, 0;
        /// Its memory key at the rail.
        arena_key: u32 = 10, 0;
        /// Its epoch.
        arena_epoch: u32 = 10, 32;
    }
}

words! {
    /// Node to node: how others shall use this node's memory has changed.
    pub struct NodePlan: 4 {
        /// Mode of the receive leg of writes.
        mode: u8 = 0, 0;
        /// Mode of the send leg of reads.
        send_mode: u8 = 0, 8;
        /// In mode auto, direct from this many bytes.
        direct_from_bytes: u64 = 1, 0;
        /// Generation of this plan.
        generation: u64 = 2, 0;
        /// Of the send leg, in mode auto, direct from this many bytes.
        send_direct_from_bytes: u64 = 3, 0;
    }
}

words! {
    /// Node to node, from a holder: one handle of this key less is open.
    pub struct NodeClose: 2 {
        /// Slot.
        index: u32 = 0, 0;
        /// Epoch.
        epoch: u32 = 0, 32;
    }
}

words! {
    /// Node to node, from the owner: this key ends; stop using it and say so. As the answer, from a holder: no lane of mine
    /// uses it any more.
    pub struct NodeRevoke: 2 {
        /// Slot.
        index: u32 = 0, 0;
        /// Epoch.
        epoch: u32 = 0, 32;
        /// How long the owner waits for the answer.
        limit_ms: u32 = 1, 0;
    }
}

words! {
    /// First bytes of a data connection, before any record. Who dials is the initiator, but for reads.
    pub struct DataHello: 12 {
        /// Token of the authenticated channel.
        token: u64 = 0, 0;
        /// Lane of who dials.
        lane: u32 = 1, 0;
        /// Lane of the other.
        target_lane: u32 = 1, 32;
        /// Class.
        class: u32 = 2, 0;
        /// Attempt, so that no MAC is ever valid twice.
        attempt: u32 = 2, 32;
        /// 1 if it is for reads: who dials is the target, and is served on it.
        serves: u32 = 3, 0;
        /// Keyed digest over the words above and the handshake hash.
        mac: [u64; 4] = 4, 0;
    }
}

macro_rules! kinds {
    ($( $variant:ident = $number:literal => $body:ident, $text:literal; )*) => {
        /// Which frame: kinds below 100 on the session socket, below 200 on the admin socket, below 300 between nodes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub enum FrameKind { $( #[doc = $text] $variant = $number, )* }
        impl FrameKind {
            /// The kind of a number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $( $number => Some(FrameKind::$variant), )* _ => None }
            }
        }
        /// A frame that was understood.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Frame { $( #[doc = $text] $variant($body), )* }
        impl Frame {
            /// Writes the frame; returns its bytes.
            #[must_use]
            pub fn encode(&self, version: u16) -> ([u8; FRAME_BYTES_MAX], usize) {
                match self { $( Frame::$variant(body) => encode_frame(version, $number, &body.encode()), )* }
            }
            /// Reads a frame.
            ///
            /// # Errors
            /// [`Code::FrameMalformed`], or [`Code::VersionMismatch`] if the prefix is of another version.
            pub fn decode(version: u16, bytes: &[u8]) -> Result<Frame, Code> {
                let (kind, words) = decode_frame(version, bytes)?;
                match kind {
                    $( $number => {
                        let body = words.get(PREFIX_WORDS..PREFIX_WORDS + $body::WORDS).ok_or(Code::FrameMalformed)?;
                        if bytes.len() != 8 * (PREFIX_WORDS + $body::WORDS) {
                            return Err(Code::FrameMalformed);
                        }
                        let body = body.try_into().map_err(|_| Code::FrameMalformed)?;
                        Ok(Frame::$variant($body::decode(body)))
                    } )*
                    _ => Err(Code::FrameMalformed),
                }
            }
        }
    };
}

kinds! {
    Hello = 1 => Hello, "client to dataplane: attach";
    Welcome = 2 => Welcome, "dataplane to client: attached";
    Register = 3 => Register, "client to dataplane: register a region";
    Registered = 4 => Handle, "dataplane to client: registered";
    Open = 5 => Open, "client to dataplane: open a remote region";
    Opened = 6 => Handle, "dataplane to client: opened";
    Release = 7 => Release, "client to dataplane: give a handle back";
    Released = 8 => Empty, "dataplane to client: given back";
    Refused = 9 => Refused, "either way, on every socket: no";

    AdminHello = 101 => AdminHello, "control to dataplane: hold or look";
    AdminWelcome = 102 => AdminWelcome, "dataplane to control: here is the segment";
    AdminWake = 103 => Empty, "control to dataplane: a snapshot was published";
    AdminCommand = 104 => AdminCommand, "control to dataplane: do what is no setting";
    AdminAnswer = 105 => AdminAnswer, "dataplane to control: done, or why not";

    NodeHello = 201 => NodeHello, "node to node: who I am";
    NodeOpen = 202 => NodeOpen, "node to node: open a region";
    NodeOpened = 203 => NodeOpened, "node to node: answer to open";
    NodePlan = 204 => NodePlan, "node to node: new receive plan";
    NodePlanned = 205 => Empty, "node to node: receive plan of this generation is in use";
    NodeClose = 206 => NodeClose, "node to node: a handle is given back";
    Heartbeat = 208 => Empty, "node to node: alive";
    DataHello = 209 => DataHello, "first frame of a data connection";
    DataReady = 210 => Empty, "answer to DataHello";
    NodeRevoke = 211 => NodeRevoke, "node to node: give this key up";
    NodeRevoked = 212 => NodeRevoke, "node to node: the key is given up";
    NodeOffer = 213 => NodeEndpoint, "node to node: my end of an RDMA connection";
    NodeAnswer = 214 => NodeEndpoint, "node to node: answer to an offer, with my end";
}

fn encode_frame(version: u16, kind: u16, body: &[u64]) -> ([u8; FRAME_BYTES_MAX], usize) {
    let mut bytes = [0; FRAME_BYTES_MAX];
    let length = 8 * (PREFIX_WORDS + body.len());
    #[expect(clippy::cast_possible_truncation, reason = "at most FRAME_BYTES_MAX")]
    let prefix = Prefix { magic: MAGIC, version, kind, length: length as u32 };
    for (at, word) in prefix.encode().iter().chain(body).enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    }
    (bytes, length)
}

fn decode_frame(version: u16, bytes: &[u8]) -> Result<(u16, [u64; FRAME_WORDS_MAX]), Code> {
    if bytes.len() < 8 * PREFIX_WORDS || bytes.len() > FRAME_BYTES_MAX || !bytes.len().is_multiple_of(8) {
        return Err(Code::FrameMalformed);
    }
    let mut words = [0u64; FRAME_WORDS_MAX];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    let prefix = Prefix::decode(&[words[0], words[1]]);
    if prefix.magic != MAGIC || prefix.length as usize != bytes.len() {
        return Err(Code::FrameMalformed);
    }
    if prefix.version != version {
        return Err(Code::VersionMismatch);
    }
    Ok((prefix.kind, words))
}

impl Refused {
    /// A refusal with a cause in words.
    #[must_use]
    pub fn because(code: Code, detail: &str) -> Self {
        Self { code: code.number(), figure: 0, detail: text_words(detail) }
    }
}

const _: () = assert!(<Refused as Layout>::WORDS + PREFIX_WORDS <= FRAME_WORDS_MAX);
