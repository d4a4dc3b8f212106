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
}

/// The list; for the suite of the node with that suite's additions.
///
/// # Errors
/// If a file is not a valid list.
pub fn listed(node: bool) -> Result<Vec<Skip>> {
    let mut listed: Vec<Skip> =
        serde_json::from_str(LIST).context("read qemu-tests/conformance/skip.json")?;
    if node {
        let more: Vec<Skip> =
            serde_json::from_str(NODE_LIST).context("read qemu-tests/conformance/skip-node.json")?;
        listed.extend(more);
    }
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
        let listed = listed(true).unwrap();
        assert!(!listed.is_empty());
        for entry in listed {
            assert!(!entry.skip.is_empty() && entry.reason.len() > 10, "{entry:?}");
        }
    }
}
