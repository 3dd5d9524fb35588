//! What the tests share.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use railhead_cuda::{CopyMemory, DeviceMemory, Driver, Gpu, Pieces, PinnedMemory, Stream};
use railhead_memory::{Arena, ArenaConfig, Policy};

pub(crate) const GIVEN: &str = "these tests are run where a GPU is";

pub(crate) fn driver() -> Driver {
    Driver::open().expect(GIVEN)
}

/// All GPUs. Kept open: making a context takes longer than most tests.
pub(crate) fn gpus() -> Vec<Gpu> {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| {
        let driver = driver();
        let count = driver.device_count().expect("a count");
        (0..count).map(|ordinal| Gpu::open(&driver, ordinal).expect("a GPU")).collect()
    })
    .clone()
}

/// The first and the last: the same where there is one.
pub(crate) fn two(gpus: &[Gpu]) -> (&Gpu, &Gpu) {
    (gpus.first().expect(GIVEN), gpus.last().expect(GIVEN))
}

pub(crate) fn others(gpus: &[Gpu], own: &Gpu) -> Vec<Gpu> {
    gpus.iter().filter(|gpu| *gpu != own).cloned().collect()
}

/// Host memory as a lane's staging arena.
pub(crate) fn pinned(gpu: &Gpu, bytes: u64, pieces: Pieces) -> PinnedMemory {
    let arena = Arena::reserve(ArenaConfig { bytes, huge: Policy::Prefer, numa_node: None }).expect("memory");
    PinnedMemory::register(gpu, arena.span(), pieces, || {}).expect("registered")
}

pub(crate) fn device(gpus: &[Gpu], at: usize, bytes: u64) -> CopyMemory {
    let memory = DeviceMemory::allocate(&gpus[at], bytes, &others(gpus, &gpus[at])).expect("memory");
    let gpu = u8::try_from(at).expect("few");
    CopyMemory::Device { memory, gpu, offset: 0, bytes }
}

/// Puts bytes into memory of a GPU or the host, and waits.
pub(crate) fn put(stream: &Stream, address: u64, bytes: &[u8]) {
    stream.gpu().make_current().expect("current");
    // SAFETY: the tests name memory of their own that is long enough; `bytes` is read until the wait.
    unsafe { stream.copy(bytes.as_ptr() as u64, address, bytes.len() as u64) }.expect("posted");
    stream.wait().expect("copied");
}

/// Gets bytes from memory of a GPU or the host.
pub(crate) fn get(stream: &Stream, address: u64, bytes: &mut [u8]) {
    stream.gpu().make_current().expect("current");
    // SAFETY: as above; `bytes` is written until the wait.
    unsafe { stream.copy(address, bytes.as_mut_ptr() as u64, bytes.len() as u64) }.expect("posted");
    stream.wait().expect("copied");
}

const CHILD: &str = "RAILHEAD_CUDA_CHILD";

/// What this process was started to do by [`child`]; `None` in the test itself.
pub(crate) fn role() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Runs the test `name` in a process of its own with a role, so that what it breaks is broken there.
pub(crate) fn child(name: &str, role: &str) -> Child {
    Command::new(std::env::current_exe().expect("this file"))
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}
