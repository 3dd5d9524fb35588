use super::*;
use railhead_shm::memfd::require_seals;

#[test]
fn ordinary_region_is_sealed_and_taken() {
    let region = create(100_000, "test", Policy::Never).unwrap();
    assert_eq!(region.bytes, 100_000u64.next_multiple_of(memfd::base_page_bytes() as u64));
    assert_eq!((region.backing, region.page_bytes), (Backing::Small, memfd::base_page_bytes()));
    assert_eq!(region.steps, []);
    require_seals(&region.file).unwrap();
    let taken = rustix::fs::fstat(&region.file).unwrap().st_blocks * 512;
    assert_eq!(u64::try_from(taken).unwrap(), region.bytes);
}

#[test]
fn preferring_hugepages_beyond_their_number_steps_down_with_the_reason() {
    // More than any pool here has, but not taken: only mapped and refused.
    let Some(pages) = Hugepages::read() else {
        println!("SKIPPED: this kernel has no hugetlb pages");
        return;
    };
    let bytes = (pages.total + 1) * pages.page_bytes;
    if bytes > 512 << 20 {
        println!("SKIPPED: the pool is too large to step down from in a test");
        return;
    }
    let region = create(bytes, "test", Policy::Prefer).unwrap();
    assert_eq!(region.backing, Backing::Small);
    assert_eq!(region.steps.len(), 1);
    assert!(
        matches!(region.steps[0].reason, Reason::HugepagesShort { needed, .. } if needed == pages.total + 1)
    );
    assert_eq!(region.steps[0].errno, Some(libc::ENOMEM));

    let refused = create(bytes, "test", Policy::Require).unwrap_err();
    assert!(matches!(refused, RegionError::Memory(ArenaError::Required(step)) if step == region.steps[0]
        || matches!(step.reason, Reason::HugepagesShort { .. })));
}

#[test]
fn impossible_requests_are_refused() {
    for policy in [Policy::Never, Policy::Prefer] {
        assert!(matches!(create(0, "test", policy), Err(RegionError::File(MemfdError::Size { bytes: 0 }))));
    }
    let refused = create_on(4096, "test", Policy::Never, Some(900)).unwrap_err();
    assert!(matches!(refused, RegionError::Memory(ArenaError::NoSuchNode { node: 900 })));
}

#[test]
fn bound_region_lies_on_its_node() {
    let region = create_on(1 << 20, "test", Policy::Never, Some(0)).unwrap();
    if !region.steps.is_empty() {
        println!("SKIPPED: this process may not bind memory: {}", region.steps[0]);
        return;
    }
    let mapping = Mapping::of_sealed(&region.file, Access::ReadWrite).unwrap();
    mapping.populate().unwrap();
    let placement = memory::placement(mapping.address(), mapping.len(), region.page_bytes).unwrap();
    assert!(placement.all_on(0), "{placement:?}");
}
