use super::*;

fn region(session: u32, name: &str, grant: &str) -> RegionEntry {
    RegionEntry {
        state: RegionState::Coming,
        session,
        name: name.to_owned(),
        grant: Grant::parse(grant).unwrap(),
        access: ACCESS_READ | ACCESS_WRITE,
        bytes: 4096,
        page_bytes: 4096,
        direct_possible: true,
        span: None,
        rdma: None,
        is_lost: false,
        holds: HashMap::new(),
        lanes: 0,
    }
}

fn live(tables: &mut Tables, session: u32, name: &str, grant: &str) -> (u32, u32) {
    let (slot, generation) = tables.add_region(region(session, name, grant)).unwrap();
    tables.region_ready(slot);
    (slot, generation)
}

fn remote(session: u32, peer: u32, index: u32) -> RemoteEntry {
    RemoteEntry { session, peer, key: Key { index, epoch: 1 }, incarnation: 1, is_going: false, lanes: 0 }
}

#[test]
fn sessions_are_bounded_and_their_names_unique() {
    let mut tables = Tables::new(2, 2, u32::MAX - 1);
    let first = tables.add_session().unwrap();
    let second = tables.add_session().unwrap();
    assert_eq!(tables.add_session(), Err(Code::SessionsFull));
    assert_eq!(tables.name_session(first, "a b"), Err(Code::NameInvalid));
    tables.name_session(first, "a").unwrap();
    assert_eq!(tables.name_session(second, "a"), Err(Code::NameTaken));
    tables.close_session(first);
    tables.name_session(second, "a").expect("the name is free once its session ends");
    assert_eq!(tables.add_session(), Err(Code::SessionsFull), "the slot is not free before it is removed");
    tables.remove_session(first);
    tables.add_session().unwrap();
}

#[test]
fn handles_of_an_earlier_owner_are_stale() {
    let mut tables = Tables::new(1, 2, u32::MAX - 1);
    let (slot, generation) = live(&mut tables, 0, "r", "*");
    assert_ne!((slot, generation), (0, 0));
    assert_eq!(tables.close_region(1, slot, generation), Err(Code::LocalHandleStale), "another session's");
    tables.close_region(0, slot, generation).unwrap();
    tables.remove_region(slot).unwrap();
    assert_eq!(tables.close_region(0, slot, generation), Err(Code::LocalHandleStale));
    // All other slots are used once before the same comes again, with another generation.
    let again = (1..REGIONS).map(|_| live(&mut tables, 7, "", "")).take(PER_SESSION_MAX).collect::<Vec<_>>();
    assert!(again.iter().all(|(other, _)| *other != slot));
    assert_eq!(tables.add_region(region(7, "", "")), Err(Code::QuotaExceeded));
}

#[test]
fn bytes_of_regions_are_bounded_and_counted_until_they_are_gone() {
    let mut tables = Tables::new(16, 2, u32::MAX - 1);
    let of = |session, bytes| RegionEntry { bytes, ..region(session, "", "") };
    assert_eq!(tables.add_region(of(0, SESSION_BYTES_MAX + 1)), Err(Code::QuotaExceeded));
    assert_eq!(tables.add_region(of(0, u64::MAX)), Err(Code::QuotaExceeded));
    let (first, _) = tables.add_region(of(0, SESSION_BYTES_MAX)).unwrap();
    assert_eq!(tables.add_region(of(0, 1)), Err(Code::QuotaExceeded), "of the session");
    for session in 1..8 {
        tables.add_region(of(session, SESSION_BYTES_MAX)).unwrap();
    }
    assert_eq!(tables.add_region(of(8, 1)), Err(Code::QuotaExceeded), "of all");
    tables.remove_region(first).unwrap();
    tables.add_region(of(8, 1)).unwrap();
}

#[test]
fn region_is_opened_only_when_live_and_granted() {
    let mut tables = Tables::new(4, 2, u32::MAX - 1);
    let (slot, generation) = tables.add_region(region(3, "r", "b/x")).unwrap();
    let by = |tables: &mut Tables, node: &str, session: &str| {
        tables.open("r", ACCESS_WRITE, (5, node, session), None)
    };
    assert_eq!(by(&mut tables, "b", "x"), Err(Code::RegionUnknown), "lanes do not have it yet");
    tables.region_ready(slot);
    assert_eq!(by(&mut tables, "b", "y"), Err(Code::GrantMissing));
    assert_eq!(by(&mut tables, "a", "x"), Err(Code::GrantMissing));
    let opened = by(&mut tables, "b", "x").unwrap();
    assert_eq!(opened.key, Key { index: slot, epoch: generation });
    assert_eq!(opened.session, 3);
    assert_eq!(tables.region(slot).unwrap().peers(ACCESS_WRITE), 1 | 1 << 5);
    assert!(tables.open("r", ACCESS_WRITE, (SELF, "a", "own"), Some(3)).is_ok(), "its owner needs no grant");
    assert_eq!(tables.open("", ACCESS_WRITE, (5, "b", "x"), None), Err(Code::RegionUnknown));
    tables.close_region(3, slot, generation).unwrap();
    assert_eq!(by(&mut tables, "b", "x"), Err(Code::RegionUnknown));
}

#[test]
fn access_that_the_region_does_not_give_is_refused() {
    let mut tables = Tables::new(1, 2, u32::MAX - 1);
    let (slot, _) = tables.add_region(RegionEntry { access: ACCESS_READ, ..region(0, "r", "*") }).unwrap();
    tables.region_ready(slot);
    assert_eq!(tables.open("r", ACCESS_WRITE, (1, "b", "x"), None), Err(Code::GrantMissing));
    assert!(tables.open("r", ACCESS_READ, (1, "b", "x"), None).is_ok());
}

#[test]
fn rights_to_read_and_to_write_are_apart() {
    let mut tables = Tables::new(1, 2, u32::MAX - 1);
    live(&mut tables, 0, "r", "*");
    let key = tables.open("r", ACCESS_READ, (2, "b", "x"), None).unwrap().key;
    tables.open("r", ACCESS_WRITE, (3, "c", "x"), None).unwrap();
    let peers = |tables: &Tables, access| tables.region(key.index).unwrap().peers(access);
    assert_eq!(peers(&tables, ACCESS_READ), 1 | 1 << 2);
    assert_eq!(peers(&tables, ACCESS_WRITE), 1 | 1 << 3);
    tables.open("r", ACCESS_WRITE, (2, "b", "y"), None).unwrap();
    assert_eq!(peers(&tables, ACCESS_WRITE), 1 | 1 << 2 | 1 << 3);
    tables.unhold(key, 2);
    tables.unhold(key, 2);
    assert_eq!((peers(&tables, ACCESS_READ), peers(&tables, ACCESS_WRITE)), (1, 1 | 1 << 3));
}

#[test]
fn a_peer_may_write_until_its_last_handle_is_back() {
    let mut tables = Tables::new(1, 2, u32::MAX - 1);
    live(&mut tables, 0, "r", "*");
    let key = tables.open("r", ACCESS_WRITE, (2, "b", "x"), None).unwrap().key;
    tables.open("r", ACCESS_WRITE, (2, "b", "y"), None).unwrap();
    tables.open("r", ACCESS_WRITE, (3, "c", "x"), None).unwrap();
    let peers = |tables: &Tables| tables.region(key.index).unwrap().peers(ACCESS_WRITE);
    assert!(!tables.unhold(key, 2));
    assert_eq!(peers(&tables), 1 | 1 << 2 | 1 << 3);
    assert!(tables.unhold(key, 2));
    assert_eq!(peers(&tables), 1 | 1 << 3);
    assert!(!tables.unhold(key, 2), "given back more often than opened");
    assert!(!tables.unhold(Key { epoch: key.epoch.wrapping_add(1), ..key }, 3), "of another generation");
    assert_eq!(tables.unhold_all(3), vec![key]);
    assert_eq!(tables.unhold_all(3), vec![]);
    assert_eq!(peers(&tables), 1);
}

#[test]
fn handles_of_a_peer_are_found_until_they_are_gone() {
    let mut tables = Tables::new(1, 2, u32::MAX - 1);
    let (first, generation) = tables.add_remote(remote(0, 2, 7)).unwrap();
    let (second, _) = tables.add_remote(remote(0, 2, 8)).unwrap();
    tables.add_remote(remote(0, 3, 7)).unwrap();
    assert_eq!(tables.remotes_of_peer(2, Some(Key { index: 7, epoch: 1 })), vec![first]);
    assert_eq!(tables.remotes_of_peer(2, Some(Key { index: 7, epoch: 2 })), Vec::<u32>::new());
    assert!(tables.close_remote(first));
    assert!(!tables.close_remote(first), "begun once");
    assert_eq!(tables.remotes_of_peer(2, None), vec![first, second], "lanes may still use the first");
    tables.remote_of(0, first, generation).unwrap();
    assert_eq!(tables.remote_of(1, first, generation), Err(Code::RemoteHandleStale));
    assert_eq!(tables.remote_of(0, first, generation.wrapping_add(1)), Err(Code::RemoteHandleStale));
    tables.remove_remote(first).unwrap();
    assert_eq!(tables.remotes_of_peer(2, None), vec![second]);
}

#[test]
fn ports_are_bounded_on_each_lane() {
    let mut tables = Tables::new(2, 2, u32::MAX - 1);
    tables.reserve_ports(2 * PORTS_PER_LANE_MAX - 1).unwrap();
    assert_eq!(tables.reserve_ports(1), Err(Code::PortsFull), "port 0 is always on lane 0");
    assert_eq!(tables.reserve_ports(2), Err(Code::PortsFull));
    tables.unreserve_ports(3);
    tables.reserve_ports(3).unwrap();
    let session = tables.add_session().unwrap();
    tables.add_port(session, 1, 4);
    let other = tables.add_session().unwrap();
    tables.add_port(other, 1, 4);
    tables.remove_port(other, 0, 4);
    assert!(!tables.session(other).unwrap().ports.is_empty(), "another lane's port");
    tables.remove_port(session, 1, 4);
    assert!(tables.session(session).unwrap().ports.is_empty());
    assert!(!tables.session(other).unwrap().ports.is_empty(), "the slot had passed to the other session");
}

#[test]
fn a_session_that_ends_gives_everything_it_owned() {
    let mut tables = Tables::new(2, 2, u32::MAX - 1);
    let session = tables.add_session().unwrap();
    tables.name_session(session, "s").unwrap();
    let (region, _) = live(&mut tables, session, "r", "*");
    live(&mut tables, session + 1, "other", "*");
    let (handle, _) = tables.add_remote(remote(session, 1, 4)).unwrap();
    assert_eq!(tables.close_session(session), (vec![region], vec![handle]));
    assert_eq!(tables.open("r", ACCESS_WRITE, (1, "b", "x"), None), Err(Code::RegionUnknown));
    live(&mut tables, session + 1, "r", "*");
}
