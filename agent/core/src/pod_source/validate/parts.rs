//! Rules that pods and containers share.

use std::collections::BTreeSet;

use agent_types::Quantity;

use crate::pod_source::field_error::Errors;

/// An amount of the resource `name`.
pub(super) fn amount(at: String, name: &str, quantity: &str, errors: &mut Errors) {
    match Quantity::parse(quantity) {
        Err(error) => errors.invalid(at, error, ""),
        Ok(amount) if amount.is_negative() => {
            errors.invalid(at, quantity, "must be greater than or equal to 0");
        }
        Ok(amount) if name.contains('/') && !amount.is_multiple_of(Quantity::from_units(1)) => {
            errors.invalid(at, quantity, "must be an integer");
        }
        Ok(_) => {}
    }
}

/// Reports every later occurrence of a value.
pub(super) struct Unique<T>(BTreeSet<T>);

impl<T: Ord> Unique<T> {
    pub(super) fn new() -> Unique<T> {
        Unique(BTreeSet::new())
    }

    /// True if `value` was there before.
    pub(super) fn seen(&mut self, value: T) -> bool {
        !self.0.insert(value)
    }
}
