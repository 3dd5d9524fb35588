//! Which memory a place or a key means.

use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_core::port::{Key, Place, RegionIndex, RemotePlace};
use railhead_shm::OwnedSpan;

use crate::memory::MemoryRegion;

/// NICs that one lane uses at most.
pub const RAILS_MAX: usize = 4;

/// Local memory as posts name it. Whoever installs keeps the registrations until the lane has given the entry back and
/// all posts from it have ended.
#[derive(Debug, Clone)]
pub struct RegionEntry {
    /// The bytes, if the CPU may read them: then small payload travels inside the post. `None` for memory of a device.
    pub memory: Option<OwnedSpan>,
    /// Address of the first byte in posts.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its key at each rail; 0 where it is not registered: posts on that rail fail.
    pub local_keys: [u32; RAILS_MAX],
}

impl RegionEntry {
    /// Host memory, with its registration of each rail in the rails' order.
    #[must_use]
    pub fn of_host(memory: &OwnedSpan, registrations: &[&MemoryRegion]) -> Self {
        let mut local_keys = [0; RAILS_MAX];
        for (key, registration) in local_keys.iter_mut().zip(registrations) {
            *key = registration.local_key();
        }
        Self {
            memory: Some(memory.clone()),
            address: memory.address() as u64,
            bytes: memory.len() as u64,
            local_keys,
        }
    }
}

/// Memory of a peer. The peer says all of this when a handle to it is opened, and for the arena of its lane when the
/// connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteMemory {
    /// Epoch of its key.
    pub epoch: u32,
    /// `ACCESS_READ`, `ACCESS_WRITE`: checked here, so that what is not permitted never reaches the peer's NIC, which
    /// would end the connection over it.
    pub access: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its key at each of the peer's rails.
    pub keys: [u32; RAILS_MAX],
}

/// Words of a [`RemoteMemory`] on the wire.
pub const REMOTE_MEMORY_WORDS: usize = 3 + RAILS_MAX / 2;

impl RemoteMemory {
    /// As words for a frame.
    #[must_use]
    pub fn to_words(self) -> [u64; REMOTE_MEMORY_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [first, second, third, fourth] = self.keys;
        [pair(self.epoch, self.access), self.address, self.bytes, pair(first, second), pair(third, fourth)]
    }

    /// From the words of a frame. Any words are some memory; what of it may be used is checked at each post, and at last
    /// by the NIC of its owner.
    #[must_use]
    pub const fn from_words(words: [u64; REMOTE_MEMORY_WORDS]) -> Self {
        let [rights, address, bytes, first, second] = words;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        const fn halves(word: u64) -> (u32, u32) {
            (word as u32, (word >> 32) as u32)
        }
        let ((epoch, access), (a, b), (c, d)) = (halves(rights), halves(first), halves(second));
        Self { epoch, access, address, bytes, keys: [a, b, c, d] }
    }
}

/// What a post names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Address {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// Local memories by slot.
#[derive(Debug)]
pub(crate) struct Regions(Box<[Option<RegionEntry>]>);

impl Regions {
    pub(crate) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| None).collect())
    }

    pub(crate) fn install(&mut self, region: RegionIndex, entry: RegionEntry) -> Option<RegionEntry> {
        let slots = self.0.len();
        let slot = self.0.get_mut(region.0 as usize);
        slot.unwrap_or_else(|| panic!("region slot {} of {slots}", region.0)).replace(entry)
    }

    pub(crate) fn remove(&mut self, region: RegionIndex) -> Option<RegionEntry> {
        self.0.get_mut(region.0 as usize)?.take()
    }

    /// Address and key of local bytes at a rail, and whether the CPU may read them.
    pub(crate) fn resolve(&self, place: Place, bytes: u32, rail: usize) -> Option<(Address, bool)> {
        let entry = self.0.get(place.region.0 as usize)?.as_ref()?;
        place.offset.checked_add(bytes.into()).filter(|end| *end <= entry.bytes)?;
        let key = *entry.local_keys.get(rail)?;
        let address = Address { address: entry.address.checked_add(place.offset)?, key };
        (key != 0).then_some((address, entry.memory.is_some()))
    }
}

/// Memories of peers by peer and slot.
#[derive(Debug)]
pub(crate) struct Remotes {
    slots: Box<[Option<RemoteMemory>]>,
    of_peer: usize,
}

impl Remotes {
    pub(crate) fn new(peers: u8, slots_of_peer: u32) -> Self {
        let of_peer = slots_of_peer as usize;
        Self { slots: vec![None; usize::from(peers) * of_peer].into(), of_peer }
    }

    fn slot(&mut self, peer: u8, index: u32) -> Option<&mut Option<RemoteMemory>> {
        let inside = (index as usize) < self.of_peer;
        self.slots.get_mut(usize::from(peer) * self.of_peer + index as usize).filter(|_| inside)
    }

    pub(crate) fn install(&mut self, peer: u8, index: u32, memory: RemoteMemory) -> bool {
        self.slot(peer, index).map(|slot| *slot = Some(memory)).is_some()
    }

    pub(crate) fn remove(&mut self, peer: u8, index: u32, epoch: u32) -> bool {
        let Some(slot) = self.slot(peer, index) else { return false };
        let is_it = slot.is_some_and(|memory| memory.epoch == epoch);
        if is_it {
            *slot = None;
        }
        is_it
    }

    pub(crate) fn clear(&mut self, peer: u8) {
        let from = usize::from(peer) * self.of_peer;
        for slot in self.slots.iter_mut().skip(from).take(self.of_peer) {
            *slot = None;
        }
    }

    fn get(&self, peer: u8, index: u32) -> Option<&RemoteMemory> {
        let inside = (index as usize) < self.of_peer;
        let at = usize::from(peer) * self.of_peer + index as usize;
        self.slots.get(at).filter(|_| inside)?.as_ref()
    }

    /// Address and key of a peer's bytes at its rail, if the key, the range and the right hold.
    pub(crate) fn resolve(
        &self,
        peer: u8,
        arena: &RemoteMemory,
        at: RemotePlace,
        want: Want,
    ) -> Option<Address> {
        let Key { index, epoch } = at.key;
        let memory = if index == RegionIndex::ARENA.0 { arena } else { self.get(peer, index)? };
        let is_permitted = memory.epoch == epoch && memory.access & want.access != 0;
        let is_inside = at.offset.checked_add(want.bytes.into()).is_some_and(|end| end <= memory.bytes);
        let key = *memory.keys.get(want.rail)?;
        let address = memory.address.checked_add(at.offset)?;
        (is_permitted && is_inside && key != 0).then_some(Address { address, key })
    }
}

/// What a post wants of a peer's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    /// Any of these rights suffices.
    pub(crate) access: u32,
    pub(crate) bytes: u32,
    pub(crate) rail: usize,
}

impl Want {
    pub(crate) const fn write(bytes: u32, rail: usize) -> Self {
        Self { access: ACCESS_WRITE, bytes, rail }
    }

    pub(crate) const fn read(bytes: u32, rail: usize) -> Self {
        Self { access: ACCESS_READ, bytes, rail }
    }

    /// One byte behind writes. The NIC lets it be read where it may be written: see [`crate::MemoryAccess::granting`].
    pub(crate) const fn confirm(rail: usize) -> Self {
        Self { access: ACCESS_WRITE, bytes: 1, rail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: RemoteMemory =
        RemoteMemory { epoch: 9, access: ACCESS_WRITE, address: 1 << 20, bytes: 4096, keys: [7, 0, 0, 0] };

    fn at(index: u32, epoch: u32, offset: u64) -> RemotePlace {
        RemotePlace { key: Key { index, epoch }, offset }
    }

    #[test]
    fn memories_come_back() {
        let memory = RemoteMemory {
            epoch: 3,
            access: ACCESS_READ,
            address: u64::MAX - 7,
            bytes: 5 << 32,
            keys: [1, u32::MAX, 3, 1 << 31],
        };
        assert_eq!(RemoteMemory::from_words(memory.to_words()), memory);
    }

    #[test]
    fn only_what_holds_is_resolved() {
        let mut remotes = Remotes::new(2, 8);
        let memory =
            RemoteMemory { epoch: 3, access: ACCESS_READ, address: 1000, bytes: 100, keys: [5, 6, 0, 0] };
        assert!(remotes.install(1, 4, memory));
        assert!(!remotes.install(1, 8, memory), "past the table of the peer");
        assert!(!remotes.install(2, 0, memory), "past the peers");
        let read = |remotes: &Remotes, place, bytes, rail| {
            remotes.resolve(1, &ARENA, place, Want::read(bytes, rail))
        };
        assert_eq!(read(&remotes, at(4, 3, 60), 40, 1), Some(Address { address: 1060, key: 6 }));
        assert_eq!(read(&remotes, at(4, 3, 60), 41, 0), None, "range");
        assert_eq!(read(&remotes, at(4, 3, u64::MAX), 1, 0), None, "overflow");
        assert_eq!(read(&remotes, at(4, 2, 0), 1, 0), None, "epoch");
        assert_eq!(read(&remotes, at(4, 3, 0), 1, 2), None, "rail");
        assert_eq!(read(&remotes, at(5, 3, 0), 1, 0), None, "slot");
        assert_eq!(remotes.resolve(0, &ARENA, at(4, 3, 0), Want::read(1, 0)), None, "peer");
        assert_eq!(remotes.resolve(1, &ARENA, at(4, 3, 0), Want::write(1, 0)), None, "right");
        assert!(!remotes.remove(1, 4, 2) && remotes.remove(1, 4, 3) && !remotes.remove(1, 4, 3));
        assert_eq!(read(&remotes, at(4, 3, 0), 1, 0), None, "removed");
    }

    #[test]
    fn slot_zero_is_the_connections_arena() {
        let mut remotes = Remotes::new(2, 8);
        let place = at(0, 9, 4095);
        let found = remotes.resolve(1, &ARENA, place, Want::write(1, 0));
        assert_eq!(found, Some(Address { address: (1 << 20) + 4095, key: 7 }));
        remotes.clear(1);
        assert_eq!(remotes.resolve(1, &ARENA, place, Want::write(1, 0)), found);
    }
}
