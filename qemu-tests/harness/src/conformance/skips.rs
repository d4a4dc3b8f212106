//! The default lists of skipped tests, each with its reason: `qemu-tests/conformance/skip.json`, and in addition
//! `skip-node.json` for the suite of the node.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::say;

const LIST: &str = include_str!("../../../conformance/skip.json");
const NODE_LIST: &str = include_str!("../../../conformance/skip-node.json");

/// One entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// Regular expression of full names.
    pub skip: String,
    /// Why, in one line.
    pub reason: String,
    /// The reason holds only if the node is not the test's own: not with `--serial`.
    #[serde(default)]
    pub not_with_serial: bool,
}

/// The list; for the suite of the node with that suite's additions. If tests run `serial`, those that need that are not in it.
///
/// # Errors
/// If a file is not a valid list.
pub fn listed(node: bool, serial: bool) -> Result<Vec<Skip>> {
    let mut listed: Vec<Skip> =
        serde_json::from_str(LIST).context("read qemu-tests/conformance/skip.json")?;
    if node {
        let more: Vec<Skip> =
            serde_json::from_str(NODE_LIST).context("read qemu-tests/conformance/skip-node.json")?;
        listed.extend(more);
    }
    listed.retain(|entry| !(serial && entry.not_with_serial));
    Ok(listed)
}

/// Prints the skipped tests.
pub fn say(listed: &[Skip]) {
    for skip in listed {
        say::line(format!("not {}: {}", skip.skip, skip.reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_reason() {
        let listed = listed(true, false).unwrap();
        assert!(!listed.is_empty());
        for entry in listed {
            assert!(!entry.skip.is_empty() && entry.reason.len() > 10, "{entry:?}");
        }
    }

    #[test]
    fn serial_tests_run_with_serial_alone() {
        let has = |serial: bool, name: &str| listed(true, serial).unwrap().iter().any(|e| e.skip == name);
        for name in [r"\[Serial\]", r"\[Disruptive\]"] {
            assert!(has(false, name) && !has(true, name), "{name}");
        }
        assert!(has(true, r"\[Flaky\]") && has(true, r"\[Feature:OffByDefault\]"));
    }
}
