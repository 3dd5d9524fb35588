//! How far two PCI devices are apart, from their paths in sysfs: what `nvidia-smi topo -m` prints.

use std::path::{Path, PathBuf};

use crate::device::Device;

/// From near to far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One bridge at most between them: `PIX`.
    OneBridge,
    /// Several bridges, and no host bridge: `PXB`.
    Bridges,
    /// The host bridge of one processor: `PHB`.
    HostBridge,
    /// Host bridges of one NUMA node: `NODE`.
    Node,
    /// Across NUMA nodes, or nobody knows: `SYS`.
    System,
}

impl Distance {
    /// The word that `nvidia-smi topo -m` has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneBridge => "PIX",
            Self::Bridges => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }
}

/// Where a device stands: its real path in sysfs, and its NUMA node if the system says one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Such as `/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0`.
    pub path: PathBuf,
    /// The NUMA node.
    pub node: Option<u32>,
}

impl Site {
    /// Of the device that this link of sysfs leads to, such as `/sys/bus/pci/devices/0000:3b:00.0`. A link that leads
    /// nowhere is far from everything.
    #[must_use]
    pub fn of(link: &Path, node: Option<u32>) -> Self {
        Self { path: std::fs::canonicalize(link).unwrap_or_default(), node }
    }

    /// How far it is to another device.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        let (near, far) = (pci_parts(&self.path), pci_parts(&other.path));
        let common = near.iter().zip(&far).take_while(|(a, b)| a == b).count();
        // What is left on each side: the device, and the bridges down to it.
        let left = (near.len() - common).max(far.len() - common);
        match common {
            0 if self.node.is_some() && self.node == other.node => Distance::Node,
            0 => Distance::System,
            1 => Distance::HostBridge,
            _ if left <= 2 => Distance::OneBridge,
            _ => Distance::Bridges,
        }
    }
}

/// The host bridge and the devices below it.
fn pci_parts(path: &Path) -> Vec<&str> {
    let parts = path.iter().filter_map(|part| part.to_str());
    parts.skip_while(|part| !part.starts_with("pci")).collect()
}

impl Device {
    /// Where the device stands. A software device stands nowhere on PCI, but may have a NUMA node.
    #[must_use]
    pub fn site(&self) -> Site {
        Site::of(&self.sysfs().join("device"), self.numa_node())
    }
}

#[cfg(test)]
mod tests {
    use super::{Distance, Site};

    fn site(path: &str, node: Option<u32>) -> Site {
        Site { path: format!("/sys/devices/{path}").into(), node }
    }

    #[test]
    fn distances_are_those_of_the_tree() {
        let nic = site("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0", Some(0));
        for (path, node, distance) in [
            // The other function of the same device, and another port of the same switch.
            ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.1", Some(0), Distance::OneBridge),
            ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3e:00.0", Some(0), Distance::OneBridge),
            // A switch behind a port of that switch.
            (
                "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:40:00.0/0000:41:00.0/0000:42:00.0",
                Some(0),
                Distance::Bridges,
            ),
            ("pci0000:3a/0000:3a:02.0/0000:50:00.0", Some(0), Distance::HostBridge),
            ("pci0000:5d/0000:5d:00.0/0000:5e:00.0", Some(0), Distance::Node),
            ("pci0000:d7/0000:d7:00.0/0000:d8:00.0", Some(1), Distance::System),
            ("pci0000:d7/0000:d7:00.0/0000:d8:00.0", None, Distance::System),
            ("virtual/net/va", Some(0), Distance::Node),
        ] {
            let other = site(path, node);
            assert_eq!(nic.distance(&other), distance, "{path}");
            assert_eq!(other.distance(&nic), distance, "{path}, the other way");
        }
        assert!(Distance::OneBridge < Distance::Bridges && Distance::Node < Distance::System);
    }

    #[test]
    fn what_is_unknown_is_far() {
        let nowhere = Site::of(std::path::Path::new("/sys/class/infiniband/none/device"), None);
        assert_eq!(nowhere.distance(&nowhere), Distance::System);
        assert_eq!(nowhere.distance(&nowhere).name(), "SYS");
    }

    #[test]
    fn a_flat_tree_of_a_virtual_machine_has_one_host_bridge() {
        let (nic, gpu) = (site("pci0000:00/0000:00:05.0", None), site("pci0000:00/0000:00:06.0", None));
        assert_eq!(nic.distance(&gpu), Distance::HostBridge);
    }
}
