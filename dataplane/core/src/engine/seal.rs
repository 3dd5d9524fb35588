//! The end of transfers that the peer's engine is not told of: the ends of their posts say how they went.
//!
//! A write whose ends are acknowledged, that goes straight into the region and notifies nobody, needs no FIN and no ACK.
//! What makes it visible is a confirm behind its last write, the *seal*.

use super::schedule::Visit;
use super::{Engine, POST_SEAL};
use crate::port::{CopyEngine, Fabric, Nanos, PostId, RemotePlace};
use crate::tables::{Kind, Phase, Seal, Transfer};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::submission::{LEVEL_PLACED, NOTIFY_NONE, SIDE_FABRIC, SIDE_LOCAL, SIDE_REMOTE};
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Whether a transfer ends without a word to the peer's engine.
    pub(super) fn is_untold(&self, transfer: &Transfer) -> bool {
        if transfer.kind == Kind::Fetch {
            return true;
        }
        let capabilities = &self.connections[usize::from(transfer.connection.0)].capabilities;
        capabilities.acknowledged
            && !transfer.told
            && !transfer.receive.staged
            && transfer.submission.notify == NOTIFY_NONE
            && transfer.submission.bytes > 0
    }

    /// Whether the ends of its posts say all that there is to know of a transfer. Once its key was refused nothing of it
    /// lands any more, whatever else it has posted.
    pub(super) fn is_sure(&self, transfer: &Transfer) -> bool {
        // A read that has ended has ended, however it did.
        let is_sure =
            !transfer.is_unsure || transfer.kind == Kind::Fetch || transfer.status == Code::RemoteRefused;
        self.is_untold(transfer) && is_sure
    }

    /// Every write is posted: the seal goes behind them, where the level wants one.
    pub(super) fn seal_writes(&mut self, index: u32, now: Nanos) -> Visit {
        if self.transfers[index as usize].submission.level != LEVEL_PLACED && !self.post_seal(index) {
            return Visit::Blocked;
        }
        self.make_unrunnable(index);
        let transfer = &mut self.transfers[index as usize];
        transfer.phase = Phase::AwaitDone;
        transfer.is_whole = true;
        transfer.last_post_at = now;
        self.settle(index, now);
        Visit::Made(0)
    }

    /// Posts what makes visible all that a transfer has posted; false if there is no room now.
    pub(super) fn post_seal(&mut self, index: u32) -> bool {
        let transfer = &self.transfers[index as usize];
        if transfer.kind == Kind::Fetch {
            return self.post_fetch_flush(index);
        }
        let last = transfer.submission.remote_offset + transfer.next_offset.max(1) - 1;
        let at = RemotePlace { key: transfer.key, offset: last };
        if self.fabric.confirm(transfer.connection, at, PostId(POST_SEAL | index)).is_err() {
            return false;
        }
        self.transfers[index as usize].seal = Seal::Posted;
        true
    }

    /// The seal has ended.
    pub(super) fn sealed(&mut self, index: u32, status: Code, now: Nanos) {
        let is_done = status == Code::Ok;
        self.transfers[index as usize].seal = if is_done { Seal::Done } else { Seal::None };
        self.post_ended(index, status, now);
        self.settle(index, now);
    }

    /// A post of a transfer ended: what that means for the transfer.
    pub(super) fn post_ended(&mut self, index: u32, status: Code, now: Nanos) {
        match status {
            Code::Ok => {}
            // The source is gone, but what was written of it has been written.
            Code::RegionLost => self.stop(index, status, SIDE_LOCAL, now),
            // Nothing of it was placed, nor will be.
            Code::RemoteRefused | Code::RemoteRegionLost => self.stop(index, status, SIDE_REMOTE, now),
            // With a connection that ends, `Down` says what becomes of the transfer.
            Code::ConnectionReset => self.transfers[index as usize].is_unsure = true,
            _ => {
                self.transfers[index as usize].is_unsure = true;
                self.stop(index, Code::DeviceError, SIDE_FABRIC, now);
            }
        }
    }

    /// Moves a transfer that stops, of which the peer's engine knows nothing, to its end. True if it has come to it.
    pub(super) fn quiesce_untold(&mut self, index: u32, now: Nanos) -> bool {
        let transfer = &self.transfers[index as usize];
        let needs_seal = match transfer.kind {
            Kind::Fetch => self.needs_flush(transfer),
            _ => transfer.status != Code::RemoteRefused,
        };
        match transfer.seal {
            // What was posted must not become visible later.
            Seal::None if transfer.touched && needs_seal => {
                if self.post_seal(index) {
                    self.progress();
                }
                false
            }
            Seal::Posted => false,
            Seal::None | Seal::Done => {
                let transfer = &mut self.transfers[index as usize];
                if transfer.is_whole && transfer.status.is_given_up() {
                    // It got there after all.
                    transfer.status = Code::Ok;
                    transfer.side = 0;
                }
                self.complete(index, now);
                self.progress();
                true
            }
        }
    }
}
