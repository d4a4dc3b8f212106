//! Kubernetes resource quantities, exact: `100m`, `1.5Gi`, `2e3`. Upstream: apimachinery/pkg/api/resource,
//! `Quantity`.
//!
//! In: the text of a quantity. Out: an integer number of nanos. Invariants: no floating point; parts finer
//! than a nano round away from zero; values above 2^63-1 become that bound; conversions to coarser units
//! round away from zero, so that a request is never understated.

use std::cmp::Ordering;

/// One billionth is the finest unit.
const NANOS: i128 = 1_000_000_000;
/// Largest magnitude: 2^63-1 whole units.
const MAX: i128 = (i64::MAX as i128) * NANOS;
/// Digits of `MAX`; anything longer is out of range.
const MAX_DIGITS: usize = 28;

/// An amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not have the form number + suffix.
    #[error(
        "quantity {0:?} must be a decimal number with an optional suffix (n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei) or exponent"
    )]
    Format(String),
    /// The number is fine, its suffix is none.
    #[error(
        "quantity {0:?} has an unknown suffix {1:?}; use n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent"
    )]
    Suffix(String, String),
}

/// How a suffix scales: times 1024^binary times 10^decimal.
struct Scale {
    binary: u32,
    decimal: i64,
}

impl Quantity {
    /// The quantity zero.
    pub const ZERO: Quantity = Quantity { nanos: 0 };

    /// A quantity of whole units.
    #[must_use]
    pub fn from_units(units: i64) -> Quantity {
        Quantity { nanos: i128::from(units) * NANOS }
    }

    /// A quantity of thousandths.
    #[must_use]
    pub fn from_milli(milli: i64) -> Quantity {
        Quantity { nanos: i128::from(milli) * (NANOS / 1000) }
    }

    /// Parse the text of a quantity.
    ///
    /// # Errors
    /// [`QuantityError`] names the text and what is allowed.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let format = || QuantityError::Format(text.to_owned());
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_len = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, suffix) = rest.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || whole.len() + fraction.len() == 0 {
            return Err(format());
        }
        let scale =
            parse_suffix(suffix).ok_or_else(|| QuantityError::Suffix(text.to_owned(), suffix.to_owned()))?;
        let nanos = scaled_nanos(whole, fraction, &scale);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos } })
    }

    /// The quantity in billionths.
    #[must_use]
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// Whole units, rounded away from zero.
    #[must_use]
    pub fn value(self) -> i64 {
        self.rounded(NANOS)
    }

    /// Thousandths, rounded away from zero and held at the bounds of i64.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        self.rounded(NANOS / 1000)
    }

    fn rounded(self, unit: i128) -> i64 {
        let quotient = self.nanos / unit;
        let away = if self.nanos % unit == 0 { 0 } else { self.nanos.signum() };
        let bounded = (quotient + away).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        i64::try_from(bounded).expect("clamped to the range of i64")
    }

    /// True for nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// True below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Sum, held at the bounds.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { nanos: (self.nanos + other.nanos).clamp(-MAX, MAX) }
    }

    /// The same amount on the other side of zero.
    #[must_use]
    pub fn negated(self) -> Quantity {
        Quantity { nanos: -self.nanos }
    }

    /// True for a whole number of `unit`s.
    #[must_use]
    pub fn is_multiple_of(self, unit: Quantity) -> bool {
        unit.nanos != 0 && self.nanos % unit.nanos == 0
    }

    /// The larger of two.
    #[must_use]
    pub fn larger(self, other: Quantity) -> Quantity {
        match self.cmp(&other) {
            Ordering::Less => other,
            _ => self,
        }
    }
}

fn parse_suffix(suffix: &str) -> Option<Scale> {
    let binary = |binary| Some(Scale { binary, decimal: 0 });
    let decimal = |decimal| Some(Scale { binary: 0, decimal });
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            decimal(i64::from(exponent.parse::<i32>().ok()?))
        }
    }
}

/// `whole.fraction` times `scale`, in nanos, rounded up, held at [`MAX`]. Both parts are ASCII digits.
fn scaled_nanos(whole: &str, fraction: &str, scale: &Scale) -> i128 {
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let first = digits.iter().position(|d| *d != 0).unwrap_or(digits.len());
    digits.drain(..first);
    if digits.is_empty() {
        return 0;
    }
    for _ in 0..scale.binary {
        multiply_1024(&mut digits);
    }
    let fraction_len = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    let exponent = scale.decimal.saturating_sub(fraction_len).saturating_add(9);
    let len = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    let whole_len = len.saturating_add(exponent);
    if whole_len > i64::try_from(MAX_DIGITS).unwrap_or(i64::MAX) {
        return MAX;
    }
    // At most MAX_DIGITS digits remain before the point: they fit in an i128.
    let kept = usize::try_from(whole_len.max(0)).unwrap_or(0);
    let mut value: i128 = 0;
    for index in 0..kept {
        value = value * 10 + i128::from(digits.get(index).copied().unwrap_or(0));
    }
    let dropped = digits.get(kept..).is_some_and(|rest| rest.iter().any(|d| *d != 0));
    (value + i128::from(dropped)).min(MAX)
}

fn multiply_1024(digits: &mut Vec<u8>) {
    let mut carry: u32 = 0;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = u8::try_from(product % 10).expect("a remainder of 10 is one digit");
        carry = product / 10;
    }
    let mut head = Vec::new();
    while carry > 0 {
        head.push(u8::try_from(carry % 10).expect("a remainder of 10 is one digit"));
        carry /= 10;
    }
    head.reverse();
    digits.splice(0..0, head);
}

#[cfg(test)]
mod tests;
