use super::{Gid, GidEntry, GidKind, candidates, sysfs_table};

fn gid(text: &str) -> Gid {
    Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

fn entry(index: u32, text: &str, kind: GidKind) -> GidEntry {
    GidEntry { index, gid: gid(text), kind }
}

fn order(table: &[GidEntry], is_ethernet: bool) -> Vec<u32> {
    candidates(table, is_ethernet).iter().map(|entry| entry.index).collect()
}

use GidKind::{Infiniband, RoceV1, RoceV2};

#[test]
fn of_mixed_versions_the_second_with_ipv4_wins() {
    let table = [
        entry(0, "fe80::1", RoceV1),
        entry(1, "fe80::1", RoceV2),
        entry(2, "::ffff:10.0.0.1", RoceV1),
        entry(3, "::ffff:10.0.0.1", RoceV2),
    ];
    assert_eq!(order(&table, true), [3, 1]);
}

#[test]
fn reordered_tables_give_the_same_address() {
    let table = [
        entry(0, "::ffff:10.0.0.1", RoceV2),
        entry(1, "2001:db8::1", RoceV2),
        entry(2, "fe80::1", RoceV2),
        entry(3, "fe80::1", RoceV1),
    ];
    assert_eq!(order(&table, true), [0, 1, 2]);
    let mut reversed = table;
    reversed.reverse();
    for (index, entry) in (0..).zip(&mut reversed) {
        entry.index = index;
    }
    assert_eq!(candidates(&reversed, true)[0].gid, table[0].gid);
    assert_eq!(order(&reversed, true), [3, 2, 1]);
}

#[test]
fn ipv6_only_prefers_the_global_one() {
    let table = [entry(0, "fe80::1", RoceV2), entry(1, "2001:db8::1", RoceV2), entry(2, "fd00::1", RoceV2)];
    assert_eq!(order(&table, true), [1, 2, 0]);
}

#[test]
fn link_local_only_is_better_than_nothing() {
    assert_eq!(order(&[entry(0, "fe80::1", RoceV1), entry(1, "fe80::1", RoceV2)], true), [1]);
}

#[test]
fn the_first_version_alone_does_not_serve() {
    assert!(order(&[entry(0, "::ffff:10.0.0.1", RoceV1)], true).is_empty());
    assert!(order(&[], true).is_empty());
    assert!(order(&[entry(4, "::", RoceV2)], true).is_empty(), "an empty entry");
}

#[test]
fn infiniband_uses_its_own() {
    let table = [entry(0, "fe80::2:c903:1:1", Infiniband), entry(1, "fe80::2", RoceV2)];
    assert_eq!(order(&table, false), [0]);
}

#[test]
fn sysfs_entries_that_cannot_be_read_are_left_out() {
    let root = tempfile::tempdir().unwrap();
    let port = root.path().join("ports/1");
    std::fs::create_dir_all(port.join("gids")).unwrap();
    std::fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
    for (index, gid, kind) in [
        (0, "fe80:0000:0000:0000:0000:0000:0000:0001", Some("IB/RoCE v1\n")),
        (1, "fe80:0000:0000:0000:0000:0000:0000:0001", Some("RoCE v2\n")),
        // In a container the kind of a foreign entry is EINVAL.
        (2, "0000:0000:0000:0000:0000:ffff:0a00:0001", None),
        (3, "0000:0000:0000:0000:0000:ffff:0a00:0002", Some("RoCE v2\n")),
        (4, "garbage", Some("RoCE v2\n")),
        (5, "0000:0000:0000:0000:0000:0000:0000:0000", Some("RoCE v9\n")),
    ] {
        std::fs::write(port.join("gids").join(index.to_string()), gid).unwrap();
        if let Some(kind) = kind {
            std::fs::write(port.join("gid_attrs/types").join(index.to_string()), kind).unwrap();
        }
    }
    let table = sysfs_table(root.path(), 1, 16);
    assert_eq!(table.iter().map(|entry| entry.index).collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(order(&table, true), [3, 1]);
    assert_eq!(candidates(&table, true)[0].gid.to_string(), "10.0.0.2");
    assert!(sysfs_table(root.path(), 2, 16).is_empty());
}
