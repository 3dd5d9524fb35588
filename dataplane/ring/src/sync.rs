//! The word, the fences and the names of all memory orderings: the one file that touches atomics.
//!
//! Outside loom every function is one instruction. Under loom each ordering asks [`Site`] whether the mutant of this
//! run weakens it, and slot accesses also touch a shadow cell, so that loom reports a slot that is read and
//! overwritten without an order between the two (plain atomic words would hide that).
#![allow(clippy::disallowed_types, reason = "the wrapper that all other code has to use")]

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

use core::sync::atomic::Ordering;

macro_rules! sites {
    ($($(#[doc = $doc:literal])+ $site:ident = $name:literal,)+) => {
        /// One memory ordering of this crate, by the name of the mutant that weakens it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Site {
            $($(#[doc = $doc])+ $site,)+
        }

        impl Site {
            /// Every site with its mutant's name.
            pub const ALL: &[(Self, &str)] = &[$((Self::$site, $name),)+];
        }
    };
}

sites! {
    /// Ring: the producer's release store of the tail.
    SpscTailRelease = "spsc_tail_release",
    /// Ring: the consumer's acquire load of the tail.
    SpscTailAcquire = "spsc_tail_acquire",
    /// Ring: the consumer's release store of the head.
    SpscHeadRelease = "spsc_head_release",
    /// Ring: the producer's acquire load of the head.
    SpscHeadAcquire = "spsc_head_acquire",
    /// Bell: the sleeper's fence between announcing sleep and looking again.
    BellSleepFence = "bell_sleep_fence",
    /// Bell: the waker's fence between publishing and looking for a sleeper.
    BellWakeFence = "bell_wake_fence",
    /// Cell: the writer's release fence after the odd sequence.
    CellOddFence = "cell_odd_fence",
    /// Cell: the writer's release store of the even sequence.
    CellEvenRelease = "cell_even_release",
    /// Cell: the reader's acquire load of the sequence.
    CellSequenceAcquire = "cell_sequence_acquire",
    /// Cell: the reader's acquire fence before it checks the sequence again.
    CellCheckFence = "cell_check_fence",
    /// Log: the writer's release fence after the odd sequence of an entry.
    LogOddFence = "log_odd_fence",
    /// Log: the writer's release store of an entry's even sequence.
    LogEvenRelease = "log_even_release",
    /// Log: the reader's acquire load of an entry's sequence.
    LogSequenceAcquire = "log_sequence_acquire",
    /// Log: the reader's acquire fence before it checks the sequence again.
    LogCheckFence = "log_check_fence",
    /// Log: the writer's release store of the next position.
    LogNextRelease = "log_next_release",
    /// Log: the reader's acquire load of the next position.
    LogNextAcquire = "log_next_acquire",
    /// [`Word::load_acquire`].
    WordLoadAcquire = "word_load_acquire",
    /// [`Word::store_release`].
    WordStoreRelease = "word_store_release",
    /// [`Word::fetch_add_release`].
    WordAddRelease = "word_add_release",
    /// The acquire half of [`Word::swap_acq_rel`].
    WordSwapAcquire = "word_swap_acquire",
    /// The release half of [`Word::swap_acq_rel`].
    WordSwapRelease = "word_swap_release",
    /// The acquire half of [`Word::compare_exchange_acq_rel`].
    WordExchangeAcquire = "word_exchange_acquire",
    /// The release half of [`Word::compare_exchange_acq_rel`].
    WordExchangeRelease = "word_exchange_release",
    /// [`fence_acquire`].
    FenceAcquire = "fence_acquire",
    /// [`fence_release`].
    FenceRelease = "fence_release",
    /// [`fence_seq_cst`].
    FenceSeqCst = "fence_seq_cst",
}

impl Site {
    /// Whether this run weakens this site. Never outside loom: the branch folds away.
    #[cfg(not(loom))]
    #[inline(always)]
    const fn weakened(self) -> bool {
        false
    }

    /// Whether `RAILHEAD_MUTANT` names this site.
    #[cfg(loom)]
    fn weakened(self) -> bool {
        static MUTANT: std::sync::OnceLock<Option<Site>> = std::sync::OnceLock::new();
        *MUTANT.get_or_init(|| {
            let name = std::env::var("RAILHEAD_MUTANT").ok()?;
            let found = Self::ALL.iter().find(|(_, known)| *known == name);
            assert!(found.is_some(), "RAILHEAD_MUTANT={name} names no site");
            found.map(|(site, _)| *site)
        }) == Some(self)
    }

    #[inline(always)]
    fn ordering(self, strong: Ordering) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { strong }
    }
}

/// Orderings of a read-modify-write whose two halves are separate sites.
#[inline(always)]
fn read_modify_write(acquire: Site, release: Site) -> Ordering {
    match (acquire.weakened(), release.weakened()) {
        (false, false) => Ordering::AcqRel,
        (true, false) => Ordering::Release,
        (false, true) => Ordering::Acquire,
        (true, true) => Ordering::Relaxed,
    }
}

/// A fence of the given strength at a named site.
#[inline(always)]
pub(crate) fn fence_at(site: Site, strength: Ordering) {
    if !site.weakened() {
        fence(strength);
    }
}

/// Orders the loads before it against all accesses after it. Its partner is a release store or release fence.
#[inline]
pub fn fence_acquire() {
    fence_at(Site::FenceAcquire, Ordering::Acquire);
}

/// Orders all accesses before it against the stores after it. Its partner is an acquire load or acquire fence.
#[inline]
pub fn fence_release() {
    fence_at(Site::FenceRelease, Ordering::Release);
}

/// Takes part in the one order of all such fences: of two threads that each store, fence and then load what the
/// other stored, at least one sees the other's store. Costs tens of nanoseconds.
#[inline]
pub fn fence_seq_cst() {
    fence_at(Site::FenceSeqCst, Ordering::SeqCst);
}

/// Tells the core that this is a wait loop; yields to the other threads under loom.
#[inline]
pub(crate) fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// One shared 64-bit word: the unit of which all shared memory is made.
///
/// Eight bytes, aligned to eight, valid for any content, so a mapping may be seen as words. Any thread of any process
/// may use it.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Word {
    value: AtomicU64,
    /// Stands for the plain memory that the word would be if slots were not atomic: see `load_slot`.
    #[cfg(loom)]
    shadow: loom::cell::UnsafeCell<()>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Word>() == 8 && align_of::<Word>() == 8);
/// Indices of words travel as `u64` and address memory as `usize`.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

// SAFETY: `shadow` holds no data and no pointer into it is ever dereferenced: loom only records who touched it when,
// and reports an unordered pair. `value` is Sync by itself.
#[cfg(loom)]
unsafe impl Sync for Word {}

impl Word {
    /// A word with this value.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value) }
    }

    /// A word with this value; only inside a loom model.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value), shadow: loom::cell::UnsafeCell::new(()) }
    }

    /// Loads with no order against other words.
    #[inline]
    pub fn load_relaxed(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Loads; all that was stored before the release store or add whose value this sees is visible afterwards.
    #[inline]
    pub fn load_acquire(&self) -> u64 {
        self.load_at(Site::WordLoadAcquire)
    }

    /// Stores with no order against other words.
    #[inline]
    pub fn store_relaxed(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Stores; whoever acquires this value sees all that was stored before.
    #[inline]
    pub fn store_release(&self, value: u64) {
        self.store_at(Site::WordStoreRelease, value);
    }

    /// Adds, wrapping, and returns the value before. Many threads may add to one word: whoever acquires the sum sees
    /// what each of them stored before its add.
    #[inline]
    pub fn fetch_add_release(&self, count: u64) -> u64 {
        self.value.fetch_add(count, Site::WordAddRelease.ordering(Ordering::Release))
    }

    /// Puts a value in and returns the one before, ordered both ways.
    #[inline]
    pub fn swap_acq_rel(&self, value: u64) -> u64 {
        self.value.swap(value, read_modify_write(Site::WordSwapAcquire, Site::WordSwapRelease))
    }

    /// Puts `new` in if the word holds `current`, ordered both ways.
    ///
    /// # Errors
    /// The value that the word holds instead, loaded with acquire.
    #[inline]
    pub fn compare_exchange_acq_rel(&self, current: u64, new: u64) -> Result<u64, u64> {
        let success = read_modify_write(Site::WordExchangeAcquire, Site::WordExchangeRelease);
        let failure = Site::WordExchangeAcquire.ordering(Ordering::Acquire);
        self.value.compare_exchange(current, new, success, failure)
    }

    /// Acquire load at a named site.
    #[inline(always)]
    pub(crate) fn load_at(&self, site: Site) -> u64 {
        self.value.load(site.ordering(Ordering::Acquire))
    }

    /// Release store at a named site.
    #[inline(always)]
    pub(crate) fn store_at(&self, site: Site, value: u64) {
        self.value.store(value, site.ordering(Ordering::Release));
    }

    /// Swap without an order of its own.
    #[inline(always)]
    pub(crate) fn swap_relaxed(&self, value: u64) -> u64 {
        self.value.swap(value, Ordering::Relaxed)
    }

    /// Loads a word that some index hands over: whoever stored it must be ordered before.
    #[cfg(loom)]
    fn load_slot(&self) -> u64 {
        self.shadow.with(|_| ());
        self.load_relaxed()
    }

    /// Stores a word that some index hands over: whoever last loaded or stored it must be ordered before.
    #[cfg(loom)]
    fn store_slot(&self, value: u64) {
        self.shadow.with_mut(|_| ());
        self.store_relaxed(value);
    }
}

/// Copies an item into a slot that some index hands over: whoever last touched the slot must be ordered before.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_in<const W: usize>(slot: &[Word], item: &[u64; W]) {
    assert!(slot.len() == W);
    // SAFETY: the slot has W words (asserted) of eight bytes, as has the item, which is on this side's stack, so they
    // do not overlap. Word is a transparent AtomicU64, so its bytes may be written through a shared reference. Within
    // this process the caller has ordered the access after the last one of the other end (the head's release store).
    // A process that breaks that order tears the item, which its reader validates like any other nonsense.
    // JUSTIFICATION: eight stores of a word each fill the store buffer and wait, one by one, for a line that the other
    // core holds; wide stores make an item cost 24 ns instead of 75 between two cores (`ops/bench`, row `ring`).
    unsafe { core::ptr::copy_nonoverlapping(item.as_ptr(), slot.as_ptr().cast::<u64>().cast_mut(), W) };
}

/// Copies an item out of a slot that some index hands over: whoever stored it must be ordered before.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_out<const W: usize>(slot: &[Word]) -> [u64; W] {
    assert!(slot.len() == W);
    let mut item = [0; W];
    // SAFETY: as in `copy_in`, with source and target exchanged; any bytes are a valid u64.
    // JUSTIFICATION: as in `copy_in`.
    unsafe { core::ptr::copy_nonoverlapping(slot.as_ptr().cast::<u64>(), item.as_mut_ptr(), W) };
    item
}

/// As above, word by word, so that loom sees every access.
#[cfg(loom)]
pub(crate) fn copy_in<const W: usize>(slot: &[Word], item: &[u64; W]) {
    for (word, value) in slot.iter().zip(item) {
        word.store_slot(*value);
    }
}

/// As above, word by word, so that loom sees every access.
#[cfg(loom)]
pub(crate) fn copy_out<const W: usize>(slot: &[Word]) -> [u64; W] {
    let mut item = [0; W];
    for (value, word) in item.iter_mut().zip(slot) {
        *value = word.load_slot();
    }
    item
}
