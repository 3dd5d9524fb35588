//! The driver's functions, looked up by name once.
//!
//! cudarc finds the library and declares its types. The functions are called through pointers of our own: results are
//! plain integers, because a newer driver may answer with a number that an enum of today does not have; a function that
//! an older driver lacks is `None`, and not a panic; and a call on a lane is one indirect call.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemcpyAttributes, CUmodule, CUstream, CUuuid,
};

/// What every call gives back; see [`crate::CudaError`].
pub(crate) type Status = c_int;

macro_rules! api {
    (
        required { $($name:ident = $symbol:literal ($($argument:ty),*);)* }
        optional { $($maybe:ident = $maybe_symbol:literal ($($maybe_argument:ty),*);)* }
    ) => {
        /// The driver's functions.
        #[derive(Debug)]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> Status>,)*
        }

        impl Api {
            /// Looks all of them up; the name of the first required one that the library lacks otherwise.
            ///
            /// The library must be there: see [`sys::is_culib_present`].
            pub(crate) fn load() -> Result<Self, &'static str> {
                // SAFETY: the caller has seen that the library can be opened; opening runs its initialisers, which
                // NVIDIA's driver library permits on any thread.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is the driver's function of this name, whose C signature is the one given
                        // here (`cuda.h`); enumerations are passed as the integers that they are in C.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Status>(
                                concat!($symbol, "\0").as_bytes(),
                            )
                        };
                        *symbol.map_err(|_| $symbol)?
                    },)*
                    $($maybe: {
                        // SAFETY: as above.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($maybe_argument),*) -> Status>(
                                concat!($maybe_symbol, "\0").as_bytes(),
                            )
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

api! {
    required {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        error_name = "cuGetErrorName" (c_uint, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut CUdevice, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
        device_uuid = "cuDeviceGetUuid_v2" (*mut CUuuid, CUdevice);
        device_bytes = "cuDeviceTotalMem_v2" (*mut usize, CUdevice);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_uint, CUdevice);
        device_pci = "cuDeviceGetPCIBusId" (*mut c_char, c_int, CUdevice);
        device_can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, CUdevice, CUdevice);
        context_retain = "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
        context_release = "cuDevicePrimaryCtxRelease_v2" (CUdevice);
        context_set = "cuCtxSetCurrent" (CUcontext);
        context_enable_peer = "cuCtxEnablePeerAccess" (CUcontext, c_uint);
        memory_granularity = "cuMemGetAllocationGranularity" (*mut usize, *const CUmemAllocationProp, c_uint);
        memory_create = "cuMemCreate" (*mut c_ulonglong, usize, *const CUmemAllocationProp, c_ulonglong);
        memory_release = "cuMemRelease" (c_ulonglong);
        memory_export = "cuMemExportToShareableHandle" (*mut c_void, c_ulonglong, c_uint, c_ulonglong);
        memory_import = "cuMemImportFromShareableHandle" (*mut c_ulonglong, *mut c_void, c_uint);
        address_reserve = "cuMemAddressReserve" (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        address_free = "cuMemAddressFree" (CUdeviceptr, usize);
        memory_map = "cuMemMap" (CUdeviceptr, usize, usize, c_ulonglong, c_ulonglong);
        memory_unmap = "cuMemUnmap" (CUdeviceptr, usize);
        memory_access = "cuMemSetAccess" (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        memory_allocate = "cuMemAlloc_v2" (*mut CUdeviceptr, usize);
        memory_free = "cuMemFree_v2" (CUdeviceptr);
        ipc_get = "cuIpcGetMemHandle" (*mut CUipcMemHandle, CUdeviceptr);
        ipc_open = "cuIpcOpenMemHandle_v2" (*mut CUdeviceptr, CUipcMemHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle" (CUdeviceptr);
        pointer_get = "cuPointerGetAttribute" (*mut c_void, c_uint, CUdeviceptr);
        pointer_set = "cuPointerSetAttribute" (*const c_void, c_uint, CUdeviceptr);
        host_allocate = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister" (*mut c_void);
        host_device_pointer = "cuMemHostGetDevicePointer_v2" (*mut CUdeviceptr, *mut c_void, c_uint);
        stream_create = "cuStreamCreateWithPriority" (*mut CUstream, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2" (CUstream);
        stream_query = "cuStreamQuery" (CUstream);
        stream_synchronize = "cuStreamSynchronize" (CUstream);
        stream_write_32 = "cuStreamWriteValue32_v2" (CUstream, CUdeviceptr, u32, c_uint);
        stream_write_64 = "cuStreamWriteValue64_v2" (CUstream, CUdeviceptr, u64, c_uint);
        stream_wait_32 = "cuStreamWaitValue32_v2" (CUstream, CUdeviceptr, u32, c_uint);
        event_create = "cuEventCreate" (*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2" (CUevent);
        event_record = "cuEventRecord" (CUevent, CUstream);
        stream_wait_event = "cuStreamWaitEvent" (CUstream, CUevent, c_uint);
        copy_async = "cuMemcpyAsync" (CUdeviceptr, CUdeviceptr, usize, CUstream);
        copy_peer_async = "cuMemcpyPeerAsync"
            (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        module_load = "cuModuleLoadDataEx"
            (*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload = "cuModuleUnload" (CUmodule);
        module_function = "cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
        launch = "cuLaunchKernel" (
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
    }
    optional {
        copy_batch_async = "cuMemcpyBatchAsync" (
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes, *mut usize, usize,
            *mut usize, CUstream
        );
        range_handle = "cuMemGetHandleForAddressRange" (*mut c_void, CUdeviceptr, usize, c_uint, c_ulonglong);
        flush_writes = "cuFlushGPUDirectRDMAWrites" (c_uint, c_uint);
    }
}
