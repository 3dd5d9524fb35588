//! Railhead.

fn main() {}
