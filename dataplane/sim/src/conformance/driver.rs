//! Drives a harness and checks, at every event, what holds at all times: posts end once, records come whole, once and
//! in order behind the writes before them, and `Down` is the last word.

use std::collections::{HashMap, HashSet, VecDeque};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_abi::record::RawRecord;
use railhead_core::port::{
    Capabilities, Fabric, FabricEvent, Key, Nanos, Place, PostError, PostId, Read, RegionIndex, RemotePlace,
    Write,
};

use super::{End, FabricHarness, PAIRS};
use crate::Rng;

/// Source region; at the initiator.
pub(super) const SOURCE: RegionIndex = RegionIndex(1);
/// Region that reads go into, if a test makes one; at the initiator.
pub(super) const SINK: RegionIndex = RegionIndex(2);
/// Destination region; at the target.
pub(super) const DESTINATION: RegionIndex = RegionIndex(17);
/// Epoch of the destination.
pub(super) const EPOCH: u32 = 5;
/// Passes that a wait may take.
const PASSES_MAX: usize = 40 * (400_000);

/// A write that was posted and should arrive.
#[derive(Debug, Clone)]
struct Expected {
    pair: usize,
    to: usize,
    bytes: Vec<u8>,
    checked: bool,
}

/// One end of one connection, as seen so far.
#[derive(Debug, Default)]
struct Side {
    posted: HashMap<u32, bool>,
    down: Option<Code>,
    /// Records that the other end sent and this end has not seen, each with how many writes went before it.
    due: VecDeque<(RawRecord, usize)>,
    records_seen: usize,
    refused: Vec<(u16, Code)>,
}

/// A harness with its books.
pub(super) struct Driver<H: FabricHarness> {
    pub(super) harness: H,
    pub(super) capabilities: Capabilities,
    sides: [[Side; PAIRS]; 2],
    writes: Vec<Expected>,
    /// Flushes under way, and up to which write each makes things visible.
    flushes: HashMap<u32, (usize, usize)>,
    ended: HashSet<u32>,
    failed: HashMap<u32, Code>,
    /// The write of a post.
    by_post: HashMap<u32, usize>,
    next_post: u32,
    record_seed: Rng,
    source: Vec<u8>,
    model: Vec<u8>,
    now: Nanos,
    /// Length of the event slice that is polled into.
    pub(super) slice: usize,
    /// Off in tests that break connections on purpose.
    pub(super) expect_success: bool,
}

impl<H: FabricHarness> Driver<H> {
    /// Installs a random source and a poisoned destination of `bytes` each.
    pub(super) fn new(mut harness: H, bytes: usize) -> Self {
        let mut rng = Rng::new(bytes as u64);
        let mut source = vec![0; bytes];
        let mut model = vec![0; bytes];
        rng.fill(&mut source);
        rng.fill(&mut model);
        harness.install(End::Initiator, SOURCE, 1, bytes, 0);
        harness.install(End::Target, DESTINATION, EPOCH, bytes, ACCESS_READ | ACCESS_WRITE);
        harness.write_bytes(End::Initiator, SOURCE, 0, &source);
        harness.write_bytes(End::Target, DESTINATION, 0, &model);
        let first = harness.connection(End::Initiator, 0);
        let capabilities = harness.fabric(End::Initiator).capabilities(first);
        Self {
            harness,
            capabilities,
            sides: Default::default(),
            writes: Vec::new(),
            flushes: HashMap::new(),
            ended: HashSet::new(),
            failed: HashMap::new(),
            by_post: HashMap::new(),
            next_post: 1,
            record_seed: rng,
            source,
            model,
            now: 0,
            slice: 64,
            expect_success: true,
        }
    }

    pub(super) fn write_bytes_max(&self) -> usize {
        self.capabilities.write_bytes_max as usize
    }

    /// A write of the source to the destination that must arrive.
    pub(super) fn write(
        &mut self,
        pair: usize,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<PostId, PostError> {
        let key = Key { index: DESTINATION.0, epoch: EPOCH };
        let post = self.write_raw(pair, from, RemotePlace { key, offset: to as u64 }, bytes, 0)?;
        let data = self.source[from..from + bytes].to_vec();
        self.model[to..to + bytes].copy_from_slice(&data);
        self.by_post.insert(post.0, self.writes.len());
        self.writes.push(Expected { pair, to, bytes: data, checked: false });
        Ok(post)
    }

    /// A write that nothing is expected of but its end.
    pub(super) fn write_raw(
        &mut self,
        pair: usize,
        from: usize,
        to: RemotePlace,
        bytes: usize,
        slot: u16,
    ) -> Result<PostId, PostError> {
        let post = PostId(self.next_post);
        let bytes = u32::try_from(bytes).expect("a write is below 4 GiB");
        let write = Write { from: Place { region: SOURCE, offset: from as u64 }, bytes, to, slot, post };
        let connection = self.harness.connection(End::Initiator, pair);
        self.harness.fabric(End::Initiator).write(connection, &write)?;
        self.next_post += 1;
        self.side(End::Initiator, pair).posted.insert(post.0, false);
        Ok(post)
    }

    /// Makes the region that reads go into, of `bytes` zeroes.
    pub(super) fn make_sink(&mut self, bytes: usize) {
        self.harness.install(End::Initiator, SINK, 3, bytes, 0);
    }

    /// A read into the sink.
    pub(super) fn read(
        &mut self,
        pair: usize,
        from: RemotePlace,
        into: usize,
        bytes: usize,
    ) -> Result<PostId, PostError> {
        let post = PostId(self.next_post);
        let bytes = u32::try_from(bytes).expect("a read is below 4 GiB");
        let read = Read { into: Place { region: SINK, offset: into as u64 }, bytes, from, post };
        let connection = self.harness.connection(End::Initiator, pair);
        self.harness.fabric(End::Initiator).read(connection, &read)?;
        self.next_post += 1;
        self.side(End::Initiator, pair).posted.insert(post.0, false);
        Ok(post)
    }

    /// Reads `bytes` of the destination from `from` on, waits for the end and makes it visible here.
    pub(super) fn read_whole(&mut self, pair: usize, from: usize, into: usize, bytes: usize) {
        let key = Key { index: DESTINATION.0, epoch: EPOCH };
        let from = RemotePlace { key, offset: from as u64 };
        let post = self.read(pair, from, into, bytes).expect("a read has room");
        self.until("the read has ended", |driver| driver.has_ended(post));
        assert_eq!(self.status(post), Code::Ok);
        self.flush_here(pair);
    }

    /// Makes visible at the initiator what was read, where that needs a flush.
    pub(super) fn flush_here(&mut self, pair: usize) {
        if !self.capabilities.flush_needed {
            return;
        }
        let post = PostId(self.next_post);
        let connection = self.harness.connection(End::Initiator, pair);
        self.harness.fabric(End::Initiator).flush(connection, post).expect("a flush has room");
        self.next_post += 1;
        self.side(End::Initiator, pair).posted.insert(post.0, false);
        self.until("the flush has ended", |driver| driver.has_ended(post));
    }

    /// The sink as its owner sees it.
    pub(super) fn sink(&mut self, bytes: usize) -> Vec<u8> {
        let mut seen = vec![0; bytes];
        self.harness.read_bytes(End::Initiator, SINK, 0, &mut seen);
        seen
    }

    /// A confirm of what was written up to byte `at` of the destination.
    pub(super) fn confirm(&mut self, pair: usize, at: usize) -> Result<PostId, PostError> {
        let post = PostId(self.next_post);
        let key = Key { index: DESTINATION.0, epoch: EPOCH };
        let connection = self.harness.connection(End::Initiator, pair);
        let at = RemotePlace { key, offset: at as u64 };
        self.harness.fabric(End::Initiator).confirm(connection, at, post)?;
        self.next_post += 1;
        self.side(End::Initiator, pair).posted.insert(post.0, false);
        Ok(post)
    }

    /// What the destination must hold.
    pub(super) fn model(&self) -> &[u8] {
        &self.model
    }

    /// Like [`Driver::write`], but waits while the fabric is full.
    pub(super) fn write_waiting(&mut self, pair: usize, from: usize, to: usize, bytes: usize) -> PostId {
        for _ in 0..PASSES_MAX {
            match self.write(pair, from, to, bytes) {
                Ok(post) => return post,
                Err(PostError::Full) => self.step(),
                Err(PostError::Down) => panic!("connection {pair} is down"),
            }
        }
        panic!("a write found no room on connection {pair}");
    }

    /// A record of 1 to 16 random words.
    fn next_record(&mut self) -> RawRecord {
        let rng = &mut self.record_seed;
        let mut words = [0; 16];
        let len = rng.between(1, 16);
        for word in &mut words[..usize::try_from(len).expect("at most 16")] {
            *word = rng.next();
        }
        words[0] = (words[0] & !0xff00) | (len << 8);
        RawRecord { words }
    }

    /// Sends a random record from `end`.
    pub(super) fn send(&mut self, end: End, pair: usize) -> Result<(), PostError> {
        let record = self.next_record();
        let connection = self.harness.connection(end, pair);
        self.harness.fabric(end).send(connection, &record)?;
        let writes = if end == End::Initiator { self.writes.len() } else { 0 };
        self.side(end.other(), pair).due.push_back((record, writes));
        Ok(())
    }

    /// Like [`Driver::send`], but waits while the fabric is full.
    pub(super) fn send_waiting(&mut self, end: End, pair: usize) {
        for _ in 0..PASSES_MAX {
            match self.send(end, pair) {
                Ok(()) => return,
                Err(PostError::Full) => self.step(),
                Err(PostError::Down) => panic!("connection {pair} is down"),
            }
        }
        panic!("a record found no room on connection {pair}");
    }

    fn side(&mut self, end: End, pair: usize) -> &mut Side {
        &mut self.sides[end as usize][pair]
    }

    /// Whether an end has said `Down`.
    pub(super) fn is_down(&self, end: End, pair: usize) -> bool {
        self.sides[end as usize][pair].down.is_some()
    }

    /// Posts of the initiator that have not ended.
    pub(super) fn outstanding(&self, pair: usize) -> usize {
        self.sides[End::Initiator as usize][pair].posted.values().filter(|ended| !**ended).count()
    }

    /// Records that `end` has not seen yet.
    pub(super) fn records_due(&self, end: End, pair: usize) -> usize {
        self.sides[end as usize][pair].due.len()
    }

    /// Records that `end` has seen.
    pub(super) fn records_seen(&self, end: End, pair: usize) -> usize {
        self.sides[end as usize][pair].records_seen
    }

    /// What the target was told of refused writes: slots and codes.
    pub(super) fn refused(&self, pair: usize) -> &[(u16, Code)] {
        &self.sides[End::Target as usize][pair].refused
    }

    pub(super) fn has_ended(&self, post: PostId) -> bool {
        self.ended.contains(&post.0)
    }

    pub(super) fn has_failed(&self, post: PostId) -> bool {
        self.failed.contains_key(&post.0)
    }

    /// How a post that has ended went.
    pub(super) fn status(&self, post: PostId) -> Code {
        assert!(self.has_ended(post), "{post:?} has not ended");
        self.failed.get(&post.0).copied().unwrap_or(Code::Ok)
    }

    /// Overwrites part of the source, in memory and in the books.
    pub(super) fn refill_source(&mut self, from: usize, bytes: usize) {
        let range = from..from + bytes;
        self.record_seed.fill(&mut self.source[range.clone()]);
        let fresh = self.source[range].to_vec();
        self.harness.write_bytes(End::Initiator, SOURCE, from, &fresh);
    }

    /// Passes time, kicks, polls both ends once and keeps the books.
    pub(super) fn step(&mut self) {
        self.now = self.harness.pass();
        for end in End::BOTH {
            self.poll(end);
        }
    }

    fn poll(&mut self, end: End) {
        let nothing = FabricEvent::Down { connection: self.harness.connection(end, 0), cause: Code::Ok };
        let mut events = vec![nothing; self.slice];
        let now = self.now;
        let fabric = self.harness.fabric(end);
        fabric.kick(now);
        let count = fabric.poll(now, &mut events);
        assert!(count <= events.len(), "poll said {count} events for a slice of {}", events.len());
        for event in &events[..count] {
            self.take(end, event);
        }
    }

    /// The end and connection that an event of `end`'s fabric is about.
    fn whose(&self, end: End, event: &FabricEvent) -> (End, usize) {
        let (FabricEvent::Done { connection, .. }
        | FabricEvent::Record { connection, .. }
        | FabricEvent::Refused { connection, .. }
        | FabricEvent::Down { connection, .. }) = event;
        for end in [end, end.other()] {
            if let Some(pair) = (0..PAIRS).find(|pair| self.harness.connection(end, *pair) == *connection) {
                return (end, pair);
            }
        }
        panic!("an event of an unknown connection: {event:?}");
    }

    fn take(&mut self, polled: End, event: &FabricEvent) {
        let (end, pair) = self.whose(polled, event);
        let expect_success = self.expect_success;
        let side = self.side(end, pair);
        assert!(side.down.is_none(), "{end:?} {pair}: {event:?} after Down");
        match *event {
            FabricEvent::Done { post, status, .. } => {
                let ended =
                    side.posted.get_mut(&post.0).unwrap_or_else(|| panic!("{event:?} was never posted"));
                assert!(!*ended, "{event:?} ended twice");
                *ended = true;
                assert!(!expect_success || status == Code::Ok, "{event:?}");
                self.ended.insert(post.0);
                if status != Code::Ok {
                    self.failed.insert(post.0, status);
                } else if let Some(write) = self.by_post.get(&post.0).copied() {
                    // Where writes are acknowledged, their end means that they are in place.
                    if self.capabilities.acknowledged && !self.capabilities.flush_needed {
                        self.check_write(write);
                    }
                } else if let Some((pair, writes)) = self.flushes.remove(&post.0) {
                    self.check_writes(pair, writes);
                }
            }
            FabricEvent::Record { record, .. } => {
                let (due, writes) = side.due.pop_front().expect("a record came that nobody sent");
                assert_eq!(record, due, "{end:?} {pair}: a record is not the next that was sent");
                side.records_seen += 1;
                if end == End::Target {
                    self.see_writes(pair, writes);
                }
            }
            FabricEvent::Refused { slot, status, .. } => side.refused.push((slot, status)),
            FabricEvent::Down { cause, .. } => {
                let open = side.posted.values().filter(|ended| !**ended).count();
                assert_eq!(open, 0, "{end:?} {pair}: Down ({cause}) before {open} posts had ended");
                side.down = Some(cause);
            }
        }
    }

    /// A record came: the writes before it must be in place, if need be after a flush.
    fn see_writes(&mut self, pair: usize, writes: usize) {
        if !self.capabilities.flush_needed {
            self.check_writes(pair, writes);
            return;
        }
        let post = PostId(self.next_post);
        let connection = self.harness.connection(End::Target, pair);
        // Full or down: a later record's flush looks at these writes too.
        if self.harness.fabric(End::Target).flush(connection, post).is_ok() {
            self.next_post += 1;
            self.side(End::Target, pair).posted.insert(post.0, false);
            self.flushes.insert(post.0, (pair, writes));
        }
    }

    fn check_writes(&mut self, pair: usize, writes: usize) {
        for index in 0..writes {
            if self.writes[index].pair == pair && !self.writes[index].checked {
                self.check_write(index);
                self.writes[index].checked = true;
            }
        }
    }

    fn check_write(&mut self, index: usize) {
        let Expected { to, ref bytes, checked, .. } = self.writes[index];
        if checked {
            return;
        }
        let mut seen = vec![0; bytes.len()];
        self.harness.read_bytes(End::Target, DESTINATION, to, &mut seen);
        assert!(
            seen == *bytes,
            "write {index} ({} bytes to {to}) was not in place when a record after it came, or its end",
            seen.len()
        );
    }

    /// Steps until `done`.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("waited in vain until {what}");
    }

    /// Steps until nothing is under way, and looks a while longer that nothing more comes.
    pub(super) fn settle(&mut self) {
        self.until("everything posted has ended and come", |driver| {
            (0..PAIRS).all(|pair| {
                End::BOTH.iter().all(|end| {
                    let side = &driver.sides[*end as usize][pair];
                    side.down.is_some() || (side.posted.values().all(|ended| *ended) && side.due.is_empty())
                })
            })
        });
        for _ in 0..50 {
            self.step();
        }
    }

    /// Sends a last record on each connection and compares the whole destination, guard bytes included.
    pub(super) fn finish(&mut self) {
        for pair in 0..PAIRS {
            if !self.is_down(End::Initiator, pair) && !self.is_down(End::Target, pair) {
                self.settle();
                self.send_waiting(End::Initiator, pair);
            }
        }
        self.settle();
        assert!(self.writes.iter().all(|write| write.checked), "a write was never followed by a record");
        let mut seen = vec![0; self.model.len()];
        self.harness.read_bytes(End::Target, DESTINATION, 0, &mut seen);
        if let Some(at) = (0..seen.len()).find(|at| seen[*at] != self.model[*at]) {
            panic!("byte {at} of the destination is not what it should be");
        }
        let mut seen = vec![0; self.source.len()];
        self.harness.read_bytes(End::Initiator, SOURCE, 0, &mut seen);
        assert!(seen == self.source, "the source has changed");
    }

    /// The destination as its owner sees it.
    pub(super) fn destination(&mut self) -> Vec<u8> {
        let mut seen = vec![0; self.model.len()];
        self.harness.read_bytes(End::Target, DESTINATION, 0, &mut seen);
        seen
    }

    /// After `Down` at both ends: connects again with fresh books for the connection.
    pub(super) fn reconnect(&mut self, pair: usize) {
        self.harness.connect(pair);
        for end in End::BOTH {
            self.sides[end as usize][pair] = Side::default();
        }
        // What the old connection carried is undefined: take what is there as the truth.
        self.model = self.destination();
        for write in self.writes.iter_mut().filter(|write| write.pair == pair) {
            write.checked = true;
        }
    }
}
