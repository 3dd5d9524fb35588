//! Simulated memory that knows who uses which bytes.
//!
//! Owners (tests, simulated clients) read and write it freely. Devices announce what they use from post to end
//! ([`SimMemory::hold`]); two uses at once of the same bytes, one of them a write, are a violation. An owner may
//! also open windows ([`SimMemory::watch`], [`SimMemory::open`]): then every byte that a device reads or writes must
//! lie in a window, so a byte that lands outside its transfer's range, or after its completion, is seen at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use railhead_core::port::RegionIndex;

/// What a device does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Reads them.
    Read,
    /// Writes them.
    Write,
}

/// Names a use under way, to end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold(u64);

/// Names a window, to close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(u64);

/// Added to the lane's number in holds of inbound writes.
pub(crate) const INBOUND: usize = 1 << 32;

#[derive(Debug, Default)]
struct Inner {
    name: String,
    bytes: Vec<u8>,
    lazy: bool,
    lost: bool,
    watched: bool,
    holds: BTreeMap<Hold, (usize, Range<u64>, Use)>,
    windows: BTreeMap<Window, (Range<u64>, Use)>,
    next: u64,
    violations: Vec<String>,
}

/// Memory. Clones are the same memory.
#[derive(Debug, Clone, Default)]
pub struct SimMemory {
    inner: Rc<RefCell<Inner>>,
}

fn range_of(offset: u64, bytes: usize) -> Range<u64> {
    offset..offset.saturating_add(bytes as u64)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("offsets of simulated memory are small")
}

impl SimMemory {
    /// Zeroed memory; `name` is for messages.
    #[must_use]
    pub fn new(name: &str, bytes: usize) -> Self {
        let inner = Inner { name: name.into(), bytes: vec![0; bytes], ..Inner::default() };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    /// The same, but what a fabric writes into it is only seen after a flush, as in a GPU's memory.
    #[must_use]
    pub fn lazy(name: &str, bytes: usize) -> Self {
        let memory = Self::new(name, bytes);
        memory.inner.borrow_mut().lazy = true;
        memory
    }

    /// Whether both are the same memory.
    #[must_use]
    pub fn is(&self, other: &SimMemory) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Its size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.borrow().bytes.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether inbound writes need a flush to be seen.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.inner.borrow().lazy
    }

    /// Takes the memory away behind its users' backs, as a client does that punches a hole.
    pub fn lose(&self) {
        self.inner.borrow_mut().lost = true;
    }

    /// Whether it was taken away.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.borrow().lost
    }

    /// Reads as the owner.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.inner.borrow().bytes[offset..offset + bytes.len()]);
    }

    /// Writes as the owner.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.inner.borrow_mut().bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether `bytes` stand at `offset`, as the owner sees it.
    #[must_use]
    pub fn holds_bytes(&self, offset: usize, bytes: &[u8]) -> bool {
        self.inner.borrow().bytes[offset..offset + bytes.len()] == *bytes
    }

    /// The first of `bytes` that does not stand at `offset`, as the owner sees it.
    #[must_use]
    pub fn first_difference(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let inner = self.inner.borrow();
        inner.bytes[offset..].iter().zip(bytes).position(|(seen, sent)| seen != sent)
    }

    /// From now on devices may only use bytes in open windows.
    pub fn watch(&self) {
        self.inner.borrow_mut().watched = true;
    }

    /// Lets devices use `bytes` at `offset`.
    pub fn open(&self, offset: u64, bytes: u64, usage: Use) -> Window {
        let mut inner = self.inner.borrow_mut();
        inner.next += 1;
        let window = Window(inner.next);
        inner.windows.insert(window, (offset..offset + bytes, usage));
        window
    }

    /// Ends that; a use of these bytes that is still under way is a violation.
    pub fn close(&self, window: Window) {
        let mut inner = self.inner.borrow_mut();
        let Some((range, usage)) = inner.windows.remove(&window) else { return };
        if range.is_empty() {
            return;
        }
        let late = inner
            .holds
            .values()
            .find(|(_, held, held_for)| *held_for == usage && overlap(held, &range))
            .cloned();
        if let Some((lane, held, held_for)) = late {
            let name = inner.name.clone();
            inner.violations.push(format!(
                "{name}: {held_for:?} of {held:?} by lane {lane} is under way when {range:?} is closed"
            ));
        }
    }

    /// Ends all windows, as if the owner unmapped the memory.
    pub fn close_all(&self) {
        let windows: Vec<Window> = self.inner.borrow().windows.keys().copied().collect();
        windows.into_iter().for_each(|window| self.close(window));
    }

    /// What was done wrong since the last call.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.borrow_mut().violations)
    }

    /// Device of `lane`: uses these bytes from now on, until [`SimMemory::release`].
    pub(crate) fn hold(&self, lane: usize, offset: u64, bytes: usize, usage: Use) -> Hold {
        let mut inner = self.inner.borrow_mut();
        let range = range_of(offset, bytes);
        let clash = inner.holds.values().find(|(_, held, held_for)| {
            overlap(held, &range) && (usage == Use::Write || *held_for == Use::Write)
        });
        if let Some((other, held, held_for)) = clash.cloned() {
            let name = inner.name.clone();
            inner.violations.push(format!(
                "{name}: {usage:?} of {range:?} by lane {lane} while lane {other} has a {held_for:?} of {held:?}"
            ));
        }
        inner.next += 1;
        let hold = Hold(inner.next);
        inner.holds.insert(hold, (lane, range, usage));
        hold
    }

    pub(crate) fn release(&self, hold: Hold) {
        self.inner.borrow_mut().holds.remove(&hold);
    }

    /// Lane `lane` drops the memory from its table: it may not be using it. What peers have on its way there is refused.
    fn forget(&self, lane: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.holds.retain(|_, (of, ..)| *of != INBOUND + lane);
        let used = inner.holds.values().any(|(of, ..)| *of == lane);
        if used {
            let name = inner.name.clone();
            inner.violations.push(format!("{name}: removed while lane {lane} uses it"));
        }
    }

    fn check_window(&self, offset: u64, bytes: usize, usage: Use, by: &str) {
        let mut inner = self.inner.borrow_mut();
        let range = range_of(offset, bytes);
        let inside = |(window, of): &(Range<u64>, Use)| {
            *of == usage && window.start <= range.start && range.end <= window.end
        };
        if inner.watched && !inner.windows.values().any(inside) {
            let name = inner.name.clone();
            inner.violations.push(format!("{name}: {usage:?} of {range:?} by {by} is in no open window"));
        }
    }

    /// A device reads; `by` says what kind.
    pub(crate) fn device_read(&self, offset: u64, bytes: &mut [u8], by: &str) {
        self.check_window(offset, bytes.len(), Use::Read, by);
        self.read(index(offset), bytes);
    }

    /// A device writes, and it is seen at once.
    pub(crate) fn device_write(&self, offset: u64, bytes: &[u8], by: &str) {
        self.check_window(offset, bytes.len(), Use::Write, by);
        self.write(index(offset), bytes);
    }
}

/// An entry of a lane's table of memories.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The memory.
    pub memory: SimMemory,
    /// What the epoch of a key must be.
    pub epoch: u32,
    /// What peers may do with it: [`ACCESS_READ`], [`ACCESS_WRITE`], or both.
    ///
    /// [`ACCESS_READ`]: railhead_abi::frame::ACCESS_READ
    /// [`ACCESS_WRITE`]: railhead_abi::frame::ACCESS_WRITE
    pub access: u32,
}

/// The memories of one lane, shared by its fabric and its copy engine. Clones are the same table.
#[derive(Debug, Clone, Default)]
pub struct SimRegions {
    lane: usize,
    table: Rc<RefCell<BTreeMap<u32, Installed>>>,
}

impl SimRegions {
    /// An empty table of the lane with this number.
    #[must_use]
    pub fn new(lane: usize) -> Self {
        Self { lane, table: Rc::default() }
    }

    pub(crate) const fn lane(&self) -> usize {
        self.lane
    }

    /// Puts memory in; what was in the slot is removed first.
    pub fn install(&self, region: RegionIndex, epoch: u32, memory: &SimMemory, access: u32) {
        self.remove(region);
        self.table.borrow_mut().insert(region.0, Installed { memory: memory.clone(), epoch, access });
    }

    /// Takes memory out; posts of this lane that still use it are a violation, inbound writes are refused from now on.
    pub fn remove(&self, region: RegionIndex) {
        if let Some(gone) = self.table.borrow_mut().remove(&region.0) {
            gone.memory.forget(self.lane);
        }
    }

    /// The entry of a slot.
    #[must_use]
    pub fn get(&self, region: RegionIndex) -> Option<Installed> {
        self.table.borrow().get(&region.0).cloned()
    }

    /// The memory that a local place of `bytes` is in.
    ///
    /// # Panics
    /// If the place is not inside an installed memory: an engine checks that before it posts.
    pub(crate) fn local(&self, place: railhead_core::port::Place, bytes: usize) -> SimMemory {
        let entry = self
            .get(place.region)
            .unwrap_or_else(|| panic!("lane {}: {place:?} is not installed", self.lane));
        let end = place.offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= entry.memory.len() as u64),
            "lane {}: {bytes} bytes at {place:?} leave it",
            self.lane
        );
        entry.memory
    }
}
