//! How connections end: what of it is lost, and when each side hears of it.

use super::{Action, Code, FabricEvent, Nanos, Net, Op, State};

impl Net {
    /// Breaks a link: a tail of each direction is lost, and each side will hear of it.
    pub(super) fn cut(&mut self, link: usize, cause: Code) {
        let [a, b] = &self.links[link].sides;
        let keep = [self.rng.index(a.undelivered.len() + 1), self.rng.index(b.undelivered.len() + 1)];
        self.cut_keeping(link, cause, keep);
    }

    /// Breaks a link so that nothing arrives any more of what `side` has posted and what has not arrived.
    pub(super) fn break_behind(&mut self, link: usize, side: usize) {
        let other = self.links[link].sides[1 - side].undelivered.len();
        let mut keep = [0; 2];
        keep[1 - side] = self.rng.index(other + 1);
        self.cut_keeping(link, Code::ConnectionReset, keep);
    }

    fn cut_keeping(&mut self, link: usize, cause: Code, keep: [usize; 2]) {
        if self.links[link].cause.is_some() {
            return;
        }
        self.links[link].cause = Some(cause);
        for side in &self.links[link].sides {
            self.say(side.lane, side.connection, || "is cut".into());
        }
        let mut quiet = [self.now; 2];
        for side in [0, 1] {
            let (read_by, place_by) = self.lose_tail(link, side, keep[side]);
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

    /// Drops all but the first `keep` of what `side` posted and what has not arrived; returns when the last of the rest is read and is placed.
    fn lose_tail(&mut self, link: usize, side: usize, keep: usize) -> (Nanos, Nanos) {
        let end = &mut self.links[link].sides[side];
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
            posted.broken = true;
            if let Op::Read(_) = &posted.op {
                posted.op.stop();
            }
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
                posted.broken = true;
                posted.op.stop();
            }
        }
        (read_by, place_by)
    }

    /// A side hears of the cut: its posts end, and nothing more is read or placed for it.
    pub(super) fn down(&mut self, link: usize, side: usize) {
        let cause = self.links[link].cause.unwrap_or(Code::ConnectionReset);
        let acknowledged = self.config.capabilities.acknowledged;
        let (lane, connection) = (self.links[link].sides[side].lane, self.links[link].sides[side].connection);
        // What was acknowledged has been placed, and is not lost.
        self.see((link, side), u64::MAX, !acknowledged);
        // What is still on its way to this side does not land any more.
        let other = &mut self.links[link].sides[1 - side];
        other.undelivered.clear();
        for posted in other.posted.values_mut() {
            posted.delivered = true;
            posted.broken |= !posted.op.stop();
        }
        other.posted.retain(|_, posted| !posted.done);
        let end = &mut self.links[link].sides[side];
        end.state = State::Down;
        let mut ended = Vec::new();
        for posted in end.posted.values_mut().filter(|posted| !posted.done) {
            posted.done = true;
            let Some(post) = posted.op.post() else { continue };
            let mut status = cause;
            match &mut posted.op {
                Op::Write(write) => {
                    write.release_source();
                    for piece in write.pieces.iter_mut().filter(|piece| piece.data.is_none()) {
                        piece.settled = true;
                    }
                    // What broke the connection is told as the cause.
                    status = write.refused.filter(|_| acknowledged).unwrap_or(cause);
                }
                Op::Read(read) => {
                    read.release_into();
                    posted.op.stop();
                }
                _ => {}
            }
            ended.push((post, status));
        }
        let inbox = &mut self.lanes[lane].inbox;
        for (post, status) in ended {
            inbox.push_back((link, side, FabricEvent::Done { connection, post, status }));
        }
        inbox.push_back((link, side, FabricEvent::Down { connection, cause }));
    }
}
