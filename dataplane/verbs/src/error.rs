//! What a device or the library refused, and what to do about it.

use std::io;

/// Why an RDMA object could not be made, changed or read.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library cannot be used.
    #[error(transparent)]
    Load(#[from] rdma_core_sys::LoadError),
    /// The kernel has no RDMA, or none that this process may see.
    #[error(
        "this kernel has no RDMA devices to offer (ibv_get_device_list: {0}); load the driver of the NIC"
    )]
    NoRdma(#[source] io::Error),
    /// There is no such device.
    #[error("no RDMA device {name}; there are: {found}")]
    DeviceUnknown {
        /// The name asked for.
        name: String,
        /// The names that there are.
        found: String,
    },
    /// The device's file cannot be opened.
    #[error(
        "{name} cannot be opened: {error}; check the rights on /dev/infiniband and the container's devices"
    )]
    DeviceDenied {
        /// The device.
        name: String,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The port cannot carry traffic.
    #[error("port {port} of {name} is {state}; bring its link up")]
    PortDown {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Its state, in words.
        state: &'static str,
    },
    /// No address of the port serves.
    #[error("port {port} of {name} has no RoCE v2 address; give its network interface an IP address")]
    NoGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
    },
    /// The pinned memory that this process may have is used up.
    #[error(
        "{bytes} bytes cannot be pinned: RLIMIT_MEMLOCK is {limit}; set LimitMEMLOCK=infinity in the dataplane's unit file"
    )]
    Memlock {
        /// Bytes asked for.
        bytes: u64,
        /// The limit in bytes, or `unlimited`.
        limit: String,
    },
    /// The device does not do this.
    #[error("{call} is not supported by {name}: {error}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// The device.
        name: String,
        /// What it answered.
        #[source]
        error: io::Error,
    },
    /// More than the device can hold.
    #[error("{what}: {asked} asked for, {limit} is the limit of {name}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The device.
        name: String,
        /// How many.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// What the peer says of its end cannot be.
    #[error("the peer's end does not fit: {0}")]
    Peer(&'static str),
    /// Any other call that failed.
    #[error("{call} on {name}: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// The device.
        name: String,
        /// Its error.
        #[source]
        error: io::Error,
    },
}

impl VerbsError {
    /// The error of a call that sets errno.
    pub(crate) fn last(call: &'static str, name: &str) -> Self {
        Self::of(call, name, io::Error::last_os_error())
    }

    /// The error of a call that returns an errno value (or -1 with errno).
    pub(crate) fn returned(call: &'static str, name: &str, code: i32) -> Self {
        let error = if code > 0 { io::Error::from_raw_os_error(code) } else { io::Error::last_os_error() };
        Self::of(call, name, error)
    }

    fn of(call: &'static str, name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => {
                Self::Unsupported { call, name, error }
            }
            _ => Self::Call { call, name, error },
        }
    }

    /// Whether nobody answered for the peer's address.
    pub(crate) fn is_unreachable(&self) -> bool {
        let Self::Call { error, .. } = self else { return false };
        matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH))
    }

    /// Whether the device or its driver simply cannot do what was asked for.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }
}

/// Turns what a call returned into a result.
pub(crate) fn check(call: &'static str, name: &str, code: i32) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::returned(call, name, code)) }
}
