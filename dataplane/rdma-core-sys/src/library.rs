//! The library, opened at run time.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute_copy;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::types::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

/// The library's name, as the dynamic linker finds it.
pub const NAME: &str = "libibverbs.so.1";

/// Why the library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is not installed, or one of its own libraries is missing.
    #[error("{} cannot be loaded: {text}; install libibverbs1 and ibverbs-providers", path.display())]
    Absent {
        /// What was opened.
        path: PathBuf,
        /// What the dynamic linker says.
        text: String,
    },
    /// It is older than rdma-core 17, or something else.
    #[error("{} has no {symbol} ({version}): it is too old, or no libibverbs", path.display())]
    Symbol {
        /// What was opened.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// Its version.
        version: &'static str,
    },
}

macro_rules! symbols {
    (
        needed { $($name:ident @ $version:literal: fn($($argument:ty),*) -> $result:ty;)* }
        optional { $($maybe:ident = $symbol:literal @ $since:literal: fn($($may_take:ty),*) -> $may_give:ty;)* }
    ) => {
        /// The functions of a loaded libibverbs, under their C names. See the manual page of each for its contract.
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($may_take),*) -> $may_give>,)*
        }

        impl Library {
            fn find(handle: Handle, path: &Path) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        let symbol = stringify!($name);
                        let Some(address) = handle.symbol(symbol, $version) else {
                            return Err(LoadError::Symbol { path: path.into(), symbol, version: $version });
                        };
                        // SAFETY: the symbol of this name and version is a function of this C type (verbs.h), and
                        // a pointer to it has the size of a data pointer; the library is never unloaded.
                        unsafe { transmute_copy(&address) }
                    },)*
                    $($maybe: handle.symbol($symbol, $since).map(|address| {
                        // SAFETY: as above.
                        unsafe { transmute_copy(&address) }
                    }),)*
                })
            }
        }
    };
}

symbols! {
    needed {
        ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device) -> ();
        ibv_get_device_guid @ "IBVERBS_1.1": fn(*mut ibv_device) -> u64;
        ibv_open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
        ibv_get_async_event @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut ibv_async_event) -> ();
        ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut c_void) -> c_int;
        ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq @ "IBVERBS_1.1":
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event @ "IBVERBS_1.1": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint) -> ();
        ibv_create_qp @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
        ibv_create_ah @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah @ "IBVERBS_1.1": fn(*mut ibv_ah) -> c_int;
        ibv_wc_status_str @ "IBVERBS_1.1": fn(c_uint) -> *const c_char;
    }
    optional {
        ibv_reg_mr_iova2 = "ibv_reg_mr_iova2" @ "IBVERBS_1.8":
            fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_reg_dmabuf_mr = "ibv_reg_dmabuf_mr" @ "IBVERBS_1.12":
            fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        ibv_query_gid_ex = "_ibv_query_gid_ex" @ "IBVERBS_1.11":
            fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        ibv_is_fork_initialized = "ibv_is_fork_initialized" @ "IBVERBS_1.13": fn() -> c_uint;
    }
}

impl core::fmt::Debug for Library {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Library")
            .field("relaxed_ordering", &self.ibv_reg_mr_iova2.is_some())
            .field("dma_buf", &self.ibv_reg_dmabuf_mr.is_some())
            .finish_non_exhaustive()
    }
}

impl Library {
    /// Opens the installed library ([`NAME`]), or the one at `path`. It is never closed: providers leave threads and
    /// fork handlers behind. Slow; each call opens it anew.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open(path: Option<&Path>) -> Result<&'static Self, LoadError> {
        let path = path.unwrap_or(Path::new(NAME));
        let handle = Handle::open(path)?;
        // The functions are as long-lived as the library, which stays.
        Ok(Box::leak(Box::new(Self::find(handle, path)?)))
    }
}

/// A loaded shared object.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn open(path: &Path) -> Result<Self, LoadError> {
        let absent = |text: String| LoadError::Absent { path: path.into(), text };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| absent(error.to_string()))?;
        // SAFETY: `name` is a C string; running the constructors of a libibverbs is what the caller asks for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // SAFETY: no arguments; the text belongs to this thread until its next dl call.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(absent("unknown error".into()));
        }
        // SAFETY: not null: a C string, as above.
        Err(absent(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
    }

    /// The function of this name and version. Libraries without versions (a stand-in) have one of each name.
    fn symbol(self, name: &str, version: &str) -> Option<*mut c_void> {
        let (name, version) = (CString::new(name).ok()?, CString::new(version).ok()?);
        // SAFETY: the handle is open, and both are C strings.
        let found = unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return Some(found);
        }
        // SAFETY: as above.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}
