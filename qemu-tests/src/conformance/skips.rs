//! The default list of tests that are left out, each with its reason: `qemu-tests/conformance/skip.json`.

use anyhow::{Context, Result};
use serde::Deserialize;

const LIST: &str = include_str!("../../conformance/skip.json");

/// One entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// Regular expression of full names.
    pub skip: String,
    /// Why, in one line.
    pub reason: String,
}

/// The list.
///
/// # Errors
/// If the file is no such list.
pub fn listed() -> Result<Vec<Skip>> {
    serde_json::from_str(LIST).context("read qemu-tests/conformance/skip.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_reason() {
        let listed = listed().unwrap();
        assert!(!listed.is_empty());
        for entry in listed {
            assert!(!entry.skip.is_empty() && entry.reason.len() > 10, "{entry:?}");
        }
    }
}
