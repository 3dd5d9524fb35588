//! What happens when: scheduling of posts, their moments.

use super::{Action, Code, FabricEvent, Nanos, Net, Op, Piece, Read, SimMemory, State, Unseen, Write};
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_core::port::{ConnectionIndex, RegionIndex, RemotePlace};

impl Net {
    /// Says what a lane does, if anybody listens.
    pub(super) fn say(&self, lane: usize, connection: ConnectionIndex, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{} lane {lane} {}: {}", self.now, connection.0, what());
        }
    }

    pub(super) fn at(&mut self, when: Nanos, action: Action) {
        self.sequence += 1;
        self.moments.insert((when, self.sequence), action);
    }

    /// Lets everything happen that is due.
    pub(super) fn advance(&mut self, now: Nanos) {
        while let Some(entry) = self.moments.first_entry() {
            let (when, _) = *entry.key();
            if when > now {
                break;
            }
            let action = entry.remove();
            self.now = self.now.max(when);
            self.act(action);
        }
        self.now = self.now.max(now);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Read { link, side, op, piece } => self.read(link, side, op, piece),
            Action::Place { link, side, op, piece } => self.place(link, side, op, piece),
            Action::Done { link, side, op } => self.done(link, side, op),
            Action::Deliver { link, side } => self.deliver(link, side),
            Action::Down { link, side } => self.down(link, side),
        }
    }

    /// Gives every post of the side that was not kicked yet its moments.
    pub(super) fn kick(&mut self, link: usize, side: usize) {
        for op in std::mem::take(&mut self.links[link].sides[side].unkicked) {
            let (now, config) = (self.now, self.config);
            let deliver_at =
                (now + config.latency.draw(&mut self.rng)).max(self.links[link].sides[side].deliver_last);
            let mut done_at = now + config.latency.draw(&mut self.rng);
            let first = match self.links[link].sides[side].posted.get(&op).map(|posted| &posted.op) {
                Some(Op::Write(write)) => Some((write.write.bytes, config.capabilities.acknowledged)),
                Some(Op::Read(read)) => Some((read.read.bytes, true)),
                Some(Op::Confirm { .. }) => Some((0, true)),
                Some(Op::Record(_)) => Some((0, false)),
                _ => None,
            };
            if let Some((_, true)) = first {
                // Its end says that it got there, or came back from there.
                done_at += deliver_at - now;
            }
            if !config.reorder_done {
                done_at = done_at.max(self.links[link].sides[side].done_last);
            }
            self.links[link].sides[side].done_last = done_at;
            match self.links[link].sides[side].posted.get(&op).map(|posted| &posted.op) {
                Some(Op::Write(_)) => {
                    let span = (now, deliver_at.min(done_at), deliver_at);
                    self.schedule_pieces(link, side, op, bytes_of(first), span);
                }
                // Behind the writes before it, which are placed by then.
                Some(Op::Read(_)) => {
                    self.schedule_pieces(link, side, op, bytes_of(first), (deliver_at, done_at, done_at));
                }
                _ => {}
            }
            self.at(done_at, Action::Done { link, side, op });
            if first.is_some() {
                let end = &mut self.links[link].sides[side];
                end.deliver_last = deliver_at;
                end.undelivered.push_back((op, deliver_at));
                if end.undelivered.len() == 1 {
                    self.at(deliver_at, Action::Deliver { link, side });
                }
            }
        }
    }

    /// Cuts a post into pieces; `span` is from when they are read, by when they are read, by when they are placed.
    fn schedule_pieces(
        &mut self,
        link: usize,
        side: usize,
        op: u64,
        bytes: usize,
        span: (Nanos, Nanos, Nanos),
    ) {
        let count = self.rng.index(self.config.pieces_max) + 1;
        let mut offset = 0;
        while offset < bytes {
            let size = (bytes - offset).min(bytes / count + 1);
            let read_at = self.rng.between(span.0, span.1);
            let place_at = self.rng.between(read_at, span.2);
            let pieces = match self.links[link].sides[side].posted.get_mut(&op).map(|posted| &mut posted.op) {
                Some(Op::Write(write)) => &mut write.pieces,
                Some(Op::Read(read)) => &mut read.pieces,
                _ => return,
            };
            let piece = pieces.len();
            pieces.push(Piece {
                offset: offset as u64,
                bytes: size,
                read_at,
                place_at,
                data: None,
                settled: false,
            });
            self.at(read_at, Action::Read { link, side, op, piece });
            self.at(place_at, Action::Place { link, side, op, piece });
            offset += size;
        }
    }

    fn read(&mut self, link: usize, side: usize, op: u64, piece: usize) {
        if self.links[link].sides[side].read(op).is_some() {
            self.fetch(link, side, op, piece);
            return;
        }
        let Some(write) = self.links[link].sides[side].write(op) else { return };
        if write.pieces[piece].settled {
            return;
        }
        let (offset, bytes) =
            (write.write.from.offset + write.pieces[piece].offset, write.pieces[piece].bytes);
        let mut data = vec![0; bytes];
        if write.source.is_lost() {
            // As on a socket: what was promised is filled up with zeroes.
            write.lost = true;
        } else {
            write.source.device_read(offset, &mut data, "a post");
        }
        write.pieces[piece].data = Some(data);
    }

    /// A piece of a read's source is read at the other side.
    fn fetch(&mut self, link: usize, side: usize, op: u64, piece: usize) {
        let target = self.links[link].sides[1 - side].lane;
        let Some(read) = self.links[link].sides[side].read(op) else { return };
        if read.pieces[piece].settled || read.refused.is_some() {
            return;
        }
        let (posted, offset, bytes) = (read.read, read.pieces[piece].offset, read.pieces[piece].bytes);
        // A device's read pushes the writes before it out of its way.
        self.see((link, 1 - side), u64::MAX, false);
        let found = self.readable(target, &posted).map(|memory| {
            let mut data = vec![0; bytes];
            memory.device_read(posted.from.offset + offset, &mut data, "a read of a peer");
            data
        });
        let Some(read) = self.links[link].sides[side].read(op) else { return };
        match found {
            Ok(data) => read.pieces[piece].data = Some(data),
            Err(code) => read.refused = Some(code),
        }
    }

    /// The memory of a place at `target`, as its table says now, and whether the access is granted.
    fn at_place(
        &self,
        target: usize,
        place: RemotePlace,
        bytes: u32,
        access: u32,
    ) -> Result<(SimMemory, bool), Code> {
        let entry =
            self.lanes[target].regions.get(RegionIndex(place.key.index)).ok_or(Code::RemoteRefused)?;
        let end = place.offset.checked_add(u64::from(bytes));
        let fits = end.is_some_and(|end| end <= entry.memory.len() as u64);
        if entry.epoch != place.key.epoch || !fits {
            return Err(Code::RemoteRefused);
        }
        Ok((entry.memory, entry.access & access != 0))
    }

    /// The memory that a read comes from.
    pub(super) fn readable(&self, target: usize, read: &Read) -> Result<SimMemory, Code> {
        match self.at_place(target, read.from, read.bytes, ACCESS_READ)? {
            (_, false) => Err(Code::RemoteRefused),
            (memory, true) if memory.is_lost() => Err(Code::RemoteRegionLost),
            (memory, true) => Ok(memory),
        }
    }

    /// The memory that a write goes to which comes in at this end.
    pub(super) fn resolve(&self, (link, side): (usize, usize), write: &Write) -> Result<SimMemory, Code> {
        let end = &self.links[link].sides[side];
        let (memory, granted) = self.at_place(end.lane, write.to, write.bytes, ACCESS_WRITE)?;
        let in_window = end.windows.get(&write.slot).is_some_and(|window| {
            let key = (window.to.region.0, window.epoch);
            let last = write.to.offset + u64::from(write.bytes);
            key == (write.to.key.index, write.to.key.epoch)
                && window.to.offset <= write.to.offset
                && last <= window.to.offset + window.bytes
        });
        if !granted && !in_window {
            return Err(Code::RemoteRefused);
        }
        if memory.is_lost() {
            return Err(Code::RemoteRegionLost);
        }
        Ok(memory)
    }

    fn place(&mut self, link: usize, side: usize, op: u64, piece: usize) {
        if self.links[link].sides[side].read(op).is_some() {
            self.place_read(link, side, op, piece);
            return;
        }
        let Some(write) = self.links[link].sides[side].write(op) else { return };
        if write.pieces[piece].settled || write.refused.is_some() {
            return;
        }
        let posted = write.write;
        // A bad offset may wrap here; it is refused below.
        let offset = posted.to.offset.wrapping_add(write.pieces[piece].offset);
        let data = write.pieces[piece].data.take();
        write.pieces[piece].settled = true;
        let Some(data) = data else { return };
        match self.resolve((link, 1 - side), &posted) {
            Err(code) => {
                if let Some(write) = self.links[link].sides[side].write(op) {
                    write.refused = Some(code);
                }
            }
            Ok(memory) => {
                let region = (RegionIndex(posted.to.key.index), posted.to.key.epoch);
                self.land((link, 1 - side), region, &memory, offset, data, "an inbound write");
            }
        }
    }

    fn place_read(&mut self, link: usize, side: usize, op: u64, piece: usize) {
        let Some(read) = self.links[link].sides[side].read(op) else { return };
        if read.pieces[piece].settled || read.refused.is_some() {
            return;
        }
        read.pieces[piece].settled = true;
        let offset = read.read.into.offset + read.pieces[piece].offset;
        let (memory, epoch) = read.into.clone();
        let region = (read.read.into.region, epoch);
        let Some(data) = read.pieces[piece].data.take() else { return };
        self.land((link, side), region, &memory, offset, data, "a read");
    }

    /// Bytes come in at an end, to be seen now or later.
    fn land(
        &mut self,
        (link, side): (usize, usize),
        (region, epoch): (RegionIndex, u32),
        memory: &SimMemory,
        offset: u64,
        bytes: Vec<u8>,
        by: &str,
    ) {
        if self.config.capabilities.flush_needed && memory.is_lazy() && self.rng.chance(700_000) {
            self.arrivals += 1;
            let (arrival, memory) = (self.arrivals, memory.clone());
            let lane = self.links[link].sides[side].lane;
            self.lanes[lane].unseen.push(Unseen {
                link,
                side,
                arrival,
                region,
                epoch,
                memory,
                offset,
                bytes,
            });
        } else {
            memory.device_write(offset, &bytes, by);
        }
    }

    /// Makes visible what came in at an end up to `arrivals`; of a dead link perhaps not.
    pub(super) fn see(&mut self, (link, side): (usize, usize), arrivals: u64, may_lose: bool) {
        let lane = self.links[link].sides[side].lane;
        let (due, rest) =
            std::mem::take(&mut self.lanes[lane].unseen).into_iter().partition::<Vec<_>, _>(|unseen| {
                (unseen.link, unseen.side) == (link, side) && unseen.arrival <= arrivals
            });
        self.lanes[lane].unseen = rest;
        for unseen in due {
            let current = self.lanes[lane].regions.get(unseen.region);
            let installed = current.is_some_and(|entry| entry.epoch == unseen.epoch);
            if installed && !(may_lose && self.rng.chance(500_000)) {
                unseen.memory.device_write(unseen.offset, &unseen.bytes, "what came in and became visible");
            }
        }
    }

    /// Makes visible what has come in to a memory.
    pub(super) fn see_all(&mut self, memory: &SimMemory) {
        for lane in 0..self.lanes.len() {
            let (due, rest) = std::mem::take(&mut self.lanes[lane].unseen)
                .into_iter()
                .partition::<Vec<_>, _>(|unseen| unseen.memory.is(memory));
            self.lanes[lane].unseen = rest;
            for unseen in due {
                let current = self.lanes[lane].regions.get(unseen.region);
                if current.is_none_or(|entry| entry.epoch != unseen.epoch) {
                    continue;
                }
                memory.device_write(unseen.offset, &unseen.bytes, "what came in and was looked at");
            }
        }
    }

    fn done(&mut self, link: usize, side: usize, op: u64) {
        let end = &mut self.links[link].sides[side];
        if end.state == State::Down {
            return;
        }
        let (lane, connection) = (end.lane, end.connection);
        let Some(posted) = end.posted.get_mut(&op) else { return };
        let Some(post) = posted.op.post() else { return };
        if posted.done || (posted.broken && acknowledges(&posted.op, &self.config)) {
            return;
        }
        posted.done = true;
        let confirmed = if let Op::Confirm { at, .. } = posted.op { Some(at) } else { None };
        if let Some(at) = confirmed {
            // As a read it fails where the memory has gone since: what was written there is nobody's any more.
            let target = self.links[link].sides[1 - side].lane;
            let found = self.at_place(target, at, 1, 0);
            let status = match found {
                Ok((memory, _)) if memory.is_lost() => Code::RemoteRegionLost,
                Ok(_) => Code::Ok,
                Err(code) => code,
            };
            self.links[link].sides[side].sweep(op);
            self.see((link, 1 - side), u64::MAX, false);
            self.lanes[lane].inbox.push_back((link, side, FabricEvent::Done { connection, post, status }));
            return;
        }
        let mut sees = None;
        let status = match &mut posted.op {
            Op::Record(_) => return,
            Op::Write(write) => {
                write.release_source();
                let refused = write.refused.filter(|_| self.config.capabilities.acknowledged);
                if self.config.capabilities.acknowledged {
                    write.release_target();
                }
                if write.lost { Code::RegionLost } else { refused.unwrap_or(Code::Ok) }
            }
            Op::Read(read) => {
                read.release_into();
                read.release_source();
                read.refused.unwrap_or(Code::Ok)
            }
            Op::Flush { arrivals, .. } => {
                posted.delivered = true;
                sees = Some((side, *arrivals));
                Code::Ok
            }
            Op::Confirm { .. } => return,
        };
        end.sweep(op);
        if let Some((side, arrivals)) = sees {
            self.see((link, side), arrivals, false);
        }
        self.lanes[lane].inbox.push_back((link, side, FabricEvent::Done { connection, post, status }));
    }

    /// The first undelivered post arrives, unless the other side has no room for its record.
    fn deliver(&mut self, link: usize, side: usize) {
        let backlog_max = usize::from(self.config.capabilities.records_max);
        let acknowledged = self.config.capabilities.acknowledged;
        let mut breaks = false;
        let [a, b] = &mut self.links[link].sides;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        if to.state == State::Down {
            return;
        }
        let Some((op, _)) = from.undelivered.front().copied() else { return };
        let Some(posted) = from.posted.get_mut(&op) else { return };
        let event = match &mut posted.op {
            Op::Record(_) if to.unpolled_records >= backlog_max => {
                let when = self.now + self.config.latency.draw(&mut self.rng);
                self.at(when, Action::Deliver { link, side });
                return;
            }
            Op::Record(record) => {
                from.records_open -= 1;
                to.unpolled_records += 1;
                Some(FabricEvent::Record { connection: to.connection, record: *record })
            }
            Op::Write(write) => {
                write.stop();
                let (connection, slot) = (to.connection, write.write.slot);
                breaks = acknowledged && write.refused.is_some();
                let refused = write.refused.filter(|_| !acknowledged);
                refused.map(|status| FabricEvent::Refused { connection, slot, status })
            }
            Op::Read(_) | Op::Flush { .. } | Op::Confirm { .. } => None,
        };
        posted.delivered = true;
        from.undelivered.pop_front();
        from.sweep(op);
        let next = from.undelivered.front().copied();
        let (lane, sender) = (to.lane, from.lane);
        self.lanes[sender].stirred = true;
        if let Some(event) = event {
            self.lanes[lane].inbox.push_back((link, 1 - side, event));
        }
        if breaks {
            // As a queue pair does: nothing behind it arrives.
            self.break_behind(link, side);
            return;
        }
        if let Some((_, when)) = next {
            self.at(when.max(self.now), Action::Deliver { link, side });
        }
    }
}

/// Whether the end of a post says that it got through.
const fn acknowledges(op: &Op, config: &super::NetworkConfig) -> bool {
    match op {
        Op::Write(_) => config.capabilities.acknowledged,
        Op::Read(_) | Op::Confirm { .. } => true,
        Op::Record(_) | Op::Flush { .. } => false,
    }
}

fn bytes_of(first: Option<(u32, bool)>) -> usize {
    first.map_or(0, |(bytes, _)| bytes as usize)
}
