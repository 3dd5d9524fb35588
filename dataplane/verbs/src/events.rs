//! What a device says of itself: addresses and links that change, and its end.

use std::io;
use std::time::Duration;

use rdma_core_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
    IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, ibv_async_event, ibv_async_event_element,
};

use crate::device::Device;
use crate::error::VerbsError;
use crate::nic::Nic;

/// An event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The addresses of a port changed: look at them again ([`Nic::refresh`]).
    Addresses {
        /// The port.
        port: u8,
    },
    /// The link of a port came up.
    PortUp {
        /// The port.
        port: u8,
    },
    /// The link of a port went down; its connections fail when their patience ends.
    PortDown {
        /// The port.
        port: u8,
    },
    /// The device is gone or broken: everything on it has to be made anew.
    DeviceLost,
    /// A completion queue is broken: its lane hears nothing any more.
    CompletionsLost,
    /// A queue pair failed; its completions say why.
    QueuePair {
        /// Its number.
        number: u32,
    },
    /// Something else, by its number in the header.
    Other(u32),
}

impl Nic {
    /// Waits for the device's next event, at most for `timeout`. Only one thread per device does this.
    ///
    /// # Errors
    /// That of the wait.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<Event>, VerbsError> {
        wait(self.device(), timeout)
    }
}

fn wait(device: &Device, timeout: Duration) -> Result<Option<Event>, VerbsError> {
    let failed = |call, error| VerbsError::Call { call, name: device.name().into(), error };
    // SAFETY: a live context; its descriptor never changes.
    let fd = unsafe { (*device.context.as_ptr()).async_fd };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, which can be written.
    match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
        0 => return Ok(None),
        -1 => {
            let error = io::Error::last_os_error();
            let is_interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if is_interrupted { Ok(None) } else { Err(failed("poll", error)) };
        }
        _ => {}
    }
    let mut event = ibv_async_event { element: ibv_async_event_element { port_num: 0 }, event_type: 0 };
    // SAFETY: a live context, and room for the event.
    if unsafe { (device.library.ibv_get_async_event)(device.context.as_ptr(), &mut event) } != 0 {
        return Err(failed("ibv_get_async_event", io::Error::last_os_error()));
    }
    // SAFETY: the event's type says which field of `element` holds; a queue pair is alive until its events are
    // acknowledged, which is below.
    let understood = unsafe { understand(&event) };
    // SAFETY: the event came from the library, and is acknowledged once.
    unsafe { (device.library.ibv_ack_async_event)(&mut event) };
    Ok(Some(understood))
}

/// # Safety
/// `event` came from the library and is not acknowledged.
unsafe fn understand(event: &ibv_async_event) -> Event {
    // SAFETY: an integer, which any bits are; only used where the event is of a port.
    let port = u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    match event.event_type {
        IBV_EVENT_GID_CHANGE | IBV_EVENT_LID_CHANGE | IBV_EVENT_PKEY_CHANGE => Event::Addresses { port },
        IBV_EVENT_PORT_ACTIVE => Event::PortUp { port },
        IBV_EVENT_PORT_ERR => Event::PortDown { port },
        IBV_EVENT_DEVICE_FATAL => Event::DeviceLost,
        IBV_EVENT_CQ_ERR => Event::CompletionsLost,
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: an event of a queue pair, which is alive (the caller).
            Event::QueuePair { number: unsafe { (*event.element.qp).qp_num } }
        }
        other => Event::Other(other),
    }
}
