//! What a client asks for, and what it is told: the entries of a port's two rings.

use crate::words::words;

/// Moves bytes from a local region to a remote region.
pub const OPERATION_WRITE: u8 = 1;

/// Moves bytes from a remote region to a local region.
pub const OPERATION_READ: u8 = 2;

/// Success means that the data can be read at the target by everyone. The default.
pub const LEVEL_VISIBLE: u8 = 0;
/// Success means that the target's device has the data and the source may be reused. Where that is not known without
/// the target's engine, the same as [`LEVEL_VISIBLE`].
pub const LEVEL_PLACED: u8 = 1;

/// Small messages; capped by the live share `latency_share_percent`.
pub const CLASS_LATENCY: u8 = 0;
/// Large messages.
pub const CLASS_BULK: u8 = 1;
/// Number of classes.
pub const CLASSES: usize = 2;

/// The leg is chosen by the rules.
pub const LEG_AUTO: u8 = 0;
/// The leg goes through a staging block.
pub const LEG_STAGED: u8 = 1;
/// The leg uses the region itself.
pub const LEG_DIRECT: u8 = 2;

/// No notification at the target.
pub const NOTIFY_NONE: u8 = 0;
/// Adds `notify_value` to signal word `notify_index` of the target session.
pub const NOTIFY_SIGNAL: u8 = 1;
/// Puts an event with `notify_value` into the target session's event ring of the receiving lane.
pub const NOTIFY_EVENT: u8 = 2;

words! {
    /// One submission, 128 bytes. All bits not named here must be zero.
    pub struct Submission: 16 {
        /// [`OPERATION_WRITE`] or [`OPERATION_READ`].
        operation: u8 = 0, 0;
        /// [`CLASS_LATENCY`] or [`CLASS_BULK`].
        class: u8 = 0, 8;
        /// Override of the send leg, of a read that of the remote region: [`LEG_AUTO`], [`LEG_STAGED`], [`LEG_DIRECT`].
        send_leg: u8 = 0, 16;
        /// Override of the receive leg.
        receive_leg: u8 = 0, 24;
        /// [`NOTIFY_NONE`], [`NOTIFY_SIGNAL`], [`NOTIFY_EVENT`].
        notify: u8 = 0, 32;
        /// Bytes of inline data, at most 32; not yet supported, must be 0.
        inline_bytes: u8 = 0, 40;
        /// Entries of the scatter list; not yet supported, must be 0.
        list_count: u16 = 0, 48;
        /// Given back in the completion.
        cookie: u64 = 1, 0;
        /// Local region: slot.
        local_index: u32 = 2, 0;
        /// Local region: generation.
        local_generation: u32 = 2, 32;
        /// First byte in the local region.
        local_offset: u64 = 3, 0;
        /// Remote handle: slot.
        remote_index: u32 = 4, 0;
        /// Remote handle: generation.
        remote_generation: u32 = 4, 32;
        /// First byte in the remote region.
        remote_offset: u64 = 5, 0;
        /// Bytes to move; 0 is a pure notification.
        bytes: u64 = 6, 0;
        /// Microseconds from intake to the deadline; 0 takes the setting `deadline_ms`.
        deadline_us: u32 = 7, 0;
        /// Completion group; not yet supported, must be 0.
        group: u16 = 7, 32;
        /// What success means: [`LEVEL_VISIBLE`] or [`LEVEL_PLACED`]; for transfers that notify always visible.
        level: u8 = 7, 48;
        /// Gate word; not yet supported, must be 0.
        gate_index: u32 = 8, 0;
        /// Gate value; not yet supported, must be 0.
        gate_value: u32 = 8, 32;
        /// Signal word of the target session; 0 for events.
        notify_index: u32 = 9, 0;
        /// Scatter list in session memory; not yet supported, must be 0.
        list_index: u32 = 9, 32;
        /// What to add to the signal, or the event's value.
        notify_value: u64 = 10, 0;
        /// Inline data; not yet supported, must be 0.
        inline_data: [u64; 4] = 12, 0;
    }
}

/// Which side a failure is about.
pub const SIDE_NONE: u8 = 0;
/// This node, its memory or its devices.
pub const SIDE_LOCAL: u8 = 1;
/// The peer, its memory or its devices.
pub const SIDE_REMOTE: u8 = 2;
/// The path between the nodes.
pub const SIDE_FABRIC: u8 = 3;

words! {
    /// One completion, 64 bytes: exactly one for each submission that was taken from the ring.
    pub struct Completion: 8 {
        /// The submission's cookie.
        cookie: u64 = 0, 0;
        /// The transfer's ticket, as in the flight recorder; 0 if refused.
        ticket: u64 = 1, 0;
        /// A [`crate::Code`] number; 0 is success.
        status: u16 = 2, 0;
        /// [`SIDE_NONE`] .. [`SIDE_FABRIC`].
        side: u8 = 2, 16;
        /// 1 if the same submission may succeed when made again.
        retry: u8 = 2, 24;
        /// How the send leg went: [`LEG_STAGED`] or [`LEG_DIRECT`]; 0 if nothing was posted.
        send_leg: u8 = 2, 32;
        /// How the receive leg went.
        receive_leg: u8 = 2, 40;
        /// A [`crate::Reason`] number: why the send leg went so.
        send_reason: u8 = 2, 48;
        /// A [`crate::Reason`] number: why the receive leg went so.
        receive_reason: u8 = 2, 56;
        /// Bytes moved; the submission's bytes on success.
        bytes: u64 = 3, 0;
        /// Settings generation that chose the route.
        generation: u64 = 4, 0;
        /// Nanoseconds from intake to completion.
        duration_ns: u64 = 5, 0;
    }
}

words! {
    /// An entry of a session's event ring.
    pub struct SessionEvent: 4 {
        /// The initiator's value.
        value: u64 = 0, 0;
        /// Slot of the region that was written.
        region_index: u32 = 1, 0;
        /// Its generation.
        region_generation: u32 = 1, 32;
        /// First byte written.
        offset: u64 = 2, 0;
        /// Bytes written.
        bytes: u64 = 3, 0;
    }
}

macro_rules! reasons {
    ($( $variant:ident = $number:literal, $name:literal, $text:literal; )*) => {
        /// Why a leg of a transfer went the way it did.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason { $( #[doc = $text] $variant = $number, )* }
        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[ $( Reason::$variant, )* ];
            /// The reason of a number.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $( $number => Some(Reason::$variant), )* _ => None }
            }
            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Reason::$variant => $name, )* }
            }
            /// For people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( Reason::$variant => $text, )* }
            }
        }
    };
}

reasons! {
    None = 0, "none", "no leg was chosen";
    Impossible = 1, "impossible", "direct is not possible for this region";
    Override = 2, "override", "the submission asked for it";
    Mode = 3, "mode", "the mode of this leg is forced by the settings";
    BelowThreshold = 4, "below_threshold", "fewer bytes than direct_from_bytes of this leg";
    FromThreshold = 5, "from_threshold", "at least direct_from_bytes of this leg";
    Pressure = 6, "pressure", "no staging block was free for pressure_wait_us";
    Replanned = 7, "replanned", "the peer demanded another route than its plan said";
    Empty = 8, "empty", "there are no bytes to move";
}
