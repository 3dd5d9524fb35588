//! Blocks for peers: small ones as standing credits of a connection, large ones on demand by fair share.

use super::Engine;
use crate::list::List;
use crate::pool::Quota;
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Nanos};
use crate::tables::{
    BlockEntry, BlockPhase, Connection, ConnectionPhase, GRANTS_MAX, Role, SMALL_CREDITS_MAX,
};
use core::ops::Deref;
use railhead_abi::record::{CREDIT_BLOCKS_MAX, Credit, Demand, Plain, Record, SLOT_NONE};
use railhead_ring::Word;

/// Small blocks that a peer holds as standing credits of one connection, if the pool has them.
const SMALL_STANDING: u16 = 16;
const _: () = assert!(SMALL_STANDING as usize <= SMALL_CREDITS_MAX);

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// DEMAND: the transfer wants large blocks.
    pub(super) fn demand_arrived(
        &mut self,
        connection: ConnectionIndex,
        demand: &Demand,
        now: Nanos,
    ) -> bool {
        let Some(index) = self.touch_inbound(connection, demand.slot, now) else { return false };
        if demand.chunks == 0 {
            return self.withdraw(connection, demand.slot, index);
        }
        let shape = self.pool.shape();
        let inbound = &mut self.inbound[index as usize];
        let is_sound = inbound.chunks_wanted == 0
            && inbound.fin.is_none()
            && demand.chunks > 0
            && demand.depth > 0
            && u64::from(demand.chunk_bytes) <= shape.large_bytes;
        if !is_sound {
            return false;
        }
        inbound.chunks_wanted = demand.chunks;
        inbound.depth = demand.depth.min(GRANTS_MAX as u16);
        self.demands.push_back(self.demand_links, index);
        true
    }

    /// DEMAND for nothing: the transfer goes direct after all, and what it was granted goes home.
    fn withdraw(&mut self, connection: ConnectionIndex, slot: u16, index: u32) -> bool {
        let inbound = &self.inbound[index as usize];
        if inbound.chunks_wanted == 0 || inbound.fin.is_some() {
            return false;
        }
        self.reclaim(connection, slot);
        true
    }

    /// Large blocks by fair share among the transfers that want some.
    pub(super) fn grant_large(&mut self) {
        let share =
            (self.pool.shape().count(Quota::LargeReceive) as usize / self.demands.count().max(1)).max(1);
        let share = u16::try_from(share).unwrap_or(u16::MAX);
        // Who got nothing goes before who got something: the next block that comes home is for another transfer.
        let (mut unserved, mut served) = (List::EMPTY, List::EMPTY);
        while let Some(index) = self.demands.pop_front(self.demand_links) {
            let inbound = self.inbound[index as usize];
            let left = inbound.chunks_wanted.saturating_sub(inbound.chunks_granted);
            if !inbound.is_active || left == 0 {
                continue;
            }
            let (connection, slot) = Self::inbound_owner(index);
            if self.pool.shape().count(Quota::LargeReceive) == 0 {
                let replan = Plain { slot, ..Plain::default() };
                if !self.send_record(connection, &Record::Replan(replan)) {
                    unserved.push_back(self.demand_links, index);
                }
                continue;
            }
            let held = self.connections[usize::from(connection.0)].large_granted;
            let window = self.active.window_blocks.saturating_sub(held);
            let room = inbound.depth.min(share).saturating_sub(inbound.grants_open).min(window);
            let room = u64::from(room).min(left);
            let granted = self.grant(Quota::LargeReceive, connection, slot, room);
            self.connections[usize::from(connection.0)].large_granted += granted;
            self.inbound[index as usize].grants_open += granted;
            self.inbound[index as usize].chunks_granted += u64::from(granted);
            if left > u64::from(granted) {
                let list = if granted == 0 { &mut unserved } else { &mut served };
                list.push_back(self.demand_links, index);
            }
        }
        for mut list in [unserved, served] {
            while let Some(index) = list.pop_front(self.demand_links) {
                self.demands.push_back(self.demand_links, index);
            }
        }
    }

    /// Grants up to `room` blocks in one CREDIT; returns how many.
    fn grant(&mut self, quota: Quota, connection: ConnectionIndex, slot: u16, room: u64) -> u16 {
        let mut blocks = [0; CREDIT_BLOCKS_MAX];
        let mut pages = [0; CREDIT_BLOCKS_MAX];
        let mut count = 0;
        let most = usize::try_from(room).unwrap_or(usize::MAX).min(CREDIT_BLOCKS_MAX);
        while count < most {
            let Some(block) = self.pool.take(quota) else { break };
            blocks[count] = block;
            pages[count] = self.pool.page(block);
            count += 1;
        }
        let credit = Credit::of(slot, self.config.pool_epoch, &pages[..count]);
        if count == 0 || !self.send_record(connection, &Record::Credit(credit)) {
            for block in &blocks[..count] {
                self.pool.put(*block);
            }
            return 0;
        }
        for block in &blocks[..count] {
            self.blocks[*block as usize] =
                BlockEntry { phase: BlockPhase::Granted, connection, slot, ..BlockEntry::default() };
        }
        self.progress();
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    /// Keeps the standing small credits of each connection filled, by fair share.
    pub(super) fn grant_small(&mut self) {
        let all = self.pool.shape().count(Quota::SmallReceive);
        if self.pool.free(Quota::SmallReceive) == 0 {
            return;
        }
        let share = u16::try_from(all / self.targets_up.max(1)).unwrap_or(u16::MAX).clamp(2, SMALL_STANDING);
        let mut used = self.connections_used;
        while let Some(at) = super::take_bit(&mut used) {
            let entry = &self.connections[at];
            // In batches, so that a busy connection has one CREDIT for several blocks.
            if !Self::is_target(entry) || entry.small_granted > share / 2 {
                continue;
            }
            let room = u64::from(share - entry.small_granted);
            let connection = ConnectionIndex(u16::try_from(at).unwrap_or(u16::MAX));
            let granted = self.grant(Quota::SmallReceive, connection, SLOT_NONE, room);
            self.connections[at].small_granted += granted;
        }
    }

    fn is_target(entry: &Connection) -> bool {
        entry.phase == ConnectionPhase::Up && entry.info.role == Role::Target
    }
}
