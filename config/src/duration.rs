//! Go durations, the form every time span of KubeletConfiguration has: text in, nanoseconds out, and back.
//!
//! Invariant: `parse(d.to_string()) == d` for every value. Upstream term: `metav1.Duration`.

use std::fmt;

use serde::{Deserialize, Serialize};

const NS_PER_US: i64 = 1_000;
const NS_PER_MS: i64 = 1_000_000;
const NS_PER_S: i64 = 1_000_000_000;
const NS_PER_MIN: i64 = 60 * NS_PER_S;
const NS_PER_H: i64 = 3600 * NS_PER_S;

/// A signed time span with nanosecond resolution, written as Go writes it (`1m30s`, `100ms`, `4h0m0s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration {
    ns: i64,
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration such as \"30s\", \"1m30s\" or \"100ms\" (units ns, us, ms, s, m, h)")]
pub struct DurationError;

impl Duration {
    /// No time at all; many fields read it as "not set".
    pub const ZERO: Duration = Duration { ns: 0 };
    /// The longest span there is, about 292 years.
    pub const MAX: Duration = Duration { ns: i64::MAX };

    /// From nanoseconds.
    #[must_use]
    pub const fn from_nanos(ns: i64) -> Duration {
        Duration { ns }
    }

    /// From milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(ms: i64) -> Duration {
        Duration { ns: ms.saturating_mul(NS_PER_MS) }
    }

    /// From seconds, saturating.
    #[must_use]
    pub const fn from_secs(s: i64) -> Duration {
        Duration { ns: s.saturating_mul(NS_PER_S) }
    }

    /// From minutes, saturating.
    #[must_use]
    pub const fn from_mins(m: i64) -> Duration {
        Duration { ns: m.saturating_mul(NS_PER_MIN) }
    }

    /// Nanoseconds, negative for a negative span.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.ns
    }

    /// Whole milliseconds, rounded towards zero.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.ns / NS_PER_MS
    }

    /// Whole seconds, rounded towards zero.
    #[must_use]
    pub const fn as_secs(self) -> i64 {
        self.ns / NS_PER_S
    }

    /// True for a span of no time.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.ns == 0
    }

    /// For timers; a negative span is no time.
    #[must_use]
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.ns).unwrap_or(0))
    }

    /// Reads Go's notation: an optional sign, then numbers with units, fractions allowed; bare `0` is zero.
    ///
    /// # Errors
    /// [`DurationError`] when the text is something else or does not fit into 64 bits of nanoseconds.
    pub fn parse(text: &str) -> Result<Duration, DurationError> {
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Duration::ZERO);
        }
        if rest.is_empty() {
            return Err(DurationError);
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (span, tail) = parse_part(rest)?;
            total += span;
            rest = tail;
        }
        let ns = if negative { -total } else { total };
        i64::try_from(ns).map(Duration::from_nanos).map_err(|_| DurationError)
    }
}

/// One number with its unit from the front of `text`: its nanoseconds and what follows.
fn parse_part(text: &str) -> Result<(i128, &str), DurationError> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, mut rest) = text.split_at(digits_end);
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        (fraction, rest) = after.split_at(end);
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError);
    }
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit_ns = i128::from(match unit {
        "ns" => 1,
        // micro sign, Greek mu, plain u
        "us" | "\u{b5}s" | "\u{3bc}s" => NS_PER_US,
        "ms" => NS_PER_MS,
        "s" => NS_PER_S,
        "m" => NS_PER_MIN,
        "h" => NS_PER_H,
        _ => return Err(DurationError),
    });
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| DurationError)? };
    if whole > i128::from(i64::MAX) {
        return Err(DurationError);
    }
    let mut span = whole * unit_ns;
    span += fraction_nanos(fraction, unit_ns);
    if span > i128::from(i64::MAX) + 1 {
        return Err(DurationError);
    }
    Ok((span, rest))
}

/// Nanoseconds of the digits after the point. Computed in floating point because Go does: both must agree on
/// `0.1h` to the nanosecond.
#[allow(clippy::cast_possible_truncation)] // at most one unit, which is far below 2^53
fn fraction_nanos(digits: &str, unit_ns: i128) -> i128 {
    // As many digits as fit; 18 always do.
    let fits = |n: usize| digits.get(..n).filter(|d| d.parse::<i64>().is_ok());
    let digits = fits(digits.len()).or_else(|| fits(19)).or_else(|| fits(18)).unwrap_or_default();
    let value: i64 = digits.parse().unwrap_or(0);
    let scale = 10_f64.powi(i32::try_from(digits.len()).unwrap_or(0));
    (value as f64 * (unit_ns as f64 / scale)) as i128
}

impl From<std::time::Duration> for Duration {
    /// The longest duration that Go has (292 years) stands for all longer ones.
    fn from(span: std::time::Duration) -> Duration {
        Duration::from_nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ns == 0 {
            return f.write_str("0s");
        }
        if self.ns < 0 {
            f.write_str("-")?;
        }
        let ns = self.ns.unsigned_abs();
        let (second, ms, us) = (NS_PER_S.unsigned_abs(), NS_PER_MS.unsigned_abs(), NS_PER_US.unsigned_abs());
        if ns < us {
            return write!(f, "{ns}ns");
        }
        if ns < ms {
            return write_decimal(f, ns, us, "\u{b5}s");
        }
        if ns < second {
            return write_decimal(f, ns, ms, "ms");
        }
        let minutes = ns / (60 * second);
        if minutes >= 60 {
            write!(f, "{}h", minutes / 60)?;
        }
        if minutes > 0 {
            write!(f, "{}m", minutes % 60)?;
        }
        write_decimal(f, ns % (60 * second), second, "s")
    }
}

/// `value / unit` without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    let mut remainder = value % unit;
    if remainder > 0 {
        f.write_str(".")?;
        let mut place = unit / 10;
        while remainder > 0 {
            write!(f, "{}", remainder / place)?;
            remainder %= place;
            place /= 10;
        }
    }
    f.write_str(name)
}

impl Serialize for Duration {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(d)?;
        Duration::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
