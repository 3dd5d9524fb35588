extern crate std;

use super::*;
use std::vec;

const SHAPE: PoolShape = PoolShape {
    large_bytes: 256 * 1024,
    small_bytes: 16 * 1024,
    large_send: 3,
    large_receive: 2,
    small_send: 5,
    small_receive: 4,
};

#[test]
fn blocks_are_disjoint_and_found_by_their_page() {
    let mut end = 0;
    for block in 0..14 {
        assert_eq!(SHAPE.offset(block), end, "block {block} begins where the one before ends");
        end += SHAPE.block_bytes(SHAPE.quota(block));
        let page = u32::try_from(SHAPE.offset(block) / PAGE_BYTES).expect("small arena");
        assert_eq!(SHAPE.at_page(page), Some(block));
        assert_eq!(SHAPE.at_page(page + 1), None, "no block begins in the middle of block {block}");
    }
    assert_eq!(end, SHAPE.bytes());
    assert_eq!(SHAPE.at_page(u32::try_from(end / PAGE_BYTES).expect("small arena")), None);
    assert_eq!(SHAPE.at_page(u32::MAX), None);
}

#[test]
fn quotas_do_not_lend_and_the_last_block_used_is_the_next() {
    let mut links = vec![Link::UNLINKED; SHAPE.blocks()];
    let mut pool = Pool::new(SHAPE, &mut links);
    for quota in Quota::ALL {
        let count = SHAPE.count(quota) as usize;
        assert_eq!(pool.free(quota), count);
        let taken: vec::Vec<u32> = (0..count).map(|_| pool.take(quota).expect("free")).collect();
        assert!(taken.iter().all(|block| SHAPE.quota(*block) == quota));
        assert_eq!(pool.take(quota), None);
        for block in &taken {
            pool.put(*block);
        }
        assert_eq!(pool.take(quota), taken.last().copied(), "{quota:?} is a stack");
        pool.put(taken[count - 1]);
        assert_eq!(pool.free(quota), count);
    }
}

#[test]
fn unsound_shapes_are_known() {
    assert!(SHAPE.is_sound());
    assert!(!PoolShape { small_bytes: 5000, ..SHAPE }.is_sound());
    assert!(!PoolShape { small_bytes: 0, ..SHAPE }.is_sound());
    assert!(!PoolShape { small_bytes: 512 * 1024, ..SHAPE }.is_sound());
}
