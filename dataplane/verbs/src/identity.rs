//! What a completion says of its request: 64 bits that travel through the device.

/// Bits of a stamp.
pub(crate) const STAMP_MASK: u64 = 0x3fff;

/// Which queue a request was posted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Send = 0,
    Receive = 1,
    Flush = 2,
}

/// Names a request. Completions of an earlier connection of the same index have another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) queue: Queue,
    /// 14 bits.
    pub(crate) stamp: u16,
    pub(crate) connection: u16,
    /// Count of the send, or slot of the receive.
    pub(crate) number: u32,
}

impl Identity {
    pub(crate) const fn pack(self) -> u64 {
        (self.queue as u64) << 62
            | (self.stamp as u64 & STAMP_MASK) << 48
            | (self.connection as u64) << 32
            | self.number as u64
    }

    pub(crate) const fn unpack(packed: u64) -> Option<Self> {
        let queue = match packed >> 62 {
            0 => Queue::Send,
            1 => Queue::Receive,
            2 => Queue::Flush,
            _ => return None,
        };
        #[expect(clippy::cast_possible_truncation, reason = "these bits are the field")]
        Some(Self {
            queue,
            stamp: (packed >> 48 & STAMP_MASK) as u16,
            connection: (packed >> 32) as u16,
            number: packed as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Identity, Queue};

    #[test]
    fn identities_come_back() {
        for queue in [Queue::Send, Queue::Receive, Queue::Flush] {
            let identity = Identity { queue, stamp: 0x3fff, connection: u16::MAX, number: 0x8000_0001 };
            assert_eq!(Identity::unpack(identity.pack()), Some(identity));
        }
        assert_eq!(Identity::unpack(3 << 62), None);
    }
}
