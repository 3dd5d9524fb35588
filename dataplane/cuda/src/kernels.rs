//! Our kernels: loading and launching them, and checksums on the GPU.

use core::ffi::{CStr, c_uint, c_void};
use std::fmt;

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host::PinnedWords;
use crate::stream::Stream;

/// What `ops/ptx` wrote; the driver compiles it for the GPU that is there.
const PTX: &str = concat!(include_str!("../kernels/railhead.ptx"), "\0");

/// The kernels, loaded into one GPU. Loading is slow (the driver compiles), and must be over before a resident kernel runs:
/// the driver may wait for the device meanwhile.
pub(crate) struct Kernels {
    gpu: Gpu,
    module: CUmodule,
    pub(crate) resident: CUfunction,
    pub(crate) checksum: CUfunction,
    pub(crate) fill: CUfunction,
    pub(crate) produce: CUfunction,
    pub(crate) consume: CUfunction,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; nothing here changes after loading.
unsafe impl Sync for Kernels {}

impl Kernels {
    pub(crate) fn load(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.make_current()?;
        let (none, nothing) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut module = core::ptr::null_mut();
        // SAFETY: PTX ends with a NUL; there are no options; the driver stores one pointer. Unloaded once, in `drop`.
        let status =
            unsafe { (gpu.api().module_load)(&raw mut module, PTX.as_ptr().cast(), 0, none, nothing) };
        gpu.api().check("cuModuleLoadDataEx", status)?;
        let null = core::ptr::null_mut();
        let mut kernels = Self {
            gpu: gpu.clone(),
            module,
            resident: null,
            checksum: null,
            fill: null,
            produce: null,
            consume: null,
        };
        kernels.resident = kernels.function(c"railhead_resident")?;
        kernels.checksum = kernels.function(c"railhead_checksum")?;
        kernels.fill = kernels.function(c"railhead_fill")?;
        kernels.produce = kernels.function(c"railhead_produce")?;
        kernels.consume = kernels.function(c"railhead_consume")?;
        Ok(kernels)
    }

    fn function(&self, name: &CStr) -> Result<CUfunction, CudaError> {
        let mut function = core::ptr::null_mut();
        // SAFETY: a loaded module and a name that ends with a NUL; the driver stores one pointer.
        let status =
            unsafe { (self.gpu.api().module_function)(&raw mut function, self.module, name.as_ptr()) };
        self.gpu.api().check("cuModuleGetFunction", status)?;
        Ok(function)
    }

    /// Posts a kernel. The context must be current.
    ///
    /// # Safety
    /// `function` is one of these kernels, `arguments` point to values of the types of its parameters, and what they
    /// address is memory that the kernel may use in that way until it has ended.
    pub(crate) unsafe fn launch(
        &self,
        function: CUfunction,
        stream: &Stream,
        (blocks, threads): (c_uint, c_uint),
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let extra = core::ptr::null_mut();
        let arguments = arguments.as_mut_ptr();
        // SAFETY: as the caller vouches; the driver copies the arguments before it returns.
        let status = unsafe {
            (self.gpu.api().launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream.raw(), arguments, extra)
        };
        self.gpu.api().check("cuLaunchKernel", status)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Kernels").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        // SAFETY: loaded once, unloaded once; users keep this value until their kernels have ended.
        let _ = unsafe { (self.gpu.api().module_unload)(self.module) };
    }
}

/// A parameter of a kernel.
pub(crate) fn argument<T: Copy>(value: &mut T) -> *mut c_void {
    core::ptr::from_mut(value).cast()
}

/// Fills and sums memory of a GPU where it lies, to verify what arrived without copying it out. Waits; not for lanes, and
/// only while no resident kernel runs on the GPU that was started before it.
#[derive(Debug)]
pub struct Verifier {
    stream: Stream,
    words: PinnedWords,
    kernels: Kernels,
}

/// Enough to fill any GPU's memory bandwidth.
const SHAPE: (c_uint, c_uint) = (1024, 256);

impl Verifier {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        let kernels = Kernels::load(gpu)?;
        Ok(Self { stream: Stream::new(gpu)?, words: PinnedWords::new(gpu, 1)?, kernels })
    }

    /// The checksum of `bytes` at `address`: what [`crate::checksum`] gives for the same bytes on the host.
    ///
    /// # Safety
    /// The GPU may read these bytes, and they stay until this returns.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn checksum(&self, address: u64, bytes: u64) -> Result<u64, CudaError> {
        self.stream.gpu().make_current()?;
        self.words[0].store_release(0);
        let (mut address, mut bytes, mut sum) = (address, bytes, self.words.device_address(0));
        let mut arguments = [argument(&mut address), argument(&mut bytes), argument(&mut sum)];
        // SAFETY: the kernel's three parameters, by their types; it reads the caller's bytes and adds to our word, until
        // the wait below.
        unsafe { self.kernels.launch(self.kernels.checksum, &self.stream, SHAPE, &mut arguments) }?;
        self.stream.wait()?;
        Ok(self.words[0].load_acquire())
    }

    /// Fills `bytes` at `address` with [`crate::pattern`] of `seed`.
    ///
    /// # Safety
    /// The GPU may write these bytes, nobody else uses them, and they stay until this returns.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn fill(&self, address: u64, bytes: u64, seed: u64) -> Result<(), CudaError> {
        self.stream.gpu().make_current()?;
        let (mut address, mut bytes, mut seed) = (address, bytes, seed);
        let mut arguments = [argument(&mut address), argument(&mut bytes), argument(&mut seed)];
        // SAFETY: the kernel's three parameters, by their types; it writes the caller's bytes, until the wait below.
        unsafe { self.kernels.launch(self.kernels.fill, &self.stream, SHAPE, &mut arguments) }?;
        self.stream.wait()
    }

    /// Posts a producer behind what is in `stream`: it waits for `wait_ns`, then sets `count` 4-byte words to `value`.
    ///
    /// # Safety
    /// The GPU may write these words until the stream has come so far.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn produce(
        &self,
        stream: &Stream,
        address: u64,
        count: u64,
        value: u32,
        wait_ns: u64,
    ) -> Result<(), CudaError> {
        stream.gpu().make_current()?;
        let (mut address, mut count, mut value, mut wait_ns) = (address, count, value, wait_ns);
        let mut arguments =
            [argument(&mut address), argument(&mut count), argument(&mut value), argument(&mut wait_ns)];
        // SAFETY: the kernel's four parameters, by their types; it writes what the caller vouches for.
        unsafe { self.kernels.launch(self.kernels.produce, stream, (64, 256), &mut arguments) }
    }

    /// Posts a consumer: it runs at once, waits until `(signal - value) as i32 >= 0` for at most `limit_ns`, reads `count`
    /// words and adds to the 8-byte word at `wrong` how many of them are not `value`, and one if it gave up.
    ///
    /// # Safety
    /// The GPU may read signal and words and write `wrong` until the stream has come so far.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn consume(
        &self,
        stream: &Stream,
        (signal, value): (u64, u32),
        (address, count): (u64, u64),
        limit_ns: u64,
        wrong: u64,
    ) -> Result<(), CudaError> {
        stream.gpu().make_current()?;
        let (mut signal, mut value, mut address, mut count) = (signal, value, address, count);
        let (mut limit_ns, mut wrong) = (limit_ns, wrong);
        let mut arguments = [
            argument(&mut signal),
            argument(&mut value),
            argument(&mut address),
            argument(&mut count),
            argument(&mut limit_ns),
            argument(&mut wrong),
        ];
        // SAFETY: the kernel's six parameters, by their types; it uses what the caller vouches for.
        unsafe { self.kernels.launch(self.kernels.consume, stream, (1, 256), &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of the source stands in the text's first line: `ops/ptx` has to be run after a change.
    #[test]
    fn the_text_was_made_from_the_source() {
        let first = PTX.lines().next().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/railhead.cu");
        let output = std::process::Command::new("sha256sum").arg(source).output().unwrap();
        assert!(output.status.success(), "sha256sum: {output:?}");
        let digest = String::from_utf8(output.stdout).unwrap();
        let digest = digest.split_whitespace().next().unwrap();
        assert!(first.contains(digest), "run ops/ptx: {first} is not of {digest}");
    }

    #[test]
    fn old_gpus_and_drivers_read_the_text() {
        assert!(PTX.contains(".target sm_80"));
        // What the driver of CUDA 12.0 reads.
        assert!(PTX.contains(".version 8.0"));
        assert_eq!(PTX.bytes().filter(|byte| *byte == 0).count(), 1, "one NUL, at the end");
    }
}
