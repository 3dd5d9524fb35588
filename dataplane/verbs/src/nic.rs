//! A port of a device as a node uses it: one protection domain, one address, one path MTU.

use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::Library;

use crate::device::{Device, PortState};
use crate::domain::Domain;
use crate::error::VerbsError;
use crate::gid::{self, GidEntry};
use crate::queue_pair::Patience;

/// What an operator says of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicConfig {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Bytes of payload of a packet at most; the link and the peer may have less.
    pub mtu_bytes: u32,
    /// The IP traffic class: DSCP << 2 | ECN.
    pub traffic_class: u8,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// Index of InfiniBand's partition key; 0 on RoCE.
    pub partition_index: u16,
    /// Reads that a connection makes, and serves, at a time; the devices may have less.
    pub reads_max: u8,
    /// How patient its connections are.
    pub patience: Patience,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            device: String::new(),
            port: 1,
            mtu_bytes: 4096,
            traffic_class: 0,
            service_level: 0,
            partition_index: 0,
            reads_max: 16,
            patience: Patience::default(),
        }
    }
}

/// A port that is ready for use. Everything here is for registrar threads.
#[derive(Debug)]
pub struct Nic {
    domain: Arc<Domain>,
    config: NicConfig,
    now: Mutex<(PortState, GidEntry)>,
}

impl Nic {
    /// Opens the device, checks that the port is up, chooses an address.
    ///
    /// # Errors
    /// Those of [`Device::open`]; [`VerbsError::PortDown`], [`VerbsError::NoGid`].
    pub fn open(library: &'static Library, config: NicConfig) -> Result<Arc<Self>, VerbsError> {
        let device = Device::open(library, &config.device)?;
        let domain = Domain::new(&device)?;
        let now = Mutex::new(look(&domain, &config)?);
        Ok(Arc::new(Self { domain, config, now }))
    }

    /// Looks at port and addresses again, after an event said that they changed. Connections that are up stay; new ones
    /// use what is found now.
    ///
    /// # Errors
    /// As [`Self::open`]; then the earlier state stands.
    pub fn refresh(&self) -> Result<(), VerbsError> {
        let found = look(&self.domain, &self.config)?;
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }

    /// The port as it was when last looked at.
    #[must_use]
    pub fn port(&self) -> PortState {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// The address in use.
    #[must_use]
    pub fn gid(&self) -> GidEntry {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Bytes of payload of a packet that this end allows.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        self.port().mtu_bytes.min(self.config.mtu_bytes).max(256)
    }

    /// The domain that memory for this NIC is registered in.
    #[must_use]
    pub const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// What the operator said.
    #[must_use]
    pub const fn config(&self) -> &NicConfig {
        &self.config
    }
}

fn look(domain: &Domain, config: &NicConfig) -> Result<(PortState, GidEntry), VerbsError> {
    let device = domain.device();
    let state = device.port(config.port)?;
    if !state.is_active {
        return Err(VerbsError::PortDown {
            name: device.name().into(),
            port: config.port,
            state: state.state,
        });
    }
    Ok((state, gid::choose(domain, config.port)?))
}
