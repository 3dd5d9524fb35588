//! The right of a second thread to use something that its owner may take back at any moment.
//!
//! One word. The user, around each bounded piece of use: [`Claim::enter`], use, and again, or [`Claim::leave`]. The owner:
//! [`Claim::revoke`]; if the user is inside just then, [`Claim::is_left`] comes true within one piece. After that the user
//! has touched the thing for the last time, and the owner may free it. Both sides change the word by swaps, so of a
//! revocation and an entry one always sees the other.

use core::ops::Deref;

use crate::sync::Word;

const IDLE: u64 = 0;
const ENTERED: u64 = 1;
const REVOKED: u64 = 2;

/// One claim, in the first of these words; zero is a valid claim that nobody uses. One user and one owner at a time.
#[derive(Debug)]
pub struct Claim<M> {
    memory: M,
}

impl<M: Deref<Target = [Word]>> Claim<M> {
    /// A claim over the first of these words.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(memory: M) -> Self {
        assert!(!memory.is_empty(), "a claim takes a word");
        Self { memory }
    }

    /// User: begins a piece of use, or the next one. False if the owner has taken the right back: use nothing, leave.
    #[inline]
    #[must_use = "what was revoked must not be used"]
    pub fn enter(&self) -> bool {
        // Partner: the swap in `revoke`. Whichever comes second sees the first.
        self.memory[0].swap_acq_rel(ENTERED) != REVOKED
    }

    /// User: has used it for the last time.
    #[inline]
    pub fn leave(&self) {
        // Partner: the acquire load in `is_left`, or the swap in `revoke`. A swap and not a store, as every change of this
        // word that the other side may meet: the changes are then one chain, which loom can follow.
        self.memory[0].swap_acq_rel(IDLE);
    }

    /// Owner: takes the right back. True if the user is outside, and then it never gets in; otherwise wait until
    /// [`Self::is_left`].
    #[inline]
    #[must_use = "the user may be inside"]
    pub fn revoke(&self) -> bool {
        // Partners: the swaps in `enter` and `leave`.
        self.memory[0].swap_acq_rel(REVOKED) != ENTERED
    }

    /// Owner, after a revocation that found the user inside: whether it has left.
    #[inline]
    #[must_use]
    pub fn is_left(&self) -> bool {
        // Partner: the swap in `leave`: all that the user did came before.
        self.memory[0].load_acquire() == IDLE
    }

    /// Owner: makes the claim anew, once the user has handed the thing back by other means (a ring).
    #[inline]
    pub fn renew(&self) {
        // Relaxed: the ring that brought the thing back, and the one that carries it over again, order this.
        self.memory[0].store_relaxed(IDLE);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn revoked_means_outside_for_good() {
        let words = crate::zeroed(1);
        let claim = Claim::new(&words[..]);
        assert!(claim.enter());
        assert!(claim.enter(), "piece after piece");
        claim.leave();
        assert!(claim.revoke(), "nobody is inside");
        assert!(!claim.enter());
        claim.leave();
        claim.renew();
        assert!(claim.enter());
        assert!(!claim.revoke(), "the user is inside");
        assert!(!claim.is_left());
        assert!(!claim.enter());
        assert!(!claim.is_left(), "refused, but not gone yet");
        claim.leave();
        assert!(claim.is_left());
    }

    #[test]
    #[should_panic(expected = "a claim takes a word")]
    fn no_word_no_claim() {
        let _ = Claim::new(&[][..]);
    }
}
