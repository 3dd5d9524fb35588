use railhead_memory::{Arena, ArenaConfig, Policy};

use super::*;

fn places() -> Places {
    let lane = || {
        let config = ArenaConfig { bytes: 1 << 20, huge: Policy::Never, numa_node: None };
        LanePlaces { pool: Arena::reserve(config).unwrap().extent(), tables: Vec::new() }
    };
    Places::new(vec![lane(), lane()])
}

fn settings(words: &[(usize, u64)]) -> Settings {
    let mut settings = Settings::default();
    words.iter().for_each(|(word, value)| settings.words[*word] = *value);
    settings
}

#[test]
fn only_what_is_wanted_elsewhere_moves_and_a_pool_follows_its_lane_unless_it_has_its_own() {
    let places = places();
    let what = |before: &Settings, after: &Settings| {
        let wanted = places.wanted(before, after);
        wanted.iter().map(|wanted| (wanted.word, wanted.moved.what, wanted.moved.node)).collect::<Vec<_>>()
    };
    let (none, lane) = (settings(&[]), settings(&[(LANE_NODE_WORD + 1, 1)]));
    assert_eq!(what(&none, &none), []);
    assert_eq!(what(&none, &lane), [(LANE_NODE_WORD + 1, "pool", 0), (LANE_NODE_WORD + 1, "tables", 0)]);
    assert_eq!(what(&lane, &none), [], "unset leaves it where it is");
    let both = settings(&[(LANE_NODE_WORD + 1, 1), (LANE_POOL_NODE_WORD + 1, 2)]);
    assert_eq!(what(&lane, &both), [(LANE_POOL_NODE_WORD + 1, "pool", 1)]);
    assert_eq!(what(&both, &lane), [(LANE_NODE_WORD + 1, "pool", 0)]);
}

#[test]
fn a_move_that_cannot_be_made_names_its_setting_and_nothing_has_moved() {
    let places = places();
    let after = settings(&[(LANE_POOL_NODE_WORD, 1), (LANE_POOL_NODE_WORD + 1, 64)]);
    match places.follow(&settings(&[]), &after) {
        Err(Stuck { word, error: MoveError::NoSuchNode { node: 63 } }) => {
            assert_eq!(word, LANE_POOL_NODE_WORD + 1);
        }
        Err(Stuck { error: error @ MoveError::System { .. }, .. }) => {
            println!("SKIPPED: this process may not move memory: {error}");
        }
        other => panic!("{other:?}"),
    }
}
