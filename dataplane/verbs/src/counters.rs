//! What was done.

/// What a rail has done since it was made. All of it grows only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RailCounters {
    /// Calls that handed sends to the NIC: doorbells.
    pub doorbells: u64,
    /// Work requests handed to the NIC: writes, reads, records, confirms.
    pub requests: u64,
    /// Of these, requests whose completion was asked for.
    pub signalled: u64,
    /// Of these, requests that carried their payload themselves.
    pub inline: u64,
    /// Bytes of writes.
    pub bytes_written: u64,
    /// Bytes of reads.
    pub bytes_read: u64,
    /// One-byte reads behind writes at the peer.
    pub confirms: u64,
    /// One-byte reads through this NIC of this node's own memory.
    pub flush_reads: u64,
    /// Messages that arrived.
    pub messages: u64,
    /// Messages of the adapter's own: receives given back.
    pub credits_sent: u64,
    /// Completions taken.
    pub completions: u64,
    /// Of these, errors; those flushed behind another count too.
    pub errors: u64,
    /// Posts that ended here, because key, range or right did not hold.
    pub refused: u64,
    /// Connections that ended.
    pub downs: u64,
    /// Of these, connections whose queue pair had to be destroyed, because the device gave back too little too late.
    pub given_up: u64,
}
