//! Files of the downward API.
//!
//! In: items of a downwardAPI source, the pod, the node. Out: files. Upstream: pkg/volume/downwardapi,
//! pkg/fieldpath.

use std::collections::BTreeMap;

use agent_types::downward_api::{resource_field, subscript};
use agent_types::go_quote::quoted;
use agent_types::node_context::NodeContext;
use agent_types::{ContainerRef, pod};
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod};

use super::FileContent;

/// The files of `items`.
///
/// # Errors
/// Upstream's words about the first item that cannot be resolved.
pub fn files(
    items: &[DownwardAPIVolumeFile],
    p: &Pod,
    default_mode: u32,
    node: &NodeContext,
) -> Result<BTreeMap<String, FileContent>, String> {
    let mut files = BTreeMap::new();
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            value(p, &field.field_path)?
        } else if let Some(selector) = &item.resource_field_ref {
            resource_field(p, ContainerRef::Regular(""), selector, node).map_err(|e| e.message)?
        } else {
            String::new()
        };
        let mode = item.mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(default_mode);
        files.insert(item.path.clone(), FileContent { data: text.into_bytes(), mode, user: None });
    }
    Ok(files)
}

fn value(p: &Pod, path: &str) -> Result<String, String> {
    if let Some((field, key)) = subscript(path) {
        let map = match field {
            "metadata.labels" => pod::labels(p),
            "metadata.annotations" => pod::annotations(p),
            _ => return Err(format!("fieldPath {path:?} does not support subscript")),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    match path {
        "metadata.labels" => Ok(listed(pod::labels(p))),
        "metadata.annotations" => Ok(listed(pod::annotations(p))),
        "metadata.name" => Ok(pod::name(p).to_owned()),
        "metadata.namespace" => Ok(pod::namespace(p).to_owned()),
        "metadata.uid" => Ok(pod::uid(p).to_owned()),
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

/// A line `key="value"` for each, in order of the keys.
fn listed(map: &BTreeMap<String, String>) -> String {
    map.iter()
        .map(|(key, value)| format!("{key}={}", quoted(value.as_bytes())))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_and_amounts() {
        let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u",
            "labels": {"b": "2\u{a0}", "a": "x \"y\"\n\u{1}"}, "annotations": {"k/x": "v"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m"}}}]}}))
        .unwrap();
        let field = |path: &str| json!({"path": path, "fieldRef": {"fieldPath": path}});
        let items: Vec<DownwardAPIVolumeFile> = serde_json::from_value(json!([
            field("metadata.labels"), field("metadata.name"), field("metadata.uid"),
            field("metadata.annotations['k/x']"), field("metadata.namespace"),
            {"path": "cpu", "mode": 256, "resourceFieldRef":
                {"containerName": "c", "resource": "requests.cpu", "divisor": "1m"}},
        ]))
        .unwrap();
        let node = NodeContext::new("n");
        let files = files(&items, &p, 0o644, &node).unwrap();
        let text = |path: &str| String::from_utf8(files[path].data.clone()).unwrap();
        assert_eq!(text("metadata.labels"), "a=\"x \\\"y\\\"\\n\\x01\"\nb=\"2\\u00a0\"");
        assert_eq!(
            (text("metadata.name"), text("metadata.uid"), text("metadata.namespace")),
            ("p".to_owned(), "u".to_owned(), "ns".to_owned())
        );
        assert_eq!((text("metadata.annotations['k/x']"), text("cpu")), ("v".to_owned(), "250".to_owned()));
        assert_eq!((files["cpu"].mode, files["metadata.name"].mode), (0o400, 0o644));
        let bad: Vec<DownwardAPIVolumeFile> =
            serde_json::from_value(json!([field("spec.nodeName")])).unwrap();
        assert_eq!(super::files(&bad, &p, 0, &node).unwrap_err(), "unsupported fieldPath: spec.nodeName");
    }
}
