//! Sets of connections.

/// Connections, one bit each.
#[derive(Debug)]
pub(crate) struct Bits(Box<[u64]>);

impl Bits {
    /// Room for so many connections, none of them in.
    pub(crate) fn new(connections: usize) -> Self {
        Self(vec![0; connections.div_ceil(64).max(1)].into())
    }

    pub(crate) fn set(&mut self, at: usize, is_in: bool) {
        let bit = 1 << (at % 64);
        if is_in {
            self.0[at / 64] |= bit;
        } else {
            self.0[at / 64] &= !bit;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The first one from `from` on.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.0.get(word)? & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(64 * word + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.0.get(word)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn bits_are_found_in_order_across_words() {
        let mut bits = Bits::new(130);
        assert!(bits.is_empty());
        for at in [0, 63, 64, 129] {
            bits.set(at, true);
        }
        let found: Vec<_> = std::iter::successors(bits.next(0), |at| bits.next(at + 1)).collect();
        assert_eq!(found, [0, 63, 64, 129]);
        bits.set(64, false);
        assert_eq!((bits.next(64), bits.next(130), bits.next(usize::MAX)), (Some(129), None, None));
    }
}
