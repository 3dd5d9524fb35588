//! Memory that moves from one NUMA node to another while it is used: its addresses and its content stay as they are.
//!
//! The kernel migrates page by page. Whoever touches a page meanwhile waits for that page alone, so neither a lane nor a
//! peer notices more than a short delay. Pages that a device has pinned cannot be moved.

use std::sync::Arc;
use std::time::Duration;

use crate::arena::memory::{self, Memory};
use crate::arena::{ArenaError, Placement};

/// How often pages are tried again that the kernel itself, or a socket call, holds on to at that moment. A device's pin
/// looks the same and does not pass.
const TRIES: u32 = 100;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// Why memory stayed where it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The machine has no such node, or the node has no memory.
    #[error("NUMA node {node} does not exist or has no memory")]
    NoSuchNode {
        /// The node that was asked for.
        node: u32,
    },
    /// Some pages cannot be moved there: it has no room for them, or a device has pinned them. Those that had been moved
    /// were moved back.
    #[error("{pages} pages cannot be moved to NUMA node {node}: {}", std::io::Error::from_raw_os_error(*errno))]
    Stuck {
        /// The node that was asked for.
        node: u32,
        /// How many.
        pages: u64,
        /// Why the first of them: `ENOMEM` is no room, `EBUSY` a device.
        errno: i32,
    },
    /// The kernel refuses to move or place memory of this process at all.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The call, as its manual page names it.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// A range of this process's memory, for moving it and asking where it lies. It owns an arena's memory, and names any other
/// only: of a range that was unmapped there is nothing to move.
#[derive(Debug, Clone)]
pub struct Extent {
    start: usize,
    bytes: usize,
    page_bytes: usize,
    /// Keeps an arena mapped.
    owner: Option<Arc<Memory>>,
}

impl Extent {
    /// An arena's memory.
    pub(crate) fn of_arena(memory: Arc<Memory>, page_bytes: usize) -> Self {
        let (start, bytes) = (memory.start().addr().get(), memory.len());
        Self { start, bytes, page_bytes, owner: Some(memory) }
    }

    /// The pages that a value lies on, such as a table's. Its first and last page may hold parts of others, which move
    /// with it.
    #[must_use]
    pub fn of_slice<T>(slice: &[T]) -> Self {
        let page_bytes = railhead_shm::memfd::base_page_bytes();
        let first = slice.as_ptr().addr();
        let start = first / page_bytes * page_bytes;
        let end = (first + size_of_val(slice)).next_multiple_of(page_bytes);
        Self { start, bytes: end - start, page_bytes, owner: None }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Asks the kernel where every page lies.
    ///
    /// # Errors
    /// [`ArenaError::System`]: `ENOSYS` or `EPERM` where this process may not ask.
    pub fn placement(&self) -> Result<Placement, ArenaError> {
        memory::placement(self.start, self.bytes, self.page_bytes)
    }

    /// Moves all pages to a node, or none. Slow: about as long as copying them takes. Pages that were never touched, which
    /// an arena has none of, stay where they will be first touched.
    ///
    /// # Errors
    /// [`MoveError`]; everything lies where it lay.
    pub fn move_to(&self, node: u32) -> Result<(), MoveError> {
        if !memory::node_exists(node) {
            return Err(MoveError::NoSuchNode { node });
        }
        let pages: Vec<usize> =
            (0..self.bytes / self.page_bytes).map(|at| self.start + at * self.page_bytes).collect();
        let before = memory::where_they_are(&pages).map_err(failed("move_pages"))?;
        let wanted = i32::try_from(node).map_err(|_| MoveError::NoSuchNode { node })?;
        let elsewhere = |at: &usize| before[*at] >= 0 && before[*at] != wanted;
        let moving = (0..pages.len()).filter(elsewhere).map(|at| pages[at]).collect();
        let (stuck, errno) = push(moving, wanted)?;
        if stuck == 0 {
            return self.stay_on(node);
        }
        let (back, nodes): (Vec<usize>, Vec<i32>) =
            pages.iter().copied().zip(before).filter(|(_, at)| *at >= 0).unzip();
        // As good as it gets: where a page came from there was room for it a moment ago.
        let _ = memory::move_pages(&back, &nodes);
        Err(MoveError::Stuck { node, pages: stuck, errno })
    }

    /// Has pages that are taken later come from the node, too. Only of an arena: a policy is the mapping's, and others'
    /// memory may lie in the same one.
    fn stay_on(&self, node: u32) -> Result<(), MoveError> {
        if self.owner.is_none() {
            return Ok(());
        }
        memory::bind(self.start, self.bytes, node).map_err(failed("mbind"))
    }
}

/// Moves pages, those that are in use just then again and again. Returns how many are left, and why the first of them is.
fn push(mut moving: Vec<usize>, node: i32) -> Result<(u64, i32), MoveError> {
    for attempt in 0.. {
        let status = memory::move_pages(&moving, &vec![node; moving.len()]).map_err(failed("move_pages"))?;
        let stuck: Vec<(usize, i32)> =
            moving.iter().copied().zip(status).filter(|(_, at)| *at != node).collect();
        let Some((_, first)) = stuck.first() else { break };
        let errno = if *first < 0 { -first } else { libc::ENOMEM };
        let is_passing = |status: &i32| [-libc::EBUSY, -libc::EAGAIN].contains(status);
        if attempt == TRIES || !stuck.iter().all(|(_, status)| is_passing(status)) {
            return Ok((stuck.len() as u64, errno));
        }
        moving = stuck.into_iter().map(|(page, _)| page).collect();
        std::thread::sleep(PAUSE);
    }
    Ok((0, 0))
}

fn failed(call: &'static str) -> impl Fn(i32) -> MoveError {
    move |errno| MoveError::System { call, errno }
}

#[cfg(test)]
mod tests;
