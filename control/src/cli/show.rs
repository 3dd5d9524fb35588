//! Values of answers as people read them.

use serde_json::Value as Json;

/// A text member; empty if it is none.
pub(crate) fn text<'a>(body: &'a Json, name: &str) -> &'a str {
    body[name].as_str().unwrap_or_default()
}

/// A number member; 0 if it is none.
pub(crate) fn number(body: &Json, name: &str) -> u64 {
    body[name].as_u64().unwrap_or_default()
}

/// The items of a list member.
pub(crate) fn items<'a>(body: &'a Json, name: &str) -> &'a [Json] {
    body[name].as_array().map_or(&[], Vec::as_slice)
}

/// A number, or a dash where there is none.
pub(crate) fn or_dash(value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A setting's value with its unit where that helps: `16,384 (16.0 KiB)`.
pub(crate) fn setting(value: &Json, unit: &str) -> String {
    match (value.as_u64(), unit) {
        (Some(count), "bytes") if count >= 1024 => {
            format!("{} ({})", grouped(count), bytes(count))
        }
        (Some(count), _) => grouped(count),
        (None, _) if value.is_null() => "none".to_owned(),
        (None, _) => or_dash(value),
    }
}

pub(crate) use railhead_control::text::{bytes, grouped};

/// Nanoseconds with a unit that leaves one to three digits before the point.
pub(crate) fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

/// How long something has been up: its two greatest units.
pub(crate) fn uptime(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// `2026-01-31T12:00:00.123Z` as `2026-01-31 12:00:00`.
pub(crate) fn moment(rfc3339: &str) -> String {
    rfc3339.split('.').next().unwrap_or_default().replace('T', " ")
}

/// The part of a whole, from 0 to 1; 0 of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for whole percents")]
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A share as `12 %`; what is not nothing is never shown as nothing.
pub(crate) fn percent(share: f64) -> String {
    match 100.0 * share {
        0.0 => "0 %".to_owned(),
        percent if percent < 1.0 => "<1 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values() {
        assert_eq!(setting(&json!(65536), "bytes"), "65,536 (64.0 KiB)");
        assert_eq!(setting(&json!(8), "chunks"), "8");
        assert_eq!(setting(&json!("auto"), ""), "auto");
        assert_eq!(setting(&Json::Null, "core"), "none");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(12_345), "12.3 us");
        assert_eq!(duration(1_500_000_000), "1.5 s");
        assert_eq!(uptime(59_999), "59 s");
        assert_eq!(uptime(61_000), "1 min 1 s");
        assert_eq!(uptime(90_061_000), "1 d 1 h");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.004), "<1 %");
        assert_eq!(percent(0.5), "50 %");
        assert_eq!(moment("2026-01-31T12:00:00.123Z"), "2026-01-31 12:00:00");
    }
}
