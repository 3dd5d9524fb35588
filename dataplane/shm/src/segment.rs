//! Segments: the memory files that the dataplane makes, and the typed ends over them.
//!
//! A segment is made once per incarnation (control) or per session, and each of its ends is handed out once, by value:
//! that is what keeps every single-writer structure single-writer. Whoever opens a segment checks its header first,
//! computes all offsets from the shape that it has checked, and never reads the header again: the other side may write
//! it.

use railhead_abi::{ABI_VERSION, segment::HEADER_WORDS};
use railhead_ring::LayoutError;
use railhead_ring::sync::Word;

use crate::mapping::{MapError, Words};
use crate::span::OutOfRange;

pub mod control;
pub mod lanes_page;
pub mod session;

pub use control::{ControlSegment, ControlView, LaneEnds, LaneView};
pub use lanes_page::{LanesPage, LanesView};
pub use session::{ClientPort, PortEnds, SessionSegment, SessionView};

/// Why a segment could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The file cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It does not start with the magic word of its kind.
    #[error("not a segment of this kind (first word {found:#018x})")]
    Magic {
        /// The first word.
        found: u64,
    },
    /// It was made by another version.
    #[error("segment of ABI version {found}, this is version {ABI_VERSION}: use binaries of one build")]
    Version {
        /// The version in the header.
        found: u32,
    },
    /// A number of its shape is outside its limits.
    #[error("{what} is {found}, allowed are {least} to {most}")]
    Shape {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Smallest allowed.
        least: u64,
        /// Largest allowed.
        most: u64,
    },
    /// The header's size is not that of its shape.
    #[error("header says {found} words, its shape takes {expected}")]
    Words {
        /// Words by the header.
        found: u64,
        /// Words by the shape.
        expected: u64,
    },
    /// The file is shorter than its shape.
    #[error("segment is cut off: {0}")]
    CutOff(#[from] OutOfRange),
    /// What lies in the segment is not what its layout says.
    #[error("segment is damaged: {0}")]
    Layout(#[from] LayoutError),
}

/// Copies `N` words, each loaded once.
fn load<const N: usize>(words: &[Word]) -> [u64; N] {
    core::array::from_fn(|index| words[index].load_relaxed())
}

/// Stores words from the first on.
fn store(words: &[Word], values: &[u64]) {
    for (word, &value) in words.iter().zip(values) {
        word.store_relaxed(value);
    }
}

/// The header of a freshly mapped segment.
fn header(words: &Words) -> Result<[u64; HEADER_WORDS], SegmentError> {
    Ok(load(&words.part(0, HEADER_WORDS)?))
}

fn check_kind(magic: u64, wanted: u64, version: u32) -> Result<(), SegmentError> {
    if magic != wanted {
        return Err(SegmentError::Magic { found: magic });
    }
    if version != ABI_VERSION {
        return Err(SegmentError::Version { found: version });
    }
    Ok(())
}

fn check_range(what: &'static str, found: u64, least: u64, most: u64) -> Result<(), SegmentError> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(SegmentError::Shape { what, found, least, most })
    }
}

fn check_words(found: u64, expected: usize, mapped: &Words) -> Result<(), SegmentError> {
    let expected = expected as u64;
    if found != expected {
        return Err(SegmentError::Words { found, expected });
    }
    let mapped = mapped.len() as u64;
    if expected > mapped {
        return Err(OutOfRange { offset: 0, bytes: expected, limit: mapped }.into());
    }
    Ok(())
}
