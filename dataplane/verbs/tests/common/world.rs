//! Random work and random faults on two connections: every post ends once, `Down` comes last, nothing is stuck, and what is
//! said to have been written is there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{EPOCH, Harness, SOURCE, Setup, TARGET, stand_in};
use railhead_abi::Code;
use railhead_core::port::{Fabric, FabricEvent, Key, Place, PostError, PostId, Read, RemotePlace, Write};
use railhead_sim::Rng;
use railhead_sim::conformance::{End, FabricHarness, PAIRS};
use railhead_verbs::ConnectionSizes;

const BYTES: usize = 1 << 16;
const STATUSES: [u32; 5] = [4, 10, 12, 13, 19];

#[derive(Default)]
struct Side {
    /// Posts under way: for a write, where it writes.
    open: HashMap<u32, Option<(usize, usize)>>,
    sent: u64,
    seen: u64,
    is_down: bool,
}

struct World {
    harness: Harness,
    rng: Rng,
    sides: [[Side; PAIRS]; 2],
    source: Vec<u8>,
    next_post: u32,
    writes: u64,
    downs: u64,
    /// Whether single requests can be made to fail.
    is_stand_in: bool,
}

impl World {
    fn new(seed: u64, base: &Setup) -> Self {
        let mut rng = Rng::new(seed);
        let setup = Setup {
            sizes: if rng.chance(500_000) {
                ConnectionSizes { posts_max: 4, records_max: 3, receives: 5 }
            } else {
                ConnectionSizes { posts_max: 64, records_max: 48, receives: 50 }
            },
            flush_needed: rng.chance(500_000),
            ..base.clone()
        };
        let harness = Harness::with_memory(&setup, BYTES);
        let mut source = vec![0; BYTES];
        harness.span(End::Initiator, SOURCE).read(0, &mut source).expect("inside");
        Self {
            harness,
            rng,
            sides: Default::default(),
            source,
            next_post: 1,
            writes: 0,
            downs: 0,
            is_stand_in: base.devices[0].starts_with("stand-in"),
        }
    }

    fn side(&mut self, end: End, pair: usize) -> &mut Side {
        &mut self.sides[end as usize][pair]
    }

    /// One random post of the initiator. Every write of a byte writes the same to it, so writes never contradict.
    fn post(&mut self) {
        let pair = self.rng.index(PAIRS);
        let near = self.harness.connection(End::Initiator, pair);
        let bytes_max = if self.rng.chance(300_000) { 8000 } else { 100 };
        let bytes = self.rng.index(bytes_max) + 1;
        let offset = self.rng.index(BYTES - bytes);
        let is_bad = self.rng.chance(3_000);
        let epoch = if is_bad { EPOCH + 1 } else { EPOCH };
        let there = RemotePlace { key: Key { index: TARGET.0, epoch }, offset: offset as u64 };
        let here = Place { region: SOURCE, offset: offset as u64 };
        let post = PostId(self.next_post);
        let bytes_u32 = u32::try_from(bytes).expect("small");
        let kind = self.rng.below(10);
        let fabric = self.harness.fabric(End::Initiator);
        let (result, written) = match kind {
            0..=6 => {
                let write = Write { from: here, bytes: bytes_u32, to: there, slot: 0, post };
                (fabric.write(near, &write), (!is_bad).then_some((offset, bytes)))
            }
            7 | 8 => {
                // Reads bring what the source holds already, or zeroes of a place that was never written: kept apart.
                let read = Read { into: Place { region: SINK, ..here }, bytes: bytes_u32, from: there, post };
                (fabric.read(near, &read), None)
            }
            _ => (fabric.confirm(near, there, post), None),
        };
        let is_down = self.side(End::Initiator, pair).is_down;
        match result {
            Ok(()) => {
                self.next_post += 1;
                assert!(!is_down);
                self.side(End::Initiator, pair).open.insert(post.0, written);
            }
            Err(PostError::Full) => assert!(!is_down),
            Err(PostError::Down) => {}
        }
    }

    fn send(&mut self) {
        let (end, pair) = (End::BOTH[self.rng.index(2)], self.rng.index(PAIRS));
        let connection = self.harness.connection(end, pair);
        let mut record = railhead_abi::record::RawRecord { words: [0; 16] };
        let sent = self.side(end, pair).sent;
        let words = self.rng.between(2, 16);
        record.words[0] = words << 8;
        record.words[1] = sent;
        if self.harness.fabric(end).send(connection, &record).is_ok() {
            self.side(end, pair).sent += 1;
        }
    }

    fn flush(&mut self) {
        let (end, pair) = (End::BOTH[self.rng.index(2)], self.rng.index(PAIRS));
        let connection = self.harness.connection(end, pair);
        if !self.harness.fabric(end).capabilities(connection).flush_needed {
            return;
        }
        let post = PostId(self.next_post);
        if self.harness.fabric(end).flush(connection, post).is_ok() {
            self.next_post += 1;
            self.side(end, pair).open.insert(post.0, None);
        }
    }

    fn disturb(&mut self) {
        let (end, pair) = (End::BOTH[self.rng.index(2)], self.rng.index(PAIRS));
        match self.rng.below(3) {
            0 if self.is_stand_in => {
                let number = self.harness.pairs[pair].as_ref().expect("connected")[end as usize].number();
                let status = STATUSES[self.rng.index(STATUSES.len())];
                stand_in::fail(number, u32::try_from(self.rng.below(20)).expect("small"), status);
            }
            1 => {
                let connection = self.harness.connection(end, pair);
                self.harness.fabric(end).close(connection);
            }
            _ => self.harness.cut(pair),
        }
    }

    fn step(&mut self) {
        let mut said = [Vec::new(), Vec::new()];
        self.harness.step(&mut said);
        for (end, said) in End::BOTH.into_iter().zip(said) {
            for event in said {
                self.take(end, &event);
            }
        }
        for pair in 0..PAIRS {
            let down = End::BOTH.map(|end| self.side(end, pair).is_down);
            if down == [true, true] {
                self.harness.connect(pair);
                self.sides[0][pair] = Side::default();
                self.sides[1][pair] = Side::default();
            } else if down[0] || down[1] {
                // As whoever watches both nodes does.
                let end = if down[0] { End::Target } else { End::Initiator };
                let connection = self.harness.connection(end, pair);
                self.harness.fabric(end).close(connection);
            }
        }
    }

    fn take(&mut self, end: End, event: &FabricEvent) {
        let pair_of = |connection| {
            (0..PAIRS)
                .find(|pair| self.harness.connection(end, *pair) == connection)
                .expect("a connection of ours")
        };
        match *event {
            FabricEvent::Done { connection, post, status } => {
                let pair = pair_of(connection);
                let side = self.side(end, pair);
                assert!(!side.is_down, "{event:?} after Down");
                let written = side.open.remove(&post.0).expect("posted, and not ended before");
                if let (Some((offset, bytes)), Code::Ok) = (written, status) {
                    self.writes += 1;
                    let mut seen = vec![0; bytes];
                    self.harness.read_bytes(End::Target, TARGET, offset, &mut seen);
                    assert!(seen == self.source[offset..offset + bytes], "{event:?}: not what was written");
                }
            }
            FabricEvent::Record { connection, record } => {
                let pair = pair_of(connection);
                let side = self.side(end, pair);
                assert!(!side.is_down, "{event:?} after Down");
                assert_eq!(record.words[1], side.seen, "records come once and in order");
                side.seen += 1;
            }
            FabricEvent::Down { connection, .. } => {
                let pair = pair_of(connection);
                let outstanding = self.harness.fabric(end).outstanding(connection);
                let side = self.side(end, pair);
                assert!(
                    !side.is_down && side.open.is_empty() && outstanding == 0,
                    "{event:?}: {:?}",
                    side.open
                );
                side.is_down = true;
                self.downs += 1;
            }
            FabricEvent::Refused { .. } => panic!("{event:?}"),
        }
    }

    fn is_quiet(&self) -> bool {
        self.sides.iter().flatten().all(|side| side.open.is_empty() && !side.is_down)
    }
}

/// Where reads go.
const SINK: railhead_core::port::RegionIndex = railhead_core::port::RegionIndex(2);

/// Runs worlds on these devices. Returns how many writes were compared, and how many connections ended.
pub(crate) fn run(base: &Setup, seeds: core::ops::Range<u64>, actions: u32) -> (u64, u64) {
    let (mut writes, mut downs) = (0, 0);
    for seed in seeds {
        let mut world = World::new(seed, base);
        world.harness.install(End::Initiator, SINK, 1, BYTES, 0);
        for _ in 0..actions {
            match world.rng.below(100) {
                0..50 => world.post(),
                50..75 => world.send(),
                75..80 => world.flush(),
                80 if world.rng.chance(200_000) => world.disturb(),
                _ => world.step(),
            }
        }
        let start = Instant::now();
        while !world.is_quiet() {
            world.step();
            let open = world.sides[0].each_ref().map(|side| &side.open);
            assert!(start.elapsed() < Duration::from_secs(20), "seed {seed}: stuck with {open:?}");
        }
        (writes, downs) = (writes + world.writes, downs + world.downs);
        let given_up = world.harness.nodes.each_ref().map(|node| node.fabric.counters(0).given_up);
        assert_eq!(given_up, [0, 0], "seed {seed}: queue pairs that had to be destroyed");
    }
    (writes, downs)
}
