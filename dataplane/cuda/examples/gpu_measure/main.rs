//! Measures copies of GPUs beside what the driver alone gives, alternating in one run: see `ops/gpu`.
//!
//! Prints one JSON object per line: a row {name, unit, ours, reference, ratio, interval, goal, verdict, pairs, note}, a
//! table of latencies by size, and the machine first. A row whose machine lacks something is `not run`, with the reason.

mod copies;
mod driver_calls;
mod latency;
mod order;
mod peer;
mod rig;
mod staged;

use rig::{Options, Rig};

fn main() {
    let options = Options::from_arguments();
    let rig = match Rig::open(options) {
        Ok(rig) => rig,
        Err(absent) => {
            println!("{}", serde_json::json!({ "not_run": absent.name(), "reason": absent.to_string() }));
            std::process::exit(2);
        }
    };
    if options.load {
        staged::load(&rig);
        return;
    }
    rig.print_machine();
    latency::table(&rig);
    latency::out_by_kernel(&rig);
    latency::batches(&rig);
    staged::alone(&rig);
    staged::large(&rig);
    peer::large(&rig);
    order::chain(&rig);
    driver_calls::beside_registration(&rig);
}
