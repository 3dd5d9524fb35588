//! Random work and random faults over the stand-in.

mod common;

use common::{Setup, stand_in, world};

#[test]
fn random_work_and_faults() {
    let before = stand_in::counters();
    let (writes, downs) = world::run(&Setup::stand_in(), 0..20, 1500);
    let after = stand_in::counters();
    assert!(writes > 3_000 && downs > 30, "only {writes} writes and {downs} ends were seen");
    for (what, count) in [
        ("overruns", after.overruns - before.overruns),
        ("starved", after.starved - before.starved),
        ("receiver not ready", after.receiver_not_ready - before.receiver_not_ready),
    ] {
        assert_eq!(count, 0, "{what}");
    }
}
