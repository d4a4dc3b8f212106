//! Decodes manifest bytes to one typed pod, or to several where a list is allowed.
//!
//! In: bytes of a YAML or JSON manifest. Out: [`Decoded`]: the pod, its raw value (for the UID) and the
//! fields that the API does not have. Invariants: total on any input; equal bytes give an equal result;
//! duplicate keys are refused; scalars follow YAML 1.1 as in Kubernetes' tools (`yes` is true, `0644` is
//! octal). Upstream: pkg/kubelet/config/common.go.

use k8s_openapi::api::core::v1::Pod;
use orlop_config::yaml::{self, Schema};
use serde_json::Value;

use super::{ManifestError, json_path};

/// Largest manifest, bytes.
pub const MAX_MANIFEST_BYTES: usize = 10 * 1024 * 1024;

/// A decoded manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// As written, nothing filled in.
    pub pod: Pod,
    /// The document, without its status.
    pub raw: Value,
    /// Paths of fields that a v1 Pod does not have; they are ignored and reported.
    pub unknown_fields: Vec<String>,
}

/// Decode one pod.
///
/// # Errors
/// [`ManifestError`], never a panic.
pub fn decode(bytes: &[u8]) -> Result<Decoded, ManifestError> {
    let raw = parse(bytes)?;
    check_kind(&raw)?;
    pod_of(raw)
}

/// Decode one pod, a `PodList`, or a `List` of pods.
///
/// # Errors
/// [`ManifestError`], for the first item that has one; never a panic.
pub fn decode_all(bytes: &[u8]) -> Result<Vec<Decoded>, ManifestError> {
    let mut raw = parse(bytes)?;
    let kind = match (raw.get("apiVersion").and_then(Value::as_str), raw.get("kind").and_then(Value::as_str))
    {
        (Some("v1"), Some(kind @ ("PodList" | "List"))) => kind.to_owned(),
        _ => {
            check_kind(&raw)?;
            return Ok(vec![pod_of(raw)?]);
        }
    };
    let items = match raw.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => {
            let (path, message) = ("items".to_owned(), "expected a list of pods".to_owned());
            return Err(ManifestError::Type { path, message });
        }
    };
    let item = |(index, raw): (usize, Value)| {
        // The kind of the list determines the kind of its items.
        let said = raw.get("kind").is_some() || raw.get("apiVersion").is_some();
        let checked = if kind == "PodList" && raw.is_object() && !said { Ok(()) } else { check_kind(&raw) };
        let pod = checked.and_then(|()| pod_of(raw));
        pod.map_err(|error| ManifestError::Item { index, error: Box::new(error) })
    };
    items.into_iter().enumerate().map(item).collect()
}

fn parse(bytes: &[u8]) -> Result<Value, ManifestError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge);
    }
    let text = std::str::from_utf8(bytes).map_err(|e| ManifestError::NotText { offset: e.valid_up_to() })?;
    let document = yaml::parse_as(text, Schema::V1_1);
    document.map(|d| d.value).map_err(|e| ManifestError::Syntax(format!("line {}: {e}", e.line)))
}

fn pod_of(mut raw: Value) -> Result<Decoded, ManifestError> {
    if let Some(object) = raw.as_object_mut() {
        object.remove("status");
    }
    quantities_to_text(&mut raw);
    let pod = typed(&raw)?;
    let unknown_fields = unknown_fields(&raw, &pod);
    Ok(Decoded { pod, raw, unknown_fields })
}

/// Decodes the pod from its text: each input type of a deserializer is a copy of the code for all types of
/// the API, and the API server's objects are decoded from text.
fn typed(raw: &Value) -> Result<Pod, ManifestError> {
    let text = raw.to_string();
    serde_json::from_str(&text).map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let message = message.strip_suffix(&place).unwrap_or(&message).to_owned();
        ManifestError::Type { path: json_path::at(&text, error.column()), message }
    })
}

fn check_kind(raw: &Value) -> Result<(), ManifestError> {
    let found = |text: String| Err(ManifestError::NotAPod(text));
    let object = match raw {
        Value::Object(object) => object,
        Value::Null => return found("an empty document".to_owned()),
        _ => return found("a document that is no mapping".to_owned()),
    };
    let field = |name: &str| match object.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(_) | None => String::new(),
    };
    match (field("apiVersion").as_str(), field("kind").as_str()) {
        ("v1", "Pod") => Ok(()),
        (version, kind) => found(format!("apiVersion: {version:?}, kind: {kind:?}")),
    }
}

/// `cpu: 1` equals `cpu: "1"`: the API accepts numbers for quantities.
fn quantities_to_text(raw: &mut Value) {
    let Some(spec) = raw.get_mut("spec") else { return };
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items(spec, list) {
            resources_to_text(container);
            for var in items(container, "env") {
                if let Some(divisor) = var.pointer_mut("/valueFrom/resourceFieldRef/divisor") {
                    number_to_text(divisor);
                }
            }
        }
    }
    resources_to_text(spec);
    map_to_text(spec.get_mut("overhead"));
    for volume in items(spec, "volumes") {
        if let Some(size) = volume.pointer_mut("/emptyDir/sizeLimit") {
            number_to_text(size);
        }
    }
}

fn items<'v>(object: &'v mut Value, list: &str) -> std::slice::IterMut<'v, Value> {
    object.get_mut(list).and_then(Value::as_array_mut).map(|l| l.iter_mut()).unwrap_or_default()
}

fn resources_to_text(object: &mut Value) {
    map_to_text(object.pointer_mut("/resources/limits"));
    map_to_text(object.pointer_mut("/resources/requests"));
}

fn map_to_text(map: Option<&mut Value>) {
    for value in map.and_then(Value::as_object_mut).into_iter().flat_map(|m| m.values_mut()) {
        number_to_text(value);
    }
}

fn number_to_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}

/// Paths that were written but are not in the typed pod.
fn unknown_fields(raw: &Value, pod: &Pod) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Ok(known) = serde_json::to_value(pod) {
        compare(raw, &known, "", &mut unknown);
    }
    unknown.sort();
    unknown
}

fn compare(raw: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (raw, known) {
        (Value::Object(raw), Value::Object(known)) => {
            for (key, value) in raw.iter().filter(|(_, value)| !value.is_null()) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match known.get(key) {
                    Some(known) => compare(value, known, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(raw), Value::Array(known)) => {
            for (index, (raw, known)) in raw.iter().zip(known).enumerate() {
                compare(raw, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";

    fn error(text: &str) -> String {
        decode(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostNetwork: yes\n  containers:\n  - name: c\n    \
                    image: i\n    resources: {limits: {cpu: 1, memory: 0.5}}\nstatus: {phase: Running}\n";
        let json = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[
            {"image":"i","name":"c","resources":{"limits":{"memory":"0.5","cpu":"1"}}}],"hostNetwork":true}}"#;
        let (yaml, json) = (decode(yaml.as_bytes()).unwrap(), decode(json.as_bytes()).unwrap());
        assert_eq!(yaml, json);
        assert_eq!(yaml.unknown_fields, Vec::<String>::new());
    }

    #[test]
    fn unknown_fields_are_named_and_ignored() {
        let text = format!(
            "{POD}extra: 1\nspec:\n  containers:\n  - {{name: c, image: i, imagePullPolcy: Never}}\n"
        );
        let decoded = decode(text.as_bytes()).unwrap();
        assert_eq!(decoded.unknown_fields, ["extra", "spec.containers[0].imagePullPolcy"]);
    }

    #[test]
    fn mistakes_are_named() {
        let table = [
            (String::new(), "found an empty document"),
            ("[1]".to_owned(), "found a document that is no mapping"),
            ("kind: Pod".to_owned(), "found apiVersion: \"\", kind: \"Pod\""),
            ("apiVersion: v1\nkind: List\nitems: []".to_owned(), "found apiVersion: \"v1\", kind: \"List\""),
            (format!("{POD}kind: Pod\n"), "line 4: duplicate key kind"),
            (format!("{POD}---\n{POD}"), "line 4: a second document starts here: only one is allowed"),
            (format!("{POD}spec: {{containers: {{}}}}"), "spec.containers: invalid type: map"),
            (format!("{POD}spec: {{hostNetwork: 1}}"), "spec.hostNetwork: invalid type: integer"),
            ("a: [".to_owned(), "neither YAML nor JSON"),
        ];
        for (text, expected) in table {
            let error = error(&text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert_eq!(decode(b"a: \xff"), Err(ManifestError::NotText { offset: 3 }));
        assert_eq!(decode(&vec![b' '; MAX_MANIFEST_BYTES + 1]), Err(ManifestError::TooLarge));
        assert!(error(&"[".repeat(100_000)).contains("neither YAML nor JSON"));
    }

    #[test]
    fn a_list_has_several_pods_and_a_pod_is_a_list_of_one() {
        let names = |text: &str| {
            decode_all(text.as_bytes())
                .map(|all| all.iter().map(|d| agent_types::pod::name(&d.pod).to_owned()).collect::<Vec<_>>())
                .map_err(|e| e.to_string())
        };
        let list =
            |kind: &str, items: &str| names(&format!("apiVersion: v1\nkind: {kind}\nitems: {items}\n"));
        let (a, b) = ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "{metadata: {name: b}}");
        assert_eq!(names(POD), Ok(vec!["a".to_owned()]));
        assert_eq!(list("PodList", &format!("[{a}, {b}]")), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(list("List", &format!("[{a}]")), Ok(vec!["a".to_owned()]));
        for nothing in ["[]", "null"] {
            assert_eq!(list("PodList", nothing), Ok(Vec::new()));
        }
        for (kind, items, words) in [
            ("List", format!("[{a}, {b}]"), "items[1]: expected one Pod"),
            ("PodList", "[1]".to_owned(), "items[0]: expected one Pod"),
            ("PodList", "[{kind: Node}]".to_owned(), "items[0]: expected one Pod"),
            ("PodList", "[{spec: 1}]".to_owned(), "items[0]: spec: invalid type"),
            ("PodList", "{}".to_owned(), "items: expected a list of pods"),
            ("Nodes", "[]".to_owned(), "kind: \"Nodes\""),
        ] {
            let error = list(kind, &items).unwrap_err();
            assert!(error.contains(words), "{kind} {items}: {error}");
        }
    }

    fn reference(raw: &Value) -> Option<(String, String)> {
        let read: Result<Pod, _> = serde_path_to_error::deserialize(raw);
        read.err().map(|e| (e.path().to_string(), e.inner().to_string()))
    }

    /// Pods of which one part, wherever it is, has become something else.
    fn broken() -> Vec<Value> {
        let raw = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a\"b{[,:", "labels": {"a,b": "c", "d.e/f": "\\"}, "uid": "u"},
            "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 3, "nodeSelector": {},
                "containers": [
                    {"name": "c", "image": "i", "args": ["x", "]"], "env": [{"name": "A", "value": "}"}],
                     "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "web"}}},
                    {"name": "d", "resources": {"limits": {"cpu": "1"}}}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/"}}]}});
        fn paths(value: &Value, here: &str, all: &mut Vec<String>) {
            all.push(here.to_owned());
            let key = |key: &str| key.replace('~', "~0").replace('/', "~1");
            match value {
                Value::Object(map) => {
                    map.iter().for_each(|(k, v)| paths(v, &format!("{here}/{}", key(k)), all));
                }
                Value::Array(list) => {
                    list.iter().enumerate().for_each(|(i, v)| paths(v, &format!("{here}/{i}"), all));
                }
                _ => {}
            }
        }
        let mut all = Vec::new();
        paths(&raw, "", &mut all);
        // Another kind of object is refused before this.
        all.retain(|path| path != "/apiVersion" && path != "/kind");
        let others = [
            serde_json::json!(null),
            serde_json::json!(7),
            serde_json::json!(-1.5),
            serde_json::json!("text"),
            serde_json::json!(false),
            serde_json::json!([]),
            serde_json::json!(["x", {"y": [1]}]),
            serde_json::json!({}),
            serde_json::json!({"name": {"z": []}, "q": ["w"]}),
        ];
        let with = |path: &String| {
            others.clone().map(|other| {
                let mut raw = raw.clone();
                *raw.pointer_mut(path).expect("one of its own") = other;
                raw
            })
        };
        all.iter().flat_map(with).collect()
    }

    /// The field that is named is the one that a reader which follows the path would name.
    #[test]
    fn the_field_that_is_wrong_is_named() {
        for raw in broken() {
            let named = match typed(&raw) {
                Ok(_) => None,
                Err(ManifestError::Type { path, message }) => Some((path, message)),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(named, reference(&raw), "{raw}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_the_same_twice(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&bytes), decode(&bytes));
        }

        #[test]
        fn any_text_below_a_pod_head_is_answered(tail in "([a-z]{1,5}: |[\\[\\]{}&*!|>'\"\n -]|\\PC){0,80}") {
            let text = format!("{POD}{tail}");
            prop_assert_eq!(decode(text.as_bytes()), decode(text.as_bytes()));
        }
    }
}
