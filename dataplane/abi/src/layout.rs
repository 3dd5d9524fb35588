//! The table of all layouts and numbers, for comparing with the committed one.

use crate::codes::Code;
use crate::observe::{Counter, EventCode, EventEntry, Flight};
use crate::segment::{ControlShape, SessionShape};
use crate::settings::{FIELDS, LANE_CORE_WORD, SETTINGS_WORDS};
use crate::submission::Reason;
use crate::words::Layout;
use crate::{frame, record, segment, submission};
use core::fmt::{Result, Write};

fn write_layout<L: Layout>(out: &mut impl Write) -> Result {
    writeln!(out, "{} {} words", L::NAME, L::WORDS)?;
    for field in L::FIELDS {
        writeln!(out, "  {} word {} bit {} bits {}", field.name, field.word, field.shift, field.bits)?;
    }
    Ok(())
}

/// Writes every layout, offset and frozen number as text; its first line is `abi_version N`.
///
/// # Errors
/// Those of `out`.
pub fn write_table(out: &mut impl Write) -> Result {
    writeln!(out, "abi_version {}", crate::ABI_VERSION)?;
    writeln!(out, "protocol {}.{}", crate::PROTOCOL_MAJOR, crate::PROTOCOL_MINOR)?;
    write_layout::<submission::Submission>(out)?;
    write_layout::<submission::Completion>(out)?;
    write_layout::<submission::SessionEvent>(out)?;
    write_layout::<record::Chunk>(out)?;
    write_layout::<record::Part>(out)?;
    write_layout::<record::Fin>(out)?;
    write_layout::<record::Ack>(out)?;
    write_layout::<record::Credit>(out)?;
    write_layout::<record::Demand>(out)?;
    write_layout::<record::ReadRequest>(out)?;
    write_layout::<record::Plain>(out)?;
    write_frames(out)?;
    write_layout::<Flight>(out)?;
    write_layout::<EventEntry>(out)?;
    write_layout::<segment::ControlHeader>(out)?;
    write_layout::<segment::Prepared>(out)?;
    write_layout::<segment::PeerStatus>(out)?;
    write_layout::<segment::RailStatus>(out)?;
    write_layout::<segment::Registrations>(out)?;
    write_layout::<segment::LaneStatus>(out)?;
    write_layout::<segment::LaneRail>(out)?;
    write_layout::<segment::SessionHeader>(out)?;
    write_numbers(out)
}

fn write_frames(out: &mut impl Write) -> Result {
    write_layout::<frame::Prefix>(out)?;
    write_layout::<frame::Hello>(out)?;
    write_layout::<frame::Welcome>(out)?;
    write_layout::<frame::Register>(out)?;
    write_layout::<frame::Handle>(out)?;
    write_layout::<frame::Release>(out)?;
    write_layout::<frame::Open>(out)?;
    write_layout::<frame::Refused>(out)?;
    write_layout::<frame::Empty>(out)?;
    write_layout::<frame::AdminHello>(out)?;
    write_layout::<frame::AdminWelcome>(out)?;
    write_layout::<frame::AdminCommand>(out)?;
    write_layout::<frame::AdminAnswer>(out)?;
    write_layout::<frame::NodeHello>(out)?;
    write_layout::<frame::NodeOpen>(out)?;
    write_layout::<frame::NodeOpened>(out)?;
    write_layout::<frame::NodePlan>(out)?;
    write_layout::<frame::NodeClose>(out)?;
    write_layout::<frame::NodeRevoke>(out)?;
    write_layout::<frame::NodeEndpoint>(out)?;
    write_layout::<frame::DataHello>(out)
}

fn write_numbers(out: &mut impl Write) -> Result {
    let control = ControlShape { lanes: 3 };
    writeln!(out, "control segment of 3 lanes {} words, lane 1 at {}", control.words(), control.lane(1))?;
    let session = SessionShape { lanes: 3, ports: 2, entries: 64 };
    writeln!(
        out,
        "session of 3 lanes, 2 ports, 64 entries {} words, port 1 at {}",
        session.words(),
        session.port(1)
    )?;
    writeln!(out, "settings {SETTINGS_WORDS} words, lanes at {LANE_CORE_WORD}")?;
    for setting in FIELDS {
        writeln!(out, "  setting {} {}", *setting as usize, setting.info().name)?;
    }
    for code in Code::ALL {
        writeln!(out, "  code {} {}", code.number(), code.name())?;
    }
    for reason in Reason::ALL {
        writeln!(out, "  reason {} {}", *reason as u8, reason.name())?;
    }
    for event in EventCode::ALL {
        writeln!(out, "  event {} {}", *event as u16, event.name())?;
    }
    for counter in Counter::ALL {
        writeln!(out, "  counter {} {}", *counter as usize, counter.name())?;
    }
    Ok(())
}
