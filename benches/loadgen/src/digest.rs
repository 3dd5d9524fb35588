//! SHA-256 of parts of a region, as they are read, once.

use railhead_client::{OutOfRange, Region};
use sha2::{Digest, Sha256};

/// Bytes of a digest.
pub(crate) const DIGEST_BYTES: usize = 32;

const STEP_BYTES: usize = 64 << 10;

/// The digest of `bytes` bytes from `offset` on.
pub(crate) fn of_region(region: &Region, offset: u64, bytes: u64) -> Result<[u8; DIGEST_BYTES], OutOfRange> {
    let mut hasher = Sha256::new();
    let mut step = vec![0; STEP_BYTES];
    let mut at = 0;
    while at < bytes {
        let count = (bytes - at).min(STEP_BYTES as u64) as usize;
        region.copy_out(offset + at, &mut step[..count])?;
        hasher.update(&step[..count]);
        at += count as u64;
    }
    Ok(hasher.finalize().into())
}
