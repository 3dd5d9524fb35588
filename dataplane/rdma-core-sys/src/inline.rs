//! What the header does in inline functions: calls through the tables of a context.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};

use crate::constants::abi_is_extended;
use crate::library::Library;
use crate::types::{
    ibv_context, ibv_cq, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_td, ibv_td_init_attr, ibv_wc, verbs_context,
};

/// Posts a list of work requests. Returns 0 or an errno value; then `bad` is the first that was not posted.
///
/// # Safety
/// `qp` is a live queue pair; `wr` starts a list of work requests whose gather lists can be read; inline payload too. What
/// the device will read and write meanwhile is bounded by the registrations that the requests name.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair points to its context, whose table is filled when the device is opened.
    let post = unsafe { (*(*qp).context).ops.post_send };
    // SAFETY: the caller's conditions are the callee's.
    post.map_or(libc::EOPNOTSUPP, |post| unsafe { post(qp, wr, bad) })
}

/// Posts a list of receives. Returns 0 or an errno value; then `bad` is the first that was not posted.
///
/// # Safety
/// As [`ibv_post_send`]; the device writes into the scatter lists until the receives complete.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as in ibv_post_send.
    let post = unsafe { (*(*qp).context).ops.post_recv };
    // SAFETY: the caller's conditions are the callee's.
    post.map_or(libc::EOPNOTSUPP, |post| unsafe { post(qp, wr, bad) })
}

/// Takes completions off a queue. Returns how many, or a negative number for a broken queue.
///
/// # Safety
/// `cq` is a live completion queue.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, completions: &mut [ibv_wc]) -> c_int {
    // SAFETY: as in ibv_post_send.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    let count = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
    // SAFETY: the slice has room for `count` entries.
    poll.map_or(-libc::EOPNOTSUPP, |poll| unsafe { poll(cq, count, completions.as_mut_ptr()) })
}

/// Asks for one event on the queue's channel at its next completion. Returns 0 or an errno value.
///
/// # Safety
/// `cq` is a live completion queue that was made with a channel.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as in ibv_post_send.
    let request = unsafe { (*(*cq).context).ops.req_notify_cq };
    // SAFETY: the caller's conditions are the callee's; 0: any completion, not only solicited ones.
    request.map_or(libc::EOPNOTSUPP, |request| unsafe { request(cq, 0) })
}

/// The extended part of a context, if it has at least the bytes from `offset` on.
///
/// # Safety
/// `context` is a live context.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
    // SAFETY: a live context.
    if !abi_is_extended(unsafe { (*context).abi_compat }) {
        return None;
    }
    // SAFETY: an extended context is the last field of a `verbs_context` (its `abi_compat` says so).
    let whole = unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // SAFETY: `sz` stands immediately before the context in every version. Only this field is touched.
    let bytes = unsafe { (&raw const (*whole).sz).read() };
    (bytes >= size_of::<verbs_context>() - offset).then_some(whole)
}

/// Reads a field of the extended part of a context.
macro_rules! extension {
    ($context:expr, $field:ident) => {
        // SAFETY: the caller passes a live context; the field lies within what this context has (`extended`).
        unsafe {
            extended($context, offset_of!(verbs_context, $field))
                .and_then(|whole| (&raw const (*whole).$field).read())
        }
    };
}

impl Library {
    /// Reads a port's attributes, all of those that this file declares. Returns 0 or an errno value.
    ///
    /// # Safety
    /// `context` is a live context of this library.
    pub unsafe fn query_port(&self, context: *mut ibv_context, port: u8, attr: &mut ibv_port_attr) -> c_int {
        if let Some(query) = extension!(context, query_port) {
            // SAFETY: a live context; `attr` has the size that is said.
            return unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: a live context; the exported function fills the first 48 bytes, and there are more.
        unsafe { (self.ibv_query_port)(context, port, (&raw mut *attr).cast()) }
    }
}

/// Makes a thread domain: what is made in it is used by one thread at a time. Null with errno where the provider has none.
///
/// # Safety
/// `context` is a live context.
pub unsafe fn ibv_alloc_td(context: *mut ibv_context) -> *mut ibv_td {
    let Some(alloc) = extension!(context, alloc_td) else { return core::ptr::null_mut() };
    // SAFETY: a live context, and attributes of the declared layout.
    unsafe { alloc(context, &mut ibv_td_init_attr::default()) }
}

/// Frees a thread domain. Returns 0 or an errno value.
///
/// # Safety
/// `td` came from [`ibv_alloc_td`], and nothing made in it is left.
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a live thread domain points to its context.
    let context = unsafe { (*td).context };
    let Some(dealloc) = extension!(context, dealloc_td) else { return libc::EOPNOTSUPP };
    // SAFETY: the caller's conditions are the callee's.
    unsafe { dealloc(td) }
}

/// Makes a protection domain that stands for `pd` and puts what is made in it into the thread domain `td`. Null with errno
/// where the provider has none.
///
/// # Safety
/// `context` is a live context, `pd` and `td` are its own.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    td: *mut ibv_td,
) -> *mut ibv_pd {
    let Some(alloc) = extension!(context, alloc_parent_domain) else { return core::ptr::null_mut() };
    let mut attr = ibv_parent_domain_init_attr {
        pd,
        td,
        comp_mask: 0,
        alloc: core::ptr::null(),
        free: core::ptr::null(),
        pd_context: core::ptr::null_mut(),
    };
    // SAFETY: a live context, and attributes of the declared layout.
    unsafe { alloc(context, &mut attr) }
}
