//! Where each value of an effective configuration is from, as rows for people and programs.
//!
//! In: what counts. Out: path, value and source of each key, in the order of the paths. Invariants: no row has a secret; the rows
//! depend on the sources' names and texts alone, so host and node have the same ones.

use super::effective::Effective;
use super::provenance::DEFAULT;
use crate::path;
use serde_json::Value;
use std::collections::BTreeMap;

/// A key of an effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedKey {
    /// Dotted path.
    pub path: String,
    /// As JSON; a secret is [`super::MASK`].
    pub value: String,
    /// Name of the source that has set it.
    pub source: String,
}

impl Effective {
    /// The keys at and below `below`; an empty path is the document. `defaults`: those, too, that no source has set.
    #[must_use]
    pub fn explain(&self, below: &str, defaults: bool) -> Vec<ExplainedKey> {
        let shown = leaves(&self.shown());
        let row =
            |(path, value): (String, String)| ExplainedKey { source: self.source_of(&path), path, value };
        let rows = shown.into_iter().filter(|(path, _)| is_below(path, below)).map(row);
        rows.filter(|key| defaults || key.source != DEFAULT).collect()
    }

    /// A masked key stands for all that is below it: the source of the first of them.
    fn source_of(&self, path: &str) -> String {
        let below = |(known, _): &(&String, &String)| is_below(known, path);
        let mut from = self.provenance.range(path.to_owned()..);
        let found = self.provenance.get(path).or_else(|| from.find(below).map(|(_, source)| source));
        found.cloned().unwrap_or_else(|| DEFAULT.to_owned())
    }
}

/// Whether a path is this one, or one below it.
pub(super) fn is_below(path: &str, part: &str) -> bool {
    let inside = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    part.is_empty() || path.strip_prefix(part).is_some_and(inside)
}

/// Each value that is no map, with its path. An empty map is a value.
pub(super) fn leaves(document: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    add(document, "", &mut all);
    all
}

fn add(value: &Value, at: &str, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                add(value, &path::child(at, key), all);
            }
        }
        _ => {
            all.insert(at.to_owned(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::source;
    use crate::node::{MASK, load};

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn each_key_has_its_source_and_no_secret() {
        let esp = source(
            "esp",
            &format!(
                "node: {{name: n1}}\njoin: {{token: {TOKEN}}}\nlabels: {{a.b/c: x}}\n\
                 kubelet: {{staticPodURLHeader: {{Authorization: [hunter2]}}}}\n"
            ),
        );
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {l: hunter3}}}";
        let smbios = source("smbios", &format!("kubelet: {{maxPods: 7}}\nstaticPods: [{pod}]\n"));
        let effective = load(&[esp, smbios], &[]);
        assert_eq!(effective.accepted.len(), 2, "{:?}", effective.problems);
        let rows = effective.explain("", false);
        let row = |path: &str| {
            let found =
                rows.iter().find(|row| row.path == path).map(|row| (row.value.as_str(), row.source.as_str()));
            found.unwrap_or_else(|| panic!("{path}: {rows:?}"))
        };
        assert_eq!(row("node.name"), ("\"n1\"", "esp"));
        assert_eq!(row("labels.\"a.b/c\""), ("\"x\"", "esp"));
        assert_eq!(row("kubelet.maxPods"), ("7", "smbios"));
        assert_eq!(row("kubelet.cgroupDriver"), ("\"systemd\"", "appliance"));
        assert_eq!(row("join.token"), (&*format!("\"{MASK}\""), "esp"));
        assert_eq!(row("kubelet.staticPodURLHeader"), (&*format!("\"{MASK}\""), "esp"));
        assert!(rows.iter().all(|row| row.source != DEFAULT));
        let text = format!("{rows:?}");
        assert!(!text.contains(TOKEN) && !text.contains("hunter"), "{text}");
        assert_eq!(row("staticPods"), (r#"[{"name":"web"}]"#, "smbios"));
    }

    #[test]
    fn a_path_shows_what_is_below_it_and_defaults_on_demand() {
        let effective = load(&[source("esp", "kubelet: {maxPods: 7}\n")], &[]);
        let paths = |below: &str, defaults: bool| -> Vec<String> {
            effective.explain(below, defaults).into_iter().map(|row| row.path).collect()
        };
        assert_eq!(paths("kubelet.maxPods", false), ["kubelet.maxPods"]);
        assert_eq!(paths("kubelet.maxPod", true), Vec::<String>::new());
        assert_eq!(paths("time", false), Vec::<String>::new());
        assert_eq!(paths("time", true), ["time.servers"]);
        assert!(paths("", true).len() > paths("", false).len());
    }
}
