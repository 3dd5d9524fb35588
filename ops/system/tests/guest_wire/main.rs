//! In a guest with two soft RDMA devices at the ends of one wire: `ops/lab/run-tests --net veth -- railhead-system/guest_wire`.
//! What the other tests there stand on is shown first: that devices are usable, that data crosses the wire, and that the wire
//! can be made to lose packets and be cut.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod devices;
mod raw;
