//! Which route a transfer takes, and why. A pure look-up: it has no memory.

use crate::tables::Leg;
use railhead_abi::settings::{Mode, Plan};
use railhead_abi::submission::{LEG_DIRECT, LEG_STAGED};
use railhead_abi::{Code, Reason};

/// Decides one leg: what is impossible, then what the submission asks for, then the mode, then the size.
///
/// # Errors
/// [`Code::DirectImpossible`] if direct is demanded for memory that it is not possible for, and
/// [`Code::RouteUnknown`] if the override is no known leg.
pub(super) fn choose(plan: &Plan, wanted: u8, bytes: u64) -> Result<Leg, Code> {
    let leg = |staged, reason, is_free| Leg { staged, reason, is_free, threshold: plan.direct_from_bytes };
    if wanted > LEG_DIRECT {
        return Err(Code::RouteUnknown);
    }
    if bytes == 0 {
        return Ok(leg(false, Reason::Empty, false));
    }
    if !plan.direct_possible {
        return if wanted == LEG_DIRECT {
            Err(Code::DirectImpossible)
        } else {
            Ok(leg(true, Reason::Impossible, false))
        };
    }
    Ok(match (wanted, plan.mode) {
        (LEG_STAGED, _) => leg(true, Reason::Override, false),
        (LEG_DIRECT, _) => leg(false, Reason::Override, false),
        (_, Mode::Staged) => leg(true, Reason::Mode, false),
        (_, Mode::Direct) => leg(false, Reason::Mode, false),
        (_, Mode::Auto) if bytes < plan.direct_from_bytes => leg(true, Reason::BelowThreshold, true),
        (_, Mode::Auto) => leg(false, Reason::FromThreshold, true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan =
        Plan { mode: Mode::Auto, direct_from_bytes: 1000, generation: 1, direct_possible: true };

    #[test]
    fn order_of_rules() {
        let cases = [
            (Plan { direct_possible: false, ..PLAN }, 0, 5000, Ok((true, Reason::Impossible))),
            (Plan { direct_possible: false, ..PLAN }, LEG_DIRECT, 5000, Err(Code::DirectImpossible)),
            (Plan { mode: Mode::Staged, ..PLAN }, LEG_DIRECT, 1, Ok((false, Reason::Override))),
            (Plan { mode: Mode::Direct, ..PLAN }, LEG_STAGED, 1 << 30, Ok((true, Reason::Override))),
            (Plan { mode: Mode::Staged, ..PLAN }, 0, 1 << 30, Ok((true, Reason::Mode))),
            (Plan { mode: Mode::Direct, ..PLAN }, 0, 1, Ok((false, Reason::Mode))),
            (PLAN, 0, 999, Ok((true, Reason::BelowThreshold))),
            (PLAN, 0, 1000, Ok((false, Reason::FromThreshold))),
            (PLAN, 0, 0, Ok((false, Reason::Empty))),
            (PLAN, 3, 10, Err(Code::RouteUnknown)),
        ];
        for (plan, wanted, bytes, expected) in cases {
            let got = choose(&plan, wanted, bytes).map(|leg| (leg.staged, leg.reason));
            assert_eq!(got, expected, "{plan:?} {wanted} {bytes}");
        }
    }
}
