//! The rows, as data: what is measured, beside what, and the goal. To add a comparison, add an entry.

use std::time::Duration;

use railhead_client::{Class, Leg};

use crate::load::{REGION_BYTES, Shape};
use crate::perftest;
use crate::problem::Problem;
use crate::statistics::Goal;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// What is compared, for people.
    pub(crate) what: &'static str,
    pub(crate) method: Method,
    pub(crate) goal: Goal,
}

/// How the samples of a row come about.
#[derive(Debug)]
pub(crate) enum Method {
    /// Pairs of our writes and a reference on the same sizes.
    Writes { ours: Shape, reference: Reference },
    /// Pairs of our fabric alone and perftest, between two RDMA devices.
    Device(perftest::Shape),
    /// Pairs of our ring and rtrb.
    Ring { batch: usize },
    /// Milliseconds from publishing settings to the last lane's acknowledgement, 99th percentile, with load.
    Settings,
    /// Per cent of a core that an idle node uses.
    Idle,
}

/// What our writes are measured beside.
#[derive(Debug)]
pub(crate) enum Reference {
    /// A plain blocking socket stream.
    Stream,
    /// UCX put over TCP, with as many outstanding.
    UcxPut,
    /// perftest's `ib_write_bw` between the devices of `--verbs`, with as many outstanding.
    Perftest,
    /// Our own writes in another shape.
    Ours(Shape),
}

impl Method {
    /// The unit of a sample.
    pub(crate) const fn unit(&self) -> &'static str {
        match self {
            Self::Writes { .. } | Self::Device(_) | Self::Ring { .. } => "x",
            Self::Settings => "ms",
            Self::Idle => "%",
        }
    }
}

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;

/// Bulk writes that walk through all of both regions. The client sleeps while it waits: cores are for the lanes.
const fn cold(bytes: u64, outstanding: usize, leg: Leg) -> Shape {
    Shape { bytes, outstanding, walk_bytes: REGION_BYTES, leg, class: Class::BULK, spin: Duration::ZERO }
}

/// Small writes through one place for each outstanding, direct: on tcp a staging block saves nothing at any size.
const fn small(bytes: u64, outstanding: usize) -> Shape {
    Shape {
        bytes,
        outstanding,
        walk_bytes: bytes * outstanding as u64,
        leg: Leg::DIRECT,
        class: Class::LATENCY,
        spin: Duration::ZERO,
    }
}

const DIRECT_1M: Shape = cold(MEBIBYTE, 16, Leg::DIRECT);
const DIRECT_16M: Shape = cold(16 * MEBIBYTE, 4, Leg::DIRECT);

/// One device's bandwidth: as much as perftest's, with the same queue and MTU.
const fn device_bandwidth(name: &'static str, what: &'static str, bytes: u64) -> Row {
    let shape = perftest::Shape::Bandwidth { bytes, outstanding: 128 };
    Row { name, what, method: Method::Device(shape), goal: Goal::Reaches { at: 1.0, least: 0.9 } }
}

/// One device's latency, to the completion: one way and the acknowledgement back. perftest's is half of a ping-pong whose ends
/// look at the payload. The ratio is that of rates: 1 / 1.15 is a latency of 1.15 times perftest's.
const fn device_latency(name: &'static str, what: &'static str, bytes: u64) -> Row {
    let goal = Goal::Reaches { at: 1.0, least: 1.0 / 1.15 };
    Row { name, what, method: Method::Device(perftest::Shape::Latency { bytes }), goal }
}

/// The rows that need RDMA devices (`--verbs`), in the order in which they run.
pub(crate) const VERBS: &[Row] = &[
    device_bandwidth("raw-4k", "fabric alone, write 4 KiB, 128 outstanding / ib_write_bw", 4 * KIBIBYTE),
    device_bandwidth("raw-64k", "fabric alone, write 64 KiB, 128 outstanding / ib_write_bw", 64 * KIBIBYTE),
    device_bandwidth("raw-1m", "fabric alone, write 1 MiB, 128 outstanding / ib_write_bw", MEBIBYTE),
    device_latency("raw-lat-8", "fabric alone, write 8 B, post to completion / ib_write_lat", 8),
    device_latency(
        "raw-lat-4k",
        "fabric alone, write 4 KiB, post to completion / ib_write_lat",
        4 * KIBIBYTE,
    ),
    Row {
        name: "rdma-64k",
        what: "write 64 KiB through two nodes over RDMA, both legs direct, 64 outstanding / ib_write_bw",
        method: Method::Writes { ours: small(64 * KIBIBYTE, 64), reference: Reference::Perftest },
        goal: Goal::AtLeast(0.9),
    },
    Row {
        name: "rdma-1m",
        what: "write 1 MiB through two nodes over RDMA, both legs direct, 16 outstanding / ib_write_bw",
        method: Method::Writes { ours: small(MEBIBYTE, 16), reference: Reference::Perftest },
        goal: Goal::AtLeast(0.9),
    },
];

/// All rows of sockets and host memory, in the order in which they run.
pub(crate) const ALL: &[Row] = &[
    Row {
        name: "write-1m",
        what: "write 1 MiB, both legs direct, cold buffers, 16 outstanding / plain blocking socket stream",
        method: Method::Writes { ours: DIRECT_1M, reference: Reference::Stream },
        goal: Goal::AtLeast(0.85),
    },
    Row {
        name: "write-16m",
        what: "write 16 MiB, both legs direct, cold buffers, 4 outstanding / plain blocking socket stream",
        method: Method::Writes { ours: DIRECT_16M, reference: Reference::Stream },
        goal: Goal::AtLeast(0.85),
    },
    Row {
        name: "staged-1m",
        what: "write 1 MiB, both legs staged / both legs direct, cold buffers, 16 outstanding",
        method: Method::Writes {
            ours: cold(MEBIBYTE, 16, Leg::STAGED),
            reference: Reference::Ours(DIRECT_1M),
        },
        goal: Goal::AtLeast(0.8),
    },
    Row {
        name: "staged-16m",
        what: "write 16 MiB, both legs staged / both legs direct, cold buffers, 4 outstanding",
        method: Method::Writes {
            ours: cold(16 * MEBIBYTE, 4, Leg::STAGED),
            reference: Reference::Ours(DIRECT_16M),
        },
        goal: Goal::AtLeast(0.8),
    },
    Row {
        name: "put-64k",
        what: "write 64 KiB, both legs direct, 16 outstanding / UCX put over TCP",
        method: Method::Writes { ours: small(64 * KIBIBYTE, 16), reference: Reference::UcxPut },
        goal: Goal::AtLeast(1.0),
    },
    Row {
        name: "put-4k",
        what: "write 4 KiB, both legs direct, 64 outstanding / UCX put over TCP",
        method: Method::Writes { ours: small(4 * KIBIBYTE, 64), reference: Reference::UcxPut },
        goal: Goal::AtLeast(1.5),
    },
    Row {
        name: "ring",
        what: "SPSC ring, 64 B items one by one, two pinned threads / rtrb",
        method: Method::Ring { batch: 1 },
        goal: Goal::AtLeast(0.95),
    },
    Row {
        name: "ring-batch",
        what: "SPSC ring, 64 B items in batches of 16, two pinned threads / rtrb by chunks",
        method: Method::Ring { batch: 16 },
        goal: Goal::AtLeast(0.95),
    },
    Row {
        name: "settings",
        what: "settings, publish to last acknowledgement, 99th percentile, with load",
        method: Method::Settings,
        goal: Goal::Below(5.0),
    },
    Row {
        name: "idle",
        what: "an idle node, dataplane and control, adaptive: share of a core",
        method: Method::Idle,
        goal: Goal::Below(1.0),
    },
];

/// The rows of these names, in the order of `all`; all if there are none.
pub(crate) fn chosen(all: &'static [Row], names: &[String]) -> Result<Vec<&'static Row>, Problem> {
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|row| row.name == name.as_str())) {
        let known: Vec<&str> = all.iter().map(|row| row.name).collect();
        return Err(Problem::new(format!(
            "--rows: there is no row \"{unknown}\"; the rows are {}",
            known.join(", ")
        )));
    }
    Ok(all.iter().filter(|row| names.is_empty() || names.iter().any(|name| name == row.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_rows_keep_the_table_order_and_unknown_ones_are_named() {
        let rows = chosen(ALL, &["idle".to_owned(), "ring".to_owned()]).expect("known rows");
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["ring", "idle"]);
        assert_eq!(chosen(ALL, &[]).expect("all").len(), ALL.len());
        let problem = chosen(ALL, &["rings".to_owned()]).expect_err("unknown");
        assert!(problem.to_string().contains("\"rings\""), "{problem}");
    }

    #[test]
    fn every_shape_fits_the_regions() {
        for row in ALL.iter().chain(VERBS) {
            let Method::Writes { ours, reference } = &row.method else { continue };
            let mut shapes = vec![ours];
            if let Reference::Ours(shape) = reference {
                shapes.push(shape);
            }
            for shape in shapes {
                assert!(shape.walk_bytes <= REGION_BYTES, "{}", row.name);
                assert!(shape.outstanding as u64 * shape.bytes <= shape.walk_bytes, "{}", row.name);
            }
        }
    }
}
