//! Beyond 4 GiB, where a count or an offset of 32 bits would wrap: needs some 9 GB of memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::fd::OwnedFd;
use std::time::Duration;

use railhead_client::{Leg, Region, RegionOptions, Session, Write};
use railhead_system::Cluster;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use support::*;

const BYTES: u64 = (4 << 30) + 4097 + (64 << 10);
const PIECE: u64 = 4 << 20;
/// Its memory is made page by page as the transfer goes.
const LARGE_LIMIT: Duration = Duration::from_secs(90);

/// A region without memory: pages come as they are touched.
fn sparse(session: &Session, name: &str) -> Region {
    let file: OwnedFd = memfd_create("large", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, BYTES).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let grant = if name.is_empty() { "" } else { "*" };
    let options = RegionOptions { bytes: BYTES, name, grant, ..RegionOptions::default() };
    session.register_fd(file, 0, &options).unwrap()
}

fn pieces() -> impl Iterator<Item = (u64, Vec<u8>)> {
    (0..BYTES.div_ceil(PIECE)).map(|index| {
        let at = index * PIECE;
        (at, pattern(index, usize::try_from(PIECE.min(BYTES - at)).unwrap()))
    })
}

#[test]
fn one_transfer_beyond_4_gib_and_small_ones_around_the_border() {
    let cluster = Cluster::pair();
    let (sender, receiver) = (attach(cluster.a(), "sender", 1), attach(cluster.b(), "receiver", 1));
    let (source, destination) = (sparse(&sender, ""), sparse(&receiver, "destination"));
    let remote = open(&sender, "b", "destination");
    assert_eq!(remote.bytes(), BYTES);
    let mut port = sender.take_port().unwrap();
    for (at, data) in pieces() {
        source.copy_in(at, &data).unwrap();
    }
    let deadline_us = u32::try_from(LARGE_LIMIT.as_micros()).unwrap();
    let direct = Write { deadline_us, ..write(1, &source, &remote, BYTES) };
    port.submit(&direct).unwrap();
    assert_ok(&one_within(&mut port, LARGE_LIMIT), &direct);
    for (at, data) in pieces() {
        assert_bytes(&read(&destination, at, data.len() as u64), &data, &format!("the piece at {at}"));
    }
    for (number, (send_leg, receive_leg)) in ROUTES.into_iter().enumerate() {
        let border = 1_u64 << 32;
        for (from, to) in
            [(border - 4096, 0), (0, border - 4096), (border - 1, border + 1), (border + 5, border - 5000)]
        {
            let data = pattern(1000 + number as u64, 10_000);
            source.copy_in(from, &data).unwrap();
            poison(&destination, to, 10_000);
            let write = Write {
                send_leg,
                receive_leg,
                local_offset: from,
                remote_offset: to,
                ..write(2, &source, &remote, 10_000)
            };
            transfer_ok(&mut port, &write);
            assert_landed(&destination, to, &data, &format!("{write:?}"));
        }
    }
    // Staged on both legs, once, as well.
    destination.fill(0, PIECE, POISON).unwrap();
    destination.fill(BYTES - 5000, 5000, POISON).unwrap();
    let staged = Write {
        send_leg: Leg::STAGED,
        receive_leg: Leg::STAGED,
        deadline_us,
        ..write(3, &source, &remote, BYTES)
    };
    port.submit(&staged).unwrap();
    assert_ok(&one_within(&mut port, LARGE_LIMIT), &staged);
    for at in [0, BYTES - 5000] {
        assert_bytes(&read(&destination, at, 5000), &read(&source, at, 5000), "the ends");
    }
    assert_blocks_home(cluster.a(), 1);
    assert_blocks_home(cluster.b(), 1);
    drop((port, source, destination));
    cluster.stop();
}
