//! Queue pairs: made, connected and ended by registrar threads and the [`crate::Closer`], posted on by one lane.

use core::ffi::c_int;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use railhead_ring::sync::Word;
use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_RC, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
};

use crate::completion_queue::{CompletionQueue, Room};
use crate::domain::LaneDomain;
use crate::error::{VerbsError, check};
use crate::gid::Gid;
use crate::nic::NicConfig;

/// How patient a connection is. The values are those of the verbs: `man 3 ibv_modify_qp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Time until an unanswered packet is sent again: 4.096 us x 2^this. 16 is 268 ms: with six more tries a path is given up
    /// after some two seconds, as a silent peer is, and not for a peer whose processor is busy elsewhere for a moment.
    pub timeout: u8,
    /// How often it is sent again, at most 6: the soft devices of Linux take 7 for "for ever".
    pub retries: u8,
    /// How often a peer without a posted receive is asked again, at most 6: 7 would be for ever, and a peer that hangs
    /// would hang us. Receives are posted ahead, so a single one is already a bug.
    pub receiver_retries: u8,
    /// The code of the time that a peer waits before it asks again. 12 is 0.64 ms.
    pub receiver_timer: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self { timeout: 16, retries: 6, receiver_retries: 6, receiver_timer: 12 }
    }
}

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueSizes {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) inline_bytes: u32,
}

/// The path to the other end and what was agreed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) is_ethernet: bool,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) mtu_code: u32,
    pub(crate) peer_gid: Gid,
    pub(crate) peer_lid: u16,
    pub(crate) peer_number: u32,
    pub(crate) peer_psn: u32,
    pub(crate) psn: u32,
    /// Reads that we make at a time.
    pub(crate) reads_made: u8,
    /// Reads that we serve at a time.
    pub(crate) reads_served: u8,
    pub(crate) patience: Patience,
}

/// Wish for [`crate::Closer`]: nothing.
pub(crate) const WISH_NONE: u64 = 0;
/// Wish: make it fail, so that all that is posted is given back.
pub(crate) const WISH_FAIL: u64 = 1;
/// Wish: destroy it, because the device gives nothing back.
pub(crate) const WISH_DESTROY: u64 = 2;

/// A reliable connected queue pair.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<LaneDomain>,
    /// For posts; dead once `is_destroyed`.
    qp: NonNull<ibv_qp>,
    /// Serialises changes of state; false once it is destroyed.
    alive: Mutex<bool>,
    /// What the lane wants of the closer; written by the lane, read (acquire) by the closer.
    pub(crate) wish: Word,
    /// 1 once the closer made it fail; written (release) by the closer, read (acquire) by the lane.
    failed: Word,
    /// 1 once it is destroyed; written (release) by the closer, read (acquire) by the lane.
    destroyed: Word,
    number: u32,
    inline_bytes: u32,
    _room: Room,
    _completions: Arc<CompletionQueue>,
}

// SAFETY: libibverbs locks what changes of state share with posts; posts come from one thread (see `post_sends`); the
// pointer is used for posts only before the owner asked for destruction, and otherwise under `alive`.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair in the state INIT, whose memory peers may read and write by key.
    pub(crate) fn new(
        domain: &Arc<LaneDomain>,
        completions: &Arc<CompletionQueue>,
        config: &NicConfig,
        sizes: QueueSizes,
    ) -> Result<Arc<Self>, VerbsError> {
        // A queue pair that fails gives every request back, signalled or not.
        let room = completions.reserve(sizes.sends + sizes.receives)?;
        let (qp, inline_bytes) = create(domain, completions, sizes)?;
        // SAFETY: just made; its number never changes.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        let pair = Self {
            domain: Arc::clone(domain),
            qp,
            alive: Mutex::new(true),
            wish: Word::new(WISH_NONE),
            failed: Word::new(0),
            destroyed: Word::new(0),
            number,
            inline_bytes,
            _room: room,
            _completions: Arc::clone(completions),
        };
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: config.port,
            pkey_index: config.partition_index,
            qp_access_flags: IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
            ..ibv_qp_attr::default()
        };
        pair.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        Ok(Arc::new(pair))
    }

    /// Its number at its device.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that a post can carry itself, instead of naming memory.
    #[must_use]
    pub const fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Brings it to RTR and RTS: from here on both ends can post.
    pub(crate) fn connect(&self, path: &Path) -> Result<(), VerbsError> {
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: path.peer_gid.0, align: [] },
            flow_label: 0,
            sgid_index: path.gid_index,
            hop_limit: 64,
            traffic_class: path.traffic_class,
        };
        let ah_attr = ibv_ah_attr {
            grh,
            dlid: path.peer_lid,
            sl: path.service_level,
            is_global: u8::from(path.is_ethernet),
            port_num: path.port,
            ..ibv_ah_attr::default()
        };
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: path.mtu_code,
            dest_qp_num: path.peer_number,
            rq_psn: path.peer_psn,
            max_dest_rd_atomic: path.reads_served,
            min_rnr_timer: path.patience.receiver_timer,
            ah_attr,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: path.patience.timeout,
            retry_cnt: path.patience.retries.min(6),
            rnr_retry: path.patience.receiver_retries.min(6),
            sq_psn: path.psn,
            max_rd_atomic: path.reads_made,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    /// Makes it fail: nothing is read or written any more, and all that is posted comes back as flushed. Slow.
    ///
    /// # Errors
    /// That of `ibv_modify_qp`.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.modify(&mut ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() }, IBV_QP_STATE)
    }

    /// Changes it, unless it is destroyed: then there is nothing to change.
    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<(), VerbsError> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return Ok(());
        }
        let device = self.domain.domain().device();
        // SAFETY: alive, and stays so under the lock; the attributes are whole.
        let code = unsafe { (device.library.ibv_modify_qp)(self.qp.as_ptr(), attr, mask) };
        check("ibv_modify_qp", device.name(), code)
    }

    /// Destroys it. Slow. The caller sees to it that no post is under way or follows.
    pub(crate) fn destroy(&self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if core::mem::replace(&mut *alive, false) {
            // SAFETY: alive until now; nobody posts (the caller) and nobody changes it (the lock). Refused only for queue
            // pairs in multicast groups.
            unsafe { (self.domain.domain().device().library.ibv_destroy_qp)(self.qp.as_ptr()) };
        }
        self.destroyed.store_release(1);
    }

    /// For the closer: says that the lane's wish is granted.
    pub(crate) fn say_failed(&self) {
        self.failed.store_release(1);
    }

    /// Whether the closer made it fail: what is posted now comes back as flushed, behind everything before it.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load_acquire() != 0
    }

    /// Whether it is destroyed: its device touches nothing of it any more.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load_acquire() != 0
    }

    /// Posts a list of sends; on failure returns its errno value and the first that was not posted.
    ///
    /// # Safety
    /// One thread at a time posts; destruction was not asked for; `first` starts a list as [`ibv_post_send`] wants it.
    pub(crate) unsafe fn post_sends(&self, first: *mut ibv_send_wr) -> Result<(), (c_int, *mut ibv_send_wr)> {
        let mut bad = core::ptr::null_mut();
        // SAFETY: not destroyed (the caller), the list as wanted.
        let code = unsafe { ibv_post_send(self.qp.as_ptr(), first, &mut bad) };
        if code == 0 { Ok(()) } else { Err((code, bad)) }
    }

    /// Posts a list of receives. All or none are taken as posted by the caller.
    ///
    /// # Safety
    /// As [`Self::post_sends`].
    pub(crate) unsafe fn post_receives(
        &self,
        first: *mut ibv_recv_wr,
    ) -> Result<(), (c_int, *mut ibv_recv_wr)> {
        let mut bad = core::ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { ibv_post_recv(self.qp.as_ptr(), first, &mut bad) };
        if code == 0 { Ok(()) } else { Err((code, bad)) }
    }
}

/// Makes the queue pair; a device that has less room for inline payload than wanted gets less.
fn create(
    domain: &Arc<LaneDomain>,
    completions: &Arc<CompletionQueue>,
    sizes: QueueSizes,
) -> Result<(NonNull<ibv_qp>, u32), VerbsError> {
    let device = domain.domain().device();
    let limit = device.limits().queue_depth;
    let asked = sizes.sends.max(sizes.receives);
    if asked > limit {
        let (asked, limit) = (asked.into(), limit.into());
        return Err(VerbsError::Limit { what: "queue depth", name: device.name().into(), asked, limit });
    }
    let mut error = None;
    for inline_bytes in [sizes.inline_bytes, sizes.inline_bytes.min(64), 0] {
        let mut attr = ibv_qp_init_attr {
            qp_context: core::ptr::null_mut(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: core::ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are live and of one device; the attributes are whole.
        let qp = unsafe { (device.library.ibv_create_qp)(domain.as_ptr(), &mut attr) };
        match NonNull::new(qp) {
            Some(qp) => return Ok((qp, attr.cap.max_inline_data)),
            None => error = Some(VerbsError::last("ibv_create_qp", device.name())),
        }
    }
    Err(error.unwrap_or_else(|| VerbsError::last("ibv_create_qp", device.name())))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
