//! Reads by our own fabric, without the peer's engine: straight into the region, or into a block of ours and a copy home.

use super::schedule::Visit;
use super::send::Waits;
use super::{Engine, POST_CHUNK_COPY, POST_CHUNK_WRITE, POST_SEAL};
use crate::port::{
    ConnectionIndex, Copy, CopyEngine, Fabric, Nanos, Place, PostError, PostId, Read, RegionIndex,
    RemotePlace,
};
use crate::tables::{ChunkEntry, ChunkPhase, Kind, Phase, Seal, Transfer};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::observe::Counter;
use railhead_abi::submission::SIDE_LOCAL;
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Makes the next chunk of a read.
    pub(super) fn make_fetch(&mut self, index: u32, now: Nanos) -> Result<u64, Waits> {
        self.check_room(index, now)?;
        let is_staged = self.transfers[index as usize].receive.staged;
        let block = if is_staged { Some(self.take_block(index, now).ok_or(Waits::Send)?) } else { None };
        let Some(chunk) = self.chunks_free.pop_front(self.chunk_links) else {
            debug_assert!(false, "there was room for a chunk");
            return Err(Waits::Other);
        };
        let transfer = &mut self.transfers[index as usize];
        let bytes = transfer.chunk_bytes.min(transfer.submission.bytes - transfer.next_offset);
        self.chunks[chunk as usize] = ChunkEntry {
            phase: ChunkPhase::Ready,
            transfer: index,
            offset: transfer.next_offset,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            block,
            ..ChunkEntry::default()
        };
        transfer.next_offset += bytes;
        transfer.chunks_open += 1;
        transfer.chunks_unposted += 1;
        transfer.chunks_total += 1;
        let connection = transfer.connection;
        self.observe.add(Counter::Chunks, 1);
        self.connections[usize::from(connection.0)].ready.push_back(self.chunk_links, chunk);
        self.post_ready(connection, now);
        Ok(bytes)
    }

    /// Posts one chunk's read.
    pub(super) fn post_read(&mut self, connection: ConnectionIndex, chunk: u32) -> Result<(), PostError> {
        let entry = self.chunks[chunk as usize];
        let transfer = &self.transfers[entry.transfer as usize];
        let into = entry.block.map_or_else(|| home(transfer, &entry), |block| self.pool.place(block));
        let from =
            RemotePlace { key: transfer.key, offset: transfer.submission.remote_offset + entry.offset };
        let read = Read { into, bytes: entry.bytes, from, post: PostId(POST_CHUNK_WRITE | chunk) };
        self.fabric.read(connection, &read)
    }

    /// A posted read ended. What came into a block goes home, unless the read has failed.
    pub(super) fn chunk_fetched(&mut self, chunk: u32, status: Code, now: Nanos) {
        let entry = self.chunks[chunk as usize];
        self.post_ended(entry.transfer, status, now);
        let is_wanted = status == Code::Ok && self.transfers[entry.transfer as usize].phase == Phase::Running;
        if entry.block.is_some() && is_wanted {
            self.chunks[chunk as usize].phase = ChunkPhase::Landed;
            self.chunks_landed.push_back(self.chunk_links, chunk);
            self.post_homing(now);
            return;
        }
        self.drop_fetched(chunk, now);
    }

    /// Copies what was read into blocks to where it belongs, as far as the copy engine takes it.
    pub(super) fn post_homing(&mut self, now: Nanos) {
        while let Some(chunk) = self.chunks_landed.front() {
            let entry = self.chunks[chunk as usize];
            let transfer = &self.transfers[entry.transfer as usize];
            let Some(block) = entry.block.filter(|_| transfer.phase == Phase::Running) else {
                self.chunks_landed.remove(self.chunk_links, chunk);
                self.drop_fetched(chunk, now);
                continue;
            };
            let to = home(transfer, &entry);
            let post = PostId(POST_CHUNK_COPY | chunk);
            if self.copier.copy(&Copy { from: self.pool.place(block), to, bytes: entry.bytes, post }).is_err()
            {
                self.observe.add(Counter::CopiesFull, 1);
                return;
            }
            self.observe.add(Counter::CopyBytes, u64::from(entry.bytes));
            self.chunks_landed.remove(self.chunk_links, chunk);
            self.chunks[chunk as usize].phase = ChunkPhase::Homing;
            self.chunks[chunk as usize].copied_from = now;
        }
    }

    /// A copy home ended.
    pub(super) fn chunk_homed(&mut self, chunk: u32, status: Code, now: Nanos) {
        let entry = self.chunks[chunk as usize];
        self.transfers[entry.transfer as usize].copy_ns += now.saturating_sub(entry.copied_from);
        if status != Code::Ok {
            self.stop(entry.transfer, status, SIDE_LOCAL, now);
        }
        self.drop_fetched(chunk, now);
    }

    fn drop_fetched(&mut self, chunk: u32, now: Nanos) {
        if let Some(block) = self.chunks[chunk as usize].block.take() {
            self.put_block(self.chunks[chunk as usize].transfer, block);
        }
        self.free_chunk(chunk, now);
    }

    /// Whether what a read has placed is seen only after a flush.
    pub(super) fn needs_flush(&self, transfer: &Transfer) -> bool {
        let region = self.regions[transfer.submission.local_index as usize].info;
        self.connections[usize::from(transfer.connection.0)].capabilities.flush_needed
            && !transfer.receive.staged
            && region.is_some_and(|info| info.flush)
    }

    /// All chunks of a read are made: once they have ended it is flushed, where it must be, and over.
    pub(super) fn finish_fetch(&mut self, index: u32, now: Nanos) -> Visit {
        let transfer = &self.transfers[index as usize];
        debug_assert!(transfer.kind == Kind::Fetch);
        if transfer.chunks_open > 0 {
            return Visit::Blocked;
        }
        let is_flushed = !transfer.touched || !self.needs_flush(transfer);
        if !is_flushed && !self.post_fetch_flush(index) {
            return Visit::Blocked;
        }
        self.make_unrunnable(index);
        let transfer = &mut self.transfers[index as usize];
        transfer.phase = Phase::AwaitDone;
        transfer.is_whole = true;
        self.settle(index, now);
        Visit::Made(0)
    }

    /// Makes visible what a read has placed; false if there is no room now.
    pub(super) fn post_fetch_flush(&mut self, index: u32) -> bool {
        let connection = self.transfers[index as usize].connection;
        if self.fabric.flush(connection, PostId(POST_SEAL | index)).is_err() {
            return false;
        }
        self.observe.add(Counter::Flushes, 1);
        self.transfers[index as usize].seal = Seal::Posted;
        true
    }
}

/// Where a chunk of a read belongs.
const fn home(transfer: &Transfer, entry: &ChunkEntry) -> Place {
    Place {
        region: RegionIndex(transfer.submission.local_index),
        offset: transfer.submission.local_offset + entry.offset,
    }
}
