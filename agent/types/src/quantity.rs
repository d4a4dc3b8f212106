//! Kubernetes resource quantities, exact: `100m`, `1.5Gi`, `2e3`. Upstream: apimachinery/pkg/api/resource,
//! `Quantity`.
//!
//! In: the text of a quantity. Out: an integer number of nanos. Invariants: no floating point; parts finer
//! than a nano round away from zero; values above 2^63-1 become that bound; conversions to coarser units
//! round away from zero, so that a request is never understated.
//! [`orlop_config::quantity`] reads the text.

use std::cmp::Ordering;

use orlop_config::quantity::{Fault, NANOS, NANOS_MAX as MAX, parse_nanos, rounded};

/// An amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Reason for which a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not have the form number + suffix.
    #[error(
        "quantity {0:?} must be a decimal number with an optional suffix (n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei) or exponent"
    )]
    Format(String),
    /// The number is valid, and its suffix is not.
    #[error(
        "quantity {0:?} has an unknown suffix {1:?}; use n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent"
    )]
    Suffix(String, String),
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
        match parse_nanos(text) {
            Ok(nanos) => Ok(Quantity { nanos }),
            Err(Fault::Number) => Err(QuantityError::Format(text.to_owned())),
            Err(Fault::Suffix(at)) => {
                let suffix = text.get(at..).unwrap_or_default();
                Err(QuantityError::Suffix(text.to_owned(), suffix.to_owned()))
            }
        }
    }

    /// The quantity in billionths.
    #[must_use]
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// Whole units, rounded away from zero.
    #[must_use]
    pub fn value(self) -> i64 {
        rounded(self.nanos, NANOS)
    }

    /// Thousandths, rounded away from zero and held at the bounds of i64.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        rounded(self.nanos, NANOS / 1000)
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

#[cfg(test)]
mod tests;
