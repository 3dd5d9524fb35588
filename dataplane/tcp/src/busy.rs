//! Which connections have something to do.

/// Connections that want a visit, one bit each.
#[derive(Debug)]
pub(crate) struct Busy(Box<[u64]>);

impl Busy {
    /// For so many connections, none of them busy.
    pub(crate) fn new(connections: usize) -> Self {
        Self(vec![0; connections.div_ceil(64).max(1)].into())
    }

    pub(crate) fn set(&mut self, at: usize, busy: bool) {
        let bit = 1 << (at % 64);
        if busy {
            self.0[at / 64] |= bit;
        } else {
            self.0[at / 64] &= !bit;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The first set bit from `from` on.
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
    use super::Busy;

    #[test]
    fn bits_are_found_in_order_across_words() {
        let mut busy = Busy::new(130);
        assert!(busy.is_empty());
        for at in [0, 63, 64, 129] {
            busy.set(at, true);
        }
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = busy.next(from) {
            found.push(at);
            from = at + 1;
        }
        assert_eq!(found, [0, 63, 64, 129]);
        busy.set(64, false);
        assert_eq!(busy.next(64), Some(129));
        assert_eq!((busy.next(130), busy.next(192), busy.next(usize::MAX)), (None, None, None));
    }
}
