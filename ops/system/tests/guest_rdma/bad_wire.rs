//! A wire that loses packets or is cut, in both roles: transfers end in time, each once; those that succeeded are whole, and
//! nothing lands once a transfer has ended.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use railhead_client::{Code, Completion, Port, Region, Remote, Session, Write, outcome};
use railhead_system::guest::{self, Impaired};
use railhead_system::{Cluster, Node};

use crate::support::*;

const SLOTS: usize = 4;
const SLOT_BYTES: u64 = 512 << 10;
const DEADLINE_US: u32 = 5_000_000;
/// Deadline, `quiesce_max`, and what an emulated processor needs.
const END_LIMIT: Duration = Duration::from_secs(15);
const CUTS: u32 = 50;
/// New queue pairs at both ends, with pauses between attempts that grow with every cut.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);

/// One direction: a client of one node that writes into memory of a client of the other.
struct Direction {
    port: Port,
    source: Region,
    destination: Region,
    remote: Remote,
    /// A transfer's end was unknown: the handle has to be opened again.
    is_stale: bool,
    /// First bytes of what such transfers wrote: more of them may land until then.
    unsettled: Vec<u64>,
    peer: String,
    // Behind what is theirs.
    sender: Session,
    _receiver: Session,
}

/// A transfer that is open, and since when.
#[derive(Clone, Copy)]
struct Open {
    seed: u64,
    write: Write,
    since: Instant,
}

/// How many ended well, and how many did not.
#[derive(Debug, Default)]
struct Ends {
    good: u64,
    bad: u64,
}

impl Direction {
    fn new(from: &Node, to: &Node) -> Self {
        let (sender, receiver) = (attach(from, "sender", 1), attach(to, "receiver", 1));
        let bytes = SLOTS as u64 * SLOT_BYTES;
        let (source, destination) = (region(&sender, "", bytes), region(&receiver, "destination", bytes));
        destination.fill(0, bytes, POISON).unwrap();
        let remote = open(&sender, &to.config.name, "destination");
        let port = sender.take_port().unwrap();
        let peer = to.config.name.clone();
        Self {
            port,
            source,
            destination,
            remote,
            is_stale: false,
            unsettled: Vec::new(),
            peer,
            sender,
            _receiver: receiver,
        }
    }

    /// Opens the handle again if it is stale; false while that cannot be done.
    fn reopen(&mut self) -> bool {
        if self.is_stale
            && let Ok(remote) = self.sender.open(&self.peer, "destination")
        {
            self.remote = remote;
            self.is_stale = false;
            // From here on nothing of them lands.
            for offset in self.unsettled.drain(..) {
                self.destination.fill(offset, SLOT_BYTES - 2 * GUARD_BYTES, POISON).unwrap();
            }
        }
        !self.is_stale
    }

    /// Keeps transfers of all routes in flight until told to stop.
    fn run(&mut self, stop: &Receiver<()>) -> Ends {
        let mut ends = Ends::default();
        let mut seed = 0;
        let mut slots = [None; SLOTS];
        loop {
            let stopping = !matches!(stop.try_recv(), Err(TryRecvError::Empty));
            for (at, slot) in slots.iter_mut().enumerate() {
                if slot.is_none() && !stopping && self.reopen() {
                    seed += 1;
                    *slot = Some(self.submit(at, seed));
                }
            }
            if stopping && slots.iter().all(Option::is_none) {
                return ends;
            }
            self.port.wait(Duration::from_millis(200));
            let mut some = [Completion::default(); SLOTS];
            let count = self.port.poll(&mut some);
            for completion in &some[..count] {
                let at = usize::try_from(completion.cookie).unwrap();
                let open = slots[at].take().unwrap_or_else(|| panic!("ended twice: {completion:?}"));
                self.check(&open, completion, &mut ends);
            }
            for open in slots.iter().flatten() {
                assert!(open.since.elapsed() < END_LIMIT, "past its deadline: {:?}", open.write);
            }
        }
    }

    fn submit(&mut self, at: usize, seed: u64) -> Open {
        let offset = at as u64 * SLOT_BYTES + GUARD_BYTES;
        // Since the end of the transfer before it, nothing has landed here.
        let before = read(&self.destination, offset, SLOT_BYTES - 2 * GUARD_BYTES);
        assert!(before.iter().all(|byte| *byte == POISON), "something landed late");
        let bytes = mix(seed, 1) % (SLOT_BYTES - 2 * GUARD_BYTES);
        let (send_leg, receive_leg) = ROUTES[usize::try_from(mix(seed, 2) % 4).unwrap()];
        self.source.copy_in(offset, &pattern(seed, usize::try_from(bytes).unwrap())).unwrap();
        let write = Write {
            send_leg,
            receive_leg,
            local_offset: offset,
            remote_offset: offset,
            deadline_us: DEADLINE_US,
            ..write(at as u64, &self.source, &self.remote, bytes)
        };
        self.port.submit(&write).unwrap();
        self.port.ring();
        Open { seed, write, since: Instant::now() }
    }

    fn check(&mut self, open: &Open, completion: &Completion, ends: &mut Ends) {
        let (offset, bytes) = (open.write.remote_offset, open.write.bytes);
        if outcome(completion).is_ok() {
            let data = pattern(open.seed, usize::try_from(bytes).unwrap());
            assert_landed(&self.destination, offset, &data, &format!("{:?}", open.write));
            ends.good += 1;
        } else {
            ends.bad += 1;
            self.note(completion);
            if self.is_stale {
                self.unsettled.push(offset);
            }
        }
        self.destination.fill(offset, SLOT_BYTES - 2 * GUARD_BYTES, POISON).unwrap();
    }
}

impl Direction {
    fn note(&mut self, completion: &Completion) {
        let code = Code::from_number(completion.status);
        self.is_stale |= matches!(code, Some(Code::Unknown | Code::RemoteHandleStale));
    }
}

/// Loads both directions while `disturb` runs; then both must still work.
fn under_load(disturb: impl FnOnce()) -> [Ends; 2] {
    let cluster: Cluster = crate::pair();
    let mut there = Direction::new(cluster.a(), cluster.b());
    let mut back = Direction::new(cluster.b(), cluster.a());
    let ((stop_there, stopped_there), (stop_back, stopped_back)) = (channel::<()>(), channel::<()>());
    let ends = std::thread::scope(|scope| {
        let loads = [
            scope.spawn({
                let there = &mut there;
                move || there.run(&stopped_there)
            }),
            scope.spawn({
                let back = &mut back;
                move || back.run(&stopped_back)
            }),
        ];
        disturb();
        drop((stop_there, stop_back));
        loads.map(|load| load.join().unwrap())
    });
    for node in &cluster.nodes {
        railhead_system::until("the peer is up again", LIMIT, || {
            let answer = node.rest().try_get("/v1/node")?;
            (answer.json["peers"][0]["state"] == "up").then_some(())
        });
    }
    for direction in [&mut there, &mut back] {
        let wire = guest::sent_bytes("va") + guest::sent_bytes("vb");
        let mut last = None;
        let again = railhead_system::within(RECOVERY_LIMIT, || {
            if !direction.reopen() {
                return None;
            }
            let (source, remote) = (&direction.source, &direction.remote);
            let completion = transfer(&mut direction.port, &write(0, source, remote, SLOT_BYTES));
            direction.note(&completion);
            last = outcome(&completion).err();
            last.is_none().then_some(())
        });
        assert!(again.is_some(), "no transfer succeeds any more: {last:?}");
        assert!(guest::sent_bytes("va") + guest::sent_bytes("vb") - wire >= SLOT_BYTES, "not by RDMA");
    }
    drop((there, back));
    for node in &cluster.nodes {
        assert_blocks_home(node, 1);
    }
    cluster.stop();
    println!("there {:?}, back {:?}", ends[0], ends[1]);
    ends
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn two_per_cent_of_the_packets_are_lost() {
    let ends = under_load(|| {
        let lossy = [Impaired::new("va", "loss 2%"), Impaired::new("vb", "loss 2%")];
        std::thread::sleep(Duration::from_secs(8));
        assert!(lossy.iter().all(|lossy| lossy.dropped() > 0), "nothing was lost");
    });
    assert!(ends.iter().all(|ends| ends.good > 0), "{ends:?}");
}

#[test]
#[ignore = "needs a guest: ops/lab/run-tests --net veth -- railhead-system/guest_rdma"]
fn the_wire_is_cut_fifty_times() {
    let ends = under_load(|| {
        for cut in 0..CUTS {
            let interface = if cut % 2 == 0 { "va" } else { "vb" };
            guest::set_link(interface, false);
            std::thread::sleep(Duration::from_millis((cut % 5 * 30).into()));
            guest::set_link(interface, true);
            std::thread::sleep(Duration::from_millis((100 + cut % 7 * 100).into()));
        }
    });
    assert!(ends.iter().all(|ends| ends.good > 0), "{ends:?}");
}
