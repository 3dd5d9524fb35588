use super::*;

fn config(bytes: u64, huge: Policy) -> ArenaConfig {
    ArenaConfig { bytes, huge, numa_node: None }
}

#[test]
fn ordinary_arena_has_its_pages_and_no_steps() {
    let arena = Arena::reserve(config(100_000, Policy::Never)).unwrap();
    assert_eq!(arena.backing(), Backing::Small);
    assert_eq!(arena.page_bytes(), memfd::base_page_bytes());
    assert_eq!(arena.len(), 100_000usize.next_multiple_of(memfd::base_page_bytes()));
    let steps: Vec<_> = arena.steps().iter().map(|step| step.reason.name()).collect();
    assert!(steps.is_empty() || !arena.locked(), "only a lock can be missing: {steps:?}");
    let placement = arena.verify().unwrap();
    assert_eq!(placement.absent, 0, "every page is taken");
    let pages: u64 = placement.nodes.iter().map(|&(_, pages)| pages).sum();
    assert_eq!(pages, (arena.len() / arena.page_bytes()) as u64);
}

#[test]
fn span_outlives_the_arena() {
    let arena = Arena::reserve(config(4096, Policy::Never)).unwrap();
    let span = arena.span();
    assert_eq!(span.address() % (2 << 20), 0);
    drop(arena);
    span.write(4000, b"still here").unwrap();
    let mut out = [0; 10];
    span.read(4000, &mut out).unwrap();
    assert_eq!(&out, b"still here");
}

#[test]
fn impossible_requests_are_refused() {
    for bytes in [0, u64::MAX, i64::MAX as u64] {
        assert_eq!(Arena::reserve(config(bytes, Policy::Never)).unwrap_err(), ArenaError::Size { bytes });
    }
    let request = ArenaConfig { numa_node: Some(900), ..config(4096, Policy::Prefer) };
    assert_eq!(Arena::reserve(request).unwrap_err(), ArenaError::NoSuchNode { node: 900 });
}

#[test]
fn more_than_there_is_fails_without_a_fault() {
    // Addressable, but more than this machine can map with its overcommit heuristics.
    let refused = Arena::reserve(config(1 << 46, Policy::Never)).unwrap_err();
    assert!(matches!(refused, ArenaError::System { call: "mmap", errno: libc::ENOMEM }), "{refused:?}");
}

#[test]
fn bound_arena_lies_on_its_node() {
    let arena = Arena::reserve(ArenaConfig { numa_node: Some(0), ..config(1 << 20, Policy::Never) }).unwrap();
    if let Some(step) = arena.steps().iter().find(|step| matches!(step.reason, Reason::NodeUnbound { .. })) {
        println!("SKIPPED: this process may not bind memory: {step}");
        return;
    }
    assert!(arena.verify().unwrap().all_on(0));
    assert!(!arena.verify().unwrap().all_on(1));
}

#[test]
fn steps_are_refusals_under_require() {
    let mut steps = Steps { taken: Vec::new(), policy: Policy::Require };
    let refused = steps.down(Reason::TransparentOff, Some(1)).unwrap_err();
    assert_eq!(refused, ArenaError::Required(StepDown { reason: Reason::TransparentOff, errno: Some(1) }));
    assert!(steps.taken.is_empty());
}

#[test]
fn placement_counts_by_node() {
    let mut placement = Placement::default();
    for node in [3, 0, 3] {
        placement.count(node);
    }
    assert_eq!(placement.nodes, [(0, 1), (3, 2)]);
    assert!(!placement.all_on(3));
}
