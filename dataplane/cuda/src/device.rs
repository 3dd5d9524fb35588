//! Devices and what they can do.

use core::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::fs;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use crate::driver::Driver;
use crate::error::CudaError;

/// An address on the PCI bus, as sysfs writes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress(pub String);

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Who sees what a NIC has written to GPU memory without a flush (`GPU_DIRECT_RDMA_WRITES_ORDERING`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritesOrdering {
    /// Nobody is promised anything: flush.
    None,
    /// The GPU that owns the memory, its running kernels included (by acquire loads).
    Owner,
    /// Every GPU.
    All,
}

/// What is known of one GPU. All of it is read once; none of it changes while the driver runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The driver's number in this process: `CUDA_VISIBLE_DEVICES` and the order of the driver count, so never store it.
    pub ordinal: u32,
    /// The name of the model.
    pub name: String,
    /// The GPU's own identity, as `nvidia-smi -L` writes it (`GPU-...`).
    pub uuid: String,
    /// Where it sits.
    pub pci: PciAddress,
    /// The NUMA node that it sits at; `None` where the machine does not say (most virtual machines).
    pub numa_node: Option<u32>,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Compute capability: major, minor.
    pub compute: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines that work beside kernels.
    pub copy_engines: u32,
    /// Whether GPUDirect RDMA is possible at all.
    pub rdma: bool,
    /// Whether memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// Whether memory mapped by handles (VMM) can be registered with NICs.
    pub rdma_of_mapped: bool,
    /// Whether allocations can be shared as file descriptors.
    pub shared_handles: bool,
    /// Who sees a NIC's writes without a flush.
    pub writes_ordering: WritesOrdering,
    /// Whether the CPU can flush a NIC's writes by a driver call.
    pub flush_by_host: bool,
    /// Whether a stream's wait on a word can flush a NIC's writes.
    pub flush_by_stream: bool,
    /// Whether streams can write 64-bit words.
    pub stream_words_64: bool,
    /// Whether processes share the GPU at the same time by the MPS daemon (and not turn about).
    pub mps: bool,
}

impl Device {
    /// All GPUs that this process sees, in the driver's order.
    ///
    /// # Errors
    /// [`CudaError`] of the first that cannot be asked.
    pub fn list(driver: &Driver) -> Result<Vec<Self>, CudaError> {
        (0..driver.device_count()?).map(|ordinal| Self::read(driver, ordinal)).collect()
    }

    /// One GPU.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn read(driver: &Driver, ordinal: u32) -> Result<Self, CudaError> {
        let handle = handle(driver, ordinal)?;
        let query = Query { driver, handle };
        let pci = PciAddress(query.pci()?);
        let ordering = query.number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
        let flush = query.number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
        let numa_node = query.numa_node(&pci);
        Ok(Self {
            ordinal,
            name: query.name()?,
            uuid: query.uuid()?,
            pci,
            numa_node,
            bytes: query.bytes()?,
            compute: (
                query.number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                query.number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: query.number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            copy_engines: query.number(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
            rdma: query.flag(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            dma_buf: query.flag(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            rdma_of_mapped: query
                .flag(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
            shared_handles: query
                .flag(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            writes_ordering: ordering_of(ordering),
            flush_by_host: flush & 1 != 0,
            flush_by_stream: flush & 2 != 0,
            stream_words_64: query.flag(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
            mps: query.flag(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
        })
    }

    /// Whether a NIC's writes are seen by running kernels of this GPU (by acquire loads) once their end has been told,
    /// without a flush. Otherwise only work that is submitted afterwards, or a stream's wait with a flush, sees them.
    #[must_use]
    pub fn running_kernels_see_writes(&self) -> bool {
        self.writes_ordering >= WritesOrdering::Owner
    }
}

/// The driver's handle of a GPU.
pub(crate) fn handle(driver: &Driver, ordinal: u32) -> Result<CUdevice, CudaError> {
    let mut handle = 0;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: the driver is started, checks the number and stores one integer.
    let status = unsafe { (driver.api.device_get)(&raw mut handle, number) };
    driver.api.check("cuDeviceGet", status)?;
    Ok(handle)
}

fn ordering_of(number: u32) -> WritesOrdering {
    match number {
        0..100 => WritesOrdering::None,
        100..200 => WritesOrdering::Owner,
        _ => WritesOrdering::All,
    }
}

struct Query<'a> {
    driver: &'a Driver,
    handle: CUdevice,
}

impl Query<'_> {
    /// An attribute; 0 where the driver does not know it: then the device does not have it either.
    fn number(&self, attribute: Attribute) -> u32 {
        let mut value = 0;
        // SAFETY: the driver checks the attribute's number and the handle, and stores one integer.
        let status =
            unsafe { (self.driver.api.device_attribute)(&raw mut value, attribute as c_uint, self.handle) };
        if status == 0 { u32::try_from(value).unwrap_or(0) } else { 0 }
    }

    fn flag(&self, attribute: Attribute) -> bool {
        self.number(attribute) != 0
    }

    fn name(&self) -> Result<String, CudaError> {
        self.text("cuDeviceGetName", self.driver.api.device_name)
    }

    fn pci(&self) -> Result<String, CudaError> {
        // The driver writes hexadecimal capitals; sysfs has none.
        Ok(self.text("cuDeviceGetPCIBusId", self.driver.api.device_pci)?.to_ascii_lowercase())
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> c_int,
    ) -> Result<String, CudaError> {
        const ROOM: usize = 128;
        let mut text = [0u8; ROOM];
        // SAFETY: the driver writes at most ROOM bytes, the last a NUL.
        let status = unsafe { function(text.as_mut_ptr().cast(), ROOM as c_int, self.handle) };
        self.driver.api.check(call, status)?;
        Ok(CStr::from_bytes_until_nul(&text)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default())
    }

    fn uuid(&self) -> Result<String, CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the driver stores 16 bytes.
        let status = unsafe { (self.driver.api.device_uuid)(&raw mut uuid, self.handle) };
        self.driver.api.check("cuDeviceGetUuid", status)?;
        Ok(uuid_text(uuid.bytes.map(|byte| byte.cast_unsigned())))
    }

    fn bytes(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        // SAFETY: the driver stores one size.
        let status = unsafe { (self.driver.api.device_bytes)(&raw mut bytes, self.handle) };
        self.driver.api.check("cuDeviceTotalMem", status)?;
        Ok(bytes as u64)
    }

    /// sysfs first: the driver's answer is newer than some drivers, and 0 where there is one node only.
    fn numa_node(&self, pci: &PciAddress) -> Option<u32> {
        let path = format!("/sys/bus/pci/devices/{}/numa_node", sysfs_name(&pci.0));
        match fs::read_to_string(path) {
            // -1: the machine does not say.
            Ok(text) => text.trim().parse().ok(),
            Err(_) => None,
        }
    }
}

/// sysfs has four digits for the domain; the driver may write eight.
fn sysfs_name(pci: &str) -> String {
    match pci.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => format!("{}:{rest}", &domain[domain.len() - 4..]),
        _ => pci.to_owned(),
    }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderings_by_their_numbers() {
        assert_eq!(ordering_of(0), WritesOrdering::None);
        assert_eq!(ordering_of(100), WritesOrdering::Owner);
        assert_eq!(ordering_of(200), WritesOrdering::All);
        assert!(WritesOrdering::All > WritesOrdering::Owner);
    }

    #[test]
    fn addresses_and_identities_as_the_tools_write_them() {
        assert_eq!(sysfs_name("00000000:8c:00.0"), "0000:8c:00.0");
        assert_eq!(sysfs_name("0000:8c:00.0"), "0000:8c:00.0");
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(uuid_text(bytes), "GPU-12345678-9abc-def0-0102-030405060708");
    }
}
