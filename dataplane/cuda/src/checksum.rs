//! The checksum and the pattern of `kernels/railhead.cu`, on the host.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(mut value: u64) -> u64 {
    value ^= value >> 30;
    value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^= value >> 27;
    value = value.wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A running checksum: bytes that are given in pieces sum up to what they do in one.
///
/// The sum, modulo 2^64, of a mixture of each word of eight bytes with its index. It finds errors, also words that have
/// changed places; it is no protection against a forger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksum {
    sum: u64,
    words: u64,
    rest: [u8; 8],
    rest_bytes: usize,
}

impl Checksum {
    /// Of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on with more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if self.rest_bytes > 0 {
            let count = bytes.len().min(8 - self.rest_bytes);
            self.rest[self.rest_bytes..self.rest_bytes + count].copy_from_slice(&bytes[..count]);
            self.rest_bytes += count;
            bytes = &bytes[count..];
            if self.rest_bytes < 8 {
                return;
            }
            let word = u64::from_le_bytes(self.rest);
            self.add(word);
        }
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        self.rest = [0; 8];
        self.rest[..rest.len()].copy_from_slice(rest);
        self.rest_bytes = rest.len();
    }

    fn add(&mut self, word: u64) {
        self.sum = self.sum.wrapping_add(mix(word.wrapping_add(self.words.wrapping_mul(STEP))));
        self.words += 1;
    }

    /// The checksum of all that was given.
    #[must_use]
    pub fn value(&self) -> u64 {
        let mut last = self.clone();
        if last.rest_bytes > 0 {
            let mut word = [0; 8];
            word[..last.rest_bytes].copy_from_slice(&last.rest[..last.rest_bytes]);
            last.add(u64::from_le_bytes(word));
        }
        last.sum
    }
}

/// The checksum of some bytes: what [`crate::Verifier::checksum`] gives for the same bytes on a GPU.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut checksum = Checksum::new();
    checksum.update(bytes);
    checksum.value()
}

/// Fills with the pattern of a seed: what [`crate::Verifier::fill`] writes on a GPU.
pub fn pattern(seed: u64, target: &mut [u8]) {
    for (index, piece) in target.chunks_mut(8).enumerate() {
        let word = mix(seed.wrapping_add((index as u64).wrapping_mul(STEP)));
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let mut bytes = vec![0; 1003];
        pattern(7, &mut bytes);
        let whole = checksum(&bytes);
        for cut in [0, 1, 7, 8, 9, 500, 1002, 1003] {
            for second in [cut, cut + (1003 - cut) / 2, 1003] {
                let mut pieces = Checksum::new();
                pieces.update(&bytes[..cut]);
                pieces.update(&bytes[cut..second]);
                pieces.update(&bytes[second..]);
                assert_eq!(pieces.value(), whole, "cut at {cut} and {second}");
            }
        }
    }

    #[test]
    fn every_byte_and_every_place_counts() {
        let mut bytes = vec![0; 64];
        pattern(1, &mut bytes);
        let whole = checksum(&bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(checksum(&other), whole, "byte {at}");
        }
        let mut exchanged = bytes.clone();
        exchanged[..8].copy_from_slice(&bytes[8..16]);
        exchanged[8..16].copy_from_slice(&bytes[..8]);
        assert_ne!(checksum(&exchanged), whole);
        assert_ne!(checksum(&bytes[..63]), whole);
    }

    #[test]
    fn a_shorter_pattern_is_the_start_of_a_longer() {
        let (mut long, mut short) = ([0; 40], [0; 13]);
        pattern(9, &mut long);
        pattern(9, &mut short);
        assert_eq!(long[..13], short);
    }
}
