//! The time that the agent wants the clock set to, as one line of text.
//!
//! In: the line, and CLOCK_BOOTTIME. Out: the time for CLOCK_REALTIME, or what is wrong. The line has the wanted time and the
//! moment for which it was wanted (milliseconds since 1970 and of CLOCK_BOOTTIME), so that what passes until the clock is set
//! does not count. The agent decides (`agent_core::clock`, docs/reference/time.md); this refuses only what cannot be a time at all.

/// Longest line, bytes.
pub const LINE_MAX: u64 = 64;
/// 2000-01-01, milliseconds since 1970: no image is older.
const LEAST_MS: i64 = 946_684_800_000;
/// 2200-01-01: no clock shows that.
pub const MOST_MS: i64 = 7_258_118_400_000;

/// The time to set, milliseconds since 1970.
///
/// # Errors
/// A sentence: it is not such a line, or names no time that a clock can show.
pub fn wanted(line: &str, boottime_ms: u64) -> Result<i64, String> {
    let mut words = line.split_ascii_whitespace();
    let (time, moment) = (words.next(), words.next());
    let time = time.and_then(|word| word.parse::<i64>().ok());
    let moment = moment.and_then(|word| word.parse::<u64>().ok());
    let (Some(time), Some(moment), None) = (time, moment, words.next()) else {
        return Err("the request to set the clock is not two numbers".to_owned());
    };
    let passed = boottime_ms
        .checked_sub(moment)
        .and_then(|passed| i64::try_from(passed).ok())
        .ok_or("the request to set the clock is from another boot")?;
    let now = time.saturating_add(passed);
    if (LEAST_MS..MOST_MS).contains(&now) {
        Ok(now)
    } else {
        Err(format!("the clock is not set to {now} ms after 1970"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_has_passed_since_counts() {
        assert_eq!(wanted("1795262400000 7000\n", 7250), Ok(1_795_262_400_250));
        for (line, boottime_ms) in [
            ("", 0),
            ("1795262400000", 7000),
            ("1795262400000 x", 7000),
            ("1795262400000 7000 1", 8000),
            ("1795262400000 -1", 8000),
            // From another boot.
            ("1795262400000 7000", 6999),
            ("0 0", 5),
            ("9223372036854775807 0", 5),
            ("-9223372036854775808 0", u64::MAX),
        ] {
            assert!(wanted(line, boottime_ms).is_err(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC{0,80}", numbers: (i64, u64), boottime_ms: u64) {
            let _ = wanted(&line, boottime_ms);
            if let Ok(time) = wanted(&format!("{} {}", numbers.0, numbers.1), boottime_ms) {
                prop_assert!((LEAST_MS..MOST_MS).contains(&time));
            }
        }
    }
}
