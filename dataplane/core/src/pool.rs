//! Staging blocks of a lane: which are free, in four quotas that never lend to each other.
//!
//! Send and receive blocks are apart, or two nodes that filled their pools with sends would wait for
//! each other for ever. Free blocks are stacks: the block used last is used next, so it is in the cache.

use crate::list::{Link, List};
use crate::port::{Place, RegionIndex};

/// Unit in which blocks are named on the wire: a block's first byte in the arena, in pages of 4 KiB.
pub const PAGE_BYTES: u64 = 4096;

/// What a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Quota {
    /// Large blocks for the send leg.
    LargeSend = 0,
    /// Large blocks for peers to write into.
    LargeReceive = 1,
    /// Small blocks for the send leg.
    SmallSend = 2,
    /// Small blocks for peers to write into.
    SmallReceive = 3,
}

impl Quota {
    const ALL: [Quota; 4] = [Quota::LargeSend, Quota::LargeReceive, Quota::SmallSend, Quota::SmallReceive];

    const fn is_large(self) -> bool {
        matches!(self, Quota::LargeSend | Quota::LargeReceive)
    }
}

/// Sizes and counts of a lane's pool. The arena holds the large blocks first, so that they are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    /// Bytes of a large block, a multiple of [`PAGE_BYTES`].
    pub large_bytes: u64,
    /// Bytes of a small block, a multiple of [`PAGE_BYTES`].
    pub small_bytes: u64,
    /// Large send blocks.
    pub large_send: u32,
    /// Large receive blocks.
    pub large_receive: u32,
    /// Small send blocks.
    pub small_send: u32,
    /// Small receive blocks.
    pub small_receive: u32,
}

impl PoolShape {
    /// Blocks of one quota.
    #[must_use]
    pub const fn count(&self, quota: Quota) -> u32 {
        match quota {
            Quota::LargeSend => self.large_send,
            Quota::LargeReceive => self.large_receive,
            Quota::SmallSend => self.small_send,
            Quota::SmallReceive => self.small_receive,
        }
    }

    /// All blocks: the length of the block tables in [`crate::storage::Storage`].
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.large_send as usize
            + self.large_receive as usize
            + self.small_send as usize
            + self.small_receive as usize
    }

    /// Bytes of the arena.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.large_blocks() as u64 * self.large_bytes
            + (self.small_send + self.small_receive) as u64 * self.small_bytes
    }

    /// Whether sizes are multiples of a page and small is not larger than large.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.large_bytes.is_multiple_of(PAGE_BYTES)
            && self.small_bytes.is_multiple_of(PAGE_BYTES)
            && self.small_bytes > 0
            && self.small_bytes <= self.large_bytes
            && self.large_bytes <= 64 << 20
    }

    const fn large_blocks(&self) -> u32 {
        self.large_send + self.large_receive
    }

    /// Bytes of one block of a quota.
    #[must_use]
    pub const fn block_bytes(&self, quota: Quota) -> u64 {
        if quota.is_large() { self.large_bytes } else { self.small_bytes }
    }

    /// Where a block lies in the arena.
    #[must_use]
    pub const fn offset(&self, block: u32) -> u64 {
        let large = self.large_blocks();
        if block < large {
            block as u64 * self.large_bytes
        } else {
            large as u64 * self.large_bytes + (block - large) as u64 * self.small_bytes
        }
    }

    /// The block that begins at a page, if one does.
    #[must_use]
    pub fn at_page(&self, page: u32) -> Option<u32> {
        let offset = u64::from(page) * PAGE_BYTES;
        let large_end = u64::from(self.large_blocks()) * self.large_bytes;
        let (block, rest) = if offset < large_end {
            (offset / self.large_bytes, offset % self.large_bytes)
        } else {
            let past = offset - large_end;
            (u64::from(self.large_blocks()) + past / self.small_bytes, past % self.small_bytes)
        };
        let block = u32::try_from(block).ok()?;
        (rest == 0 && (block as usize) < self.blocks()).then_some(block)
    }

    /// The quota that a block belongs to.
    #[must_use]
    pub const fn quota(&self, block: u32) -> Quota {
        if block < self.large_send {
            Quota::LargeSend
        } else if block < self.large_blocks() {
            Quota::LargeReceive
        } else if block < self.large_blocks() + self.small_send {
            Quota::SmallSend
        } else {
            Quota::SmallReceive
        }
    }
}

/// The free blocks.
#[derive(Debug)]
pub struct Pool<'s> {
    shape: PoolShape,
    links: &'s mut [Link],
    free: [List; 4],
}

impl<'s> Pool<'s> {
    /// All blocks free. `links` must have [`PoolShape::blocks`] entries.
    #[must_use]
    pub fn new(shape: PoolShape, links: &'s mut [Link]) -> Self {
        assert!(shape.is_sound() && links.len() == shape.blocks(), "pool shape and its storage disagree");
        let mut pool = Self { shape, links, free: [List::EMPTY; 4] };
        pool.links.fill(Link::UNLINKED);
        let mut block = 0;
        for quota in Quota::ALL {
            for _ in 0..shape.count(quota) {
                pool.free[quota as usize].push_back(pool.links, block);
                block += 1;
            }
        }
        pool
    }

    /// Sizes and counts.
    #[must_use]
    pub const fn shape(&self) -> &PoolShape {
        &self.shape
    }

    /// Free blocks of a quota.
    #[must_use]
    pub const fn free(&self, quota: Quota) -> usize {
        self.free[quota as usize].count()
    }

    /// Takes the block of a quota that was used last.
    pub fn take(&mut self, quota: Quota) -> Option<u32> {
        self.free[quota as usize].pop_front(self.links)
    }

    /// Gives a block back.
    pub fn put(&mut self, block: u32) {
        self.free[self.shape.quota(block) as usize].push_front(self.links, block);
    }

    /// The first byte of a block.
    #[must_use]
    pub const fn place(&self, block: u32) -> Place {
        Place { region: RegionIndex::ARENA, offset: self.shape.offset(block) }
    }

    /// The block's name on the wire.
    #[must_use]
    pub fn page(&self, block: u32) -> u32 {
        // Arenas beyond 16 TiB do not exist; a saturated page would be refused by the peer.
        u32::try_from(self.shape.offset(block) / PAGE_BYTES).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
