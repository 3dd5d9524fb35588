use super::*;

#[test]
fn this_process_has_cores_and_may_be_pinned_to_one() {
    let allowed = Cores::allowed().unwrap();
    assert!(allowed.count() >= 1);
    let core = (0..1024).find(|core| allowed.has(*core)).unwrap();
    assert!(allowed.text().split(',').any(|text| text == core.to_string()));
    let tid = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    pin(tid, Some(core), &allowed).unwrap();
    assert_eq!(Cores::allowed().unwrap().count(), 1);
    pin(tid, None, &allowed).unwrap();
    assert_eq!(Cores::allowed().unwrap(), allowed);
}

#[test]
fn pin_to_a_core_that_is_not_there_fails() {
    let allowed = Cores::allowed().unwrap();
    let absent = (0..1024).rev().find(|core| !allowed.has(*core)).unwrap();
    let tid = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    assert!(pin(tid, Some(absent), &allowed).is_err());
}

#[test]
fn sets_of_cores_are_read_and_changed() {
    let mut cores = Cores::parse("0-2,8,64-65").unwrap();
    assert_eq!(cores.text(), "0,1,2,8,64,65");
    cores.remove(64);
    cores.remove(5000);
    assert_eq!(cores.and(&Cores::parse("1,8-70").unwrap()).text(), "1,8,65");
    for bad in ["", "a", "1-", "5000"] {
        assert_eq!(Cores::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_core_is_of_its_own_node() {
    let core = (0..1024).find(|core| Cores::allowed().unwrap().has(*core)).unwrap();
    match Cores::of_node_of(core) {
        Some(node) => assert!(node.has(core)),
        None => println!("not run: this kernel tells nothing of NUMA nodes"),
    }
}

#[test]
fn private_mappings_are_told_from_shared_ones() {
    let text = "55d0c0000000-55d0c0010000 r-xp 00000000 fe:01 123   /usr/bin/railhead-dataplane";
    let mapping = PrivateMapping::parse(text).unwrap();
    assert_eq!((mapping.end - mapping.start, mapping.writable), (0x10000, false));
    assert!(PrivateMapping::parse("55d0c0000000-55d0c0010000 rw-p 00000000 00:00 0 ").unwrap().writable);
    assert!(PrivateMapping::parse("55d0c0000000-55d0c0010000 rw-p 00000000 00:00 0   [heap]").is_some());
    for other in [
        "7ffd0c000000-7ffd0c001000 r--p 00000000 00:00 0   [vvar]",
        "55d0c0000000-55d0c0010000 rw-s 00000000 00:01 77   /memfd:session (deleted)",
        "55d0c0000000-55d0c0010000 ---p 00000000 fe:01 123   /usr/lib/libc.so.6",
    ] {
        assert!(PrivateMapping::parse(other).is_none(), "{other}");
    }
}

#[test]
fn populated_memory_does_not_fault_when_touched() {
    let mut memory = vec![0u8; 8 << 20];
    populate_private();
    let before = ThreadUsage::now().minor_faults;
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let faults = ThreadUsage::now().minor_faults - before;
    assert!(faults < 16, "{faults} faults on {} populated pages", std::hint::black_box(memory).len() / 4096);
}

#[test]
fn usage_of_a_thread_only_grows() {
    let before = ThreadUsage::now();
    std::thread::sleep(core::time::Duration::from_millis(1));
    let after = ThreadUsage::now();
    assert!(after.voluntary_switches > before.voluntary_switches);
    assert!(after.minor_faults >= before.minor_faults);
}
