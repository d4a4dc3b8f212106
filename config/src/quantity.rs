//! Kubernetes quantities (`100Mi`, `200m`, `1.5Gi`, `1e3`): text in, an exact number of nano-units out.
//!
//! Invariant: nothing is rounded except below one nano-unit, where upstream rounds up too.
//! Upstream term: `resource.Quantity`.

use serde::{Deserialize, Serialize};
use std::fmt;

const NANO: i128 = 1_000_000_000;

/// A quantity as it was written, known to be readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity {
    text: String,
    #[serde(skip)]
    nano: i128,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a quantity such as \"100Mi\", \"500m\" or \"2\"")]
pub struct QuantityError;

impl Default for Quantity {
    fn default() -> Quantity {
        Quantity { text: "0".to_owned(), nano: 0 }
    }
}

impl Quantity {
    /// Reads a signed decimal number with a binary (Ki…Ei), decimal (n…E) or exponent (e3) suffix.
    ///
    /// # Errors
    /// [`QuantityError`] when it is something else; numbers beyond 2^63 saturate there, as upstream's do.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        Ok(Quantity { text: text.to_owned(), nano: parse_nano(text)? })
    }

    /// Whole units, rounded up (bytes of memory, pids).
    #[must_use]
    pub fn value(&self) -> i64 {
        saturate(div_ceil(self.nano, NANO))
    }

    /// Thousandths, rounded up (milli-CPUs).
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        saturate(div_ceil(self.nano, NANO / 1000))
    }

    /// -1, 0 or 1.
    #[must_use]
    pub fn signum(&self) -> i32 {
        match self.nano.cmp(&0) {
            std::cmp::Ordering::Less => -1,
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => 1,
        }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn div_ceil(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
}

fn parse_nano(text: &str) -> Result<i128, QuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError);
    }
    let (binary, exponent) = parse_suffix(suffix)?;
    // value = digits * 10^(exponent - fraction.len()) * 2^binary, in nano-units.
    let mut digits: i128 = 0;
    let mut power = exponent + 9;
    for digit in whole.bytes() {
        digits = digits.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    for digit in fraction.bytes() {
        // More digits than this cannot change a rounded nano-unit of a representable number.
        if digits > i128::MAX / 1_000_000_000_000 {
            break;
        }
        digits = digits * 10 + i128::from(digit - b'0');
        power -= 1;
    }
    let mut nano = digits.saturating_mul(1_i128 << binary);
    for _ in 0..power.max(0) {
        nano = nano.saturating_mul(10);
        if nano == i128::MAX {
            break;
        }
    }
    let mut divisor: i128 = 1;
    for _ in power..0 {
        divisor = divisor.saturating_mul(10);
    }
    nano = div_ceil(nano, divisor);
    let limit = i128::from(i64::MAX) * NANO;
    nano = nano.min(limit);
    Ok(if negative { -nano } else { nano })
}

/// Power of two and power of ten of a suffix.
fn parse_suffix(suffix: &str) -> Result<(u32, i32), QuantityError> {
    Ok(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
            let exponent: i32 = exponent.parse().map_err(|_| QuantityError)?;
            (0, exponent.clamp(-60, 60))
        }
    })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// A JSON number is a quantity too.
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Quantity, D::Error> {
        let text = match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(s) => s,
            other => other.to_string(),
        };
        Quantity::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_suffix() {
        let table: &[(&str, i64, i64)] = &[
            ("0", 0, 0),
            ("1", 1, 1000),
            ("100Mi", 104_857_600, 104_857_600_000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("200m", 1, 200),
            ("1500m", 2, 1500),
            ("1n", 1, 1),
            ("2u", 1, 1),
            ("3k", 3000, 3_000_000),
            ("1e3", 1000, 1_000_000),
            ("1E-3", 1, 1),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
            ("-5", -5, -5000),
            ("-1500m", -1, -1500),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("+2", 2, 2000),
            ("1Ei", 1_152_921_504_606_846_976, i64::MAX),
            ("8Ei", i64::MAX, i64::MAX),
            ("1e60", i64::MAX, i64::MAX),
            ("0.0000000000000000001", 1, 1),
        ];
        for (text, value, milli) in table {
            let q = Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((q.value(), q.milli_value()), (*value, *milli), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in
            ["", "-", ".", "1.2.3", "Mi", "1mi", "1 Mi", "1MiB", "0x10", "1e", "1e3.5", "one", "1_000"]
        {
            assert_eq!(Quantity::parse(text), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn numbers_in_json_are_quantities() {
        let q: Quantity = serde_json::from_str("1024").expect("a number");
        assert_eq!(q.value(), 1024);
        assert_eq!(serde_json::to_string(&q).expect("renders"), "\"1024\"");
    }

    proptest! {
        #[test]
        fn whole_numbers_are_exact(n in any::<i64>()) {
            prop_assume!(n != i64::MIN);
            prop_assert_eq!(Quantity::parse(&n.to_string()).expect("integer").value(), n);
        }

        #[test]
        fn any_text_is_answered(text in "[-+.0-9eEkKMGi]{0,60}") {
            let _ = Quantity::parse(&text);
        }
    }
}
