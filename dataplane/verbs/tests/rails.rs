//! A lane with two NICs.

mod common;

use std::sync::Arc;

use common::stand_in;
use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_core::port::{
    ConnectionIndex, Fabric, FabricEvent, Key, Place, PostId, RegionIndex, RemotePlace, Write,
};
use railhead_shm::{Mapping, OwnedSpan};
use railhead_verbs::{
    AttachInfo, Closer, ConnectionSizes, MemoryAccess, MemoryRegion, Nic, NicConfig, Rail, RegionEntry,
    RemoteMemory, VerbsConfig, VerbsFabric,
};

const BYTES: usize = 1 << 16;

struct Node {
    rails: Vec<Arc<Rail>>,
    fabric: VerbsFabric,
    memory: OwnedSpan,
    registrations: Vec<Arc<MemoryRegion>>,
}

impl Node {
    fn new(closer: &Arc<Closer>) -> Self {
        let rails: Vec<Arc<Rail>> = ["stand-in0", "stand-in1"]
            .into_iter()
            .map(|device| {
                let config = NicConfig { device: device.into(), ..NicConfig::default() };
                let nic = Nic::open(stand_in::library(), config).expect("made");
                Rail::new(&nic, closer, 4, ConnectionSizes::default()).expect("made")
            })
            .collect();
        let memory = Mapping::anonymous(BYTES).expect("made").span();
        let access = MemoryAccess { remote_write: true, remote_read: true, ..MemoryAccess::default() };
        let registrations: Vec<Arc<MemoryRegion>> = rails
            .iter()
            .map(|rail| MemoryRegion::register(rail.nic().domain(), &memory, access).expect("made"))
            .collect();
        let config = VerbsConfig { connections: 4, regions: 4, peers: 1, ..VerbsConfig::default() };
        let mut fabric = VerbsFabric::new(config, &rails);
        let keys: Vec<&MemoryRegion> = registrations.iter().map(|registration| &**registration).collect();
        fabric.install(RegionIndex::ARENA, RegionEntry::of_host(&memory, &keys));
        Self { rails, fabric, memory, registrations }
    }

    fn arena(&self) -> RemoteMemory {
        let keys = [self.registrations[0].remote_key(), self.registrations[1].remote_key(), 0, 0];
        let (address, bytes) = (self.registrations[0].address(), BYTES as u64);
        RemoteMemory { epoch: 7, access: ACCESS_WRITE, address, bytes, keys }
    }
}

/// Two nodes with a connection over each rail.
fn connected() -> (Node, Node, Arc<Closer>) {
    let closer = Closer::start().expect("made");
    let (mut near, mut far) = (Node::new(&closer), Node::new(&closer));
    for rail in 0..2 {
        let connection = ConnectionIndex(rail);
        let one = near.rails[usize::from(rail)].prepare(connection).expect("made");
        let other = far.rails[usize::from(rail)].prepare(connection).expect("made");
        let (its, ours) = (other.info(), one.info());
        let rail = u8::try_from(rail).expect("made");
        let info = |arena| AttachInfo { peer: 0, rail, arena };
        let (near_arena, far_arena) = (near.arena(), far.arena());
        near.fabric.attach(one.connect(&its).expect("made"), info(far_arena)).expect("made");
        far.fabric.attach(other.connect(&ours).expect("made"), info(near_arena)).expect("made");
    }
    (near, far, closer)
}

fn write(fabric: &mut VerbsFabric, rail: u16, post: u32, offset: u64, bytes: u32) {
    let write = Write {
        from: Place { region: RegionIndex::ARENA, offset },
        bytes,
        to: RemotePlace { key: Key { index: 0, epoch: 7 }, offset },
        slot: 0,
        post: PostId(post),
    };
    fabric.write(ConnectionIndex(rail), &write).expect("made");
}

fn until_ended(near: &mut Node, far: &mut Node, count: usize) -> Vec<FabricEvent> {
    let mut said = Vec::new();
    let nothing = FabricEvent::Down { connection: ConnectionIndex(9), cause: Code::Ok };
    for now in 1..1_000_000 {
        let mut events = [nothing; 32];
        near.fabric.kick(now);
        let new = near.fabric.poll(now, &mut events);
        said.extend_from_slice(&events[..new]);
        far.fabric.kick(now);
        far.fabric.poll(now, &mut events);
        let ended = said.iter().filter(|event| matches!(event, FabricEvent::Done { .. })).count();
        if ended == count {
            return said;
        }
    }
    panic!("waited in vain: {said:?}");
}

#[test]
fn each_rail_uses_its_own_keys_and_counts_its_own_bytes() {
    let (mut near, mut far, _closer) = connected();
    let bytes: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    near.memory.write(0, &bytes).unwrap();
    for part in 0..16u16 {
        write(
            &mut near.fabric,
            part % 2,
            part.into(),
            u64::from(part) * 4096,
            if part % 2 == 0 { 4096 } else { 4000 },
        );
    }
    let said = until_ended(&mut near, &mut far, 16);
    assert!(said.iter().all(|event| matches!(event, FabricEvent::Done { status: Code::Ok, .. })), "{said:?}");
    let mut seen = vec![0; BYTES];
    far.memory.read(0, &mut seen).unwrap();
    for part in 0..16 {
        let length = if part % 2 == 0 { 4096 } else { 4000 };
        let range = part * 4096..part * 4096 + length;
        assert!(seen[range.clone()] == bytes[range], "part {part}");
    }
    assert_eq!(near.fabric.counters(0).bytes_written, 8 * 4096);
    assert_eq!(near.fabric.counters(1).bytes_written, 8 * 4000);
}

#[test]
fn one_rail_may_fail_and_the_other_goes_on() {
    let (mut near, mut far, _closer) = connected();
    let number = near.fabric.facts(ConnectionIndex(0)).unwrap().number;
    stand_in::fail(number, 3, 12);
    for part in 0..16u16 {
        write(&mut near.fabric, part % 2, part.into(), u64::from(part) * 4096, 4096);
    }
    let said = until_ended(&mut near, &mut far, 16);
    for event in said {
        let FabricEvent::Done { connection, post, status } = event else { continue };
        let is_failed = connection.0 == 0 && post.0 >= 6;
        assert_eq!(status != Code::Ok, is_failed, "{event:?}");
    }
    assert_eq!(near.fabric.fault(ConnectionIndex(0)).unwrap().status, 12);
    assert_eq!(near.fabric.fault(ConnectionIndex(1)), None);
}
