//! What the driver answers.

use core::ffi::{CStr, c_char};

use crate::api::{Api, Status};

/// A driver call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: CUDA error {number} ({name})")]
pub struct CudaError {
    /// The call, as `cuda.h` names it.
    pub call: &'static str,
    /// The driver's number.
    pub number: i32,
    /// The driver's name of it; `?` where it has none.
    pub name: &'static str,
}

/// "Not done yet": the answer of a query, and no error.
pub(crate) const NOT_READY: Status = 600;

impl CudaError {
    /// Whether the device's context is lost with it: everything posted to this GPU has ended, and nothing can be posted
    /// until the process is started again. (The driver gives no way back short of ending the process that holds the
    /// context: `railhead-dataplane` is restarted by its supervisor, and clients attach again.)
    #[must_use]
    pub const fn is_sticky(&self) -> bool {
        matches!(
            self.number,
            // Device unavailable; hardware: ECC, NVLink, invalid address space; contained; context gone.
            46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 802 | 911 | 999
        )
    }

    /// Out of memory: of the GPU, or of what the driver needs to map.
    #[must_use]
    pub const fn is_exhausted(&self) -> bool {
        self.number == 2
    }

    /// The device or driver does not have it.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self.number, 801)
    }
}

impl Api {
    /// Turns a call's status into a result.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(self.error(call, status)) }
    }

    #[cold]
    fn error(&self, call: &'static str, status: Status) -> CudaError {
        let mut text: *const c_char = core::ptr::null();
        let number = u32::try_from(status).unwrap_or(u32::MAX);
        // SAFETY: the driver stores the address of a string constant of its own, or null for a number it doesn't know.
        let found = unsafe { (self.error_name)(number, &raw mut text) };
        let name = if found == 0 && !text.is_null() {
            // SAFETY: a NUL-terminated constant of a library that is never closed.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
        } else {
            "?"
        };
        CudaError { call, number: status, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_lose_the_context_are_sticky() {
        let error = |number| CudaError { call: "cuMemcpyAsync", number, name: "" };
        // Illegal address, launch failed, uncorrectable ECC error.
        for number in [700, 719, 214] {
            assert!(error(number).is_sticky(), "{number}");
        }
        // Invalid value, out of memory, not supported.
        for number in [1, 2, 801] {
            assert!(!error(number).is_sticky(), "{number}");
        }
    }
}
