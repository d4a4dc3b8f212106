//! The registry of cases, area by area.

use crate::case::Case;

pub mod runtime_control;

/// Every case, in the order of `list`.
#[must_use]
pub fn all() -> Vec<Case> {
    [runtime_control::CASES].concat()
}
