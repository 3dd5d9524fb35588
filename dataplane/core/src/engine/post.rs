//! Chunks on their way: posted in order, ended in any, given up when their transfer stops.

use super::{Engine, POST_CHUNK_WRITE};
use crate::list::List;
use crate::pool::PAGE_BYTES;
use crate::port::{
    ConnectionIndex, CopyEngine, Fabric, Key, Nanos, Place, PostError, PostId, RegionIndex, RemotePlace,
    Write,
};
use crate::tables::{ChunkEntry, ChunkPhase, ConnectionPhase, Kind, Phase, SMALL_CREDITS_MAX};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::observe::Counter;
use railhead_abi::record::{Chunk, Record};
use railhead_abi::submission::SIDE_LOCAL;
use railhead_ring::Word;

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Posts the chunks of a connection that are ready, in order, as far as the fabric takes them.
    pub(super) fn post_ready(&mut self, connection: ConnectionIndex, now: Nanos) {
        let at = usize::from(connection.0);
        while let Some(chunk) = self.connections[at].ready.front() {
            let entry = self.chunks[chunk as usize];
            if entry.phase == ChunkPhase::Ready && entry.is_dropped {
                self.connections[at].ready.remove(self.chunk_links, chunk);
                self.drop_chunk(chunk, now);
                continue;
            }
            if entry.phase == ChunkPhase::Ready && !self.post_write(connection, chunk, now) {
                return;
            }
            if self.chunks[chunk as usize].phase == ChunkPhase::Owing
                && !self.send_chunk_record(connection, chunk)
            {
                return;
            }
            self.connections[at].ready.remove(self.chunk_links, chunk);
            self.progress();
            self.transfers[entry.transfer as usize].chunks_unposted -= 1;
            if self.chunks[chunk as usize].is_done {
                self.free_chunk(chunk, now);
            } else {
                self.chunks[chunk as usize].phase = ChunkPhase::Posted;
            }
        }
    }

    /// Posts one chunk's write; false if the connection takes no more now.
    fn post_write(&mut self, connection: ConnectionIndex, chunk: u32, now: Nanos) -> bool {
        let entry = self.chunks[chunk as usize];
        let transfer = &self.transfers[entry.transfer as usize];
        let from = match entry.block {
            Some(block) => self.pool.place(block),
            None => Place {
                region: RegionIndex(transfer.submission.local_index),
                offset: transfer.submission.local_offset + entry.offset,
            },
        };
        let epoch = self.connections[usize::from(connection.0)].info.pool_epoch;
        let to = match entry.page {
            Some(page) => RemotePlace { key: Key { index: 0, epoch }, offset: u64::from(page) * PAGE_BYTES },
            None => {
                RemotePlace { key: transfer.key, offset: transfer.submission.remote_offset + entry.offset }
            }
        };
        let write = Write {
            from,
            bytes: entry.bytes,
            to,
            slot: transfer.slot,
            post: PostId(POST_CHUNK_WRITE | chunk),
        };
        let posted = match transfer.kind {
            Kind::Fetch => self.post_read(connection, chunk),
            _ => self.fabric.write(connection, &write),
        };
        match posted {
            Ok(()) => {}
            Err(PostError::Full) => {
                self.observe.add(Counter::PostsFull, 1);
                return false;
            }
            // `Down` follows and ends everything on this connection.
            Err(PostError::Down) => return false,
        }
        let transfer = &mut self.transfers[entry.transfer as usize];
        transfer.touched = true;
        transfer.last_post_at = now;
        if transfer.first_post_at == 0 {
            transfer.first_post_at = now;
        }
        self.chunks[chunk as usize].phase =
            if entry.page.is_some() { ChunkPhase::Owing } else { ChunkPhase::Posted };
        true
    }

    fn send_chunk_record(&mut self, connection: ConnectionIndex, chunk: u32) -> bool {
        let entry = self.chunks[chunk as usize];
        let transfer = &self.transfers[entry.transfer as usize];
        let Some(page) = entry.page else { return false };
        let record = Chunk {
            slot: transfer.slot,
            block: page,
            region_index: transfer.key.index,
            region_epoch: transfer.key.epoch,
            bytes: entry.bytes,
            offset: transfer.submission.remote_offset + entry.offset,
            ..Chunk::default()
        };
        let is_sent = self.send_record(connection, &Record::Chunk(record));
        self.transfers[entry.transfer as usize].told |= is_sent;
        is_sent
    }

    /// A copy into a send block ended.
    pub(super) fn chunk_copied(&mut self, chunk: u32, status: Code, now: Nanos) {
        let entry = self.chunks[chunk as usize];
        if entry.phase == ChunkPhase::Homing {
            self.chunk_homed(chunk, status, now);
            return;
        }
        debug_assert!(entry.phase == ChunkPhase::Copying);
        let index = entry.transfer;
        self.transfers[index as usize].copy_ns += now.saturating_sub(entry.copied_from);
        if status != Code::Ok {
            self.stop(index, status, SIDE_LOCAL, now);
        }
        let transfer = &self.transfers[index as usize];
        if transfer.phase != Phase::Running {
            self.drop_chunk(chunk, now);
            return;
        }
        let connection = transfer.connection;
        self.chunks[chunk as usize].phase = ChunkPhase::Ready;
        self.connections[usize::from(connection.0)].ready.push_back(self.chunk_links, chunk);
        self.post_ready(connection, now);
    }

    /// A posted write ended: its source may be reused.
    pub(super) fn chunk_written(&mut self, chunk: u32, status: Code, now: Nanos) {
        let index = self.chunks[chunk as usize].transfer;
        if self.transfers[index as usize].kind == Kind::Fetch {
            self.chunk_fetched(chunk, status, now);
            return;
        }
        if let Some(block) = self.chunks[chunk as usize].block.take() {
            self.put_block(index, block);
        }
        self.post_ended(index, status, now);
        if self.chunks[chunk as usize].phase == ChunkPhase::Owing {
            self.chunks[chunk as usize].is_done = true;
        } else {
            self.free_chunk(chunk, now);
        }
    }

    /// Gives up a chunk that was not posted, with its block and credit.
    pub(super) fn drop_chunk(&mut self, chunk: u32, now: Nanos) {
        let entry = self.chunks[chunk as usize];
        let index = entry.transfer;
        if let Some(block) = self.chunks[chunk as usize].block.take() {
            self.put_block(index, block);
        }
        let small = entry.page.filter(|_| entry.page_is_small);
        self.transfers[index as usize].chunks_unposted -= 1;
        let connection = &mut self.connections[usize::from(self.transfers[index as usize].connection.0)];
        if let Some(page) = small
            && connection.phase == ConnectionPhase::Up
            && usize::from(connection.small_credit_count) < SMALL_CREDITS_MAX
        {
            connection.small_credits[usize::from(connection.small_credit_count)] = page;
            connection.small_credit_count += 1;
        }
        self.free_chunk(chunk, now);
    }

    pub(super) fn free_chunk(&mut self, chunk: u32, now: Nanos) {
        let index = self.chunks[chunk as usize].transfer;
        self.chunks[chunk as usize] = ChunkEntry::default();
        self.chunks_free.push_front(self.chunk_links, chunk);
        self.transfers[index as usize].chunks_open -= 1;
        self.settle(index, now);
    }

    /// Takes everything out of a connection's queue; the connection is down.
    pub(super) fn drop_ready(&mut self, connection: ConnectionIndex, now: Nanos) {
        let at = usize::from(connection.0);
        while let Some(chunk) = self.connections[at].ready.pop_front(self.chunk_links) {
            if self.chunks[chunk as usize].phase == ChunkPhase::Owing {
                // Written, and its end has come: the fabric ends all posts before it says `Down`.
                self.transfers[self.chunks[chunk as usize].transfer as usize].chunks_unposted -= 1;
                self.free_chunk(chunk, now);
            } else {
                self.drop_chunk(chunk, now);
            }
        }
        self.connections[at].ready = List::EMPTY;
    }
}
