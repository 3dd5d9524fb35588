//! The SIGBUS guard: a client that takes its memory away must not take the dataplane with it.
//!
//! Seals keep a memory file from shrinking, but holes can still be punched into it, and when the freed hugepages have
//! gone elsewhere the next touch is SIGBUS. So each mapping of client memory is registered in a static table. The signal
//! handler finds the range that was touched, poisons it, puts zeroed private memory in its place and returns; the copy
//! goes on over zeroes, and whoever reports the transfer looks at the poison first and answers `region_lost`. A socket
//! call that touches such memory fails with `EFAULT` instead: [`Guarded::condemn`] then does the same.
//!
//! The handler takes no lock and allocates nothing: it loads words of the table, changes two and calls `mmap`. SIGBUS
//! anywhere else goes on to the handler that was there before, or ends the process as it would have without us.

use std::io;
use std::sync::{Arc, OnceLock};

use railhead_ring::sync::{Word, fence_acquire, fence_release};

use crate::mapping::{Access, MapError, Mapping};
use crate::span::OwnedSpan;

#[cfg(test)]
mod tests;

/// How many mappings can be guarded at once. A session beyond that is refused, not left unguarded.
pub const GUARDS_MAX: usize = 4096;

/// Why a mapping cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// [`install`] was not called.
    #[error("the SIGBUS guard is not installed in this process")]
    NotInstalled,
    /// All places of the table are taken.
    #[error("{GUARDS_MAX} mappings are guarded already")]
    Full,
    /// The handler could not be set.
    #[error("sigaction(SIGBUS): {0}")]
    Handler(#[source] io::Error),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Phases of an entry: the low bits of its state, whose upper bits count its uses.
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const LIVE: u64 = 2;
const PHASES: u64 = 4;

/// One guarded range. In a static, so that the handler never follows a pointer that could be gone.
struct Entry {
    state: Word,
    start: Word,
    end: Word,
    poison: Word,
}

static TABLE: [Entry; GUARDS_MAX] = [const {
    Entry { state: Word::new(FREE), start: Word::new(0), end: Word::new(0), poison: Word::new(0) }
}; GUARDS_MAX];

/// Mappings that were lost so far.
static LOSSES: Word = Word::new(0);

/// What SIGBUS did before [`install`].
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the SIGBUS handler of this process; later calls do nothing. Call it from the main thread before lanes start.
///
/// # Errors
/// [`GuardError::Handler`] when the kernel refuses, which it does only under a filter of system calls.
pub fn install() -> Result<(), GuardError> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| set_handler().map_err(|error| error.raw_os_error().unwrap_or(0)));
    outcome.map_err(|errno| GuardError::Handler(io::Error::from_raw_os_error(errno)))
}

fn set_handler() -> io::Result<()> {
    // SAFETY: a zeroed sigaction is a valid value of this plain C struct (default action, no flags, empty mask).
    let mut previous: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a null new action only asks; `previous` is a valid place for the answer.
    if unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Known before the handler can run.
    PREVIOUS.get_or_init(|| previous);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
    // On the alternative stack where a thread has one: harmless without, and right after a stack overflow.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is complete, and its handler is async-signal-safe: see `on_sigbus`.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Registers a mapping of client memory. Not for lanes: it scans the table.
///
/// # Errors
/// [`GuardError::NotInstalled`], [`GuardError::Full`]; [`GuardError::Map`] for a read-only mapping.
pub fn protect(mapping: &Arc<Mapping>) -> Result<Arc<Guarded>, GuardError> {
    if PREVIOUS.get().is_none() {
        return Err(GuardError::NotInstalled);
    }
    if mapping.access() == Access::Read {
        return Err(MapError::ReadOnly.into());
    }
    let start = mapping.address() as u64;
    let entry = TABLE.iter().find(|entry| entry.claim(start, start + mapping.len() as u64));
    let entry = entry.ok_or(GuardError::Full)?;
    Ok(Arc::new(Guarded { mapping: Arc::clone(mapping), entry }))
}

/// How many mappings this process has lost so far: when it changes, some [`Guarded::poisoned`] has become true. One load,
/// for a thread that watches; the handler itself cannot tell anybody.
#[must_use]
pub fn losses() -> u64 {
    // Partner: the release addition in `replace`.
    LOSSES.load_acquire()
}

impl Entry {
    /// Takes a free entry for this range. False when it is not free.
    fn claim(&self, start: u64, end: u64) -> bool {
        let state = self.state.load_relaxed();
        if state % PHASES != FREE {
            return false;
        }
        // Acquires what the last owner stored; of two threads only one succeeds.
        if self.state.compare_exchange_acq_rel(state, state + CHANGING).is_err() {
            return false;
        }
        // Partner: the acquire fence in `covers`. A handler that sees a new range also sees that the state moved.
        fence_release();
        self.start.store_relaxed(start);
        self.end.store_relaxed(end);
        self.poison.store_relaxed(0);
        // Partner: the acquire load in `covers`.
        self.state.store_release(state + LIVE);
        true
    }

    /// Ends a claim. Only its owner calls this, once.
    fn free(&self) {
        let state = self.state.load_relaxed();
        debug_assert_eq!(state % PHASES, LIVE);
        // Partner: the compare-exchange of the next claim.
        self.state.store_release(state - LIVE + PHASES);
    }

    /// Start and end of the range, if the entry is live and `address` lies inside. Used by the handler: an entry that
    /// changes meanwhile is another one's, because whoever touched the address keeps its own entry alive.
    fn covers(&self, address: u64) -> Option<(u64, u64)> {
        // Partner: the release store in `claim`.
        let state = self.state.load_acquire();
        if state % PHASES != LIVE {
            return None;
        }
        let (start, end) = (self.start.load_relaxed(), self.end.load_relaxed());
        // Partner: the release fence in `claim`.
        fence_acquire();
        (self.state.load_relaxed() == state && (start..end).contains(&address)).then_some((start, end))
    }

    /// Poisons the range and puts zeroed private memory in its place. Async-signal-safe.
    fn replace(&self, start: u64, end: u64) -> bool {
        // Before the zeroes can be seen. Partner: the acquire load in `poisoned`, which comes after the copy.
        if self.poison.compare_exchange_acq_rel(0, 1).is_ok() {
            // Once for each loss, however many threads touch it. Partner: the acquire load in `losses`.
            LOSSES.fetch_add_release(1);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // NORESERVE: a lost region must not fail for want of memory that nobody will write.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let address = core::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: the range is exactly one live `Mapping` (its entry is live while its owner exists, and it covers whole
        // pages), used only through words and spans, which allow their content to change. What replaces it is at least
        // as accessible, and is unmapped by the mapping's owner like the original.
        let mapped = unsafe { libc::mmap(address, (end - start) as usize, protection, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }
}

/// A guarded mapping; the guard ends when it is dropped. Not to be dropped on a lane: it may be the last to hold the
/// mapping.
#[derive(Debug)]
pub struct Guarded {
    mapping: Arc<Mapping>,
    entry: &'static Entry,
}

impl Guarded {
    /// Whether the memory was lost. Ask after the last access whose result is about to be reported: a copy that was
    /// answered with zeroes cannot be told in any other way. Two loads; for any thread.
    #[inline]
    #[must_use]
    pub fn poisoned(&self) -> bool {
        // Partner: the release store in `replace`.
        fence_acquire();
        self.entry.poison.load_acquire() != 0
    }

    /// Gives the memory up as the handler does: after a system call answered `EFAULT` for it. Does nothing when it is
    /// poisoned already.
    ///
    /// # Errors
    /// The error of `mmap(2)`. The poison is set in any case.
    pub fn condemn(&self) -> io::Result<()> {
        if self.poisoned() {
            return Ok(());
        }
        let start = self.mapping.address() as u64;
        if self.entry.replace(start, start + self.mapping.len() as u64) {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The mapping itself.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// All bytes as a span that keeps mapping and guard alive.
    #[must_use]
    pub fn span(self: &Arc<Self>) -> OwnedSpan {
        OwnedSpan::of_guarded(self)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Before the mapping can be unmapped, which happens when the fields are dropped.
        self.entry.free();
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Entry").field("poison", &self.poison.load_relaxed()).finish_non_exhaustive()
    }
}

/// The handler. Async-signal-safe: words of a static table, `mmap`, `sigaction` and `raise` only; no lock, no allocation,
/// `errno` preserved.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler set with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let by_hardware = matches!(
        code,
        libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO
    );
    if by_hardware && code != libc::BUS_ADRALN {
        // SAFETY: these codes carry the address.
        let address = unsafe { (*info).si_addr() }.addr() as u64;
        let hit = TABLE.iter().find_map(|entry| Some((entry, entry.covers(address)?)));
        if let Some((entry, (start, end))) = hit {
            // SAFETY: errno is this thread's own; mmap may change it under the code that was interrupted.
            let errno = unsafe { *libc::__errno_location() };
            let replaced = entry.replace(start, end);
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            if replaced {
                return;
            }
        }
    }
    pass_on(signal, info, context, by_hardware);
}

/// Does what would have been done without the guard.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, by_hardware: bool) {
    let previous = PREVIOUS.get().filter(|previous| previous.sa_sigaction != libc::SIG_DFL);
    match previous {
        Some(previous) if previous.sa_sigaction == libc::SIG_IGN && !by_hardware => {}
        Some(previous) if previous.sa_sigaction != libc::SIG_IGN => {
            if previous.sa_flags & libc::SA_SIGINFO == 0 {
                // SAFETY: neither default nor ignore, without SA_SIGINFO: the address of a function of this type.
                let handler: extern "C" fn(libc::c_int) =
                    unsafe { core::mem::transmute(previous.sa_sigaction) };
                handler(signal);
            } else {
                // SAFETY: as above, with SA_SIGINFO: a function of this type, called with what the kernel gave us.
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { core::mem::transmute(previous.sa_sigaction) };
                handler(signal, info, context);
            }
        }
        _ => {
            // SAFETY: a zeroed sigaction is the default action. sigaction and raise are async-signal-safe.
            unsafe {
                let default: libc::sigaction = core::mem::zeroed();
                libc::sigaction(signal, &raw const default, core::ptr::null_mut());
                // A fault happens again at the return, with its true cause in the core dump; a sent signal does not.
                if !by_hardware {
                    libc::raise(signal);
                }
            }
        }
    }
}
