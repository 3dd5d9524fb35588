//! CRC-32C: the checksum of iSCSI, which x86-64 computes eight bytes at a time since SSE 4.2.

/// The Castagnoli polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum of each single byte.
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// A running CRC-32C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32c {
    state: u32,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The checksum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: !0 }
    }

    /// Goes on with more bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("sse4.2") {
            // SAFETY: the processor has SSE 4.2, which was just checked (a cached load).
            self.state = unsafe { hardware(self.state, bytes) };
            return;
        }
        self.state = portable(self.state, bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.state
    }
}

fn portable(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn hardware(state: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    let (words, rest) = bytes.as_chunks::<8>();
    let wide = words.iter().fold(u64::from(state), |crc, word| _mm_crc32_u64(crc, u64::from_le_bytes(*word)));
    // The instruction leaves the upper half zero.
    rest.iter().fold(wide as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.value()
    }

    #[test]
    fn published_vectors() {
        // RFC 3720, B.4, and the usual check value.
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(&core::array::from_fn::<u8, 32, _>(|index| index as u8)), 0x46dd_794e);
        assert_eq!(crc(b""), 0);
    }

    #[test]
    fn table_and_instruction_agree_at_every_length_and_alignment() {
        let bytes: Vec<u8> =
            (0..200u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for start in 0..9 {
            for end in start..bytes.len() {
                assert_eq!(crc(&bytes[start..end]), !portable(!0, &bytes[start..end]));
            }
        }
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for cut in 0..bytes.len() {
            let mut pieces = Crc32c::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.value(), crc(&bytes));
        }
    }
}
