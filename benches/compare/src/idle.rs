//! What a node costs that has nothing to do: both its processes, sessions attached, peers connected.

use std::time::{Duration, Instant};

use crate::load::Load;
use crate::nodes::Nodes;
use crate::options::Options;
use crate::problem::Problem;

/// Until start-up is over everywhere.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(2);
const WINDOW_QUICK: Duration = Duration::from_millis(500);

/// Per cent of a core, of the node that used more, for each of `windows`.
pub(crate) fn measure(options: &Options, windows: usize) -> Result<Vec<f64>, Problem> {
    let mut nodes = Nodes::start(options)?;
    nodes.start_controls()?;
    // Attached and connected: an appliance without clients would be easier to keep quiet.
    let load = Load::attach(&mut nodes)?;
    std::thread::sleep(SETTLE);
    let window = if options.quick { WINDOW_QUICK } else { WINDOW };
    let mut shares = Vec::new();
    for _ in 0..windows {
        let (start, before) = (Instant::now(), nodes.cpu_s()?);
        std::thread::sleep(window);
        let (seconds, after) = (start.elapsed().as_secs_f64(), nodes.cpu_s()?);
        let share = |node: usize| 100.0 * (after[node] - before[node]) / seconds;
        shares.push(share(0).max(share(1)));
    }
    drop(load);
    nodes.stop_controls();
    Ok(shares)
}
