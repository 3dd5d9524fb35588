//! The lanes' page: which lanes sleep. Written by the lanes alone, read by every client before it rings.

use std::os::fd::{AsFd, OwnedFd};

use railhead_abi::segment::{LANES_PAGE_WORDS, LINE_WORDS};
use railhead_abi::settings::LANES_MAX;
use railhead_ring::Bell;
use railhead_ring::sync::fence_seq_cst;

use super::{SegmentError, check_range};
use crate::mapping::{Access, Mapping, ReadWords, Words};

/// The lanes' side. Take the bells apart and move each to its lane.
#[derive(Debug)]
pub struct LanesPage {
    /// The file, to be passed to every client, which can only map it for reading.
    pub file: OwnedFd,
    /// One for each lane, which is its sleeper.
    pub bells: Vec<Bell<Words>>,
}

impl LanesPage {
    /// Makes the page for a number of lanes.
    ///
    /// # Errors
    /// [`SegmentError::Shape`] for no lanes or too many, [`SegmentError::Map`].
    pub fn create(lanes: usize) -> Result<Self, SegmentError> {
        check_range("lanes", lanes as u64, 1, LANES_MAX as u64)?;
        let (file, mapping) = Mapping::sole_writer("railhead-lanes", LANES_PAGE_WORDS as u64 * 8)?;
        let words = mapping.words(0, LANES_PAGE_WORDS)?;
        let bell = |lane| Ok(Bell::new(words.part(lane * LINE_WORDS, 1)?)?);
        let bells = (0..lanes).map(bell).collect::<Result<_, SegmentError>>()?;
        Ok(Self { file, bells })
    }
}

/// A client's side.
#[derive(Debug, Clone)]
pub struct LanesView {
    words: ReadWords,
}

impl LanesView {
    /// Opens the page that the dataplane passed.
    ///
    /// # Errors
    /// [`SegmentError::Map`].
    pub fn open(file: impl AsFd) -> Result<Self, SegmentError> {
        let mapping = Mapping::of_sealed(file, Access::Read)?;
        Ok(Self { words: mapping.read_words(0, LANES_PAGE_WORDS)? })
    }

    /// Whether this lane has to be woken (through its eventfd) to see what was published before this call. Costs a full
    /// fence, so call it once per batch. Unlike [`Bell::take`] it cannot tell several wakers that one is enough: the page
    /// is read-only.
    #[inline]
    #[must_use]
    pub fn is_sleeping(&self, lane: usize) -> bool {
        // Partner: the fence in Bell::prepare on the lane. Either its second look sees what was published before this
        // fence, or this sees that it sleeps.
        fence_seq_cst();
        lane < LANES_MAX && self.words.load_relaxed(lane * LINE_WORDS).is_some_and(|word| word != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_sees_who_sleeps_and_cannot_write() {
        let page = LanesPage::create(3).unwrap();
        assert_eq!(page.bells.len(), 3);
        let view = LanesView::open(&page.file).unwrap();
        page.bells[1].prepare();
        assert_eq!([0, 1, 2].map(|lane| view.is_sleeping(lane)), [false, true, false]);
        page.bells[1].end();
        assert!(!view.is_sleeping(1));
        assert!(!view.is_sleeping(LANES_MAX));
        assert!(!view.is_sleeping(usize::MAX / 2));
        assert!(Mapping::of_sealed(&page.file, Access::ReadWrite).is_err());
    }

    #[test]
    fn impossible_numbers_of_lanes_are_refused() {
        for lanes in [0, LANES_MAX + 1] {
            assert!(matches!(LanesPage::create(lanes), Err(SegmentError::Shape { what: "lanes", .. })));
        }
    }
}
