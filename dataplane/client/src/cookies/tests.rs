use super::*;
use std::collections::BTreeMap;

/// A small deterministic generator: tests must not depend on chance.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Against a map from cookie to count, with few distinct cookies so that they collide and repeat.
#[test]
fn behaves_like_a_map_of_counts() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let capacity = 1 + random.next() as usize % 32;
        let distinct = 1 + random.next() % 64;
        let mut cookies = Cookies::new(capacity);
        let mut model = BTreeMap::<u64, usize>::new();
        for _ in 0..2000 {
            let cookie = (random.next() % distinct).wrapping_mul(1 << (seed % 60));
            let open = model.values().sum::<usize>();
            match random.next() % 4 {
                0 | 1 if open < capacity => {
                    cookies.insert(cookie);
                    *model.entry(cookie).or_default() += 1;
                }
                2 => {
                    let known = model.get(&cookie).is_some_and(|&count| count > 0);
                    assert_eq!(cookies.remove(cookie), known);
                    if known {
                        *model.get_mut(&cookie).unwrap() -= 1;
                    }
                }
                _ if seed % 3 == 0 => match cookies.take_any() {
                    Some(cookie) => *model.get_mut(&cookie).unwrap() -= 1,
                    None => assert_eq!(open, 0),
                },
                _ => {}
            }
            assert_eq!(cookies.len(), model.values().sum::<usize>());
        }
        let mut rest = model.values().sum::<usize>();
        while let Some(cookie) = cookies.take_any() {
            *model.get_mut(&cookie).unwrap() -= 1;
            rest -= 1;
        }
        assert_eq!(rest, 0);
        assert!(model.values().all(|&count| count == 0));
    }
}

#[test]
fn an_unknown_cookie_is_not_removed() {
    let mut cookies = Cookies::new(4);
    cookies.insert(1);
    assert!(!cookies.remove(2));
    assert!(cookies.remove(1));
    assert!(!cookies.remove(1));
    assert_eq!(cookies.take_any(), None);
}
