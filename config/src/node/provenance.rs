//! Which source every key has its value from.
//!
//! A leaf is anything but a non-empty map: lists are replaced whole and therefore have one source.
//! Invariant: after [`Provenance::record`] every leaf of the patch has its source, and nothing below a leaf
//! that was replaced is left.

use crate::path;
use serde_json::Value;
use std::collections::BTreeMap;

/// Source of values that no document sets.
pub const DEFAULT: &str = "default";
/// Source of what the appliance sets in the KubeletConfiguration.
pub const APPLIANCE: &str = "appliance";

/// Dotted path of a leaf to the name of its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(BTreeMap<String, String>);

impl Provenance {
    /// Notes that `patch` was merged from `source`.
    pub fn record(&mut self, patch: &Value, source: &str) {
        self.walk(patch, "", source);
    }

    fn walk(&mut self, patch: &Value, at: &str, source: &str) {
        if let Value::Object(map) = patch
            && !map.is_empty()
        {
            self.0.remove(at);
            for (key, value) in map {
                self.walk(value, &path::child(at, key), source);
            }
            return;
        }
        if at.is_empty() {
            return;
        }
        if !patch.is_object() {
            self.forget(at);
        }
        if !patch.is_null() {
            self.0.insert(at.to_owned(), source.to_owned());
        }
    }

    /// Takes out a path and everything below it.
    fn forget(&mut self, at: &str) {
        self.0.retain(|path, _| {
            path.strip_prefix(at).is_none_or(|rest| !rest.is_empty() && !rest.starts_with(['.', '[']))
        });
    }

    /// Source of every leaf of `document`, [`DEFAULT`] where no document sets it.
    #[must_use]
    pub fn of(&self, document: &Value, prefix: &str) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        self.leaves(document, prefix, &mut all);
        all
    }

    fn leaves(&self, value: &Value, at: &str, all: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    self.leaves(value, &path::child(at, key), all);
                }
            }
            _ => {
                let source = self.0.get(at).map_or(DEFAULT, String::as_str);
                all.insert(at.to_owned(), source.to_owned());
            }
        }
    }
}
