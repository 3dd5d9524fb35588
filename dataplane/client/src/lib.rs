//! What applications link to move bytes with Railhead.
//!
//! **Owns** a process's side of a session: the socket to the dataplane ([`Session`]), registered memory ([`Region`]),
//! handles of remote memory ([`Remote`]), ports ([`Port`]) on which transfers are submitted and completed, and the
//! events and signals that peers send ([`Events`]).
//!
//! **Never** touches a device or a network: it writes entries into memory that the dataplane shares with it. Never forms
//! a slice over a region, because transfers write there at any time.
//!
//! **Called by** ordinary processes. [`Session`], [`Region`] and [`Remote`] may be used from any thread and may block on the
//! dataplane's socket; a [`Port`] and the [`Events`] belong to one thread at a time and make no system call while both sides
//! are awake.
//!
//! All arguments are plain data and all handles are pairs of integers, so that a C header or a Python module can
//! follow without another layer.
//!
//! ```no_run
//! use std::time::Duration;
//! use railhead_client::{AttachOptions, Completion, RegionOptions, Session, Write, outcome};
//!
//! let session = Session::attach("/run/railhead/session.sock", &AttachOptions::default())?;
//! let region = session.create_region(&RegionOptions { bytes: 1 << 20, ..RegionOptions::default() })?;
//! let remote = session.open("node-b", "weights")?;
//! let mut port = session.take_port().expect("one port was asked for");
//!
//! region.copy_in(0, b"hello")?;
//! let write = Write { cookie: 7, local: region.handle(), remote: remote.handle(), bytes: 5, ..Write::default() };
//! port.submit(&write)?;
//! port.ring();
//! let mut done = [Completion::default(); 16];
//! while port.wait(Duration::from_secs(1)) {
//!     let count = port.poll(&mut done);
//!     for completion in &done[..count] {
//!         outcome(completion)?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cookies;
mod error;
mod events;
mod lanes;
mod line;
mod port;
mod region;
mod session;
mod shared;
mod write;

pub use error::{Failure, SessionError, outcome};
pub use events::Events;
pub use port::Port;
pub use railhead_abi::Code;
pub use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
pub use railhead_abi::submission::{Completion, SessionEvent};
pub use railhead_ring::Full;
pub use railhead_shm::OutOfRange;
pub use region::{Pages, Region, RegionOptions, StepDown};
pub use session::{AttachOptions, Remote, Session};
pub use write::{Class, Leg, Level, Notify, Read, RegionHandle, RemoteHandle, Write};
