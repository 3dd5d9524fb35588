//! Completion queues: one per lane and NIC, never overrun.

use core::ffi::c_int;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::{ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc};

use crate::device::Device;
use crate::error::VerbsError;

/// A completion queue with its channel. Polled by one lane; queue pairs are made on it by registrar threads, each with a
/// [`Room`] for all completions that it can ever have outstanding.
#[derive(Debug)]
pub struct CompletionQueue {
    device: Arc<Device>,
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    entries: u32,
    taken: Mutex<u32>,
}

// SAFETY: libibverbs locks what polling and making queue pairs share; it is freed only by the last owner's drop.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// Entries of a completion queue that are set aside, given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    queue: Arc<CompletionQueue>,
    entries: u32,
}

impl CompletionQueue {
    /// A queue of at least `entries` entries. Slow.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the device has none so long, else that of the call.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let limit = device.limits().completions;
        let name = device.name();
        if entries > limit {
            let (asked, limit) = (entries.into(), limit.into());
            return Err(VerbsError::Limit {
                what: "completion queue entries",
                name: name.into(),
                asked,
                limit,
            });
        }
        let (library, context) = (device.library, device.context.as_ptr());
        // SAFETY: a live context.
        let channel = unsafe { (library.ibv_create_comp_channel)(context) };
        let channel =
            NonNull::new(channel).ok_or_else(|| VerbsError::last("ibv_create_comp_channel", name))?;
        let length = c_int::try_from(entries.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are live and belong together.
        let cq =
            unsafe { (library.ibv_create_cq)(context, length, core::ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = VerbsError::last("ibv_create_cq", name);
            // SAFETY: made above, used by nothing.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self { device: Arc::clone(device), cq, channel, entries, taken: Mutex::new(0) };
        queue.unblock().map_err(|error| VerbsError::Call { call: "fcntl", name: name.into(), error })?;
        Ok(Arc::new(queue))
    }

    /// Makes reading events from the channel return at once where there is none.
    fn unblock(&self) -> io::Result<()> {
        let descriptor = self.descriptor();
        // SAFETY: an open descriptor; the calls take no memory.
        let done = unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFL);
            flags >= 0 && libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn descriptor(&self) -> c_int {
        // SAFETY: a live channel; its descriptor never changes.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Sets `entries` aside.
    pub(crate) fn reserve(self: &Arc<Self>, entries: u32) -> Result<Room, VerbsError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = taken.saturating_add(entries);
        if asked > self.entries {
            let (asked, limit) = (asked.into(), self.entries.into());
            let name = self.device.name().to_owned();
            return Err(VerbsError::Limit {
                what: "completions of a lane's queue pairs",
                name,
                asked,
                limit,
            });
        }
        *taken = asked;
        Ok(Room { queue: Arc::clone(self), entries })
    }

    /// Entries that are not set aside.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.entries - *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Takes completions off; returns how many. A broken queue gives none, and its device says so by an event.
    pub(crate) fn poll(&self, completions: &mut [ibv_wc]) -> usize {
        // SAFETY: a live queue.
        usize::try_from(unsafe { ibv_poll_cq(self.cq.as_ptr(), completions) }).unwrap_or(0)
    }

    /// Asks that the channel's descriptor becomes readable at the next completion. The caller then polls once more.
    pub(crate) fn arm(&self) -> bool {
        // SAFETY: a live queue with a channel.
        unsafe { ibv_req_notify_cq(self.cq.as_ptr()) == 0 }
    }

    /// Takes the events off the channel, so that its descriptor is no longer readable. At most a few: one per [`Self::arm`].
    pub(crate) fn clear_events(&self) {
        let library = self.device.library;
        let (mut cq, mut context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: a live channel that does not block; both results can be written.
        while unsafe { (library.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: the event was of this, the channel's only queue.
            unsafe { (library.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.descriptor()) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let library = self.device.library;
        // SAFETY: queue pairs hold an owner, so none uses it; the queue goes before its channel.
        unsafe {
            (library.ibv_destroy_cq)(self.cq.as_ptr());
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *self.queue.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.entries;
    }
}
