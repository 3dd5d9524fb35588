//! What every fabric must do, over the stand-in library.

mod common;

use common::{Harness, Setup};
use railhead_verbs::ConnectionSizes;

mod conformance_of_default_sizes {
    use super::{Harness, Setup};

    railhead_sim::fabric_conformance!(Harness::new(&Setup::stand_in()));
}

/// Queues of a few: everything is full all the time, and receives go round quickly.
mod conformance_of_small_queues {
    use super::{ConnectionSizes, Harness, Setup};

    railhead_sim::fabric_conformance!(Harness::new(&Setup {
        sizes: ConnectionSizes { posts_max: 4, records_max: 3, receives: 5 },
        write_bytes_max: 40_000,
        ..Setup::stand_in()
    }));
}

/// Flushes go over their own queue pairs.
mod conformance_with_flushes {
    use super::{Harness, Setup};

    railhead_sim::fabric_conformance!(Harness::new(&Setup { flush_needed: true, ..Setup::stand_in() }));
}
