//! What can be refused, and why.

use core::error::Error;
use core::fmt;

/// The memory given to a structure cannot hold it, or does not hold a valid one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// The capacity is zero or not a power of two, or its size in words does not fit an address.
    Capacity {
        /// The capacity that was asked for.
        capacity: usize,
    },
    /// The memory is too short.
    TooShort {
        /// Words that the structure takes.
        needed_words: usize,
        /// Words that were given.
        given_words: usize,
    },
    /// The indices or sequences stored in the memory contradict each other: it was never a structure of this shape,
    /// or a peer has spoilt it.
    Indices,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { capacity } => write!(f, "capacity {capacity} is not a usable power of two"),
            Self::TooShort { needed_words, given_words } => {
                write!(f, "{given_words} words of memory, {needed_words} needed")
            }
            Self::Indices => f.write_str("the stored indices contradict each other"),
        }
    }
}

impl Error for LayoutError {}

/// No free slot: back-pressure, not a failure. The item stays with the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is full")
    }
}

impl Error for Full {}

/// The peer stored an index that no correct peer can store. The structure is to be abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer stored an impossible index")
    }
}

impl Error for Corrupt {}

/// No consistent copy within the given number of tries: the writer was writing all along, or died while it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no consistent copy within the tries allowed")
    }
}

impl Error for Busy {}

/// A settings cell refused a publication; the cell is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishError {
    /// The generation is not greater than the one in the cell, or beyond what a sequence can count.
    Generation {
        /// The generation that the cell holds.
        current: u64,
    },
    /// The payload has not the length of the cell.
    Length {
        /// Words that the cell holds.
        needed_words: usize,
        /// Words that were given.
        given_words: usize,
    },
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generation { current } => {
                write!(f, "the generation does not follow {current}, which the cell holds")
            }
            Self::Length { needed_words, given_words } => {
                write!(f, "a payload of {given_words} words for a cell of {needed_words}")
            }
        }
    }
}

impl Error for PublishError {}
