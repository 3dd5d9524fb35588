//! What happens below `RLIMIT_MEMLOCK`. In a process of its own: limits belong to the process.

use railhead_memory::pages::Hugepages;
use railhead_memory::{Arena, ArenaConfig, ArenaError, Policy, Reason};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const LIMIT_BYTES: u64 = 64 << 10;

#[test]
fn refused_lock_is_a_step_with_the_limit_and_a_refusal_under_require() {
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(LIMIT_BYTES), ..limit }).unwrap();
    // Whoever may lock memory is not limited. Capabilities are those of this thread only.
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();

    let config = ArenaConfig { bytes: 4 << 20, huge: Policy::Never, numa_node: None };
    let arena = Arena::reserve(config).unwrap();
    assert!(!arena.locked());
    let [step] = arena.steps() else { panic!("{:?}", arena.steps()) };
    assert_eq!(step.reason, Reason::MemlockLimit { limit_bytes: LIMIT_BYTES, bytes: 4 << 20 });
    assert!(matches!(step.errno, Some(libc::ENOMEM | libc::EPERM)));
    assert!(step.to_string().contains("RLIMIT_MEMLOCK"), "{step}");
    arena.span().fill(0, 4 << 20, 1).unwrap();

    let config = ArenaConfig { huge: Policy::Require, ..config };
    match Arena::reserve(config).unwrap_err() {
        ArenaError::Required(step) => match step.reason {
            Reason::MemlockLimit { limit_bytes, .. } => assert_eq!(limit_bytes, LIMIT_BYTES),
            reason => println!(
                "SKIPPED the rest: no hugepages to lock: {} ({:?})",
                reason.name(),
                Hugepages::read()
            ),
        },
        error => panic!("{error}"),
    }
}

#[test]
fn small_enough_memory_is_locked() {
    let config = ArenaConfig { bytes: 4096, huge: Policy::Never, numa_node: None };
    let arena = Arena::reserve(config).unwrap();
    assert!(arena.locked(), "{:?}", arena.steps());
}
