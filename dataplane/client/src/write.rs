//! What a transfer is asked for with, as plain data.

use railhead_abi::submission::{
    CLASS_BULK, CLASS_LATENCY, LEG_AUTO, LEG_DIRECT, LEG_STAGED, LEVEL_PLACED, LEVEL_VISIBLE, NOTIFY_EVENT,
    NOTIFY_NONE, NOTIFY_SIGNAL, OPERATION_READ, OPERATION_WRITE, Submission,
};

/// Names a registered region of this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct RegionHandle {
    /// Slot.
    pub index: u32,
    /// Tells a reused slot apart.
    pub generation: u32,
}

/// Names an opened remote region of this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct RemoteHandle {
    /// Slot.
    pub index: u32,
    /// Tells a reused slot apart.
    pub generation: u32,
}

/// Which queue a transfer waits in. An open number rather than an enum: what C passes is checked by the dataplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Class(pub u8);

impl Class {
    /// Small messages, ahead of bulk up to a live share.
    pub const LATENCY: Self = Self(CLASS_LATENCY);
    /// Large messages.
    pub const BULK: Self = Self(CLASS_BULK);
}

impl Default for Class {
    fn default() -> Self {
        Self::BULK
    }
}

/// How one leg of a route shall go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Leg(pub u8);

impl Leg {
    /// By the dataplane's settings.
    pub const AUTO: Self = Self(LEG_AUTO);
    /// Through a staging block; waits for one under pressure.
    pub const STAGED: Self = Self(LEG_STAGED);
    /// Straight from or to the region; refused where that is impossible.
    pub const DIRECT: Self = Self(LEG_DIRECT);

    /// The stable name, as in JSON: `auto`, `staged`, `direct`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AUTO => "auto",
            Self::STAGED => "staged",
            Self::DIRECT => "direct",
            _ => "unknown",
        }
    }
}

/// What a successful completion of a write means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Level(pub u8);

impl Level {
    /// The data can be read at the target by everyone.
    pub const VISIBLE: Self = Self(LEVEL_VISIBLE);
    /// The target's device has the data and the source may be reused; the data may be seen a moment later. Saves a round
    /// trip over RDMA, for writes that go straight into the region and notify nobody; else the same as visible.
    pub const PLACED: Self = Self(LEVEL_PLACED);
}

/// What the target session is told once the data can be read there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Notify {
    /// `NOTIFY_NONE`, `NOTIFY_SIGNAL` or `NOTIFY_EVENT` of the abi.
    pub kind: u8,
    /// Signal word; 0 for events.
    pub index: u32,
    /// What to add to the signal, or the event's value.
    pub value: u64,
}

impl Notify {
    /// Nothing.
    pub const NONE: Self = Self { kind: NOTIFY_NONE, index: 0, value: 0 };

    /// Adds `value` to signal word `index` of the session that owns the remote region. Never full.
    #[must_use]
    pub const fn signal(index: u32, value: u64) -> Self {
        Self { kind: NOTIFY_SIGNAL, index, value }
    }

    /// Puts an event with `value` into the event ring of the session that owns the remote region. Without room there the
    /// transfer waits.
    #[must_use]
    pub const fn event(value: u64) -> Self {
        Self { kind: NOTIFY_EVENT, index: 0, value }
    }
}

/// A one-sided write from a region of this session to a remote region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Write {
    /// Given back in the completion, and shown in the flight recorder. Need not be unique.
    pub cookie: u64,
    /// Source.
    pub local: RegionHandle,
    /// First byte in the source.
    pub local_offset: u64,
    /// Destination.
    pub remote: RemoteHandle,
    /// First byte in the destination.
    pub remote_offset: u64,
    /// Bytes to move; 0 is a pure notification.
    pub bytes: u64,
    /// Queue.
    pub class: Class,
    /// Override of the send leg.
    pub send_leg: Leg,
    /// Override of the receive leg.
    pub receive_leg: Leg,
    /// Microseconds from intake to the deadline; 0 takes the dataplane's setting `deadline_ms`.
    pub deadline_us: u32,
    /// What the target session is told.
    pub notify: Notify,
    /// What success means.
    pub level: Level,
}

/// A one-sided read from a remote region, opened with [`crate::ACCESS_READ`], into a region of this session.
///
/// Success means that the bytes stand in the local region, for everyone to see. When it has completed, however it ended,
/// no byte of it lands in the local region any more: it never ends `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Read {
    /// Given back in the completion, and shown in the flight recorder. Need not be unique.
    pub cookie: u64,
    /// Destination; registered with [`crate::ACCESS_WRITE`].
    pub local: RegionHandle,
    /// First byte in the destination.
    pub local_offset: u64,
    /// Source.
    pub remote: RemoteHandle,
    /// First byte in the source.
    pub remote_offset: u64,
    /// Bytes to move; may be 0.
    pub bytes: u64,
    /// Queue.
    pub class: Class,
    /// Override of the send leg, which is the remote node's.
    pub send_leg: Leg,
    /// Override of the receive leg, which is this node's.
    pub receive_leg: Leg,
    /// Microseconds from intake to the deadline; 0 takes the dataplane's setting `deadline_ms`.
    pub deadline_us: u32,
}

impl Read {
    /// The entry of the submission ring; bits without a name are zero.
    #[must_use]
    pub(crate) fn submission(&self) -> Submission {
        Submission {
            operation: OPERATION_READ,
            class: self.class.0,
            send_leg: self.send_leg.0,
            receive_leg: self.receive_leg.0,
            cookie: self.cookie,
            local_index: self.local.index,
            local_generation: self.local.generation,
            local_offset: self.local_offset,
            remote_index: self.remote.index,
            remote_generation: self.remote.generation,
            remote_offset: self.remote_offset,
            bytes: self.bytes,
            deadline_us: self.deadline_us,
            ..Submission::default()
        }
    }
}

impl Write {
    /// The entry of the submission ring; bits without a name are zero.
    #[must_use]
    pub(crate) fn submission(&self) -> Submission {
        Submission {
            operation: OPERATION_WRITE,
            class: self.class.0,
            send_leg: self.send_leg.0,
            receive_leg: self.receive_leg.0,
            notify: self.notify.kind,
            level: self.level.0,
            cookie: self.cookie,
            local_index: self.local.index,
            local_generation: self.local.generation,
            local_offset: self.local_offset,
            remote_index: self.remote.index,
            remote_generation: self.remote.generation,
            remote_offset: self.remote_offset,
            bytes: self.bytes,
            deadline_us: self.deadline_us,
            notify_index: self.notify.index,
            notify_value: self.notify.value,
            ..Submission::default()
        }
    }
}
