//! RDMA: which NICs this node uses, what is registered with them, and how lanes get their queue pairs.
//!
//! Opened once at start, before the lanes. Each lane then gets a rail on every NIC, with its staging arena registered, and
//! a fabric over them that it takes with it. From there on everything here is slow and belongs to registrar threads:
//! regions are registered through a cache and a budget, connections are prepared and connected, and what lanes have done
//! with comes home to be dropped.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use railhead_abi::Code;
use railhead_abi::frame::ACCESS_WRITE;
use railhead_config::{Rdma as RdmaConfig, UseRdma};
use railhead_core::port::{ConnectionIndex, RegionIndex};
use railhead_shm::OwnedSpan;
use railhead_verbs::{
    CacheKey, Closer, ConnectionSizes, Endpoint, Lease, Library, MemoryAccess, MemoryRegion, Nic, NicConfig,
    PinBudget, RAILS_MAX, Rail, RegionEntry, RegistrationCache, RemoteMemory, VerbsConfig, VerbsError,
    VerbsFabric,
};

use crate::error::StartError;
use crate::lane::connections::Map;
use crate::tables::REGIONS;

mod watch;

/// Registrations that are kept.
const CACHE_ENTRIES_MAX: usize = 4096;
/// Memory keys that regions may have at most, so that a client that registers much leaves some to others.
const KEYS_MAX: u64 = 64 * 1024;
/// Memory files that are told apart.
const FILES_MAX: usize = 8192;
/// Sizes of each connection.
const SIZES: ConnectionSizes = ConnectionSizes { posts_max: 128, records_max: 256, receives: 258 };

/// What a start with RDMA came to.
#[derive(Debug)]
pub(crate) enum Opened {
    /// It is switched off.
    Off,
    /// There is nothing to use, and why.
    Absent(VerbsError),
    /// These are used.
    Open(Arc<Rdma>),
}

/// Memory registered with every NIC, in the order of rails. One unit of the cache, so that all rails name one mapping.
type Registrations = Vec<Arc<MemoryRegion>>;

/// The rails of a lane and its registered arena.
#[derive(Debug)]
struct LaneRails {
    rails: Vec<Arc<Rail>>,
    arena: RemoteMemory,
    /// Deregistered when the node stops, after the lane's queue pairs are gone.
    _registrations: Registrations,
}

/// A region's registration with every NIC.
#[derive(Debug)]
pub(crate) struct Registered {
    /// For the lanes.
    pub(crate) entry: RegionEntry,
    /// For peers that open it; its epoch is the region's generation.
    pub(crate) remote: RemoteMemory,
    /// Of a region that others can open: what its registration is kept as, for nobody else and not beyond its end.
    own: Option<u64>,
    /// Dropped when no lane has the region any more.
    _lease: Lease<Registrations>,
}

impl Registered {
    /// As peers name it by the key of a region of this generation.
    pub(crate) const fn of_generation(mut self, generation: u32) -> Self {
        self.remote.epoch = generation;
        self
    }
}

/// What tells a memory file apart from every other while its registrations are kept: they keep it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileIdentity {
    session: u32,
    device: u64,
    inode: u64,
}

/// The NICs of this node.
#[derive(Debug)]
pub(crate) struct Rdma {
    nics: Vec<Arc<Nic>>,
    lanes: Vec<OnceLock<LaneRails>>,
    relaxed_ordering: bool,
    pinned_bytes_max: u64,
    cache: RegistrationCache<Registrations>,
    budget: Arc<PinBudget>,
    identities: Mutex<(u64, HashMap<FileIdentity, u64>)>,
    // After what it ends.
    closer: Arc<Closer>,
}

impl Rdma {
    /// Opens what the configuration names, or every port that carries traffic.
    ///
    /// # Errors
    /// Only where the configuration requires RDMA, or names a device that cannot be used.
    pub(crate) fn open(config: &RdmaConfig, lanes: usize) -> Result<Opened, StartError> {
        if config.use_rdma == UseRdma::Off {
            return Ok(Opened::Off);
        }
        match open_nics(config) {
            Ok(nics) => Self::over(config, nics, lanes).map(|rdma| Opened::Open(Arc::new(rdma))),
            Err(error) if config.use_rdma == UseRdma::Auto && config.devices.is_empty() => {
                Ok(Opened::Absent(error))
            }
            Err(error) => {
                let field = if config.devices.is_empty() { "rdma.use" } else { "rdma.devices" };
                Err(StartError::new(Code::RdmaAbsent, field, error))
            }
        }
    }

    fn over(config: &RdmaConfig, nics: Vec<Arc<Nic>>, lanes: usize) -> Result<Self, StartError> {
        let closer = Closer::start()
            .map_err(|error| StartError::new(Code::DeviceError, "thread verbs-closer", error))?;
        let budget = PinBudget::new(config.pinned_bytes_max, KEYS_MAX);
        Ok(Self {
            nics,
            lanes: (0..lanes).map(|_| OnceLock::new()).collect(),
            relaxed_ordering: config.relaxed_ordering,
            pinned_bytes_max: config.pinned_bytes_max,
            cache: RegistrationCache::new(CACHE_ENTRIES_MAX, config.pinned_bytes_max, Arc::clone(&budget)),
            budget,
            identities: Mutex::default(),
            closer,
        })
    }

    /// The NICs, in the order of rails.
    pub(crate) fn nics(&self) -> &[Arc<Nic>] {
        &self.nics
    }

    /// Rails that every lane has: 0 until all lanes have registered their arenas.
    pub(crate) fn rails(&self) -> usize {
        if self.lanes.iter().all(|lane| lane.get().is_some()) { self.nics.len() } else { 0 }
    }

    /// Bytes and keys that regions have pinned.
    pub(crate) fn pinned(&self) -> (u64, u64) {
        self.budget.taken()
    }

    /// The fabric of a lane, with its arena registered. Called by the lane's thread before its seal.
    ///
    /// # Errors
    /// What the device or the limit of pinned memory refuses: the lane goes without.
    pub(crate) fn lane(
        &self,
        lane: usize,
        arena: &OwnedSpan,
        pool_epoch: u32,
        map: Map,
    ) -> Result<VerbsFabric, VerbsError> {
        let connections = u16::try_from(map.rdma()).unwrap_or(u16::MAX);
        let mut rails = Vec::new();
        let mut registrations = Vec::new();
        let access = MemoryAccess::granting(ACCESS_WRITE, self.relaxed_ordering);
        for nic in &self.nics {
            // A completion queue is made for as many connections as the device lets it hold; more are refused when made.
            let most = nic.device().limits().completions / SIZES.completions();
            let room = u32::from(connections).min(most.saturating_sub(1)).max(1);
            rails.push(Rail::new(nic, &self.closer, room, SIZES)?);
            registrations.push(MemoryRegion::register(nic.domain(), arena, access)?);
        }
        let config = VerbsConfig {
            first: ConnectionIndex(u16::try_from(map.rdma_first()).unwrap_or(u16::MAX)),
            connections,
            regions: REGIONS as u32,
            peers: u8::try_from(map.peers() + 1).unwrap_or(u8::MAX),
            regions_of_peer: REGIONS as u32,
            ..VerbsConfig::default()
        };
        let mut fabric = VerbsFabric::new(config, &rails);
        let borrowed: Vec<&MemoryRegion> = registrations.iter().map(|region| &**region).collect();
        drop(fabric.install(RegionIndex::ARENA, RegionEntry::of_host(arena, &borrowed)));
        let arena = RemoteMemory {
            epoch: pool_epoch,
            access: ACCESS_WRITE,
            address: arena.address() as u64,
            bytes: arena.len() as u64,
            keys: remote_keys(&registrations),
        };
        let set = self.lanes[lane].set(LaneRails { rails, arena, _registrations: registrations });
        debug_assert!(set.is_ok(), "a lane is set up once");
        Ok(fabric)
    }

    /// The arena of a lane, as peers write it.
    pub(crate) fn arena(&self, lane: usize) -> Option<RemoteMemory> {
        Some(self.lanes.get(lane)?.get()?.arena)
    }

    /// This node's end of a connection of a lane on one of its rails.
    ///
    /// # Errors
    /// What the device refuses.
    pub(crate) fn prepare(
        &self,
        lane: usize,
        rail: usize,
        connection: ConnectionIndex,
    ) -> Result<Endpoint, VerbsError> {
        let rails = self.lanes.get(lane).and_then(OnceLock::get);
        let rail = rails.and_then(|lane| lane.rails.get(rail));
        rail.ok_or(VerbsError::Peer("no such lane or rail"))?.prepare(connection)
    }

    /// Registers a region's memory. `None` if the budget is used up by what is in use.
    ///
    /// A region that others can open gets keys of its own, which end with it: whoever held one can do nothing with it
    /// afterwards. What nobody else can open gets keys without rights for peers, which are kept and found again when the
    /// same part of the same file is registered again.
    ///
    /// # Errors
    /// What a device refuses.
    pub(crate) fn register(
        &self,
        session: u32,
        file: impl AsFd,
        offset: u64,
        span: &OwnedSpan,
        access: u32,
        is_open: bool,
    ) -> Result<Option<Registered>, VerbsError> {
        let memory = if is_open { Some(self.next_identity()) } else { self.identity(session, file) };
        let Some(memory) = memory else { return Ok(None) };
        let granting = MemoryAccess::granting(access, self.relaxed_ordering);
        let access_flags = if is_open {
            granting
        } else {
            MemoryAccess { remote_write: false, remote_read: false, ..granting }
        };
        let key = CacheKey { memory, offset, bytes: span.len() as u64, access: access_flags, rail: 0 };
        let lease = self.cache.get(key, || {
            // The registrations keep the mapping: a later region of the same bytes uses that, not its own.
            let all = self.nics.iter().map(|nic| MemoryRegion::register(nic.domain(), span, access_flags));
            all.collect::<Result<Registrations, VerbsError>>()
        })?;
        Ok(lease.map(|lease| registered(span, access, is_open.then_some(memory), lease)))
    }

    /// Gives up the registration of a region that no lane has any more. A key that others had is of no use from here on.
    pub(crate) fn give_up(&self, registered: Registered) {
        let own = registered.own;
        drop(registered);
        if let Some(memory) = own {
            self.cache.invalidate(memory);
        }
    }

    /// Gives up what is kept of a session's memory: it has ended.
    pub(crate) fn forget_session(&self, session: u32) {
        let gone: Vec<u64> = {
            let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
            identities.1.extract_if(|file, _| file.session == session).map(|(_, memory)| memory).collect()
        };
        for memory in gone {
            self.cache.invalidate(memory);
        }
    }

    fn next_identity(&self) -> u64 {
        let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        identities.0 += 1;
        identities.0
    }

    /// A number for a memory file, its own as long as registrations of it are kept: they keep the file alive.
    fn identity(&self, session: u32, file: impl AsFd) -> Option<u64> {
        let stat = rustix::fs::fstat(file).ok()?;
        let identity = FileIdentity { session, device: stat.st_dev, inode: stat.st_ino };
        let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, known) = &mut *identities;
        if known.len() >= FILES_MAX && !known.contains_key(&identity) {
            // Most of them are of files that are long gone. What is in use stays registered, it is only not found again.
            for (_, memory) in known.drain() {
                self.cache.invalidate(memory);
            }
        }
        Some(*known.entry(identity).or_insert_with(|| {
            *last += 1;
            *last
        }))
    }
}

fn registered(span: &OwnedSpan, access: u32, own: Option<u64>, lease: Lease<Registrations>) -> Registered {
    // The registrations may be of an earlier mapping of these bytes: posts name that.
    let address = lease.first().map_or(0, |registration| registration.address());
    let (bytes, keys) = (span.len() as u64, remote_keys(&lease));
    let registrations: Vec<&MemoryRegion> = lease.iter().map(|registration| &**registration).collect();
    Registered {
        entry: RegionEntry { address, ..RegionEntry::of_host(span, &registrations) },
        remote: RemoteMemory { epoch: 0, access, address, bytes, keys },
        own,
        _lease: lease,
    }
}

fn remote_keys(registrations: &[Arc<MemoryRegion>]) -> [u32; RAILS_MAX] {
    let mut keys = [0; RAILS_MAX];
    for (key, registration) in keys.iter_mut().zip(registrations) {
        *key = registration.remote_key();
    }
    keys
}

/// Opens the configured NICs, or all whose port carries traffic.
fn open_nics(config: &RdmaConfig) -> Result<Vec<Arc<Nic>>, VerbsError> {
    let library = Library::open(None)?;
    let open = |device: &str| {
        let nic = NicConfig {
            device: device.to_owned(),
            traffic_class: config.traffic_class,
            ..NicConfig::default()
        };
        Nic::open(library, nic)
    };
    if !config.devices.is_empty() {
        return config.devices.iter().take(RAILS_MAX).map(|device| open(device)).collect();
    }
    let mut nics = Vec::new();
    let mut first = None;
    for device in railhead_verbs::list(library)?.into_iter().take(RAILS_MAX) {
        match open(&device.name) {
            Ok(nic) => nics.push(nic),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    match first {
        Some(error) if nics.is_empty() => Err(error),
        _ if nics.is_empty() => {
            Err(VerbsError::DeviceUnknown { name: "at all".to_owned(), found: "none".to_owned() })
        }
        _ => Ok(nics),
    }
}
