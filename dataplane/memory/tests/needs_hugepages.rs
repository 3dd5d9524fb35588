//! Arenas and regions on real hugepages. In a process of its own, one test at a time: they count the machine's pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use railhead_memory::pages::Hugepages;
use railhead_memory::{Arena, ArenaConfig, ArenaError, Backing, Policy, Reason, host_region};
use railhead_shm::{Access, Mapping, memfd};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The free hugepages, if there are at least `needed`; says why a test is skipped otherwise.
fn free_pages(needed: u64) -> Option<(MutexGuard<'static, ()>, Hugepages)> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Hugepages::read() {
        Some(pages) if pages.free >= needed && pages.page_bytes == 2 << 20 => Some((turn, pages)),
        found => {
            println!("SKIPPED: {needed} free hugepages of 2 MiB are needed, found {found:?}");
            None
        }
    }
}

fn free_now() -> u64 {
    Hugepages::read().map_or(0, |pages| pages.free)
}

fn config(bytes: u64, huge: Policy) -> ArenaConfig {
    ArenaConfig { bytes, huge, numa_node: None }
}

#[test]
fn needs_hugepages_required_arena_takes_gives_back_and_is_where_it_should_be() {
    let Some((_turn, before)) = free_pages(3) else { return };
    let request = ArenaConfig { numa_node: Some(0), ..config(5 << 20, Policy::Require) };
    let arena = Arena::reserve(request).unwrap();
    assert_eq!((arena.backing(), arena.page_bytes(), arena.len()), (Backing::Hugetlb, 2 << 20, 6 << 20));
    assert_eq!(arena.steps(), []);
    assert!(arena.locked());
    let placement = arena.verify().unwrap();
    assert!(placement.all_on(0), "{placement:?}");
    assert_eq!(placement.nodes, [(0, 3)]);
    assert!(free_now() <= before.free - 3);

    let span = arena.span();
    assert_eq!(span.address() % (2 << 20), 0);
    span.fill(0, 6 << 20, 0x5a).unwrap();
    drop(arena);
    assert!(free_now() <= before.free - 3, "a span keeps the memory");
    drop(span);
    assert_eq!(free_now(), before.free);
}

#[test]
fn needs_hugepages_shortage_steps_down_to_transparent_ones_and_is_refused_under_require() {
    let Some((_turn, before)) = free_pages(2) else { return };
    // Preferred, not required: an ordinary user may not lock that much.
    let all = Arena::reserve(config(before.free * before.page_bytes, Policy::Prefer)).unwrap();
    assert_eq!((all.backing(), free_now()), (Backing::Hugetlb, 0));
    let refused = Arena::reserve(config(4 << 20, Policy::Require)).unwrap_err();
    let ArenaError::Required(step) = refused else { panic!("{refused:?}") };
    assert_eq!(step.reason, Reason::HugepagesShort { needed: 2, free: 0 });
    assert_eq!(step.errno, Some(libc::ENOMEM));

    let arena = Arena::reserve(config(3 << 20, Policy::Prefer)).unwrap();
    assert_eq!(arena.steps()[0], step);
    let other_steps = || arena.steps()[1..].iter().map(|step| step.reason.name());
    match arena.backing() {
        Backing::Transparent if other_steps().any(|name| name == "transparent_partial") => {
            assert_eq!(arena.page_bytes(), memfd::base_page_bytes());
        }
        Backing::Transparent => assert!(arena.page_bytes() > memfd::base_page_bytes()),
        Backing::Small => assert!(other_steps().any(|name| name.starts_with("transparent"))),
        Backing::Hugetlb => panic!("all of them are taken"),
    }
    println!("stepped down to {}", arena.backing().name());
    arena.span().fill(0, 3 << 20, 1).unwrap();

    let region = host_region::create(4 << 20, "test", Policy::Prefer).unwrap();
    assert_eq!((region.backing, region.page_bytes), (Backing::Small, memfd::base_page_bytes()));
    assert_eq!(region.steps, [step]);
    drop(all);
}

#[test]
fn needs_hugepages_required_region_is_sealed_and_taken() {
    let Some((_turn, before)) = free_pages(2) else { return };
    let region = host_region::create_on(3 << 20, "test", Policy::Require, Some(0)).unwrap();
    assert_eq!((region.backing, region.page_bytes, region.bytes), (Backing::Hugetlb, 2 << 20, 4 << 20));
    assert_eq!(region.steps, []);
    memfd::require_seals(&region.file).unwrap();
    assert_eq!(free_now(), before.free - 2, "taken, although nobody maps it");
    let mapping = Mapping::of_sealed(&region.file, Access::ReadWrite).unwrap();
    assert_eq!(mapping.page_bytes(), 2 << 20);
    mapping.span().fill(0, 4 << 20, 3).unwrap();
    let part = Mapping::of_sealed_part(&region.file, 2 << 20, 100, Access::ReadWrite).unwrap();
    assert_eq!(part.len(), 2 << 20, "a part of a hugepage is mapped as a whole one");
    drop((part, mapping, region));
    assert_eq!(free_now(), before.free);
}

#[test]
fn needs_hugepages_unmapping_an_odd_length_leaks_nothing() {
    let Some((_turn, before)) = free_pages(1) else { return };
    for bytes in [1, 4096, (2 << 20) - 1] {
        let arena = Arena::reserve(config(bytes, Policy::Require)).unwrap();
        assert_eq!(arena.len(), 2 << 20);
        drop(arena);
        assert_eq!(free_now(), before.free);
    }
}
