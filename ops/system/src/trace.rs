//! Where in memory the kernel moved data: the addresses and byte counts of a process's reads and writes, taken from the
//! process itself at the border of the kernel (ptrace), so that no counter of the process has to be believed.
//!
//! What `strace` does, except that it prints what the pieces hold and not where they lie.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::procfs;

/// Pieces of one call that are looked at; the kernel takes no more.
const PIECES_MAX: usize = 1024;
/// How long threads may take to stop when asked to.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// One system call that moved bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The thread that made it.
    pub tid: u64,
    /// Out of the process, else into it.
    pub out: bool,
    /// Where the bytes lie that were moved: address and count, in order. What was offered and not moved is left out.
    pub pieces: Vec<(u64, u64)>,
}

/// Follows all threads of a process until it is told to stop. The process runs on, slower, and is let go whatever happens.
#[derive(Debug)]
pub struct Tracer {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<Vec<Call>>>,
}

impl Tracer {
    /// Starts with all threads that the process has now, and those that they start.
    ///
    /// # Panics
    /// If the kernel refuses: a container without the ptrace capability, or another tracer.
    #[must_use]
    pub fn attach(pid: u32) -> Self {
        let (stop, stopped) = channel();
        let (ready, attached) = channel();
        // The kernel ties tracees to the thread that took them.
        let thread = std::thread::spawn(move || follow(pid, &ready, &stopped));
        if attached.recv().is_err() {
            let error = thread.join().expect("the tracer does not panic").expect_err("it ended early");
            panic!(
                "process {pid} cannot be traced: {error}; this test needs ptrace of processes of the same user"
            );
        }
        Self { stop, thread }
    }

    /// Lets the process go and says what was seen.
    ///
    /// # Panics
    /// If tracing failed meanwhile.
    #[must_use]
    pub fn finish(self) -> Vec<Call> {
        let _ = self.stop.send(());
        self.thread.join().expect("the tracer does not panic").expect("tracing")
    }
}

fn follow(pid: u32, ready: &Sender<()>, stop: &Receiver<()>) -> io::Result<Vec<Call>> {
    let mut tracees = Tracees { pid, running: BTreeSet::new(), entered: BTreeMap::new(), calls: Vec::new() };
    // When this thread ends, however it does, the kernel lets go of all tracees and they run on.
    let mut waiting = BTreeSet::new();
    for (tid, _) in procfs::threads(pid) {
        seize(tid_of(tid)?)?;
        waiting.insert(tid_of(tid)?);
    }
    // Each has been stopped once and has gone on under the tracer's eyes: from here on nothing is missed.
    tracees.running.extend(&waiting);
    tracees.until_stopped(&mut waiting, true)?;
    let _ = ready.send(());
    while matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
        if tracees.step(true)?.is_none() {
            std::thread::yield_now();
        }
    }
    // A call whose data has arrived may not be over yet: it is, once its thread has been stopped outside of calls.
    let mut waiting = tracees.running.clone();
    for tid in &waiting {
        interrupt(*tid)?;
    }
    tracees.until_stopped(&mut waiting, false)?;
    for tid in &tracees.running {
        detach(*tid)?;
    }
    Ok(tracees.calls)
}

/// The threads that are followed.
struct Tracees {
    pid: u32,
    running: BTreeSet<i32>,
    /// Calls that are in the kernel.
    entered: BTreeMap<i32, (u64, [u64; 6])>,
    calls: Vec<Call>,
}

impl Tracees {
    /// Goes on until each of `waiting` has made the stop that it was asked for, or has ended.
    fn until_stopped(&mut self, waiting: &mut BTreeSet<i32>, and_resume: bool) -> io::Result<()> {
        let start = Instant::now();
        while !waiting.is_empty() {
            match self.step(and_resume)? {
                Some(tid) => _ = waiting.remove(&tid),
                None => std::thread::yield_now(),
            }
            waiting.retain(|tid| self.running.contains(tid));
            if start.elapsed() > STOP_LIMIT {
                return Err(io::Error::other(format!("threads {waiting:?} did not stop")));
            }
        }
        Ok(())
    }

    /// Deals with one stop, if there is one. Returns the thread that made the stop that [`interrupt`] asks for; it goes on
    /// only if `and_resume`.
    fn step(&mut self, and_resume: bool) -> io::Result<Option<i32>> {
        let Some((tid, status)) = next_stop()? else { return Ok(None) };
        let Some(signal) = stopped_by(status) else {
            self.running.remove(&tid);
            return Ok(None);
        };
        // A thread that a tracee started.
        self.running.insert(tid);
        if status >> 16 == libc::PTRACE_EVENT_STOP {
            if and_resume {
                resume(tid, 0)?;
            }
            return Ok(Some(tid));
        }
        if signal == libc::SIGTRAP | 0x80 {
            match syscall(tid)? {
                Border::Entry { number, arguments } => {
                    self.entered.insert(tid, (number, arguments));
                }
                Border::Exit { moved } => {
                    if let Some((number, arguments)) = self.entered.remove(&tid) {
                        self.calls.extend(call_of(self.pid, tid, number, &arguments, moved)?);
                    }
                    // One that was in a call when it was asked to stop stops here, and not again.
                    if !and_resume {
                        return Ok(Some(tid));
                    }
                }
                Border::Other => {}
            }
        }
        // Events of tracing itself are no signals; whatever else stopped it is passed on.
        let is_signal = signal != libc::SIGTRAP | 0x80 && status >> 16 == 0;
        resume(tid, if is_signal { signal } else { 0 })?;
        Ok(None)
    }
}

/// The call, if it is one that moves bytes and did.
fn call_of(pid: u32, tid: i32, number: u64, arguments: &[u64; 6], moved: i64) -> io::Result<Option<Call>> {
    let Ok(moved) = u64::try_from(moved) else { return Ok(None) };
    let Some((out, shape)) = known(number) else { return Ok(None) };
    if moved == 0 {
        return Ok(None);
    }
    let offered = match shape {
        Shape::Plain => vec![(arguments[1], arguments[2])],
        Shape::Vector => read_pieces(pid, arguments[1], arguments[2])?,
        Shape::Message => {
            let mut message = [0; size_of::<libc::msghdr>()];
            read_memory(pid, arguments[1], &mut message)?;
            let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap_or_default());
            let at = core::mem::offset_of!(libc::msghdr, msg_iov);
            let count = core::mem::offset_of!(libc::msghdr, msg_iovlen);
            read_pieces(pid, word(at), word(count))?
        }
    };
    let mut rest = moved;
    let mut pieces = Vec::new();
    for (address, bytes) in offered {
        let taken = bytes.min(rest);
        rest -= taken;
        if taken > 0 {
            pieces.push((address, taken));
        }
    }
    Ok(Some(Call { tid: u64::from(tid.unsigned_abs()), out, pieces }))
}

enum Shape {
    /// (descriptor, address, bytes)
    Plain,
    /// (descriptor, pieces, count)
    Vector,
    /// (descriptor, message)
    Message,
}

/// Direction and shape of the calls that move bytes between a process and a socket.
fn known(number: u64) -> Option<(bool, Shape)> {
    let number = libc::c_long::try_from(number).ok()?;
    Some(match number {
        libc::SYS_sendmsg => (true, Shape::Message),
        libc::SYS_recvmsg => (false, Shape::Message),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => (true, Shape::Vector),
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => (false, Shape::Vector),
        libc::SYS_write | libc::SYS_sendto | libc::SYS_pwrite64 => (true, Shape::Plain),
        libc::SYS_read | libc::SYS_recvfrom | libc::SYS_pread64 => (false, Shape::Plain),
        _ => return None,
    })
}

fn read_pieces(pid: u32, address: u64, count: u64) -> io::Result<Vec<(u64, u64)>> {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(PIECES_MAX);
    let mut bytes = vec![0; count * size_of::<libc::iovec>()];
    read_memory(pid, address, &mut bytes)?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(16).map(|piece| (word(&piece[..8]), word(&piece[8..]))).collect())
}

const _: () = assert!(size_of::<libc::iovec>() == 16, "two words, as the decoding above takes them");

enum Border {
    Entry { number: u64, arguments: [u64; 6] },
    Exit { moved: i64 },
    Other,
}

fn tid_of(tid: u64) -> io::Result<i32> {
    i32::try_from(tid).map_err(|_| io::Error::other("thread id out of range"))
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes a thread and asks it to stop.
fn seize(tid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    request(libc::PTRACE_SEIZE, tid, options)?;
    interrupt(tid)
}

/// Asks a thread to stop once it is outside of system calls.
fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Lets a stopped thread go on until it next enters or leaves the kernel, and gives it `signal` unless that is 0.
fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, signal)
}

/// Lets a stopped thread go for good.
fn detach(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0)
}

/// A request whose last argument is a number.
fn request(request: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    let none = core::ptr::null_mut::<libc::c_void>();
    // SAFETY: the requests that come here take no address and a number; they change no memory of this process.
    let result = unsafe { libc::ptrace(request, tid, none, libc::c_long::from(data)) };
    match checked(result) {
        // Killed meanwhile: its end is reported by the next wait. One that was never taken is told by SEIZE.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) && request != libc::PTRACE_SEIZE => Ok(()),
        other => other.map(drop),
    }
}

/// The next tracee that stopped or ended, if one has. Never takes the end of a child that another thread started.
fn next_stop() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
    match checked(libc::c_long::from(tid)) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some((tid, status))),
        // All have ended.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The signal that stopped it; `None` if it ended.
fn stopped_by(status: i32) -> Option<i32> {
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

fn syscall(tid: i32) -> io::Result<Border> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let bytes = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the address argument is the size of what the data argument points to, which lives through the call.
    checked(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, bytes, info.as_mut_ptr()) })?;
    // SAFETY: zero bytes are a valid value of this plain C struct, and the kernel wrote over some of them.
    let info = unsafe { info.assume_init() };
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says which member of the union the kernel wrote.
            let entry = unsafe { info.u.entry };
            Border::Entry { number: entry.nr, arguments: entry.args }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: as above.
            let exit = unsafe { info.u.exit };
            Border::Exit { moved: if exit.is_error == 0 { exit.sval } else { -1 } }
        }
        _ => Border::Other,
    })
}

/// Copies memory of the tracee.
fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let base = core::ptr::without_provenance_mut(usize::try_from(address).map_err(io::Error::other)?);
    let remote = libc::iovec { iov_base: base, iov_len: into.len() };
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: `local` names `into`, borrowed mutably for the call; `remote` is only looked up in the other process.
    let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(count) == Ok(into.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
