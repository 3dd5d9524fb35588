//! Times, sizes and names as people read them.

use railhead_abi::frame::Text;
use serde_json::Value as Json;

/// A moment as RFC 3339 in UTC with milliseconds.
#[must_use]
pub fn rfc3339(unix_ns: u64) -> String {
    let (seconds, millis) = (unix_ns / 1_000_000_000, unix_ns / 1_000_000 % 1000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
const fn civil(day: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day is the last of its year; an era is 400 years.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + carry, month, day)
}

/// Bytes with a unit that leaves one to four digits before the point: `16.0 KiB`, `3 B`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 and more would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number with its thousands apart: `16,384`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A ticket or incarnation: 64 bits in hex, which JSON numbers cannot carry everywhere.
#[must_use]
pub fn hex(number: u64) -> String {
    format!("0x{number:016x}")
}

/// Zero-padded words as text.
#[must_use]
pub fn words(words: &[u64]) -> String {
    Text::of(words).as_str().to_owned()
}

/// A figure that is stored plus one, where 0 means none.
#[must_use]
pub fn less_one(figure: u64) -> Json {
    figure.checked_sub(1).map_or(Json::Null, Json::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        for (unix, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_704_067_199, "2023-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(unix * 1_000_000_000), shown);
        }
        assert_eq!(rfc3339(1_999_999), "1970-01-01T00:00:00.001Z");
        assert!(rfc3339(u64::MAX).starts_with("2554-"));
    }

    #[test]
    fn sizes() {
        for (count, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1 << 20, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), shown);
        }
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }
}
