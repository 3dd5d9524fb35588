//! Devices and their ports.

use core::ffi::{c_char, c_int};
use core::ptr::NonNull;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rdma_core_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE, IBV_PORT_ARMED, IBV_PORT_DOWN,
    IBV_PORT_INIT, Library, ibv_context, ibv_device, ibv_device_attr, ibv_port_attr,
};

use crate::error::{VerbsError, check};

/// A device as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its folder in sysfs, such as `/sys/class/infiniband/mlx5_0`.
    pub sysfs: PathBuf,
    /// Its GUID.
    pub guid: u64,
}

/// The devices of this node, in the kernel's order; none is an empty list.
///
/// # Errors
/// [`VerbsError::NoRdma`].
pub fn list(library: &'static Library) -> Result<Vec<DeviceEntry>, VerbsError> {
    let list = DeviceList::new(library)?;
    let entry = |device: NonNull<ibv_device>| {
        // SAFETY: an entry of a live list: its names are C strings in arrays of their own, which end with a zero.
        let (name, sysfs) = unsafe {
            let device = device.as_ref();
            (text(&device.name), text(&device.ibdev_path))
        };
        // SAFETY: an entry of a live list.
        let guid = u64::from_be(unsafe { (library.ibv_get_device_guid)(device.as_ptr()) });
        DeviceEntry { name, sysfs: sysfs.into(), guid }
    };
    Ok(list.iter().map(entry).collect())
}

fn text(bytes: &[c_char]) -> String {
    let bytes = bytes.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8(bytes).unwrap_or_default()
}

/// What `ibv_get_device_list` gave.
struct DeviceList {
    library: &'static Library,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new(library: &'static Library) -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: `count` can be written.
        let first = unsafe { (library.ibv_get_device_list)(&mut count) };
        let first = NonNull::new(first).ok_or_else(|| VerbsError::NoRdma(io::Error::last_os_error()))?;
        Ok(Self { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<ibv_device>> {
        // SAFETY: the list has `count` entries, and lives as long as `self`.
        (0..self.count).filter_map(|at| NonNull::new(unsafe { *self.first.as_ptr().add(at) }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and was not freed before; opened devices keep their own reference.
        unsafe { (self.library.ibv_free_device_list)(self.first.as_ptr()) };
    }
}

/// What a device can do at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Work requests of one queue.
    pub queue_depth: u32,
    /// Entries of one completion queue.
    pub completions: u32,
    /// Memory registrations.
    pub regions: u64,
    /// Bytes of one registration.
    pub region_bytes: u64,
    /// Reads that one queue pair serves at a time.
    pub reads_served: u8,
    /// Reads that one queue pair makes at a time.
    pub reads_made: u8,
    /// Ports.
    pub ports: u8,
}

/// A port as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortState {
    /// `down`, `init`, `armed`, `active` or `unknown`.
    pub state: &'static str,
    /// Whether it carries traffic.
    pub is_active: bool,
    /// Bytes of payload of a packet, as the link allows now: 256 to 4096.
    pub mtu_bytes: u32,
    /// Bytes of one message at most.
    pub message_bytes_max: u32,
    /// RoCE, so that peers are addressed by GID.
    pub is_ethernet: bool,
    /// InfiniBand's local address; 0 on RoCE.
    pub lid: u16,
    /// Entries of the GID table.
    pub gids: u32,
}

/// Largest payload of a packet in bytes for one of C's MTU codes (1 to 5); 0 for another.
pub(crate) const fn mtu_bytes(code: u32) -> u32 {
    if code >= 1 && code <= 5 { 128 << code } else { 0 }
}

/// The MTU code for the largest payload of at most `bytes`, at least 1.
pub(crate) const fn mtu_code(bytes: u32) -> u32 {
    let mut code = 5;
    while code > 1 && mtu_bytes(code) > bytes {
        code -= 1;
    }
    code
}

/// An open device. Closed when the last owner drops it; whatever is made on it holds one.
#[derive(Debug)]
pub struct Device {
    pub(crate) library: &'static Library,
    pub(crate) context: NonNull<ibv_context>,
    name: String,
    sysfs: PathBuf,
    limits: DeviceLimits,
}

// SAFETY: libibverbs locks what calls on one context share; the context is closed only by the last owner's drop.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device by name. Slow.
    ///
    /// # Errors
    /// [`VerbsError::NoRdma`], [`VerbsError::DeviceUnknown`], [`VerbsError::DeviceDenied`], or that of the query.
    pub fn open(library: &'static Library, name: &str) -> Result<Arc<Self>, VerbsError> {
        let entries = list(library)?;
        let devices = DeviceList::new(library)?;
        let unknown = || VerbsError::DeviceUnknown {
            name: name.into(),
            found: entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        // SAFETY: an entry of a live list.
        let is_it = |device: &NonNull<ibv_device>| text(unsafe { &device.as_ref().name }) == name;
        let found = devices.iter().find(is_it).ok_or_else(unknown)?;
        let sysfs = entries.iter().find(|entry| entry.name == name).ok_or_else(unknown)?.sysfs.clone();
        // SAFETY: an entry of a live list.
        let context = unsafe { (library.ibv_open_device)(found.as_ptr()) };
        let Some(context) = NonNull::new(context) else {
            return Err(VerbsError::DeviceDenied { name: name.into(), error: io::Error::last_os_error() });
        };
        let mut device = Self { library, context, name: name.into(), sysfs, limits: DeviceLimits::default() };
        device.limits = device.query()?;
        Ok(Arc::new(device))
    }

    fn query(&self) -> Result<DeviceLimits, VerbsError> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { core::mem::zeroed() };
        // SAFETY: a live context and room for the attributes.
        let code = unsafe { (self.library.ibv_query_device)(self.context.as_ptr(), &mut attr) };
        check("ibv_query_device", &self.name, code)?;
        let count = |value: c_int| u32::try_from(value).unwrap_or(0);
        let byte = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        Ok(DeviceLimits {
            queue_pairs: count(attr.max_qp).into(),
            queue_depth: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
            regions: count(attr.max_mr).into(),
            region_bytes: attr.max_mr_size,
            reads_served: byte(attr.max_qp_rd_atom),
            reads_made: byte(attr.max_qp_init_rd_atom),
            ports: attr.phys_port_cnt,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder in sysfs.
    #[must_use]
    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// What it can do at most.
    #[must_use]
    pub const fn limits(&self) -> DeviceLimits {
        self.limits
    }

    /// Reads the state of a port, counted from 1.
    ///
    /// # Errors
    /// That of `ibv_query_port`.
    pub fn port(&self, port: u8) -> Result<PortState, VerbsError> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { core::mem::zeroed() };
        // SAFETY: the context is live and of this library.
        let code = unsafe { self.library.query_port(self.context.as_ptr(), port, &mut attr) };
        check("ibv_query_port", &self.name, code)?;
        let state = match attr.state {
            IBV_PORT_DOWN => "down",
            IBV_PORT_INIT => "init",
            IBV_PORT_ARMED => "armed",
            IBV_PORT_ACTIVE => "active",
            _ => "unknown",
        };
        Ok(PortState {
            state,
            is_active: attr.state == IBV_PORT_ACTIVE,
            mtu_bytes: mtu_bytes(attr.active_mtu),
            message_bytes_max: attr.max_msg_sz,
            is_ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET
                || (attr.link_layer != IBV_LINK_LAYER_INFINIBAND && attr.lid == 0),
            lid: attr.lid,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
        })
    }

    /// NUMA node that the device is attached to; `None` where the system does not say.
    ///
    /// A PCI device says so itself; a software device through the network interface that it stands on.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        numa_node(&self.sysfs)
    }
}

/// NUMA node of the device with this sysfs folder.
fn numa_node(sysfs: &Path) -> Option<u32> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let own = read(sysfs.join("device/numa_node"));
    let parent = || {
        let parent = std::fs::read_to_string(sysfs.join("parent")).ok()?;
        let interface = Path::new("/sys/class/net").join(parent.trim()).join("device");
        read(interface.join("numa_node")).or_else(|| read(interface.join("../numa_node")))
    };
    own.or_else(parent).and_then(|node| u32::try_from(node).ok())
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing made on the device is left: each holds an owner. A refusal changes nothing that we could mend.
        unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::{mtu_bytes, mtu_code, numa_node};

    #[test]
    fn mtu_codes_and_bytes_agree() {
        assert_eq!([0, 1, 3, 5, 6].map(mtu_bytes), [0, 256, 1024, 4096, 0]);
        assert_eq!([0, 256, 1023, 1024, 4096, 9000].map(mtu_code), [1, 1, 2, 3, 5, 5]);
    }

    #[test]
    fn numa_node_is_the_devices_own_or_unknown() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(numa_node(folder.path()), None);
        std::fs::create_dir(folder.path().join("device")).unwrap();
        std::fs::write(folder.path().join("device/numa_node"), "1\n").unwrap();
        assert_eq!(numa_node(folder.path()), Some(1));
        std::fs::write(folder.path().join("device/numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(folder.path()), None);
    }
}
