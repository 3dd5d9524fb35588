//! Text and names as words.

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Words of a name.
pub const NAME_WORDS: usize = 8;
/// A name, zero-padded.
pub type Name = [u64; NAME_WORDS];

/// Puts text into words, cut at a character boundary so that at least one zero byte ends it.
#[must_use]
pub fn text_words<const N: usize>(text: &str) -> [u64; N] {
    let mut words = [0; N];
    let mut end = text.len().min(8 * N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (at, byte) in text.as_bytes()[..end].iter().enumerate() {
        words[at / 8] |= u64::from(*byte) << (8 * (at % 8));
    }
    words
}

/// A name in words.
#[must_use]
pub fn name_words(name: &str) -> Name {
    text_words(name)
}

/// Text taken out of words, for reading as `&str`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; 192],
    length: usize,
}

impl Text {
    /// Reads zero-padded words, up to 192 bytes; invalid UTF-8 is cut where it begins.
    #[must_use]
    pub fn of(words: &[u64]) -> Self {
        let mut bytes = [0; 192];
        let mut length = 0;
        'words: for word in words.iter().take(24) {
            for byte in word.to_le_bytes() {
                if byte == 0 {
                    break 'words;
                }
                bytes[length] = byte;
                length += 1;
            }
        }
        if let Err(error) = core::str::from_utf8(&bytes[..length]) {
            length = error.valid_up_to();
        }
        Self { bytes, length }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// Whether `name` is 1 to 63 bytes of letters, digits, `.`, `-`, `_`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}
