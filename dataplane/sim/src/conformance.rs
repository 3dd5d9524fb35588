//! What every fabric and every copy engine must do, as tests over a harness: the statements of
//! [`railhead_core::port`] one by one. An adapter implements a harness in its tests and calls
//! [`crate::fabric_conformance!`] or [`crate::copier_conformance!`]; each statement is then a test of its own.
//!
//! A harness that fails panics: these are test texts, not library code.

use railhead_core::port::{ConnectionIndex, CopyEngine, Fabric, Nanos, RegionIndex};

pub mod copier;
mod driver;
pub mod fabric;
pub mod reads;

/// One side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum End {
    /// Writes and sends records.
    Initiator = 0,
    /// Owns the memory that is written, and sends records.
    Target = 1,
}

impl End {
    /// Both.
    pub const BOTH: [End; 2] = [End::Initiator, End::Target];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            End::Initiator => End::Target,
            End::Target => End::Initiator,
        }
    }
}

/// Connections that a harness makes between its two ends.
pub const PAIRS: usize = 2;

/// Two connected ends under test. A new harness has [`PAIRS`] connections up and no region installed.
pub trait FabricHarness {
    /// The fabric under test.
    type Fabric: Fabric;

    /// The fabric of an end. Both ends may be one and the same fabric: the tests then tell events apart by their
    /// connection, and never use one [`RegionIndex`] at both ends.
    fn fabric(&mut self, end: End) -> &mut Self::Fabric;

    /// How `end` names connection `pair`.
    fn connection(&self, end: End, pair: usize) -> ConnectionIndex;

    /// Puts fresh memory of `bytes` zeroes into the end's table, for both connections; a target's memory is what
    /// `Key { index: region, epoch }` names, and the peer may read and write it as `access` says: [`ACCESS_READ`],
    /// [`ACCESS_WRITE`], both or neither.
    ///
    /// [`ACCESS_READ`]: railhead_abi::frame::ACCESS_READ
    /// [`ACCESS_WRITE`]: railhead_abi::frame::ACCESS_WRITE
    fn install(&mut self, end: End, region: RegionIndex, epoch: u32, bytes: usize, access: u32);

    /// Takes it out again: after this nothing lands in it. [`FabricHarness::read_bytes`] still works on it until the
    /// slot is installed anew.
    fn remove(&mut self, end: End, region: RegionIndex);

    /// Writes memory as its owner does.
    fn write_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &[u8]);

    /// Reads memory as its owner does.
    fn read_bytes(&mut self, end: End, region: RegionIndex, offset: usize, bytes: &mut [u8]);

    /// Breaks connection `pair` from outside, as a pulled cable or a killed peer does.
    fn cut(&mut self, pair: usize);

    /// Makes connection `pair` anew under the same indices; only called after both ends have polled `Down`.
    fn connect(&mut self, pair: usize);

    /// Lets a little time go by (a simulated clock steps, a real one may sleep for some microseconds) and returns the
    /// time. The tests kick and poll both ends between calls.
    fn pass(&mut self) -> Nanos;
}

/// A copy engine under test. A new harness has no region installed.
pub trait CopierHarness {
    /// The copy engine under test.
    type Copier: CopyEngine;

    /// The copy engine.
    fn copier(&mut self) -> &mut Self::Copier;

    /// Puts fresh memory of `bytes` zeroes into its table.
    fn install(&mut self, region: RegionIndex, bytes: usize);

    /// Writes memory as its owner does.
    fn write_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &[u8]);

    /// Reads memory as its owner does.
    fn read_bytes(&mut self, region: RegionIndex, offset: usize, bytes: &mut [u8]);

    /// Takes the memory behind a region away while it stays installed, as a client does that punches a hole. False if
    /// this harness cannot; the test then says that it did not run.
    fn lose(&mut self, region: RegionIndex) -> bool {
        let _ = region;
        false
    }

    /// Lets a little time go by and returns the time.
    fn pass(&mut self) -> Nanos;
}

/// Declares the fabric conformance tests; `$make` is an expression that makes a fresh [`FabricHarness`]. Tests of what
/// [`Capabilities`](railhead_core::port::Capabilities) say that the fabric cannot do say that they did not run. An attribute
/// before the expression goes to each test, such as `#[ignore = "needs a NIC"]`.
#[macro_export]
macro_rules! fabric_conformance {
    (#[$attribute:meta] $make:expr) => {
        $crate::fabric_conformance!(@all [#[$attribute]] $make);
    };
    ($make:expr) => {
        $crate::fabric_conformance!(@all [] $make);
    };
    (@all $attributes:tt $make:expr) => {
        $crate::fabric_conformance!(@tests fabric $attributes $make,
            capabilities_are_true edges_arrive_whole source_is_free_after_done records_come_after_writes
            records_keep_their_order_and_words refused_writes_harm_nobody refused_comes_before_later_records
            removed_memory_is_left_alone full_is_honoured small_polls_lose_nothing down_comes_once_and_last
            nothing_lands_after_down close_ends_both_sides close_of_nothing_is_nothing connections_are_independent
            connects_again random_mix
        );
        $crate::fabric_conformance!(@tests reads $attributes $make,
            reads_arrive_whole reads_see_the_writes_before_them bad_reads_are_refused
            reads_end_with_their_connection acknowledged_writes_tell_how_they_ended confirms_make_visible
            windows_let_their_slot_write
        );
    };
    (@tests $module:ident $attributes:tt $make:expr, $($test:ident)*) => {
        $( $crate::fabric_conformance!(@one $module $attributes $make, $test); )*
    };
    (@one $module:ident [$($attribute:tt)*] $make:expr, $test:ident) => {
        #[test]
        $($attribute)*
        fn $test() {
            $crate::conformance::$module::$test(&mut || $make);
        }
    };
}

/// Declares the copy engine conformance tests; `$make` is an expression that makes a fresh [`CopierHarness`].
#[macro_export]
macro_rules! copier_conformance {
    ($make:expr) => {
        $crate::copier_conformance!(@tests $make,
            edges_are_copied_whole source_is_free_after_done full_is_honoured small_polls_lose_nothing
            copies_within_one_region busy_ends lost_memory_is_reported random_copies
        );
    };
    (@tests $make:expr, $($test:ident)*) => {
        $(
            #[test]
            fn $test() {
                $crate::conformance::copier::$test(&mut || $make);
            }
        )*
    };
}
