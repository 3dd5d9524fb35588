//! Streams: queues of one GPU, and words that order them with the world outside.

use core::ffi::c_uint;
use std::fmt;

use cudarc::driver::sys::{CUevent, CUstream};

use crate::error::{CudaError, NOT_READY};
use crate::gpu::Gpu;

/// A stream of one GPU. It does not wait for the default stream, nor that for it.
pub struct Stream {
    gpu: Gpu,
    stream: CUstream,
}

// SAFETY: the driver's handles may be used from every thread, by one at a time for calls that change the stream; those
// take `&self` here, and the driver locks them itself.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream. Slow; not on lanes.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        const NON_BLOCKING: c_uint = 1;
        gpu.make_current()?;
        let mut stream = core::ptr::null_mut();
        // SAFETY: the driver stores one pointer; destroyed once, in `drop`.
        let status = unsafe { (gpu.api().stream_create)(&raw mut stream, NON_BLOCKING, 0) };
        gpu.api().check("cuStreamCreateWithPriority", status)?;
        Ok(Self { gpu: gpu.clone(), stream })
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.stream
    }

    /// Whether everything posted has ended; a driver call.
    ///
    /// # Errors
    /// [`CudaError`] of anything posted: all of it has ended then.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.gpu.make_current()?;
        // SAFETY: a stream that lives as long as `self`.
        let status = unsafe { (self.gpu.api().stream_query)(self.stream) };
        if status == NOT_READY {
            return Ok(false);
        }
        self.gpu.api().check("cuStreamQuery", status).map(|()| true)
    }

    /// Waits for everything posted. Not on lanes.
    ///
    /// # Errors
    /// [`CudaError`] of anything posted.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.make_current()?;
        // SAFETY: a stream that lives as long as `self`.
        let status = unsafe { (self.gpu.api().stream_synchronize)(self.stream) };
        self.gpu.api().check("cuStreamSynchronize", status)
    }

    /// Posts a copy between any two places that GPUs and host share addresses for. With host memory that is not pinned
    /// the call waits. The context of the stream must be current.
    ///
    /// # Safety
    /// `from` can be read and `to` written for `bytes` bytes until the copy has ended; they do not overlap.
    ///
    /// # Errors
    /// [`CudaError`]; nothing was posted.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches; a stream that lives as long as `self`.
        let status = unsafe { (self.gpu.api().copy_async)(to, from, bytes as usize, self.stream) };
        self.gpu.api().check("cuMemcpyAsync", status)
    }

    /// Posts a copy between memories of two GPUs by the driver's call for that, which is what peers are measured by.
    ///
    /// # Safety
    /// As for [`Stream::copy`]; `from` is memory of the first GPU and `to` of the second.
    ///
    /// # Errors
    /// [`CudaError`]; nothing was posted.
    pub unsafe fn copy_peer(
        &self,
        (from_gpu, from): (&Gpu, u64),
        (to_gpu, to): (&Gpu, u64),
        bytes: u64,
    ) -> Result<(), CudaError> {
        let (from_context, to_context) = (from_gpu.context(), to_gpu.context());
        // SAFETY: as the caller vouches; contexts and stream are held by `Gpu`s and `self`.
        let status = unsafe {
            (self.gpu.api().copy_peer_async)(to, to_context, from, from_context, bytes as usize, self.stream)
        };
        self.gpu.api().check("cuMemcpyPeerAsync", status)
    }

    /// Posts a write of a 4-byte word that opens a gate: done once everything posted before has ended, with all memory
    /// that it wrote visible. The context of the stream must be current.
    ///
    /// # Safety
    /// `address` is a word that the GPU may write (registered host memory, as kernels see it, or its own), and stays so
    /// until the write is done.
    ///
    /// # Errors
    /// [`CudaError`]; nothing was posted.
    pub unsafe fn write_word(&self, address: u64, value: u32) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches; a stream that lives as long as `self`.
        let status = unsafe { (self.gpu.api().stream_write_32)(self.stream, address, value, 0) };
        self.gpu.api().check("cuStreamWriteValue32", status)
    }

    /// Posts a wait: what is posted afterwards starts when `(word - value) as i32 >= 0`, the rule of gates and signals.
    /// With `flush`, what a NIC wrote before the word was set is visible to what follows; only for GPUs with
    /// [`crate::Device::flush_by_stream`]. The context of the stream must be current.
    ///
    /// # Safety
    /// As for [`Stream::write_word`], for a read.
    ///
    /// # Errors
    /// [`CudaError`]; nothing was posted.
    pub unsafe fn wait_word(&self, address: u64, value: u32, flush: bool) -> Result<(), CudaError> {
        const AT_LEAST: c_uint = 0;
        const FLUSH: c_uint = 1 << 30;
        let flags = AT_LEAST | if flush { FLUSH } else { 0 };
        // SAFETY: as the caller vouches; a stream that lives as long as `self`.
        let status = unsafe { (self.gpu.api().stream_wait_32)(self.stream, address, value, flags) };
        self.gpu.api().check("cuStreamWaitValue32", status)
    }
}

/// A point in a stream that other streams of this process wait for, of the same GPU or another. Cheaper for GPUs than words,
/// and seen by nobody else.
pub struct Event {
    gpu: Gpu,
    event: CUevent,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks them itself.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, as if it had come.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        const NO_TIMING: c_uint = 2;
        gpu.make_current()?;
        let mut event = core::ptr::null_mut();
        // SAFETY: the driver stores one pointer; destroyed once, in `drop`.
        let status = unsafe { (gpu.api().event_create)(&raw mut event, NO_TIMING) };
        gpu.api().check("cuEventCreate", status)?;
        Ok(Self { gpu: gpu.clone(), event })
    }

    /// Posts it: it comes when all that was posted to `stream`, of its own GPU, has ended.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live; the driver checks that they belong together.
        let status = unsafe { (self.gpu.api().event_record)(self.event, stream.raw()) };
        self.gpu.api().check("cuEventRecord", status)
    }

    /// What is posted to `stream` afterwards starts when the event has come.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live. 0 is the default flag.
        let status = unsafe { (self.gpu.api().stream_wait_event)(stream.raw(), self.event, 0) };
        self.gpu.api().check("cuStreamWaitEvent", status)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Event").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        // SAFETY: created in `new`, destroyed once; the driver keeps what is still waited for.
        let _ = unsafe { (self.gpu.api().event_destroy)(self.event) };
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stream").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        // SAFETY: created in `new`, destroyed once. What is posted still ends, after this returns: who owns its memory
        // waits for it before.
        let _ = unsafe { (self.gpu.api().stream_destroy)(self.stream) };
    }
}
