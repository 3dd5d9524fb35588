//! Regions and remote handles.
#![allow(clippy::unwrap_used, reason = "a failed setup fails the test")]

mod fake;

use fake::Fake;
use railhead_client::{AttachOptions, Code, Pages, RegionOptions, Session, SessionError, StepDown};
use railhead_shm::memfd::{self, Huge};

fn session(fake: &Fake, node: &str, name: &str) -> Session {
    Session::attach(fake.path(node), &AttachOptions { name, ..AttachOptions::default() }).unwrap()
}

#[test]
fn memory_can_be_written_and_read_back_within_its_bounds() {
    let fake = Fake::single();
    let session = session(&fake, "a", "");
    let region = session.create_region(&RegionOptions { bytes: 10_000, ..RegionOptions::default() }).unwrap();
    assert_eq!(region.bytes(), 10_000);
    region.copy_in(9_998, b"ab").unwrap();
    region.fill(0, 3, 7).unwrap();
    let mut bytes = [0; 2];
    region.copy_out(9_998, &mut bytes).unwrap();
    assert_eq!(&bytes, b"ab");
    region.copy_out(2, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 0]);
    assert!(region.copy_in(9_999, b"ab").is_err());
    assert!(region.copy_out(u64::MAX, &mut bytes).is_err());
    assert!(region.fill(0, 10_001, 0).is_err());
    assert_eq!(fake.regions(), 1);
    region.release().unwrap();
    assert_eq!(fake.regions(), 0);
}

#[test]
fn stepping_down_from_hugepages_has_a_reason() {
    let fake = Fake::single();
    let session = session(&fake, "a", "");
    let small = session.create_region(&RegionOptions { bytes: 4096, ..RegionOptions::default() }).unwrap();
    assert_eq!(small.step_down(), Some(&StepDown::Small { bytes: 4096 }));
    // More than any machine of the tests has reserved: 64 TiB.
    let options = RegionOptions { bytes: 1 << 46, pages: Pages::REQUIRE_HUGE, ..RegionOptions::default() };
    let error = session.create_region(&options).unwrap_err();
    assert_eq!(error.code(), Code::MemoryShort);
    assert!(error.to_string().contains("nr_hugepages"), "{error}");
    // Hugepages or a reason, whichever this machine has.
    let large = session.create_region(&RegionOptions { bytes: 2 << 20, ..RegionOptions::default() }).unwrap();
    assert_eq!(large.page_bytes() == memfd::HUGE_PAGE_BYTES, large.step_down().is_none());
}

#[test]
fn options_that_cannot_be_right_are_refused_by_name() {
    let fake = Fake::single();
    let session = session(&fake, "a", "");
    let sound = RegionOptions { bytes: 4096, name: "r", ..RegionOptions::default() };
    let long = "n".repeat(63);
    let too_long = format!("{long}/{long}");
    let cases = [
        (RegionOptions { bytes: 0, ..sound }, "bytes"),
        (RegionOptions { name: "a/b", ..sound }, "name"),
        (RegionOptions { grant: "node", ..sound }, "grant"),
        (RegionOptions { grant: "node/", ..sound }, "grant"),
        (RegionOptions { grant: "*/*", ..sound }, "grant"),
        (RegionOptions { grant: &too_long, ..sound }, "grant"),
        (RegionOptions { grant: "*", name: "", ..sound }, "grant"),
        (RegionOptions { access: 0, ..sound }, "access"),
        (RegionOptions { access: 4, ..sound }, "access"),
        (RegionOptions { pages: Pages(9), ..sound }, "pages"),
    ];
    for (options, expected) in cases {
        match session.create_region(&options).unwrap_err() {
            SessionError::Argument { argument, .. } => assert_eq!(argument, expected, "{options:?}"),
            other => panic!("{options:?}: {other}"),
        }
    }
    assert_eq!(fake.regions(), 0);
}

#[test]
fn memory_files_of_the_callers_need_seals_and_a_page_offset() {
    let fake = Fake::single();
    let session = session(&fake, "a", "");
    let options = RegionOptions { bytes: 4096, ..RegionOptions::default() };
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let error = session.register_fd(unsealed, 0, &options).unwrap_err();
    assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");

    let file = || memfd::create("own", 8192, Huge::No).unwrap();
    let error = session.register_fd(file(), 100, &options).unwrap_err();
    assert!(matches!(error, SessionError::Argument { argument: "offset", .. }), "{error}");
    let error = session.register_fd(file(), 8192, &options).unwrap_err();
    assert!(matches!(error, SessionError::Argument { argument: "bytes", .. }), "{error}");
    let region = session.register_fd(file(), 4096, &options).unwrap();
    region.copy_in(4095, b"x").unwrap();
    assert!(region.copy_in(4096, b"x").is_err());
}

fn code<T>(result: Result<T, SessionError>) -> Result<(), Code> {
    result.map(drop).map_err(|error| error.code())
}

#[test]
fn only_the_granted_can_open_and_only_what_is_there() {
    let fake = Fake::start(&["a", "b"], 1);
    let owner = session(&fake, "b", "owner");
    let options =
        RegionOptions { bytes: 4096, name: "weights", grant: "a/reader", ..RegionOptions::default() };
    let region = owner.create_region(&options).unwrap();
    let reader = session(&fake, "a", "reader");
    let remote = reader.open("b", "weights").unwrap();
    assert_eq!(remote.bytes(), 4096);
    assert_eq!(code(session(&fake, "a", "other").open("b", "weights")), Err(Code::GrantMissing));
    assert_eq!(code(owner.open("self", "weights")), Err(Code::GrantMissing));
    assert_eq!(code(reader.open("b", "wights")), Err(Code::RegionUnknown));
    assert_eq!(code(reader.open("c", "weights")), Err(Code::PeerUnknown));
    assert_eq!(code(reader.open("b", "not a name")), Err(Code::NameInvalid));
    assert_eq!(owner.create_region(&options).unwrap_err().code(), Code::NameTaken);
    reader.close(remote.handle()).unwrap();
    assert_eq!(code(reader.close(remote.handle())), Err(Code::RemoteHandleStale));
    let handle = region.handle();
    region.release().unwrap();
    assert_eq!(code(owner.deregister(handle)), Err(Code::LocalHandleStale));
}

#[test]
fn a_dropped_session_takes_its_regions_along() {
    let fake = Fake::single();
    let session = session(&fake, "a", "");
    let region = session.create_region(&RegionOptions { bytes: 4096, ..RegionOptions::default() }).unwrap();
    drop(session);
    assert_eq!(fake.regions(), 1, "the region keeps the session");
    drop(region);
    for _ in 0..1000 {
        if fake.regions() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the region outlived its session");
}
