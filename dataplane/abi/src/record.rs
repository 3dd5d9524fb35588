//! Records: what two engines say to each other on a connection. At most 128 bytes each.
//!
//! Word 0 of every record has the same shape: kind, length, returned record credits, connection slot.

use crate::words::words;

/// Largest record in words.
pub const RECORD_WORDS_MAX: usize = 16;
/// Records that one side may have sent and not yet been given back, on one connection and direction.
pub const RECORD_WINDOW: u16 = 256;
/// Blocks that one CREDIT carries at most.
pub const CREDIT_BLOCKS_MAX: usize = 8;
/// Slot of a CREDIT that is for the connection and not for one transfer.
pub const SLOT_NONE: u16 = u16::MAX;
/// Initiator slots of a connection.
pub const SLOTS_MAX: u16 = 256;

words! {
    /// A staged chunk was written into a block: copy it home.
    pub struct Chunk: 4 {
        /// [`KIND_CHUNK`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot on this connection.
        slot: u16 = 0, 32;
        /// Block of the target's pool.
        block: u32 = 1, 0;
        /// Region: slot at the target.
        region_index: u32 = 1, 32;
        /// Region: epoch at the target.
        region_epoch: u32 = 2, 0;
        /// Bytes in the block.
        bytes: u32 = 2, 32;
        /// First byte in the region.
        offset: u64 = 3, 0;
    }
}

words! {
    /// All writes of the transfer on this connection came before this record. Only for transfers on several connections.
    pub struct Part: 2 {
        /// [`KIND_PART`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot.
        slot: u16 = 0, 32;
        /// The transfer's sequence.
        sequence: u64 = 1, 0;
    }
}

words! {
    /// Everything of the transfer was posted before this record on this connection: deliver and ACK.
    pub struct Fin: 8 {
        /// [`KIND_FIN`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot.
        slot: u16 = 0, 32;
        /// PART records to wait for on other connections.
        parts: u8 = 0, 48;
        /// [`crate::submission::NOTIFY_NONE`] and so on.
        notify: u8 = 0, 56;
        /// Region: slot at the target.
        region_index: u32 = 1, 0;
        /// Region: epoch at the target.
        region_epoch: u32 = 1, 32;
        /// First byte in the region.
        offset: u64 = 2, 0;
        /// Bytes of the whole transfer.
        bytes: u64 = 3, 0;
        /// Signal word.
        notify_index: u32 = 4, 0;
        /// How the receive leg went.
        receive_leg: u8 = 4, 32;
        /// Of a read: how the send leg went.
        send_leg: u8 = 4, 40;
        /// Of a read: why, a [`crate::Reason`] number.
        send_reason: u8 = 4, 48;
        /// Of a read: why the receive leg went as it did, a [`crate::Reason`] number.
        receive_reason: u8 = 4, 56;
        /// Addend or event value.
        notify_value: u64 = 5, 0;
        /// Generation of the receive plan that the initiator looked up.
        plan_generation: u64 = 6, 0;
        /// The transfer's sequence on this connection, for dropping duplicates.
        sequence: u64 = 7, 0;
    }
}

words! {
    /// The target's last word on a transfer.
    pub struct Ack: 3 {
        /// [`KIND_ACK`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot.
        slot: u16 = 0, 32;
        /// A [`crate::Code`] number.
        status: u16 = 0, 48;
        /// Nanoseconds from the first record of the transfer seen at the target to its delivery.
        receive_ns: u64 = 1, 0;
        /// The transfer's sequence.
        sequence: u64 = 2, 0;
    }
}

words! {
    /// Blocks of the target that the initiator may write into once each.
    pub struct Credit: 6 {
        /// [`KIND_CREDIT`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer that the large blocks are for, or [`SLOT_NONE`] for small blocks of the connection.
        slot: u16 = 0, 32;
        /// Blocks in this record.
        count: u8 = 0, 48;
        /// Epoch of the pool.
        pool_epoch: u32 = 1, 0;
        /// Blocks, two a word, low half first.
        blocks: [u64; 4] = 2, 0;
    }
}

words! {
    /// The initiator asks for large blocks for a transfer.
    pub struct Demand: 4 {
        /// [`KIND_DEMAND`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot.
        slot: u16 = 0, 32;
        /// Bytes of a chunk; each granted block takes one.
        chunk_bytes: u32 = 1, 0;
        /// Blocks that the initiator can use at once.
        depth: u16 = 1, 32;
        /// Chunks of the whole transfer.
        chunks: u64 = 2, 0;
        /// Generation of the receive plan that the initiator looked up.
        plan_generation: u64 = 3, 0;
    }
}

words! {
    /// The target asks for a write from the initiator's memory: the serving of a read. Its slot is the target's choice.
    pub struct ReadRequest: 8 {
        /// [`KIND_READ_REQ`].
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The read's slot.
        slot: u16 = 0, 32;
        /// Override of the send leg.
        send_leg: u8 = 0, 48;
        /// [`READ_DIRECT`] | [`READ_FREE`] | [`READ_STAGED`].
        flags: u8 = 0, 56;
        /// Source: slot of the region at the initiator.
        region_index: u32 = 1, 0;
        /// Source: epoch of the region at the initiator.
        region_epoch: u32 = 1, 32;
        /// Source: first byte in the region.
        offset: u64 = 2, 0;
        /// Bytes of the whole read.
        bytes: u64 = 3, 0;
        /// Destination: slot of the region at the target.
        into_index: u32 = 4, 0;
        /// Destination: epoch of the region at the target.
        into_epoch: u32 = 4, 32;
        /// Destination: first byte in the region.
        into_offset: u64 = 5, 0;
        /// The read's sequence.
        sequence: u64 = 6, 0;
        /// Microseconds until the target does not want it any more.
        deadline_us: u32 = 7, 0;
        /// Why the target chose its leg, a [`crate::Reason`] number.
        receive_reason: u8 = 7, 32;
    }
}

/// The destination of a read can be written straight.
pub const READ_DIRECT: u8 = 1;
/// The receive leg of a read may be changed under pressure.
pub const READ_FREE: u8 = 2;
/// The receive leg of a read goes through blocks.
pub const READ_STAGED: u8 = 4;

words! {
    /// A record with nothing but word 0 and a sequence: RECORD_CREDIT, CANCEL, RECALL and the like.
    pub struct Plain: 2 {
        /// The kind.
        kind: u8 = 0, 0;
        /// Length in words.
        words: u8 = 0, 8;
        /// Record credits given back.
        returned: u16 = 0, 16;
        /// The transfer's slot, or [`SLOT_NONE`].
        slot: u16 = 0, 32;
        /// A [`crate::Code`] number where the kind has one.
        status: u16 = 0, 48;
        /// The transfer's sequence, or the epoch that is recalled.
        sequence: u64 = 1, 0;
    }
}

/// CHUNK.
pub const KIND_CHUNK: u8 = 1;
/// PART.
pub const KIND_PART: u8 = 2;
/// FIN.
pub const KIND_FIN: u8 = 3;
/// ACK.
pub const KIND_ACK: u8 = 4;
/// CREDIT.
pub const KIND_CREDIT: u8 = 5;
/// RECALL: give back the blocks of an epoch.
pub const KIND_RECALL: u8 = 6;
/// RECORD_CREDIT: nothing but returned record credits.
pub const KIND_RECORD_CREDIT: u8 = 7;
/// READ_REQ: serve a read.
pub const KIND_READ_REQ: u8 = 8;
/// CANCEL: nothing more comes for this transfer; say how it ended.
pub const KIND_CANCEL: u8 = 9;
/// CANCELLED: nothing lands any more; `status` is 0 if the transfer was delivered before.
pub const KIND_CANCELLED: u8 = 10;
/// REVOKE, reserved for revocation.
pub const KIND_REVOKE: u8 = 11;
/// REVOKED, reserved for revocation.
pub const KIND_REVOKED: u8 = 12;
/// REPLAN: the demand does not fit the target's plan any more; look the plan up again and retry once.
pub const KIND_REPLAN: u8 = 13;
/// DEMAND.
pub const KIND_DEMAND: u8 = 14;
/// READ_CANCEL: a read is not wanted any more; CANCEL or FIN follows, or has gone out already.
pub const KIND_READ_CANCEL: u8 = 15;

/// A record as it travels: its words and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord {
    /// The words; those past [`RawRecord::len`] are zero.
    pub words: [u64; RECORD_WORDS_MAX],
}

impl RawRecord {
    /// Length in words, as word 0 says, at most [`RECORD_WORDS_MAX`].
    #[must_use]
    pub fn len(&self) -> usize {
        (((self.words[0] >> 8) & 0xff) as usize).clamp(1, RECORD_WORDS_MAX)
    }

    /// Never: every record has word 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Sets the field `returned` of word 0.
    pub fn set_returned(&mut self, returned: u16) {
        self.words[0] = (self.words[0] & !0xffff_0000) | (u64::from(returned) << 16);
    }
}

/// A record that was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant holds the structure documented above, or a kind documented above"
)]
pub enum Record {
    Chunk(Chunk),
    Part(Part),
    Fin(Fin),
    Ack(Ack),
    Credit(Credit),
    Recall(Plain),
    RecordCredit(Plain),
    Cancel(Plain),
    Cancelled(Plain),
    Replan(Plain),
    Demand(Demand),
    ReadRequest(ReadRequest),
    ReadCancel(Plain),
}

/// The words do not hold a record of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

macro_rules! record_codec {
    ($( $variant:ident($ty:ident) = $kind:ident ),* $(,)?) => {
        impl Record {
            /// The record as words; kind and length are set here, `returned` is left for the sender.
            #[must_use]
            pub fn encode(&self) -> RawRecord {
                let mut raw = RawRecord { words: [0; RECORD_WORDS_MAX] };
                match self { $(
                    Record::$variant(record) => {
                        let mut record = *record;
                        record.kind = $kind;
                        #[expect(clippy::cast_possible_truncation, reason = "at most RECORD_WORDS_MAX")]
                        { record.words = $ty::WORDS as u8; }
                        raw.words[..$ty::WORDS].copy_from_slice(&record.encode());
                    }
                )* }
                raw
            }

            /// Reads a record and the record credits that it gives back.
            ///
            /// # Errors
            /// [`Malformed`] if the kind is unknown, the length is not the kind's, or reserved bits are set.
            pub fn decode(raw: &RawRecord) -> Result<(Record, u16), Malformed> {
                #[expect(clippy::cast_possible_truncation, reason = "these bits are the field")]
                let (kind, returned) = (raw.words[0] as u8, (raw.words[0] >> 16) as u16);
                match kind {
                    $( $kind => {
                        if raw.len() != $ty::WORDS || !$crate::words::reserved_is_zero::<$ty>(&raw.words) {
                            return Err(Malformed);
                        }
                        let mut words = [0; $ty::WORDS];
                        words.copy_from_slice(&raw.words[..$ty::WORDS]);
                        Ok((Record::$variant($ty::decode(&words)), returned))
                    } )*
                    _ => Err(Malformed),
                }
            }
        }
    };
}

record_codec! {
    Chunk(Chunk) = KIND_CHUNK,
    Part(Part) = KIND_PART,
    Fin(Fin) = KIND_FIN,
    Ack(Ack) = KIND_ACK,
    Credit(Credit) = KIND_CREDIT,
    Recall(Plain) = KIND_RECALL,
    RecordCredit(Plain) = KIND_RECORD_CREDIT,
    Cancel(Plain) = KIND_CANCEL,
    Cancelled(Plain) = KIND_CANCELLED,
    Replan(Plain) = KIND_REPLAN,
    Demand(Demand) = KIND_DEMAND,
    ReadRequest(ReadRequest) = KIND_READ_REQ,
    ReadCancel(Plain) = KIND_READ_CANCEL,
}

impl Credit {
    /// A CREDIT for `blocks`, at most [`CREDIT_BLOCKS_MAX`].
    #[must_use]
    pub fn of(slot: u16, pool_epoch: u32, blocks: &[u32]) -> Self {
        let mut words = [0u64; 4];
        let count = blocks.len().min(CREDIT_BLOCKS_MAX);
        for (at, block) in blocks[..count].iter().enumerate() {
            words[at / 2] |= u64::from(*block) << (32 * (at % 2));
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most CREDIT_BLOCKS_MAX")]
        let count = count as u8;
        Self { slot, count, pool_epoch, blocks: words, ..Self::default() }
    }

    /// The blocks; a count above the maximum is cut.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let count = usize::from(self.count).min(CREDIT_BLOCKS_MAX);
        #[expect(clippy::cast_possible_truncation, reason = "these bits are the block")]
        (0..count).map(|at| (self.blocks[at / 2] >> (32 * (at % 2))) as u32)
    }
}
