//! What every fabric must do, on real verbs: two soft RDMA NICs at the ends of a wire.

mod common;

use common::{Harness, Setup};
use railhead_verbs::ConnectionSizes;

fn of_guest() -> Setup {
    let network = std::env::var("RAILHEAD_LAB").unwrap_or_default();
    assert_eq!(network, "veth", "this test needs a guest: ops/lab/run-tests --net veth");
    Setup::installed(["rxe0".into(), "rxe1".into()])
}

mod conformance_on_two_nics {
    use super::{Harness, of_guest};

    railhead_sim::fabric_conformance!(
        #[ignore = "needs a guest: ops/lab/run-tests --net veth"]
        Harness::new(&of_guest())
    );
}

mod conformance_on_one_nic_of_small_queues {
    use super::{ConnectionSizes, Harness, Setup, of_guest};

    railhead_sim::fabric_conformance!(
        #[ignore = "needs a guest: ops/lab/run-tests --net veth"]
        Harness::new(&Setup {
            devices: ["rxe0".into(), "rxe0".into()],
            sizes: ConnectionSizes { posts_max: 4, records_max: 3, receives: 5 },
            write_bytes_max: 40_000,
            flush_needed: true,
            ..of_guest()
        })
    );
}
