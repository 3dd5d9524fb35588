//! Whether there is a CUDA driver that can be used, and why not.

use std::fs;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

use crate::api::Api;
use crate::error::CudaError;

/// The oldest driver that is used, as the driver numbers itself: CUDA 12.0 (driver 525), for 64-bit stream words and the
/// instruction set of our kernels.
pub const VERSION_MIN: i32 = 12_000;

/// Why no GPU is used. None of it keeps the dataplane from running; each is an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The library is not installed.
    #[error("no NVIDIA driver is installed (libcuda.so.1 is not found)")]
    NoLibrary,
    /// The library of a toolkit, made for linking, was found before the driver's.
    #[error("libcuda.so is a toolkit's stub: take the toolkit's `stubs` folder out of LD_LIBRARY_PATH")]
    Stub,
    /// The driver is older than [`VERSION_MIN`], or lacks a function that such a driver has.
    #[error("the NVIDIA driver is too old: CUDA {}.{}, needed is {}.{}{}", .version / 1000, .version % 1000 / 10,
        VERSION_MIN / 1000, VERSION_MIN % 1000 / 10, .missing.map(|name| format!(" (no {name})")).unwrap_or_default())]
    TooOld {
        /// What the driver says of itself; 0 if it could not be asked.
        version: i32,
        /// The function that it lacks, if that was the sign.
        missing: Option<&'static str>,
    },
    /// The library is there, and the process may not open the devices.
    #[error("this process may not use the GPUs: {path}: {reason}")]
    NotPermitted {
        /// The device file.
        path: &'static str,
        /// The kernel's words.
        reason: String,
    },
    /// The library is there and no device is.
    #[error("the NVIDIA driver sees no GPU")]
    NoDevice,
    /// Anything else: a library of another version than the kernel's module, a GPU that is lost.
    #[error("the NVIDIA driver does not start: {0}")]
    Failed(CudaError),
}

impl Absent {
    /// The stable name of the reason, for events and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Absent::NoLibrary => "cuda_no_library",
            Absent::Stub => "cuda_stub",
            Absent::TooOld { .. } => "cuda_too_old",
            Absent::NotPermitted { .. } => "cuda_not_permitted",
            Absent::NoDevice => "cuda_no_device",
            Absent::Failed(_) => "cuda_failed",
        }
    }
}

/// A driver that was started. Cheap to clone; any thread may use it.
#[derive(Debug, Clone)]
pub struct Driver {
    pub(crate) api: Arc<Api>,
    version: i32,
}

impl Driver {
    /// Opens and starts the driver; later calls give the same answer. Slow the first time (some 100 ms for each GPU).
    ///
    /// # Errors
    /// [`Absent`].
    pub fn open() -> Result<Self, Absent> {
        static OPENED: OnceLock<Result<Driver, Absent>> = OnceLock::new();
        OPENED.get_or_init(open).clone()
    }

    /// The newest CUDA version that the driver can run, times 1000 plus ten times the minor.
    #[must_use]
    pub const fn version(&self) -> i32 {
        self.version
    }

    /// Whether several copies can be posted by one call (drivers from CUDA 12.8 on).
    #[must_use]
    pub fn has_batched_copies(&self) -> bool {
        self.api.copy_batch_async.is_some()
    }

    /// GPUs that this process sees (`CUDA_VISIBLE_DEVICES` counts).
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: the driver is started and stores one integer.
        let status = unsafe { (self.api.device_count)(&raw mut count) };
        self.api.check("cuDeviceGetCount", status)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

fn open() -> Result<Driver, Absent> {
    // SAFETY: opening the driver's library runs its initialisers, which may run on any thread.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absent::NoLibrary);
    }
    let api = Api::load().map_err(|missing| Absent::TooOld { version: 0, missing: Some(missing) })?;
    // SAFETY: the first call into the driver; 0 is the only flag there is.
    let status = unsafe { (api.init)(0) };
    api.check("cuInit", status).map_err(|error| refusal(error, opened(CONTROL_DEVICE)))?;
    let mut version = 0;
    // SAFETY: the driver stores one integer.
    let status = unsafe { (api.driver_version)(&raw mut version) };
    api.check("cuDriverGetVersion", status).map_err(Absent::Failed)?;
    if version < VERSION_MIN {
        return Err(Absent::TooOld { version, missing: None });
    }
    let driver = Driver { api: Arc::new(api), version };
    match driver.device_count() {
        Ok(0) => Err(Absent::NoDevice),
        Ok(_) => Ok(driver),
        Err(error) => Err(Absent::Failed(error)),
    }
}

/// The file through which every process reaches the driver.
const CONTROL_DEVICE: &str = "/dev/nvidiactl";

/// What the kernel says when this process opens a device file; `None` if it may, or if the file is not there.
fn opened(path: &str) -> Option<String> {
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Some(error.to_string()),
        _ => None,
    }
}

/// Why `cuInit` failed. The driver says "no device" also where it may not open the device files.
fn refusal(error: CudaError, denied: Option<String>) -> Absent {
    const NO_DEVICE: i32 = 100;
    const STUB: i32 = 34;
    const DRIVER_MISMATCH: i32 = 35;
    match (error.number, denied) {
        (STUB, _) => Absent::Stub,
        (_, Some(reason)) => Absent::NotPermitted { path: CONTROL_DEVICE, reason },
        (NO_DEVICE, None) => Absent::NoDevice,
        (DRIVER_MISMATCH, None) => Absent::TooOld { version: 0, missing: None },
        (_, None) => Absent::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(number: i32) -> CudaError {
        CudaError { call: "cuInit", number, name: "CUDA_ERROR" }
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let denied = Some("Permission denied (os error 13)".to_owned());
        assert_eq!(refusal(error(34), None), Absent::Stub);
        assert_eq!(refusal(error(100), None), Absent::NoDevice);
        assert_eq!(refusal(error(100), denied).name(), "cuda_not_permitted");
        assert_eq!(refusal(error(35), None).name(), "cuda_too_old");
        assert_eq!(refusal(error(999), None), Absent::Failed(error(999)));
    }

    #[test]
    fn versions_read_as_people_write_them() {
        let text = Absent::TooOld { version: 11_080, missing: None }.to_string();
        assert!(text.contains("CUDA 11.8, needed is 12.0"), "{text}");
    }

    /// With or without a driver: an answer, the same each time, and not a crash.
    #[test]
    fn opening_never_panics_and_is_stable() {
        let first = Driver::open().map(|driver| driver.version());
        let second = Driver::open().map(|driver| driver.version());
        assert_eq!(first, second);
        assert!(first.is_ok_and(|version| version >= VERSION_MIN) || second.is_err());
    }
}
