//! What happens when: scheduling of posts, their moments, cuts.

use super::{Action, Code, FabricEvent, Nanos, Net, Op, Piece, SimMemory, State, Unseen, Write};
use railhead_core::port::{ConnectionIndex, RegionIndex};

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
            if !config.reorder_done {
                done_at = done_at.max(self.links[link].sides[side].done_last);
            }
            self.links[link].sides[side].done_last = done_at;
            let delivers = match self.links[link].sides[side].posted.get(&op).map(|posted| &posted.op) {
                Some(Op::Write(write)) => {
                    let bytes = write.write.bytes as usize;
                    self.schedule_pieces(link, side, op, bytes, deliver_at.min(done_at), deliver_at);
                    true
                }
                Some(Op::Record(_)) => true,
                _ => false,
            };
            self.at(done_at, Action::Done { link, side, op });
            if delivers {
                let end = &mut self.links[link].sides[side];
                end.deliver_last = deliver_at;
                end.undelivered.push_back((op, deliver_at));
                if end.undelivered.len() == 1 {
                    self.at(deliver_at, Action::Deliver { link, side });
                }
            }
        }
    }

    fn schedule_pieces(
        &mut self,
        link: usize,
        side: usize,
        op: u64,
        bytes: usize,
        read_by: Nanos,
        place_by: Nanos,
    ) {
        let count = self.rng.index(self.config.pieces_max) + 1;
        let mut offset = 0;
        while offset < bytes {
            let size = (bytes - offset).min(bytes / count + 1);
            let read_at = self.rng.between(self.now, read_by);
            let place_at = self.rng.between(read_at, place_by);
            let Some(write) = self.links[link].sides[side].write(op) else { return };
            let piece = write.pieces.len();
            write.pieces.push(Piece {
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

    /// The memory that a write goes to, as the target's table says now.
    pub(super) fn resolve(&self, target: usize, write: &Write) -> Result<SimMemory, Code> {
        let place = write.to;
        let entry =
            self.lanes[target].regions.get(RegionIndex(place.key.index)).ok_or(Code::RemoteRefused)?;
        let end = place.offset.checked_add(u64::from(write.bytes));
        let fits = end.is_some_and(|end| end <= entry.memory.len() as u64);
        if entry.epoch != place.key.epoch || !entry.writable || !fits {
            return Err(Code::RemoteRefused);
        }
        if entry.memory.is_lost() {
            return Err(Code::RemoteRegionLost);
        }
        Ok(entry.memory)
    }

    fn place(&mut self, link: usize, side: usize, op: u64, piece: usize) {
        let target = self.links[link].sides[1 - side].lane;
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
        match self.resolve(target, &posted) {
            Err(code) => {
                if let Some(write) = self.links[link].sides[side].write(op) {
                    write.refused = Some(code);
                }
            }
            Ok(memory)
                if self.config.capabilities.flush_needed && memory.is_lazy() && self.rng.chance(700_000) =>
            {
                self.arrivals += 1;
                let (region, epoch, arrival) =
                    (RegionIndex(posted.to.key.index), posted.to.key.epoch, self.arrivals);
                self.lanes[target].unseen.push(Unseen {
                    link,
                    side: 1 - side,
                    arrival,
                    region,
                    epoch,
                    memory,
                    offset,
                    bytes: data,
                });
            }
            Ok(memory) => memory.device_write(offset, &data, "an inbound write"),
        }
    }

    /// Makes inbound writes of the link visible that arrived up to `arrivals`; of a dead link perhaps not.
    fn see(&mut self, (link, side): (usize, usize), arrivals: u64, may_lose: bool) {
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
                unseen.memory.device_write(
                    unseen.offset,
                    &unseen.bytes,
                    "an inbound write that became visible",
                );
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
        if posted.done {
            return;
        }
        posted.done = true;
        let (post, status, arrivals) = match &mut posted.op {
            Op::Record(_) => return,
            Op::Write(write) => {
                write.release_source();
                (write.write.post, if write.lost { Code::RegionLost } else { Code::Ok }, None)
            }
            Op::Flush { post, arrivals } => {
                posted.delivered = true;
                (*post, Code::Ok, Some(*arrivals))
            }
        };
        end.sweep(op);
        if let Some(arrivals) = arrivals {
            self.see((link, side), arrivals, false);
        }
        self.lanes[lane].inbox.push_back((link, side, FabricEvent::Done { connection, post, status }));
    }

    /// The first undelivered post arrives, unless the other side has no room for its record.
    fn deliver(&mut self, link: usize, side: usize) {
        let backlog_max = usize::from(self.config.capabilities.records_max);
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
                write.refused.map(|status| FabricEvent::Refused { connection, slot, status })
            }
            Op::Flush { .. } => None,
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
        if let Some((_, when)) = next {
            self.at(when.max(self.now), Action::Deliver { link, side });
        }
    }

    /// Breaks a link: a tail of each direction is lost, and each side will hear of it.
    pub(super) fn cut(&mut self, link: usize, cause: Code) {
        if self.links[link].cause.is_some() {
            return;
        }
        self.links[link].cause = Some(cause);
        for side in &self.links[link].sides {
            self.say(side.lane, side.connection, || "is cut".into());
        }
        let mut quiet = [self.now; 2];
        for side in [0, 1] {
            let (read_by, place_by) = self.lose_tail(link, side);
            quiet[side] = quiet[side].max(read_by);
            quiet[1 - side] = quiet[1 - side].max(place_by);
        }
        for (side, quiet) in quiet.into_iter().enumerate() {
            if self.rng.chance(500_000) && self.links[link].sides[side].state == State::Up {
                // This side notices at its next post; the other kind believes that all is well until Down.
                self.links[link].sides[side].state = State::Closing;
            }
            // Some hear of it while the other side's writes are still landing, some long after.
            let span = if self.rng.chance(500_000) { self.config.latency } else { self.config.down_latency };
            let span = span.draw(&mut self.rng);
            let when = quiet + 1 + self.rng.below(span);
            self.at(when, Action::Down { link, side });
        }
    }

    /// Drops a random tail of what `side` posted; returns when the last of the rest is read and is placed.
    fn lose_tail(&mut self, link: usize, side: usize) -> (Nanos, Nanos) {
        let end = &mut self.links[link].sides[side];
        let keep = self.rng.index(end.undelivered.len() + 1);
        let lost = end.undelivered.split_off(keep);
        let (mut read_by, mut place_by) = (0, 0);
        for (id, deliver_at) in &end.undelivered {
            place_by = place_by.max(*deliver_at);
            if let Some(Op::Write(write)) = end.posted.get(id).map(|posted| &posted.op) {
                read_by = write.pieces.iter().fold(read_by, |at, piece| at.max(piece.read_at));
            }
        }
        for (at, (id, _)) in lost.into_iter().enumerate() {
            let Some(posted) = end.posted.get_mut(&id) else { continue };
            posted.delivered = true;
            if let Op::Write(write) = &mut posted.op {
                for piece in &mut write.pieces {
                    // The first of the lost may land in part, the others are as if they never were.
                    piece.settled |= at > 0 || self.rng.chance(500_000);
                    if !piece.settled {
                        read_by = read_by.max(piece.read_at);
                        place_by = place_by.max(piece.place_at);
                        // Kept until the target hears of the cut.
                        posted.delivered = false;
                    }
                }
                if posted.delivered {
                    write.release_target();
                }
            }
        }
        for id in std::mem::take(&mut end.unkicked) {
            if let Some(posted) = end.posted.get_mut(&id) {
                posted.delivered = true;
                if let Op::Write(write) = &mut posted.op {
                    write.stop();
                }
            }
        }
        (read_by, place_by)
    }

    /// A side hears of the cut: its posts end, and nothing more is read or placed for it.
    fn down(&mut self, link: usize, side: usize) {
        let cause = self.links[link].cause.unwrap_or(Code::ConnectionReset);
        let (lane, connection) = (self.links[link].sides[side].lane, self.links[link].sides[side].connection);
        self.see((link, side), u64::MAX, true);
        // What is still on its way to this side does not land any more.
        let other = &mut self.links[link].sides[1 - side];
        other.undelivered.clear();
        for posted in other.posted.values_mut() {
            posted.delivered = true;
            if let Op::Write(write) = &mut posted.op {
                write.stop();
            }
        }
        other.posted.retain(|_, posted| !posted.done);
        let end = &mut self.links[link].sides[side];
        end.state = State::Down;
        let mut ended = Vec::new();
        for posted in end.posted.values_mut().filter(|posted| !posted.done) {
            posted.done = true;
            ended.push(match &mut posted.op {
                Op::Write(write) => {
                    write.release_source();
                    for piece in write.pieces.iter_mut().filter(|piece| piece.data.is_none()) {
                        piece.settled = true;
                    }
                    write.write.post
                }
                Op::Flush { post, .. } => *post,
                Op::Record(_) => continue,
            });
        }
        let inbox = &mut self.lanes[lane].inbox;
        for post in ended {
            inbox.push_back((link, side, FabricEvent::Done { connection, post, status: cause }));
        }
        inbox.push_back((link, side, FabricEvent::Down { connection, cause }));
    }
}
