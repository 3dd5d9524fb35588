//! The one macro behind every layout: a struct, its words, its table of fields.
//!
//! What processes and nodes share is arrays of 64-bit words, little-endian on the wire. A field says
//! in which word and at which bit it lies, so a layout never depends on the compiler, and the table
//! of all fields (see [`crate::layout`]) can be compared with the committed one.

/// Where one field lies, for the layout table and for the check of reserved bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldLayout {
    /// The field's name.
    pub name: &'static str,
    /// The first word, counted from the structure's start.
    pub word: usize,
    /// The lowest bit in that word.
    pub shift: u32,
    /// Width in bits; more than 64 means whole words.
    pub bits: u32,
}

/// A value that fits a field.
pub trait Field: Copy {
    /// Width in bits.
    const BITS: u32;
    /// Writes the value into cleared bits.
    fn put(self, words: &mut [u64], word: usize, shift: u32);
    /// Reads the value.
    fn get(words: &[u64], word: usize, shift: u32) -> Self;
}

macro_rules! integer_field {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            const BITS: u32 = <$ty>::BITS;
            #[inline]
            fn put(self, words: &mut [u64], word: usize, shift: u32) {
                words[word] |= u64::from(self) << shift;
            }
            #[inline]
            fn get(words: &[u64], word: usize, shift: u32) -> Self {
                // Truncation is the point: the field is these bits.
                (words[word] >> shift) as $ty
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

impl<const N: usize> Field for [u64; N] {
    #[expect(clippy::cast_possible_truncation, reason = "arrays of a few words")]
    const BITS: u32 = 64 * N as u32;
    #[inline]
    fn put(self, words: &mut [u64], word: usize, _shift: u32) {
        words[word..word + N].copy_from_slice(&self);
    }
    #[inline]
    fn get(words: &[u64], word: usize, _shift: u32) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(&words[word..word + N]);
        value
    }
}

/// A structure that is an array of words.
pub trait Layout: Copy {
    /// The structure's name.
    const NAME: &'static str;
    /// Its size in words.
    const WORDS: usize;
    /// Its fields in order.
    const FIELDS: &'static [FieldLayout];
}

/// The bits of `words` that no field of `L` covers: must be zero in what a client or a peer sends.
#[must_use]
pub fn reserved_is_zero<L: Layout>(words: &[u64]) -> bool {
    let mut index = 0;
    while index < L::WORDS && index < words.len() {
        if words[index] & !used_bits(L::FIELDS, index) != 0 {
            return false;
        }
        index += 1;
    }
    true
}

/// The bits of word `index` that some field of `fields` covers.
#[must_use]
pub const fn used_bits(fields: &[FieldLayout], index: usize) -> u64 {
    let mut used = 0;
    let mut at = 0;
    while at < fields.len() {
        let field = &fields[at];
        if field.bits >= 64 {
            let words = (field.bits / 64) as usize;
            if index >= field.word && index < field.word + words {
                used = u64::MAX;
            }
        } else if field.word == index {
            used |= ((1 << field.bits) - 1) << field.shift;
        }
        at += 1;
    }
    used
}

/// Whether no two fields share a bit and all lie inside `words` words.
#[must_use]
pub const fn is_sound(fields: &[FieldLayout], words: usize) -> bool {
    let mut at = 0;
    while at < fields.len() {
        let field = &fields[at];
        let whole = field.bits >= 64;
        let span = if whole { (field.bits / 64) as usize } else { 1 };
        if field.word + span > words
            || (!whole && field.shift + field.bits > 64)
            || (whole && field.shift != 0)
        {
            return false;
        }
        let (before, _) = fields.split_at(at);
        let mut word = field.word;
        while word < field.word + span {
            let mine = if whole { u64::MAX } else { ((1 << field.bits) - 1) << field.shift };
            if used_bits(before, word) & mine != 0 {
                return false;
            }
            word += 1;
        }
        at += 1;
    }
    true
}

/// Declares a structure of words: `field: type = word, shift`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $words:literal {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty = $word:literal, $shift:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        impl $crate::words::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const WORDS: usize = $words;
            const FIELDS: &'static [$crate::words::FieldLayout] = &[
                $( $crate::words::FieldLayout {
                    name: stringify!($field),
                    word: $word,
                    shift: $shift,
                    bits: <$ty as $crate::words::Field>::BITS,
                }, )*
            ];
        }

        const _: () = assert!(
            $crate::words::is_sound(<$name as $crate::words::Layout>::FIELDS, $words),
            concat!("fields of ", stringify!($name), " overlap or leave it"),
        );

        impl $name {
            /// Size in words.
            pub const WORDS: usize = $words;

            /// The structure as words, reserved bits zero.
            #[must_use]
            #[inline]
            pub fn encode(&self) -> [u64; $words] {
                let mut words = [0u64; $words];
                $( $crate::words::Field::put(self.$field, &mut words, $word, $shift); )*
                words
            }

            /// Reads the fields; the values are *not* validated.
            #[must_use]
            #[inline]
            pub fn decode(words: &[u64; $words]) -> Self {
                Self { $( $field: $crate::words::Field::get(words, $word, $shift), )* }
            }
        }
    };
}
pub(crate) use words;
