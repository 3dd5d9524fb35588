//! What is written where, so that every wrong byte is seen.
//!
//! Slots lie one behind the other, with a gap of poison around each. A slot's bytes depend on their place and on a seed
//! that is new for each measurement; its first eight hold the number of the transfer that wrote it last. So data of
//! another place, of an earlier measurement or of an earlier transfer, a missing byte and a byte beyond the range all
//! show.

use railhead_client::{OutOfRange, Region};

/// Poison around each slot, at least.
const GAP_BYTES_MIN: u64 = 64;
/// Slots begin on pages, and a page of poison lies before the first.
const PAGE_BYTES: u64 = 4096;
/// Bytes of the transfer's number at the beginning of a slot.
const STAMP_BYTES: usize = 8;
/// What the last iteration of a slot says that nothing was written to.
pub(crate) const NEVER: u64 = u64::MAX;
/// Stamp of slots that were filled to be read.
pub(crate) const FILLED: u64 = 0;
/// Bytes compared at a time.
const STEP_BYTES: usize = 64 << 10;

/// Slots of one size with one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
    pub(crate) slots: u64,
    pub(crate) seed: u64,
    pub(crate) poison: u8,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    pub(crate) checked_bytes: u64,
    pub(crate) wrong_bytes: u64,
    /// Offset, expected and found of the first wrong byte.
    pub(crate) first: Option<(u64, u8, u8)>,
}

impl Verdict {
    /// The first wrong byte in words; empty if there is none.
    pub(crate) fn text(&self) -> String {
        self.first.map_or_else(String::new, |(offset, expected, found)| {
            format!("first at offset {offset}: expected {expected:#04x}, found {found:#04x}")
        })
    }
}

impl Spec {
    /// From one slot's first byte to the next one's; `None` when that is too large for any memory.
    pub(crate) fn stride(bytes: u64) -> Option<u64> {
        bytes.checked_add(GAP_BYTES_MIN)?.checked_next_multiple_of(PAGE_BYTES)
    }

    /// Bytes that `slots` slots take, with the poison around them.
    pub(crate) fn total_bytes(bytes: u64, slots: u64) -> Option<u64> {
        Self::stride(bytes)?.checked_mul(slots)?.checked_add(PAGE_BYTES)
    }

    /// First byte of a slot.
    pub(crate) fn slot_at(&self, slot: u64) -> u64 {
        PAGE_BYTES + slot * (self.bytes + GAP_BYTES_MIN).next_multiple_of(PAGE_BYTES)
    }

    /// Writes a slot's bytes, all but its stamp.
    pub(crate) fn fill(&self, region: &Region, slot: u64) -> Result<(), OutOfRange> {
        let mut step = vec![0; STEP_BYTES];
        let start = self.slot_at(slot);
        let mut at = 0;
        while at < self.bytes {
            let count = (self.bytes - at).min(STEP_BYTES as u64) as usize;
            self.bytes_at(start + at, &mut step[..count]);
            region.copy_in(start + at, &step[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    /// Writes the number of the next transfer into a slot.
    pub(crate) fn stamp(&self, region: &Region, slot: u64, iteration: u64) -> Result<(), OutOfRange> {
        let count = STAMP_BYTES.min(usize::try_from(self.bytes).unwrap_or(STAMP_BYTES));
        region.copy_in(self.slot_at(slot), &iteration.to_le_bytes()[..count])
    }

    /// Compares everything from the first byte on: slots by their last iteration, poison between them.
    pub(crate) fn verify(&self, region: &Region, last: &[u64]) -> Result<Verdict, OutOfRange> {
        let mut verdict = Verdict::default();
        let mut clean = 0;
        for (slot, &iteration) in last.iter().enumerate() {
            if iteration == NEVER {
                continue;
            }
            let start = self.slot_at(slot as u64);
            self.compare(region, clean, start - clean, None, &mut verdict)?;
            self.compare(region, start, self.bytes, Some(iteration), &mut verdict)?;
            clean = start + self.bytes;
        }
        let end = self.slot_at(self.slots);
        self.compare(region, clean, end - clean, None, &mut verdict)?;
        Ok(verdict)
    }

    /// Compares with the pattern after this iteration, or with poison.
    fn compare(
        &self,
        region: &Region,
        start: u64,
        bytes: u64,
        iteration: Option<u64>,
        verdict: &mut Verdict,
    ) -> Result<(), OutOfRange> {
        let mut expected = vec![self.poison; STEP_BYTES];
        let mut found = vec![0; STEP_BYTES];
        let mut at = 0;
        while at < bytes {
            let count = (bytes - at).min(STEP_BYTES as u64) as usize;
            let (expected, found) = (&mut expected[..count], &mut found[..count]);
            if let Some(iteration) = iteration {
                self.bytes_at(start + at, expected);
                if at == 0 {
                    let stamp = STAMP_BYTES.min(count);
                    expected[..stamp].copy_from_slice(&iteration.to_le_bytes()[..stamp]);
                }
            }
            region.copy_out(start + at, found)?;
            verdict.checked_bytes += count as u64;
            if expected != found {
                for (place, (&mut expected, &mut found)) in expected.iter_mut().zip(found).enumerate() {
                    if expected != found {
                        verdict.wrong_bytes += 1;
                        verdict.first.get_or_insert((start + at + place as u64, expected, found));
                    }
                }
            }
            at += count as u64;
        }
        Ok(())
    }

    /// The pattern from byte `offset` on.
    fn bytes_at(&self, offset: u64, target: &mut [u8]) {
        let skip = (offset % 8) as usize;
        let mut word = offset / 8;
        let (first, rest) = target.split_at_mut(target.len().min((8 - skip) % 8));
        first.copy_from_slice(&self.word_at(word).to_le_bytes()[skip % 8..][..first.len()]);
        word += u64::from(skip != 0);
        for chunk in rest.chunks_mut(8) {
            chunk.copy_from_slice(&self.word_at(word).to_le_bytes()[..chunk.len()]);
            word += 1;
        }
    }

    /// A mixing function (the finalizer of splitmix64): neighbours differ in about half their bits.
    fn word_at(&self, word: u64) -> u64 {
        let mut mixed = self.seed.wrapping_add((word + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_the_pattern_is_the_same_bytes() {
        let spec = Spec { bytes: 0, slots: 0, seed: 3, poison: 0 };
        let mut whole = vec![0; 100];
        spec.bytes_at(1000, &mut whole);
        for start in 0..40 {
            for count in 0..40 {
                let mut part = vec![0; count];
                spec.bytes_at(1000 + start as u64, &mut part);
                assert_eq!(part, whole[start..start + count], "{count} from {start} on");
            }
        }
        let mut other = vec![0; 100];
        Spec { seed: 4, ..spec }.bytes_at(1000, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn slots_have_poison_around_them() {
        for bytes in [0, 1, 4032, 4033, 4096, 1 << 20] {
            let spec = Spec { bytes, slots: 5, seed: 0, poison: 0 };
            assert!(spec.slot_at(0) >= GAP_BYTES_MIN);
            for slot in 0..5 {
                assert!(spec.slot_at(slot) + bytes + GAP_BYTES_MIN <= spec.slot_at(slot + 1));
                assert_eq!(spec.slot_at(slot) % PAGE_BYTES, 0);
            }
            assert_eq!(Spec::total_bytes(bytes, 5), Some(spec.slot_at(5)));
        }
        assert_eq!(Spec::total_bytes(u64::MAX - 3, 1), None);
        assert_eq!(Spec::total_bytes(1 << 40, 1 << 40), None);
    }
}
