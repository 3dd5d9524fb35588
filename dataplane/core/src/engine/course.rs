//! The way that a submission takes: who moves the bytes, on which connection, by which legs. A look at tables, no more.
//!
//! Legs are named by the flow of data: the send leg of a read is at the peer, its receive leg here.

use super::intake::within;
use super::{Engine, PEER_SELF, route};
use crate::port::{ConnectionIndex, CopyEngine, Fabric, Key, RegionIndex};
use crate::tables::{Kind, Leg, RegionInfo, RemoteInfo};
use core::ops::Deref;
use railhead_abi::Code;
use railhead_abi::frame::ACCESS_READ;
use railhead_abi::settings::Plan;
use railhead_abi::submission::{LEG_DIRECT, LEVEL_VISIBLE, OPERATION_READ, Submission};
use railhead_ring::Word;

/// What was decided for a submission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Course {
    pub(super) kind: Kind,
    pub(super) connection: ConnectionIndex,
    /// As asked for; of a read of this node's own memory, the other way round.
    pub(super) submission: Submission,
    pub(super) key: Key,
    pub(super) into: Option<RegionIndex>,
    pub(super) direct_there: bool,
    pub(super) send: Leg,
    pub(super) receive: Leg,
    pub(super) plan_generation: u64,
}

impl<F: Fabric, C: CopyEngine, M: Deref<Target = [Word]>> Engine<'_, F, C, M> {
    /// Decides how a checked submission goes.
    ///
    /// # Errors
    /// Those of [`route::choose`]; [`Code::RemoteHandleStale`] if a region of this node that would be read has gone.
    pub(super) fn course(&self, submission: &Submission, remote: &RemoteInfo) -> Result<Course, Code> {
        if submission.send_leg > LEG_DIRECT || submission.receive_leg > LEG_DIRECT {
            return Err(Code::RouteUnknown);
        }
        let local = self.regions[submission.local_index as usize].info;
        let direct_here = local.is_some_and(|info| info.direct_possible);
        let class = usize::from(submission.class);
        let send = Plan { direct_possible: direct_here, ..self.active.send };
        let receive = Plan { direct_possible: direct_here, ..self.active.receive };
        let bytes = submission.bytes;
        let course = Course {
            kind: Kind::Write,
            connection: remote.connections[class],
            submission: *submission,
            key: remote.key,
            into: None,
            direct_there: remote.plan.direct_possible,
            send: Leg::NONE,
            receive: Leg::NONE,
            plan_generation: remote.plan.generation,
        };
        if submission.operation != OPERATION_READ {
            return Ok(Course {
                send: route::choose(&send, submission.send_leg, bytes)?,
                receive: route::choose(&remote.plan, submission.receive_leg, bytes)?,
                ..course
            });
        }
        let course = Course {
            direct_there: direct_here,
            plan_generation: remote.read_plan.generation,
            receive: route::choose(&receive, submission.receive_leg, bytes)?,
            ..course
        };
        if remote.peer == PEER_SELF {
            return self.own_read(course);
        }
        if remote.one_sided {
            let send = route::choose(&remote.read_plan, submission.send_leg, bytes)?;
            if !send.staged {
                return Ok(Course { kind: Kind::Fetch, send, ..course });
            }
        }
        // The owner chooses its leg when it serves.
        let send = Leg { threshold: remote.read_plan.direct_from_bytes, ..Leg::NONE };
        Ok(Course { kind: Kind::Ask, connection: remote.readers[class], send, ..course })
    }

    /// A read of this node's own memory is the write the other way round.
    fn own_read(&self, course: Course) -> Result<Course, Code> {
        let asked = course.submission;
        let (source, info) = self
            .readable(course.key.index, course.key.epoch, asked.remote_offset, asked.bytes, PEER_SELF)
            .ok_or(Code::RemoteHandleStale)?;
        let submission = Submission {
            local_index: source.0,
            local_generation: info.generation,
            local_offset: asked.remote_offset,
            remote_offset: asked.local_offset,
            // What a read has brought can be seen.
            level: LEVEL_VISIBLE,
            ..asked
        };
        let send = Plan { direct_possible: info.direct_possible, ..self.active.send };
        Ok(Course {
            key: Key { index: asked.local_index, epoch: asked.local_generation },
            into: Some(RegionIndex(asked.local_index)),
            send: route::choose(&send, asked.send_leg, asked.bytes)?,
            submission,
            ..course
        })
    }

    /// The region that a peer may read at these bytes.
    pub(super) fn readable(
        &self,
        index: u32,
        epoch: u32,
        offset: u64,
        bytes: u64,
        peer: u32,
    ) -> Option<(RegionIndex, RegionInfo)> {
        let region = self.region_at(index)?;
        let entry = &self.regions[index as usize];
        let info = entry.info.filter(|info| !entry.is_closing && info.generation == epoch)?;
        let may = info.access & ACCESS_READ != 0 && peer < 64 && info.readers >> peer & 1 == 1;
        (may && within(offset, bytes, info.bytes)).then_some((region, info))
    }
}
