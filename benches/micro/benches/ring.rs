//! Ring.
fn main() {}
