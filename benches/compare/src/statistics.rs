//! From samples to a verdict: the median, an interval around it that no assumption about the distribution enters, and
//! how both stand to the goal.
//!
//! The interval is that of order statistics: between which samples the true median lies with at least 90 %
//! probability, whatever the samples' distribution. It needs five samples or more; with fewer it is the range of the samples and
//! `coverage` says what that is worth.

/// What an interval shall cover.
const COVERAGE: f64 = 0.9;

/// The median of samples and where the true one lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
    /// Probability that the true median lies from `low` to `high`.
    pub(crate) coverage: f64,
}

/// What a row promises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// Ours divided by the reference's.
    AtLeast(f64),
    /// Ours divided by the reference's: as fast, as far as the noise lets one see, and never much slower.
    Reaches {
        /// What the interval must reach.
        at: f64,
        /// What no part of the interval may be under.
        least: f64,
    },
    /// A figure of ours, in the row's unit.
    Below(f64),
}

/// How a row stands to its goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole interval meets the goal.
    Ok,
    /// The whole interval misses the goal.
    Short,
    /// The goal lies inside the interval.
    Unsure,
    /// There are no samples; the row says why.
    NotRun,
}

impl Verdict {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Short => "short",
            Self::Unsure => "unsure",
            Self::NotRun => "not run",
        }
    }
}

/// The interval of samples; `None` without any.
pub(crate) fn interval(samples: &[f64]) -> Option<Interval> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let (rank, coverage) = rank(count)?;
    Some(Interval { low: sorted[rank], median: middle(&sorted), high: sorted[count - 1 - rank], coverage })
}

/// The median of samples; `None` without any.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    interval(samples).map(|interval| interval.median)
}

/// The value that a share of the samples does not exceed; `None` without any.
pub(crate) fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small count")]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    Some(sorted[rank.saturating_sub(1).min(last)])
}

/// How an interval stands to a goal.
pub(crate) fn verdict(goal: Goal, interval: Option<&Interval>) -> Verdict {
    let Some(interval) = interval else { return Verdict::NotRun };
    let (met, missed) = match goal {
        Goal::AtLeast(goal) => (interval.low >= goal, interval.high < goal),
        Goal::Reaches { at, least } => {
            (interval.high >= at && interval.low >= least, interval.high < at || interval.high < least)
        }
        Goal::Below(limit) => (interval.high < limit, interval.low >= limit),
    };
    match (met, missed) {
        (true, _) => Verdict::Ok,
        (_, true) => Verdict::Short,
        _ => Verdict::Unsure,
    }
}

/// The greatest rank, from 0, so that the samples of this rank from below and from above enclose the true median with
/// [`COVERAGE`]; and what they do cover.
fn rank(count: usize) -> Option<(usize, f64)> {
    let mut chosen = None;
    // Probability of exactly `at` samples below the true median: each one is, with probability one half.
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut below = 0.0;
    for at in 0..count.div_ceil(2) {
        below += exactly;
        let coverage = 1.0 - 2.0 * below;
        if at > 0 && coverage < COVERAGE {
            break;
        }
        chosen = Some((at, coverage.max(0.0)));
        exactly *= (count - at) as f64 / (at + 1) as f64;
    }
    chosen
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], sorted[half]) } else { sorted[half] }
}

#[cfg(test)]
mod tests;
