//! What the lane asks of the fabric.

use railhead_abi::Code;
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Fabric, FabricEvent, Nanos, Place, PostError, PostId, Read, RemotePlace,
    Write,
};

use crate::connection::{Posted, State, Work};
use crate::fabric::{Events, VerbsFabric};
use crate::message::{self, MESSAGE_BYTES_MAX};
use crate::tables::{Address, Want};

impl VerbsFabric {
    fn open(&self, connection: ConnectionIndex) -> Result<usize, PostError> {
        let at = self.index(connection).ok_or(PostError::Down)?;
        if self.connections[at].state == State::Open { Ok(at) } else { Err(PostError::Down) }
    }

    /// Queues a post whose addresses are known, or one that ends here. A write that does ends its connection as one that
    /// the peer's NIC refuses does: else records behind it would speak of what never arrived.
    fn queue_post(
        &mut self,
        at: usize,
        work: Work,
        post: PostId,
        bytes: u32,
        addresses: Result<(Address, Address, bool), Code>,
    ) {
        let is_write = work == Work::Write;
        let (work, (local, remote, is_inline)) = match addresses {
            Ok(addresses) => (work, addresses),
            Err(code) => {
                self.rails[usize::from(self.connections[at].rail)].counters.refused += 1;
                self.busy.set(at, true);
                (Work::Refused(code), (Address::default(), Address::default(), false))
            }
        };
        self.connections[at].queue(Posted { work, post, needs: 0, bytes, local, remote, is_inline });
        self.queued.set(at, true);
        if let Work::Refused(code) = work
            && is_write
        {
            self.leave(at, code);
        }
    }
}

impl Fabric for VerbsFabric {
    fn capabilities(&self, connection: ConnectionIndex) -> Capabilities {
        let ready = self.index(connection).and_then(|at| self.connections[at].ready.as_ref());
        let write_bytes_max = self.config.write_bytes_max;
        Capabilities {
            write_bytes_max: ready
                .map_or(write_bytes_max, |ready| write_bytes_max.min(ready.message_bytes_max)),
            posts_max: self.sizes.posts_max,
            records_max: self.sizes.records_max,
            flush_needed: self.config.flush_needed,
            reads: ready.is_some_and(|ready| ready.facts.reads_made > 0),
            acknowledged: ready.is_some_and(|ready| ready.facts.reads_made > 0),
            windows: false,
        }
    }

    fn send(&mut self, connection: ConnectionIndex, record: &RawRecord) -> Result<(), PostError> {
        let records_max = self.sizes.records_max;
        let at = self.open(connection)?;
        let entry = &mut self.connections[at];
        // The last one is for giving receives back.
        if entry.records == records_max || entry.credits < 2 {
            return Err(PostError::Full);
        }
        let Some(sends) = entry.ready.as_ref().map(|ready| ready.mailbox.sends()) else {
            return Err(PostError::Down);
        };
        let slot = entry.take_slot(sends);
        let mut message = [0; MESSAGE_BYTES_MAX];
        let words = message::encode_record(record, &mut message);
        let bytes = 8 + 8 * usize::from(words);
        if let Some(ready) = &entry.ready {
            ready.mailbox.write(slot, &message[..bytes]);
        }
        entry.credits -= 1;
        entry.queue(Posted { work: Work::Record { slot, words }, ..Posted::NOTHING });
        self.queued.set(at, true);
        Ok(())
    }

    fn write(&mut self, connection: ConnectionIndex, write: &Write) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &self.connections[at];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let (rail, bytes) = (usize::from(entry.rail), write.bytes);
        let inline_bytes = entry.ready.as_ref().map_or(0, |ready| ready.facts.inline_bytes);
        let local = self.regions.resolve(write.from, bytes, rail).ok_or(Code::RegionLost);
        let remote = self.remotes.resolve(entry.peer, &entry.arena, write.to, Want::write(bytes, rail));
        let addresses = local.and_then(|(local, is_readable)| {
            Ok((local, remote.ok_or(Code::RemoteRefused)?, is_readable && bytes <= inline_bytes))
        });
        self.queue_post(at, Work::Write, write.post, bytes, addresses);
        Ok(())
    }

    fn read(&mut self, connection: ConnectionIndex, read: &Read) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &self.connections[at];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let (rail, bytes) = (usize::from(entry.rail), read.bytes);
        let local = self.regions.resolve(read.into, bytes, rail).ok_or(Code::RegionLost);
        let remote = self.remotes.resolve(entry.peer, &entry.arena, read.from, Want::read(bytes, rail));
        let addresses = local.and_then(|(local, _)| Ok((local, remote.ok_or(Code::RemoteRefused)?, false)));
        self.queue_post(at, Work::Read, read.post, bytes, addresses);
        Ok(())
    }

    fn flush(&mut self, connection: ConnectionIndex, post: PostId) -> Result<(), PostError> {
        let at = self.open(connection)?;
        let entry = &mut self.connections[at];
        let rail = &mut self.rails[usize::from(entry.rail)];
        if entry.posts.saturating_add(entry.flushes) >= self.sizes.posts_max
            || !rail.flushes.request(at, post)
        {
            return Err(PostError::Full);
        }
        entry.flushes += 1;
        Ok(())
    }

    fn confirm(
        &mut self,
        connection: ConnectionIndex,
        at: RemotePlace,
        post: PostId,
    ) -> Result<(), PostError> {
        let index = self.open(connection)?;
        let entry = &self.connections[index];
        if entry.posts == self.sizes.posts_max {
            return Err(PostError::Full);
        }
        let rail = usize::from(entry.rail);
        let scratch = entry.ready.as_ref().map(|ready| Address {
            address: ready.mailbox.scratch_address(),
            key: ready.mailbox.local_key(),
        });
        let remote = self.remotes.resolve(entry.peer, &entry.arena, at, Want::confirm(rail));
        let addresses = scratch
            .ok_or(Code::ConnectionReset)
            .and_then(|local| Ok((local, remote.ok_or(Code::RemoteRefused)?, false)));
        self.queue_post(index, Work::Confirm, post, 1, addresses);
        Ok(())
    }

    fn open_window(&mut self, _: ConnectionIndex, _: u16, _: Place, _: u64) {}

    fn close_window(&mut self, _: ConnectionIndex, _: u16) {}

    fn close(&mut self, connection: ConnectionIndex) {
        if let Ok(at) = self.open(connection) {
            self.leave(at, Code::ConnectionReset);
        }
    }

    fn kick(&mut self, now: Nanos) {
        self.now = now;
        self.post_queued();
        for rail in &mut self.rails {
            rail.flushes.post(&mut rail.counters);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut [FabricEvent]) -> usize {
        self.now = now;
        self.take_completions();
        let mut events = Events { slice: events, count: 0 };
        self.tell_flushed(&mut events);
        self.tell(&mut events);
        events.count
    }
}
