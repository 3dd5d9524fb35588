//! Doubly linked lists through borrowed tables of links: the engine's queues, with no memory of their own.
//!
//! One [`Link`] table serves any number of lists, as long as each entry is in at most one of them.

/// Past the end of a list.
const NONE: u32 = u32::MAX;
/// The entry is in no list.
const UNLINKED: u32 = u32::MAX - 1;

/// The neighbours of one table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    /// An entry that is in no list.
    pub const UNLINKED: Link = Link { previous: UNLINKED, next: UNLINKED };

    /// Whether the entry is in a list.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        self.next != UNLINKED
    }
}

/// Both ends of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
    count: u32,
}

impl List {
    /// No entries.
    pub const EMPTY: List = List { head: NONE, tail: NONE, count: 0 };

    /// Entries in the list.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first entry.
    #[must_use]
    pub const fn front(&self) -> Option<u32> {
        if self.head == NONE { None } else { Some(self.head) }
    }

    /// Puts an unlinked entry at the end.
    pub fn push_back(&mut self, links: &mut [Link], entry: u32) {
        debug_assert!(!links[entry as usize].is_linked());
        links[entry as usize] = Link { previous: self.tail, next: NONE };
        if self.tail == NONE {
            self.head = entry;
        } else {
            links[self.tail as usize].next = entry;
        }
        self.tail = entry;
        self.count += 1;
    }

    /// Puts an unlinked entry at the front.
    pub fn push_front(&mut self, links: &mut [Link], entry: u32) {
        debug_assert!(!links[entry as usize].is_linked());
        links[entry as usize] = Link { previous: NONE, next: self.head };
        if self.head == NONE {
            self.tail = entry;
        } else {
            links[self.head as usize].previous = entry;
        }
        self.head = entry;
        self.count += 1;
    }

    /// Takes the first entry.
    pub fn pop_front(&mut self, links: &mut [Link]) -> Option<u32> {
        let entry = self.front()?;
        self.remove(links, entry);
        Some(entry)
    }

    /// Takes an entry that is in this list.
    pub fn remove(&mut self, links: &mut [Link], entry: u32) {
        let link = links[entry as usize];
        debug_assert!(link.is_linked());
        if link.previous == NONE {
            self.head = link.next;
        } else {
            links[link.previous as usize].next = link.next;
        }
        if link.next == NONE {
            self.tail = link.previous;
        } else {
            links[link.next as usize].previous = link.previous;
        }
        links[entry as usize] = Link::UNLINKED;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests;
