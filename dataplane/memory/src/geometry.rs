//! How an arena is divided into blocks.

#[cfg(test)]
mod tests;

/// Blocks of a lane's staging arena: two sizes, and for each an own part for sending and for receiving, so that neither
/// direction can starve the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolGeometry {
    /// Bytes of a small block; a power of two.
    pub small_bytes: u64,
    /// Small blocks for sending.
    pub small_send: u32,
    /// Small blocks for receiving.
    pub small_receive: u32,
    /// Bytes of a large block; a power of two, at least `small_bytes`.
    pub large_bytes: u64,
    /// Large blocks for sending.
    pub large_send: u32,
    /// Large blocks for receiving.
    pub large_receive: u32,
}

/// Why blocks cannot be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A block size is not a power of two of at least [`BLOCK_BYTES_MIN`].
    #[error("block of {bytes} bytes: must be a power of two of at least {BLOCK_BYTES_MIN}")]
    BlockBytes {
        /// The refused size.
        bytes: u64,
    },
    /// A small block is larger than a large one.
    #[error("small blocks are larger than large ones")]
    Order,
    /// There are no blocks, or more than memory can hold.
    #[error("no blocks, or more bytes than can be addressed")]
    Total,
}

/// Smallest block: a cache line pair, so that two blocks never share what a core prefetches.
pub const BLOCK_BYTES_MIN: u64 = 128;

/// A run of blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Where the first starts, in bytes from the arena's start; a multiple of `block_bytes`.
    pub offset: u64,
    /// Bytes of each.
    pub block_bytes: u64,
    /// How many.
    pub count: u32,
}

impl Blocks {
    /// Where block `index` starts, in bytes from the arena's start.
    #[inline]
    #[must_use]
    pub const fn at(&self, index: u32) -> Option<u64> {
        if index < self.count { Some(self.offset + index as u64 * self.block_bytes) } else { None }
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.count as u64 * self.block_bytes
    }
}

/// Where all blocks of an arena are. The runs are disjoint, in the order large send, large receive, small send, small
/// receive: each starts aligned without a gap, since sizes are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLayout {
    /// Large blocks for sending.
    pub large_send: Blocks,
    /// Large blocks for receiving.
    pub large_receive: Blocks,
    /// Small blocks for sending.
    pub small_send: Blocks,
    /// Small blocks for receiving.
    pub small_receive: Blocks,
    /// Bytes that the arena must have.
    pub bytes: u64,
}

impl PoolGeometry {
    /// Lays the blocks out.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub const fn layout(&self) -> Result<PoolLayout, GeometryError> {
        if !is_block_bytes(self.small_bytes) {
            return Err(GeometryError::BlockBytes { bytes: self.small_bytes });
        }
        if !is_block_bytes(self.large_bytes) {
            return Err(GeometryError::BlockBytes { bytes: self.large_bytes });
        }
        if self.small_bytes > self.large_bytes {
            return Err(GeometryError::Order);
        }
        let Some(large_send) = run(0, self.large_bytes, self.large_send) else {
            return Err(GeometryError::Total);
        };
        let Some(large_receive) = run(large_send.end(), self.large_bytes, self.large_receive) else {
            return Err(GeometryError::Total);
        };
        let Some(small_send) = run(large_receive.end(), self.small_bytes, self.small_send) else {
            return Err(GeometryError::Total);
        };
        let Some(small_receive) = run(small_send.end(), self.small_bytes, self.small_receive) else {
            return Err(GeometryError::Total);
        };
        let bytes = small_receive.end();
        if bytes == 0 {
            return Err(GeometryError::Total);
        }
        Ok(PoolLayout { large_send, large_receive, small_send, small_receive, bytes })
    }
}

const fn is_block_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= BLOCK_BYTES_MIN
}

/// A run from `offset` on; `None` when it would end past what a signed offset can name.
const fn run(offset: u64, block_bytes: u64, count: u32) -> Option<Blocks> {
    let Some(bytes) = block_bytes.checked_mul(count as u64) else { return None };
    match offset.checked_add(bytes) {
        Some(end) if end <= i64::MAX as u64 => Some(Blocks { offset, block_bytes, count }),
        _ => None,
    }
}

const _: () = {
    let geometry = PoolGeometry {
        small_bytes: 16 << 10,
        small_send: 3,
        small_receive: 5,
        large_bytes: 1 << 20,
        large_send: 2,
        large_receive: 1,
    };
    let Ok(layout) = geometry.layout() else { panic!("a plain geometry has a layout") };
    assert!(layout.large_send.offset == 0 && layout.large_receive.offset == 2 << 20);
    assert!(layout.small_send.offset == 3 << 20 && layout.small_receive.offset == (3 << 20) + (48 << 10));
    assert!(layout.bytes == (3 << 20) + (128 << 10));
};
