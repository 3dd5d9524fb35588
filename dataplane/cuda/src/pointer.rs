//! What an address is, as the driver says.

use core::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::CUpointer_attribute as Attribute;

use crate::error::CudaError;
use crate::gpu::Gpu;

/// Kinds of memory, as far as copies and NICs care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Ordinary memory of the process; a copy engine reaches it only by bouncing.
    Host,
    /// Host memory that is registered or was allocated by the driver: copy engines reach it.
    HostPinned,
    /// Memory of one GPU.
    Device {
        /// Which.
        ordinal: u32,
    },
    /// Memory that the driver moves between host and GPUs. Never direct: a NIC would read and write the page that was.
    Managed,
}

/// What the driver knows of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The address.
    pub address: u64,
    /// Its kind.
    pub kind: MemoryKind,
    /// Changes when the address is freed and used for another allocation. 0 where the driver has none: ordinary memory,
    /// and memory mapped by handles (VMM).
    pub buffer_id: u64,
    /// First byte and bytes of the allocation around it, where the driver knows one. For memory mapped by handles this is
    /// one mapping, and what the client means may span several: only its own range counts.
    pub allocation: Option<(u64, u64)>,
}

impl Pointer {
    /// Asks. `gpu` is only for its driver and context: the address may be of any GPU.
    ///
    /// # Errors
    /// [`CudaError`] other than that the driver does not know the address: that is [`MemoryKind::Host`].
    pub fn describe(gpu: &Gpu, address: u64) -> Result<Self, CudaError> {
        const INVALID_VALUE: i32 = 1;
        gpu.make_current()?;
        let query = Query { gpu, address };
        let mut kind: c_uint = 0;
        let asked = query.get(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &mut kind);
        match asked {
            Ok(()) => {}
            Err(error) if error.number == INVALID_VALUE => {
                return Ok(Self { address, kind: MemoryKind::Host, buffer_id: 0, allocation: None });
            }
            Err(error) => return Err(error),
        }
        let (mut managed, mut ordinal, mut buffer_id): (c_uint, c_int, u64) = (0, 0, 0);
        query.get(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, &mut managed)?;
        // Not all kinds of memory have these two.
        let _ = query.get(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &mut ordinal);
        let _ = query.get(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, &mut buffer_id);
        Ok(Self {
            address,
            kind: kind_of(kind, managed != 0, u32::try_from(ordinal).unwrap_or(0)),
            buffer_id,
            allocation: query.allocation(),
        })
    }

    /// Whether the address still means the allocation that it meant when `self` was read. Memory without an identity of
    /// its own is never said to be the same: whoever shares it says when it ends.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn is_same(&self, gpu: &Gpu) -> Result<bool, CudaError> {
        let now = Self::describe(gpu, self.address)?;
        Ok(self.buffer_id != 0 && now.kind == self.kind && now.buffer_id == self.buffer_id)
    }
}

/// Makes the driver's synchronous copies and sets of this allocation finish before they return, so that none is still under
/// way when a NIC or a copy engine is told to read. It orders neither kernels nor asynchronous copies: those need a gate.
///
/// # Errors
/// [`CudaError`]; memory mapped by handles (VMM) does not have it.
pub fn order_synchronous_copies(gpu: &Gpu, address: u64) -> Result<(), CudaError> {
    gpu.make_current()?;
    let on: c_uint = 1;
    let attribute = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint;
    // SAFETY: the attribute's value is one unsigned integer, which the driver only reads; it checks the address.
    let status = unsafe { (gpu.api().pointer_set)((&raw const on).cast(), attribute, address) };
    gpu.api().check("cuPointerSetAttribute", status)
}

fn kind_of(kind: c_uint, managed: bool, ordinal: u32) -> MemoryKind {
    const DEVICE: c_uint = 2;
    match (managed, kind) {
        (true, _) => MemoryKind::Managed,
        (false, DEVICE) => MemoryKind::Device { ordinal },
        (false, _) => MemoryKind::HostPinned,
    }
}

struct Query<'a> {
    gpu: &'a Gpu,
    address: u64,
}

/// The types that attributes have.
trait Value: Copy {}
impl Value for c_uint {}
impl Value for c_int {}
impl Value for u64 {}

impl Query<'_> {
    /// One attribute. `value` has the attribute's type, as `cuda.h` says.
    fn get<V: Value>(&self, attribute: Attribute, value: &mut V) -> Result<(), CudaError> {
        let target: *mut c_void = core::ptr::from_mut(value).cast();
        // SAFETY: the callers above pair each attribute with its type, so the driver stores no more than `value` has; it
        // checks the address, which it does not follow.
        let status = unsafe { (self.gpu.api().pointer_get)(target, attribute as c_uint, self.address) };
        self.gpu.api().check("cuPointerGetAttribute", status)
    }

    fn allocation(&self) -> Option<(u64, u64)> {
        let (mut start, mut bytes): (u64, u64) = (0, 0);
        self.get(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &mut start).ok()?;
        self.get(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, &mut bytes).ok()?;
        Some((start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_is_managed_wherever_it_lies() {
        for kind in [1, 2, 4] {
            assert_eq!(kind_of(kind, true, 3), MemoryKind::Managed);
        }
        assert_eq!(kind_of(2, false, 3), MemoryKind::Device { ordinal: 3 });
        assert_eq!(kind_of(1, false, 0), MemoryKind::HostPinned);
    }
}
