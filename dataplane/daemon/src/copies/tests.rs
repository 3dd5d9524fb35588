use super::*;

fn dataplane(copy_threads: &str, lanes: usize) -> Dataplane {
    let text = format!(
        "[node]\nname = \"a\"\nstate_dir = \"a\"\n[fabric]\nkey_file = \"key\"\n\
         [dataplane]\nlanes = {lanes}\ncopy_threads = \"{copy_threads}\"\n"
    );
    railhead_config::Config::parse(std::path::Path::new("/a.toml"), &text).unwrap().dataplane
}

fn cores(list: &[u64]) -> Cores {
    let mut cores = Cores([0; machine::CORE_WORDS]);
    for core in list {
        cores.0[usize::try_from(core / 64).unwrap()] |= 1 << (core % 64);
    }
    cores
}

#[test]
fn auto_wants_two_cores_for_each_lane_and_one_more() {
    assert_eq!(Copies::of(&dataplane("auto", 1), 2), Copies::Short { needed: 3 });
    assert_eq!(Copies::of(&dataplane("auto", 1), 3), Copies::Threads);
    assert_eq!(Copies::of(&dataplane("auto", 4), 8), Copies::Short { needed: 9 });
    assert_eq!(Copies::of(&dataplane("auto", 4), 9), Copies::Threads);
    assert_eq!(Copies::of(&dataplane("on", 4), 1), Copies::Threads);
    assert_eq!(Copies::of(&dataplane("off", 1), 64), Copies::Lanes);
}

#[test]
fn copies_run_near_their_lane_and_off_the_lanes_cores() {
    let allowed = cores(&[0, 1, 2, 3, 100, 101]);
    let nodes = |core: u64| Some(if core < 100 { cores(&[0, 1, 2, 3]) } else { cores(&[100, 101]) });
    let mut settings = Settings::default();
    let at = |lane, settings: &Settings, configured: Option<&[u64]>| {
        place(lane, 2, settings, configured, &allowed, nodes)
    };
    assert_eq!(at(0, &settings, None), Place::Any(allowed), "nothing is pinned");
    settings.set_lane_core(0, Some(1));
    assert_eq!(at(0, &settings, None), Place::Any(cores(&[0, 2, 3])));
    assert_eq!(at(1, &settings, None), Place::Any(cores(&[0, 2, 3, 100, 101])), "lane 1 may be anywhere");
    settings.set_lane_core(1, Some(100));
    assert_eq!(at(1, &settings, None), Place::Any(cores(&[101])));
    assert_eq!(at(1, &settings, Some(&[2, 3])), Place::Core(3), "the configuration is obeyed");
}

#[test]
fn copies_share_cores_when_there_are_no_others() {
    let allowed = cores(&[4, 5]);
    let mut settings = Settings::default();
    settings.set_lane_core(0, Some(4));
    let alone = |_| Some(cores(&[4]));
    assert_eq!(place(0, 1, &settings, None, &allowed, alone), Place::Any(cores(&[5])), "another node's core");
    assert_eq!(place(0, 1, &settings, None, &cores(&[4]), alone), Place::Any(cores(&[4])));
    assert_eq!(place(0, 1, &settings, None, &allowed, |_| None), Place::Any(cores(&[5])));
}

#[test]
fn thread_ends_with_its_helper() {
    let (running, helper) = RunningCopies::start(7).unwrap();
    let name = std::fs::read_to_string(format!("/proc/self/task/{}/comm", running.tid)).unwrap();
    assert_eq!(name.trim(), "railhead-copy-7");
    drop(helper);
    running.join();
}
