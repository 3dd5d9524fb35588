//! What every fabric must do, over TCP on the loopback interface, and over sockets with next to no room.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use railhead_core::port::{ConnectionIndex, Nanos, RegionIndex};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_sim::conformance::{End, FabricHarness, PAIRS};
use railhead_tcp::{AttachInfo, RegionEntry, TcpConfig, TcpFabric};

/// First connection of each end: other numbers at either side, as between two nodes.
const FIRST: [u16; 2] = [4, 10];
/// How each end knows the other.
const PEER: [u8; 2] = [3, 63];

struct Harness {
    fabrics: [TcpFabric; 2],
    spans: [Vec<Option<OwnedSpan>>; 2],
    cuts: [Option<OwnedFd>; PAIRS],
    wire: fn() -> [OwnedFd; 2],
    takes_writes: bool,
    now: Nanos,
}

fn tcp() -> [OwnedFd; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    [near.into(), far.into()]
}

fn unix() -> [OwnedFd; 2] {
    let (near, far) = UnixStream::pair().expect("a pair");
    [near.into(), far.into()]
}

impl Harness {
    fn new(slice_bytes: u32, buffer_bytes: u32, wire: fn() -> [OwnedFd; 2], takes_writes: bool) -> Self {
        let fabric = |end: usize| {
            TcpFabric::new(TcpConfig {
                first: ConnectionIndex(FIRST[end]),
                connections: 4,
                regions: 64,
                posts_max: 64,
                records_max: 48,
                write_bytes_max: 2 << 20,
                slice_bytes,
                coalesce_bytes: 2 * slice_bytes,
                send_buffer_bytes: buffer_bytes,
                receive_buffer_bytes: buffer_bytes,
            })
            .expect("a fabric")
        };
        let fabrics = [fabric(0), fabric(1)];
        let spans = [vec![None; 64], vec![None; 64]];
        let mut harness = Self { fabrics, spans, cuts: [const { None }; PAIRS], wire, takes_writes, now: 1 };
        for pair in 0..PAIRS {
            harness.connect(pair);
        }
        harness
    }

    fn span(&self, end: End, region: RegionIndex) -> &OwnedSpan {
        self.spans[end as usize][region.0 as usize].as_ref().expect("an installed region")
    }
}

impl FabricHarness for Harness {
    type Fabric = TcpFabric;

    fn fabric(&mut self, end: End) -> &mut TcpFabric {
        &mut self.fabrics[end as usize]
    }

    fn connection(&self, end: End, pair: usize) -> ConnectionIndex {
        ConnectionIndex(FIRST[end as usize] + 2 * u16::try_from(pair).expect("few"))
    }

    fn install(&mut self, end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32) {
        // One page more than asked for, cut off again: so that bytes past the end are there to be spoiled.
        let memory = Mapping::anonymous(bytes + 4096).expect("memory").span();
        let span = memory.part(0, bytes as u64).expect("inside");
        let entry = RegionEntry { span: span.clone(), epoch, access, peers: 1 << PEER[end as usize] };
        self.fabrics[end as usize].install(region, entry);
        self.spans[end as usize][region.0 as usize] = Some(span);
    }

    fn remove(&mut self, end: End, region: RegionIndex) {
        self.fabrics[end as usize].remove(region);
    }

    fn write_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &[u8]) {
        self.span(end, region).write(offset as u64, bytes).expect("inside");
    }

    fn read_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]) {
        self.span(end, region).read(offset as u64, bytes).expect("inside");
    }

    fn cut(&mut self, pair: usize) {
        let socket = self.cuts[pair].as_ref().expect("connected");
        // SAFETY: shutdown takes no memory; the descriptor is open.
        unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    fn connect(&mut self, pair: usize) {
        let [near, far] = (self.wire)();
        self.cuts[pair] = Some(near.try_clone().expect("a second descriptor"));
        for (end, socket) in [(End::Initiator, near), (End::Target, far)] {
            let connection = self.connection(end, pair);
            let info = AttachInfo { peer: PEER[end as usize], takes_writes: self.takes_writes };
            self.fabrics[end as usize].attach(connection, socket, info).expect("attached");
        }
    }

    fn pass(&mut self) -> Nanos {
        self.now += 1_000;
        // Now and then the machine gets time for its own part.
        if self.now % 64_000 == 1 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        self.now
    }
}

mod conformance_of_default_sizes {
    use super::{Harness, tcp};

    railhead_sim::fabric_conformance!(Harness::new(128 << 10, 0, tcp, true));
}

mod conformance_of_small_slices {
    use super::{Harness, tcp};

    railhead_sim::fabric_conformance!(Harness::new(4096, 0, tcp, true));
}

/// Sockets that hold a few KiB: every call is short, and everything is resumed. Not over TCP, whose loopback segments are
/// larger than such a window, so that it would wait for timers.
mod conformance_of_small_sockets {
    use super::{Harness, unix};

    railhead_sim::fabric_conformance!(Harness::new(16 << 10, 4096, unix, true));
}

/// Ends that expect records only, and are written to all the same.
mod conformance_of_unexpected_writes {
    use super::{Harness, tcp};

    railhead_sim::fabric_conformance!(Harness::new(16 << 10, 0, tcp, false));
}
