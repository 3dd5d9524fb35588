//! How long a change of settings takes until every lane applies it, while the lanes move data.

use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use railhead_abi::settings::Setting;
use railhead_client::{Class, Leg};

use crate::control::Holder;
use crate::load::{Load, REGION_BYTES, Shape};
use crate::nodes::Nodes;
use crate::options::Options;
use crate::problem::Problem;
use crate::statistics::quantile;

/// Changes of one round; their 99th percentile is one sample.
const CHANGES: usize = 200;
const CHANGES_QUICK: usize = 50;
/// Between two changes, so that lanes have time to move data, and to begin to sleep in some of the gaps.
const PAUSE: Duration = Duration::from_millis(1);
/// Toggled by each change.
const CHUNKS: [u64; 2] = [128 << 10, 256 << 10];

/// Large writes that keep both lanes busy.
const LOAD: Shape = Shape {
    bytes: 1 << 20,
    outstanding: 8,
    walk_bytes: REGION_BYTES,
    leg: Leg::AUTO,
    class: Class::BULK,
    spin: Duration::ZERO,
};

/// Milliseconds from publishing to the last acknowledgement, 99th percentile, for each of `rounds`.
pub(crate) fn measure(options: &Options, rounds: usize) -> Result<Vec<f64>, Problem> {
    let mut nodes = Nodes::start(options)?;
    let mut load = Load::attach(&mut nodes)?;
    let mut holder = Holder::attach(&nodes.admin_socket(0))?;
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            load.run(&LOAD, |_| !matches!(ended.try_recv(), Err(TryRecvError::Empty))).map(|_| ())
        });
        let changes = if options.quick { CHANGES_QUICK } else { CHANGES };
        let samples = (0..rounds).map(|_| round(&mut holder, changes)).collect();
        drop(end);
        writing.join().map_err(|_| Problem::new("the writing thread panicked"))??;
        samples
    })
}

fn round(holder: &mut Holder, changes: usize) -> Result<f64, Problem> {
    let mut settings = *holder.settings();
    let mut times_ms = Vec::with_capacity(changes);
    for change in 0..changes {
        settings.set(Setting::ChunkBytes, CHUNKS[change % CHUNKS.len()]);
        times_ms.push(holder.publish(&settings)?.as_secs_f64() * 1e3);
        std::thread::sleep(PAUSE);
    }
    quantile(&times_ms, 0.99).ok_or_else(|| Problem::new("there were no changes"))
}
