//! Regions: memory files of clients, from the check of their seals to their unmapping.

use std::os::fd::OwnedFd;

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE, Handle, Register, Text};
use railhead_abi::observe::EventCode;
use railhead_core::port::RegionIndex;
use railhead_core::tables::RegionInfo;
use railhead_shm::guard::{self, GuardError};
use railhead_shm::memfd::{self, Facts, HUGE_PAGE_BYTES, MemfdError};
use railhead_shm::{Access, MapError, Mapping, OwnedSpan};

use super::{Registrar, named};
use crate::grants::Grant;
use crate::lane::mail::Command;
use crate::rdma::Registered;
use crate::tables::{RegionEntry, RegionState, SELF};

/// A client's wish to register, and the file that came with it.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The frame.
    pub(crate) frame: Register,
    /// Its one descriptor.
    pub(crate) file: OwnedFd,
}

/// A refusal and the field or cause that it is about.
pub(crate) type Refusal = (Code, String);

impl Registrar {
    /// Registers a region of `session`: afterwards every lane has it and others can open it.
    pub(crate) fn register(&self, session: u32, registration: &Registration) -> Result<Handle, Refusal> {
        let frame = &registration.frame;
        let known_access = ACCESS_READ | ACCESS_WRITE;
        if frame.access == 0 || frame.access & !known_access != 0 {
            return Err((Code::FrameMalformed, "access".to_owned()));
        }
        let (name, grant) = (Text::of(&frame.name), Text::of(&frame.grant));
        let grant = Grant::parse(grant.as_str()).map_err(|code| (code, "grant".to_owned()))?;
        let facts = check(registration)?;
        let page_bytes = facts.page_bytes as u64;
        let added = self.with_name(|tables| tables.add_region(coming(session, frame, &grant, page_bytes)));
        let (index, generation) = added.map_err(|code| match code {
            Code::QuotaExceeded | Code::RegionsFull => (code, "regions or their bytes".to_owned()),
            _ => (code, "name".to_owned()),
        })?;
        // Mapped once its bytes are counted: nobody makes this process map more than the tables allow.
        let span = map(registration, &facts).inspect_err(|_| {
            self.tables().remove_region(index);
            self.ended.notify_all();
        })?;
        let (rdma, direct_possible) = match self.register_with_nics(session, registration, &span) {
            Ok(registered) => (registered, true),
            Err(cause) => {
                self.emit(
                    named(EventCode::RegionDemoted, format!("{}: {cause}", name.as_str()).as_str())
                        .figures(frame.bytes, self.rdma.as_ref().map_or(0, |rdma| rdma.pinned().0)),
                );
                (None, false)
            }
        };
        let rdma = rdma.map(|registered| registered.of_generation(generation));
        let nic_entry = rdma.as_ref().map(|registered| registered.entry.clone());
        self.tables().region_mapped(index, span.clone(), direct_possible, rdma);
        let info = RegionInfo {
            generation,
            bytes: frame.bytes,
            access: frame.access,
            session,
            flush: false,
            direct_possible,
            peers: 1 << SELF,
            readers: 1 << SELF,
        };
        let all = self.all_lanes();
        self.tables().region_lanes(index, |lanes| *lanes = all);
        let region = RegionIndex(index);
        let install =
            |_| Command::InstallRegion { region, info, span: span.clone(), rdma: nic_entry.clone() };
        let (lanes, installed) = self.lanes.ask_all(install);
        if let Err(code) = installed {
            self.tables().region_lanes(index, |has| *has &= lanes);
            self.remove_region(index);
            return Err((code, "a lane did not take the region".to_owned()));
        }
        self.tables().region_ready(index);
        self.emit(named(EventCode::RegionRegistered, name.as_str()).figures(frame.bytes, page_bytes));
        // What is smaller than a hugepage has nothing to step down from.
        if page_bytes < HUGE_PAGE_BYTES as u64 && frame.bytes >= HUGE_PAGE_BYTES as u64 {
            self.emit(named(EventCode::RegionSteppedDown, name.as_str()).figures(frame.bytes, page_bytes));
        }
        Ok(Handle { index, generation, bytes: frame.bytes, page_bytes, peer: u32::MAX, session })
    }

    /// Registers a region's memory with the NICs, if there are any.
    ///
    /// # Errors
    /// Why it could not be: then its transfers are staged.
    fn register_with_nics(
        &self,
        session: u32,
        registration: &Registration,
        span: &OwnedSpan,
    ) -> Result<Option<Registered>, String> {
        let Some(rdma) = self.rdma.as_ref().filter(|rdma| rdma.rails() > 0) else { return Ok(None) };
        let (frame, file) = (&registration.frame, &registration.file);
        let is_open = !Text::of(&frame.name).as_str().is_empty();
        match rdma.register(session, file, frame.offset, span, frame.access, is_open) {
            Ok(Some(registered)) => Ok(Some(registered)),
            Ok(None) => Err("rdma.pinned_bytes_max is used up".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Deregisters a region on its owner's wish.
    pub(crate) fn deregister(&self, session: u32, index: u32, generation: u32) -> Result<(), Code> {
        self.tables().close_region(session, index, generation)?;
        self.ended.notify_all();
        self.revoke(index);
        self.take_from_lanes(index);
        // Transfers of the owner that still use it: it was told to wait for their completions.
        if !self.wait_until(super::RELEASE_MAX, |tables| {
            tables.region(index).is_none_or(|region| region.lanes == 0)
        }) {
            return Err(Code::RegionBusy);
        }
        self.forget_region(index);
        Ok(())
    }

    /// Ends a region whose owner is gone: waits for whatever still uses it.
    pub(super) fn remove_region(&self, index: u32) {
        self.revoke(index);
        self.take_from_lanes(index);
        self.wait_for_ever("region", |tables| tables.region(index).is_none_or(|region| region.lanes == 0));
        self.forget_region(index);
    }

    /// Has every holder give the region up; fences those that do not in time. Until all have, or can write no more, its key
    /// is not given to another region.
    fn revoke(&self, index: u32) {
        let (key, peers) = {
            let tables = self.tables();
            let Some(region) = tables.region(index) else { return };
            (tables.key(index), region.holds.keys().copied().collect::<Vec<_>>())
        };
        let limit = self.current.revoke_max();
        let until = std::time::Instant::now() + limit;
        // Remote nodes first: they drain while this node's own handles are taken back.
        let others = peers.iter().copied().filter(|peer| *peer != SELF);
        let asked: Vec<_> = others.map(|peer| (peer, self.peers.revoke(peer, key, limit))).collect();
        if peers.contains(&SELF) {
            self.give_up_remotes(SELF, key, limit);
        }
        for (peer, given_up) in asked {
            let was_up = given_up.is_some();
            if given_up.is_none_or(|given_up| given_up.recv_deadline(until).is_err()) {
                self.fence(peer, was_up);
            }
            while self.tables().region(index).is_some_and(|region| region.holds.contains_key(&peer)) {
                self.tables().unhold(key, peer);
            }
        }
        // Engine and adapters refuse a stray write by the same mask, so none comes in while the region drains.
        if peers.iter().any(|peer| *peer != SELF) {
            self.withdraw_right(key);
        }
    }

    /// Makes sure that nothing of a peer can write here any more: its data connections end. It may make new ones. One that
    /// is not connected could not be asked, and its connections have ended, or are about to, for that.
    fn fence(&self, peer: u32, was_up: bool) {
        if was_up {
            let name = self.peers.get(peer).map(|peer| peer.name().to_owned()).unwrap_or_default();
            let event = named(EventCode::PeerFenced, &name).reason(Code::Revoked);
            self.emit(event.figures(u64::from(peer), 0));
        }
        if !self.peers.close_targets(peer, Code::Revoked) {
            tracing::error!(peer, "connections of a peer did not end in time");
        }
    }

    fn take_from_lanes(&self, index: u32) {
        let lanes = self.tables().region(index).map_or(0, |region| region.lanes);
        if lanes == 0 {
            return;
        }
        if let Err(code) = self.lanes.call_all(|_| Command::RemoveRegion { region: RegionIndex(index) }) {
            tracing::error!(code = code.name(), index, "a lane did not begin the end of a region");
        }
    }

    /// Says of each region whose memory was taken away that it was, once.
    pub(crate) fn report_losses(&self) {
        let losses = self.tables().take_losses();
        for (session, name) in losses {
            // Partner: the loads of whoever reads the counters.
            self.regions_lost[0].fetch_add_release(1);
            self.emit(named(EventCode::RegionLost, &name).figures(u64::from(session), 0));
        }
    }

    /// Unmaps a region that no lane has any more.
    fn forget_region(&self, index: u32) {
        // With the entry the loss would be forgotten.
        self.report_losses();
        // Out of the lock first: unmapping is slow.
        let removed = self.tables().remove_region(index);
        let Some(mut region) = removed else { return };
        if let (Some(rdma), Some(registered)) = (&self.rdma, region.rdma.take()) {
            rdma.give_up(registered);
        }
        self.emit(named(EventCode::RegionDeregistered, &region.name).figures(region.bytes, 0));
    }
}

/// A region that lanes do not have yet.
fn coming(session: u32, frame: &Register, grant: &Grant, page_bytes: u64) -> RegionEntry {
    RegionEntry {
        state: RegionState::Coming,
        session,
        name: Text::of(&frame.name).as_str().to_owned(),
        grant: grant.clone(),
        access: frame.access,
        bytes: frame.bytes,
        page_bytes,
        direct_possible: true,
        span: None,
        rdma: None,
        is_lost: false,
        holds: std::collections::HashMap::new(),
        lanes: 0,
    }
}

/// Checks a client's memory file and the part of it that shall be registered.
fn check(registration: &Registration) -> Result<Facts, Refusal> {
    let file = &registration.file;
    memfd::require_seals(file).map_err(|error| match error {
        MemfdError::System { .. } => refusal(Code::MappingFailed, error),
        _ => refusal(Code::SealsMissing, error),
    })?;
    let facts = memfd::facts(file).map_err(|error| refusal(Code::MappingFailed, error))?;
    check_range(&registration.frame, &facts)?;
    Ok(facts)
}

fn check_range(frame: &Register, facts: &Facts) -> Result<(), Refusal> {
    // A lane that touches a hole waits while the kernel clears a whole page: 1 GiB of it takes a tenth of a second.
    if facts.page_bytes > HUGE_PAGE_BYTES {
        return Err((
            Code::RegionSize,
            format!("pages above 2 MiB: the file has pages of {}", facts.page_bytes),
        ));
    }
    let is_inside = frame.offset.checked_add(frame.bytes).is_some_and(|end| end <= facts.bytes);
    if frame.bytes == 0 || !is_inside || !frame.offset.is_multiple_of(facts.page_bytes as u64) {
        let (offset, bytes, page) = (frame.offset, frame.bytes, facts.page_bytes);
        let cause = format!("offset {offset}, bytes {bytes}; the file has {}, its pages {page}", facts.bytes);
        return Err((Code::RegionSize, cause));
    }
    Ok(())
}

/// Maps the registered part of a client's memory file under the guard.
fn map(registration: &Registration, facts: &Facts) -> Result<OwnedSpan, Refusal> {
    let (frame, file) = (&registration.frame, &registration.file);
    let mapping = Mapping::of_sealed_part(file, frame.offset, frame.bytes, Access::ReadWrite)
        .map_err(|error: MapError| refusal(Code::MappingFailed, error))?;
    let guarded = guard::protect(&mapping).map_err(|error| match error {
        GuardError::Full => refusal(Code::RegionsFull, error),
        _ => refusal(Code::MappingFailed, error),
    })?;
    // A file that has all its pages is mapped through now, so that lanes do not fault. One with holes is left as it is,
    // so that registering takes no memory. Its owner can punch holes later, too: a lane that touches one takes a new page
    // for it there and then, zeroed, on the file's account; where there is none to be had, the guard ends the region.
    if is_populated(file, facts.bytes)
        && let Err(error) = mapping.populate()
    {
        return Err(refusal(Code::MappingFailed, error));
    }
    guarded.span().part(0, frame.bytes).map_err(|error| refusal(Code::RegionSize, error))
}

fn refusal(code: Code, cause: impl core::fmt::Display) -> Refusal {
    (code, cause.to_string())
}

/// Whether the file has all its pages.
fn is_populated(file: &OwnedFd, bytes: u64) -> bool {
    // st_blocks counts 512 bytes each, whatever the page.
    rustix::fs::fstat(file).is_ok_and(|stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512 >= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_would_stall_a_lane_are_refused() {
        let frame = Register { bytes: 4096, ..Register::default() };
        let facts = |page_bytes| Facts { bytes: 2 << 30, page_bytes, hugetlb: true };
        let refused = check_range(&frame, &facts(1 << 30)).unwrap_err();
        assert_eq!(refused.0, Code::RegionSize);
        assert!(refused.1.starts_with("pages above 2 MiB"), "{}", refused.1);
        check_range(&frame, &facts(HUGE_PAGE_BYTES)).unwrap();
    }
}
