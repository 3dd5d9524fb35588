//! Why a connection failed, in the device's own terms.

use core::fmt;

/// The first error of a connection, as its NIC said it. A lane hands this on; words are made elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// The status of the completion, as in the header.
    pub status: u32,
    /// What the vendor adds.
    pub vendor_error: u32,
}

/// What the statuses mean, by their numbers.
const TEXTS: [&str; 22] = [
    "success",
    "local length error",
    "local queue pair operation error",
    "local end-to-end context error",
    "local protection error: the memory is not registered for this",
    "flushed: the queue pair had failed before",
    "memory window error",
    "bad response",
    "local access error",
    "the peer refused the request as invalid",
    "the peer refused the key, the range or the right",
    "the peer could not carry the request out",
    "no answer within all retries: the path or the peer is gone",
    "the peer had no receive posted within all retries",
    "local domain violation",
    "invalid domain of the request",
    "the peer aborted",
    "invalid end-to-end context",
    "end-to-end context in a wrong state",
    "the device has failed",
    "response timeout",
    "general error",
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = TEXTS.get(self.status as usize).copied().unwrap_or("unknown status");
        write!(f, "{text} (status {}, vendor error {:#x})", self.status, self.vendor_error)
    }
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn faults_read_well() {
        let fault = Fault { status: 12, vendor_error: 0x81 };
        let text =
            "no answer within all retries: the path or the peer is gone (status 12, vendor error 0x81)";
        assert_eq!(fault.to_string(), text);
        let fault = Fault { status: 77, vendor_error: 0 };
        assert_eq!(fault.to_string(), "unknown status (status 77, vendor error 0x0)");
    }
}
