//! Kubernetes quantities (`100Mi`, `200m`, `1.5Gi`, `1e3`): text in, an exact number of nano-units out.
//!
//! Invariants: no floating point; what is finer than a nano-unit rounds away from zero, and so does what is finer than a whole unit or
//! a thousandth where those are asked for; what exceeds 2^63-1 whole units is held at that bound. The agent's arithmetic
//! (agent-types) reads texts with [`parse_nanos`] too. Upstream term: `resource.Quantity`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Nano-units in a whole unit.
pub const NANOS: i128 = 1_000_000_000;
/// The largest magnitude: 2^63-1 whole units.
pub const NANOS_MAX: i128 = (i64::MAX as i128) * NANOS;

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

/// The part of a text that makes it no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The number.
    Number,
    /// The suffix, which begins at this byte.
    Suffix(usize),
}

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
        Ok(Quantity { text: text.to_owned(), nano: parse_nanos(text).map_err(|_| QuantityError)? })
    }

    /// Whole units, rounded away from zero (bytes of memory, pids).
    #[must_use]
    pub fn value(&self) -> i64 {
        rounded(self.nano, NANOS)
    }

    /// Thousandths, rounded away from zero (milli-CPUs).
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        rounded(self.nano, NANOS / 1000)
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

/// `nanos` in multiples of `unit`, rounded away from zero, held at the bounds of i64. Upstream: `Quantity.ScaledValue`; some of its
/// versions round large negative numbers up.
#[must_use]
pub fn rounded(nanos: i128, unit: i128) -> i64 {
    // Most amounts are less than nine thousand million units: a processor divides 64 bits in one instruction, 128 bits in a loop.
    if let (Ok(nanos), Ok(unit)) = (i64::try_from(nanos), i64::try_from(unit)) {
        let away = if nanos % unit == 0 { 0 } else { nanos.signum() };
        return nanos / unit + away;
    }
    let away = if nanos % unit == 0 { 0 } else { nanos.signum() };
    let value = nanos / unit + away;
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// A signed decimal number with a binary (Ki…Ei), decimal (n…E) or exponent (e3) suffix, in nano-units.
///
/// # Errors
/// [`Fault`] says which part of the text is none.
pub fn parse_nanos(text: &str) -> Result<i128, Fault> {
    match parse_short(text.as_bytes()) {
        Some(nanos) => Ok(nanos),
        None => parse_any(text),
    }
}

/// More digits are read one by one: with so many, the product of number and unit fits in 127 bits.
const SHORT_DIGITS: usize = 15;

/// The nano-units of a whole number with a usual suffix, for example `100Mi`, `200m`, `2`; `None`: [`parse_any`] reads the text. The
/// agent reads each amount of a pod many times.
fn parse_short(text: &[u8]) -> Option<i128> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    if number.is_empty() || number.len() > SHORT_DIGITS {
        return None;
    }
    let unit = match suffix {
        b"" => NANOS,
        b"m" => NANOS / 1000,
        b"k" => NANOS * 1000,
        b"M" => NANOS * 1_000_000,
        b"G" => NANOS * 1_000_000_000,
        b"Ki" => NANOS << 10,
        b"Mi" => NANOS << 20,
        b"Gi" => NANOS << 30,
        b"Ti" => NANOS << 40,
        _ => return None,
    };
    let number = number.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some((i128::from(number) * unit).min(NANOS_MAX))
}

/// [`parse_nanos`] for every text.
fn parse_any(text: &str) -> Result<i128, Fault> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(Fault::Number);
    }
    let (binary, decimal) = parse_suffix(suffix).ok_or(Fault::Suffix(text.len() - suffix.len()))?;
    let nanos = scaled(whole.as_bytes(), fraction.as_bytes(), binary, decimal);
    Ok(if negative { -nanos } else { nanos })
}

/// `whole.fraction` times 2^`binary` times 10^`decimal` in nano-units, rounded up, held at [`NANOS_MAX`]. Both parts are digits.
fn scaled(whole: &[u8], fraction: &[u8], binary: u32, decimal: i32) -> i128 {
    const MAX: u128 = NANOS_MAX.unsigned_abs();
    let len = whole.len() + fraction.len();
    let digit = |at: usize| {
        let byte = whole.get(at).or_else(|| fraction.get(at - whole.len()));
        u128::from(byte.map_or(0, |byte| byte - b'0'))
    };
    // The exponent of ten moves the point among the digits; what is left is a power of two, and the nano-unit.
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(i64::from(decimal));
    let before = usize::try_from(point).unwrap_or(0);
    let unit = (1_u128 << binary) * NANOS.unsigned_abs();
    let mut units: u128 = 0;
    for at in 0..before {
        if units > MAX || (units == 0 && at >= len) {
            break;
        }
        units = units * 10 + digit(at);
    }
    // From the last digit to the point, exactly: a remainder only matters as one.
    let (mut nanos, mut rest): (u128, bool) = (0, false);
    let mut tenth = |value: u128| {
        rest |= !value.is_multiple_of(10);
        value / 10
    };
    for at in (before..len).rev() {
        nanos = tenth(digit(at) * unit + nanos);
    }
    for _ in point..0 {
        if nanos == 0 {
            break;
        }
        nanos = tenth(nanos);
    }
    let sum = units.saturating_mul(unit).saturating_add(nanos).saturating_add(u128::from(rest));
    i128::try_from(sum.min(MAX)).unwrap_or(NANOS_MAX)
}

/// Power of two and power of ten of a suffix.
fn parse_suffix(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
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
        _ => (0, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
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
            ("-1500m", -2, -1500),
            ("-1n", -1, -1),
            ("-0.1n", -1, -1),
            ("-1.0005Ki", -1025, -1_024_512),
            ("-1e60", i64::MIN + 1, i64::MIN),
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

    /// Sums of digits that do not fit in any integer, and points far away from them.
    #[test]
    fn every_digit_counts() {
        let zeros = "0".repeat(40);
        let table: &[(String, i128)] = &[
            (format!("1.{zeros}1"), NANOS + 1),
            (format!("-1.{zeros}1"), -NANOS - 1),
            (format!("1.{zeros}Ei"), NANOS << 60),
            (format!("{zeros}.{zeros}5e41"), 5 * NANOS),
            (format!("5{zeros}e-40"), 5 * NANOS),
            (format!("5{zeros}"), NANOS_MAX),
            (format!("0.{zeros}"), 0),
            ("7.999999999999Ei".to_owned(), 9_223_372_036_853_622_886_495_393_154),
            ("0e2000000000".to_owned(), 0),
            ("1e2000000000".to_owned(), NANOS_MAX),
            ("1e-2000000000".to_owned(), 1),
            ("0e-2000000000".to_owned(), 0),
            ("12e-10".to_owned(), 2),
            ("0.1Ki".to_owned(), 102_400_000_000),
        ];
        for (text, nanos) in table {
            assert_eq!(parse_nanos(text), Ok(*nanos), "{text}");
        }
    }

    #[test]
    fn short_texts_are_read_in_one_go() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("2", Some(2 * NANOS)),
            ("200m", Some(NANOS / 5)),
            ("100Mi", Some((100 << 20) * NANOS)),
            ("999999999999999Ti", Some(NANOS_MAX)),
            ("1000000000000000", None),
            ("1.5", None),
            ("-1", None),
            ("1e3", None),
            ("Mi", None),
            ("", None),
        ] {
            assert_eq!(parse_short(text.as_bytes()), nanos, "{text}");
        }
    }

    #[test]
    fn the_fault_names_the_part() {
        let table = [
            ("", Fault::Number),
            ("1.2.3", Fault::Number),
            ("-1mi", Fault::Suffix(2)),
            ("1e", Fault::Suffix(1)),
        ];
        for (text, fault) in table {
            assert_eq!(parse_nanos(text), Err(fault), "{text}");
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
        fn the_short_way_leads_to_the_same_amount(text in "0{0,3}[0-9]{1,17}(m|k|M|G|T|Ki|Mi|Gi|Ti|Pi|i|e3)?") {
            prop_assert_eq!(parse_nanos(&text), parse_any(&text));
        }

        #[test]
        fn signs_points_and_odd_suffixes_lead_to_the_same_amount(
            text in "[-+]?[0-9]{0,16}([.][0-9]{0,10})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2}|E[0-9]|K|mi|é)?"
        ) {
            prop_assert_eq!(parse_nanos(&text), parse_any(&text));
        }

        #[test]
        fn the_largest_short_number_is_read_alike(less in 0_u64..1000, suffix in "(m|k|M|G|Ki|Mi|Gi|Ti)?") {
            for number in [999_999_999_999_999 - less, 1_000_000_000_000_000 + less] {
                let text = format!("{number}{suffix}");
                prop_assert_eq!(parse_nanos(&text), parse_any(&text));
            }
        }

        #[test]
        fn amounts_are_rounded_alike_in_64_and_128_bits(nanos in any::<i64>()) {
            let nanos = i128::from(nanos);
            for unit in [1, NANOS / 1000, NANOS] {
                let wide = nanos / unit + if nanos % unit == 0 { 0 } else { nanos.signum() };
                prop_assert_eq!(i128::from(rounded(nanos, unit)), wide);
            }
        }

        #[test]
        fn any_text_is_answered(text in "[-+.0-9eEkKMGi]{0,60}") {
            let _ = Quantity::parse(&text);
        }
    }
}
