use super::*;
use proptest::prelude::*;

fn geometry() -> impl Strategy<Value = PoolGeometry> {
    (7u32..18, 0u32..6, 0u32..40, 0u32..40, 0u32..10, 0u32..10).prop_map(
        |(small, above, small_send, small_receive, large_send, large_receive)| PoolGeometry {
            small_bytes: 1 << small,
            small_send,
            small_receive,
            large_bytes: 1 << (small + above),
            large_send,
            large_receive,
        },
    )
}

proptest! {
    #[test]
    fn blocks_are_aligned_disjoint_and_fill_the_arena(geometry in geometry()) {
        let total = geometry.small_send + geometry.small_receive + geometry.large_send + geometry.large_receive;
        let Ok(layout) = geometry.layout() else {
            prop_assert_eq!(total, 0);
            return Ok(());
        };
        prop_assert_eq!(layout.large_send.count, geometry.large_send);
        prop_assert_eq!(layout.large_receive.count, geometry.large_receive);
        prop_assert_eq!(layout.small_send.count, geometry.small_send);
        prop_assert_eq!(layout.small_receive.count, geometry.small_receive);
        let mut ranges = Vec::new();
        for blocks in [layout.large_send, layout.large_receive, layout.small_send, layout.small_receive] {
            for index in 0..blocks.count {
                let offset = blocks.at(index).unwrap();
                prop_assert_eq!(offset % blocks.block_bytes, 0);
                ranges.push((offset, offset + blocks.block_bytes));
            }
            prop_assert_eq!(blocks.at(blocks.count), None);
            prop_assert_eq!(blocks.at(u32::MAX), None);
        }
        ranges.sort_unstable();
        prop_assert_eq!(ranges.len(), total as usize);
        prop_assert_eq!(ranges[0].0, 0);
        prop_assert_eq!(ranges[ranges.len() - 1].1, layout.bytes);
        prop_assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "disjoint and without gaps");
    }
}

const PLAIN: PoolGeometry = PoolGeometry {
    small_bytes: 16 << 10,
    small_send: 1,
    small_receive: 1,
    large_bytes: 1 << 20,
    large_send: 1,
    large_receive: 1,
};

#[test]
fn sizes_that_are_no_blocks_are_refused() {
    for bytes in [0, 64, 100, 3 << 20] {
        assert_eq!(
            PoolGeometry { small_bytes: bytes, ..PLAIN }.layout(),
            Err(GeometryError::BlockBytes { bytes })
        );
        assert_eq!(
            PoolGeometry { large_bytes: bytes, ..PLAIN }.layout(),
            Err(GeometryError::BlockBytes { bytes })
        );
    }
    assert_eq!(PoolGeometry { small_bytes: 2 << 20, ..PLAIN }.layout(), Err(GeometryError::Order));
}

#[test]
fn totals_that_overflow_or_are_nothing_are_refused() {
    let none = PoolGeometry { small_send: 0, small_receive: 0, large_send: 0, large_receive: 0, ..PLAIN };
    assert_eq!(none.layout(), Err(GeometryError::Total));
    let huge = PoolGeometry { large_bytes: 1 << 62, large_send: 2, ..PLAIN };
    assert_eq!(huge.layout(), Err(GeometryError::Total));
    let wrapping = PoolGeometry { large_bytes: 1 << 63, large_send: 2, large_receive: 0, ..PLAIN };
    assert_eq!(wrapping.layout(), Err(GeometryError::Total));
}

#[test]
fn one_sided_pools_are_fine() {
    let layout = PoolGeometry { large_send: 0, small_receive: 0, ..PLAIN }.layout().unwrap();
    assert_eq!(layout.large_send.at(0), None);
    assert_eq!(layout.large_receive.at(0), Some(0));
    assert_eq!(layout.bytes, (1 << 20) + (16 << 10));
}
