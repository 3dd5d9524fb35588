//! Railhead micro-benchmarks.
