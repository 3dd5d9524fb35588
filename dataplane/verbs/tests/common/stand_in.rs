//! The stand-in library: built, loaded, asked.

use core::ffi::{c_int, c_void};
use std::ffi::CString;
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use railhead_verbs::Library;

/// What the stand-in counts, over all its devices: see `stand_in.c`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub(crate) doorbells: u64,
    pub(crate) sends: u64,
    pub(crate) signalled: u64,
    pub(crate) inline_sends: u64,
    pub(crate) completions: u64,
    pub(crate) receives: u64,
    pub(crate) receiver_not_ready: u64,
    pub(crate) overruns: u64,
    pub(crate) starved: u64,
    pub(crate) queue_pairs: u64,
    pub(crate) regions: u64,
    pub(crate) completion_queues: u64,
    pub(crate) domains: u64,
    pub(crate) contexts: u64,
    pub(crate) modifications: u64,
    pub(crate) failures: u64,
}

/// A send that was posted.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sent {
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) bytes: u32,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) number: u32,
}

/// What a test may set.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Option {
    /// Steps that a queue pair makes per poll at most.
    Pace = 0,
    InlineMax = 1,
    HasDmaBuf = 2,
    HasThreadDomains = 3,
    PortIsDown = 4,
    /// A queue pair that fails gives nothing back (1), or only its sends (2).
    Silent = 5,
    /// A bit of the head of each message is flipped on its way.
    Corrupts = 6,
    /// The receives of a queue pair that fails come back before the send that failed.
    FlushesFirst = 7,
}

struct Calls {
    library: &'static Library,
    counters: unsafe extern "C" fn(*mut Counters),
    set: unsafe extern "C" fn(c_int, u64),
    fail: unsafe extern "C" fn(u32, u32, c_int),
    log: unsafe extern "C" fn(u64, *mut Sent, u64) -> u64,
}

static CALLS: OnceLock<Calls> = OnceLock::new();

fn build() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stand_in.c");
    let object = super::folder().join(format!("stand_in-{}.so", std::process::id()));
    let flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread", "-o"];
    super::run(Command::new("cc").args(flags).arg(&object).arg(source));
    object
}

fn calls() -> &'static Calls {
    CALLS.get_or_init(|| {
        let path = build();
        let library = Library::open(Some(&path)).expect("the stand-in loads");
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the library is loaded already; this gives its handle again.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        std::fs::remove_file(&path).expect("built above");
        let symbol = |name: &str| {
            let name = CString::new(name).expect("a name");
            // SAFETY: an open handle and a C string.
            let address: *mut c_void = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "{name:?}");
            address
        };
        // SAFETY: these functions of stand_in.c have these types.
        unsafe {
            Calls {
                library,
                counters: transmute_copy(&symbol("stand_in_counters")),
                set: transmute_copy(&symbol("stand_in_set")),
                fail: transmute_copy(&symbol("stand_in_fail")),
                log: transmute_copy(&symbol("stand_in_log")),
            }
        }
    })
}

pub(crate) fn library() -> &'static Library {
    calls().library
}

pub(crate) fn counters() -> Counters {
    let mut counters = Counters::default();
    // SAFETY: room for all of them.
    unsafe { (calls().counters)(&mut counters) };
    counters
}

pub(crate) fn set(option: Option, value: u64) {
    // SAFETY: takes numbers.
    unsafe { (calls().set)(option as c_int, value) };
}

/// The send after `after` others on the queue pair of this number fails.
pub(crate) fn fail(number: u32, after: u32, status: u32) {
    // SAFETY: takes numbers.
    unsafe { (calls().fail)(number, after, status.cast_signed()) };
}

/// How many sends were ever posted.
pub(crate) fn mark() -> u64 {
    // SAFETY: no room is asked for.
    unsafe { (calls().log)(u64::MAX, core::ptr::null_mut(), 0) }
}

/// The sends posted since a mark.
pub(crate) fn since(mark: u64) -> Vec<Sent> {
    let mut sent = vec![Sent::default(); 60_000];
    // SAFETY: room for so many.
    let all = unsafe { (calls().log)(mark, sent.as_mut_ptr(), sent.len() as u64) };
    sent.truncate(usize::try_from(all - mark).expect("few"));
    sent
}
