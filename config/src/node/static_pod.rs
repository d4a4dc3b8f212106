//! Pods a node runs by itself, as NodeConfig carries them.
//!
//! In: either `{name, manifest}` with the manifest as text or as a map, or the Pod itself. Out: a name and a
//! manifest for the static pod directory. Invariant: what [`StaticPod::problem`] passes, [`StaticPod::file`] writes.

use super::secret::MASK;
use crate::field::{Describe, Kind};
use crate::fnv::fnv64;
use crate::formats;
use crate::{yaml, yaml_emit};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Largest name of a file, bytes (Linux: `NAME_MAX`).
const FILE_NAME_MAX: usize = 255;
/// So many characters of a long pod name stay in the name of its file.
const LONG_NAME_START: usize = 200;
/// Lists of a Pod whose items are names with values.
const NAMED_VALUES: [&str; 2] = ["env", "httpHeaders"];

/// One entry of `staticPods`; `Debug` shows its name only, because its environment may hold secrets.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StaticPod(pub Map<String, Value>);

impl Describe for StaticPod {
    const KIND: &'static Kind = &Kind::AnyMap;
}

impl StaticPod {
    /// `name`, or the Pod's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = match self.0.get("manifest") {
            Some(_) => self.0.get("name"),
            None => self.0.get("metadata").and_then(|m| m.get("name")),
        };
        name.and_then(Value::as_str).unwrap_or_default()
    }

    /// The Pod; none if the manifest's text is no YAML.
    fn pod(&self) -> Option<Value> {
        match self.0.get("manifest") {
            Some(Value::String(text)) => yaml::parse(text).ok().map(|d| d.value),
            Some(map) => Some(map.clone()),
            None => Some(Value::Object(self.0.clone())),
        }
    }

    /// The Pod with [`MASK`] in place of the values of its containers' environment and of its probes' HTTP headers, which may hold secrets.
    pub(super) fn without_values(&self) -> Value {
        let mut pod = self.pod().unwrap_or_default();
        mask_values(&mut pod);
        pod
    }

    /// What is wrong: a path below the entry (may be empty) and what is allowed.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.0.contains_key("manifest") || self.0.contains_key("name") {
            if let Some(other) = self.0.keys().find(|k| !matches!(k.as_str(), "name" | "manifest")) {
                return Some(("", format!("has an unknown field {other}, allowed are name and manifest")));
            }
            if let Some(Value::String(text)) = self.0.get("manifest")
                && let Err(e) = yaml::parse(text)
            {
                return Some(("manifest", format!("is no YAML: line {}: {e}", e.line)));
            }
        }
        let name = self.name();
        if !formats::is_dns_name(name) {
            let reason = "needs a name: lower-case letters, digits, - and ., at most 253".to_owned();
            return Some(("", reason));
        }
        let pod = self.pod().unwrap_or_default();
        let is = |key: &str, want: &str| pod.get(key).and_then(Value::as_str) == Some(want);
        if !is("apiVersion", "v1") || !is("kind", "Pod") {
            return Some(("", "must be a Pod: apiVersion: v1, kind: Pod".to_owned()));
        }
        None
    }

    /// Manifest file for the static pod directory.
    #[must_use]
    pub fn file(&self) -> (String, String) {
        let text = match self.0.get("manifest") {
            Some(Value::String(text)) => text.clone(),
            _ => yaml_emit::emit(&self.pod().unwrap_or_default()),
        };
        (file_name(self.name()), text)
    }
}

fn mask_values(value: &mut Value) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| match value {
            Value::Array(list) if NAMED_VALUES.contains(&key.as_str()) => {
                let values = list.iter_mut().filter_map(|entry| entry.get_mut("value"));
                values.for_each(|value| *value = Value::from(MASK));
            }
            other => mask_values(other),
        }),
        Value::Array(list) => list.iter_mut().for_each(mask_values),
        _ => {}
    }
}

/// Name of the manifest file. A pod's name has at most 253 bytes, a file's name 255: a long name is cut, and a hash of the whole name
/// keeps two of them apart.
fn file_name(pod: &str) -> String {
    let whole = format!("orlop-{pod}.yaml");
    if whole.len() <= FILE_NAME_MAX {
        return whole;
    }
    let start: String = pod.chars().take(LONG_NAME_START).collect();
    format!("orlop-{start}-{:016x}.yaml", fnv64(pod.as_bytes()))
}

impl std::fmt::Debug for StaticPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StaticPod").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: Value) -> StaticPod {
        serde_json::from_value(value).expect("a map")
    }

    #[test]
    fn three_forms_one_file() {
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
        let forms = [
            manifest.clone(),
            json!({"name": "web", "manifest": manifest}),
            json!({"name": "web", "manifest": yaml_emit::emit(&manifest)}),
        ];
        for form in forms {
            let pod = pod(form);
            assert_eq!(pod.problem(), None);
            let (name, text) = pod.file();
            assert_eq!(name, "orlop-web.yaml");
            assert_eq!(yaml::parse(&text).expect("YAML").value, manifest);
        }
    }

    #[test]
    fn environment_and_headers_have_no_values() {
        let env = json!([{"name": "A", "value": "s3cret"}, {"name": "B", "valueFrom": {"x": 1}}]);
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {
                "containers": [{"image": "a", "env": env, "livenessProbe": {"httpGet": {"port": 1, "httpHeaders": env}}}],
                "initContainers": [{"env": env}],
                "env": "x",
            },
        });
        let shown = pod(json!({"name": "web", "manifest": yaml_emit::emit(&manifest)})).without_values();
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(shown["spec"]["containers"][0]["env"][0], json!({"name": "A", "value": MASK}));
        assert_eq!(shown["spec"]["containers"][0]["env"][1], env[1]);
        assert_eq!(
            (&shown["spec"]["containers"][0]["image"], &shown["spec"]["env"]),
            (&json!("a"), &json!("x"))
        );
    }

    #[test]
    fn a_long_name_fits_a_file_name() {
        let name = |end: &str| format!("{}{end}", "a".repeat(250));
        let file =
            |name: &str| pod(json!({"name": name, "manifest": {"apiVersion": "v1", "kind": "Pod"}})).file().0;
        let (one, two) = (file(&name("x")), file(&name("y")));
        assert!(one.len() <= FILE_NAME_MAX && two.len() <= FILE_NAME_MAX, "{one}");
        assert_ne!(one, two);
        let longest = "a".repeat(FILE_NAME_MAX - "orlop-.yaml".len());
        assert_eq!(file(&longest), format!("orlop-{longest}.yaml"));
        assert!(file(&format!("{longest}a")).starts_with("orlop-aaa"));
    }

    #[test]
    fn each_rule_has_its_word() {
        let cases = [
            (json!({}), "", "needs a name: lower-case letters, digits, - and ., at most 253"),
            (json!({"name": "a"}), "", "needs a name: lower-case letters, digits, - and ., at most 253"),
            (
                json!({"name": "A", "manifest": {}}),
                "",
                "needs a name: lower-case letters, digits, - and ., at most 253",
            ),
            (
                json!({"name": "../x", "manifest": {}}),
                "",
                "needs a name: lower-case letters, digits, - and ., at most 253",
            ),
            (
                json!({"name": "a", "manifest": {"kind": "Pod"}}),
                "",
                "must be a Pod: apiVersion: v1, kind: Pod",
            ),
            (json!({"name": "a", "manifest": "a: [1"}), "manifest", "is no YAML: line 1: "),
            (
                json!({"name": "a", "manifest": {}, "x": 1}),
                "",
                "has an unknown field x, allowed are name and manifest",
            ),
        ];
        for (value, path, reason) in cases {
            let (p, r) = pod(value.clone()).problem().unwrap_or_else(|| panic!("{value} passed"));
            assert_eq!(p, path, "{value}");
            assert!(r.starts_with(reason), "{value}: {r}");
        }
    }
}
