//! The transfer engine of a lane. It owns transfers from intake to completion, staging blocks, credits
//! and records; it never reads a clock, opens a device, allocates, locks or logs. One lane's thread
//! calls it; time, devices and memory are handed in.
#![no_std]
#![forbid(unsafe_code)]

pub mod engine;
pub mod list;
pub mod notice;
pub mod pool;
pub mod port;
pub mod storage;
pub mod tables;

pub use engine::{Engine, EngineConfig, Turn};
pub use notice::Notice;
