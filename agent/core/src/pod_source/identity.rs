//! The identity of a static pod: UID, name on this node, annotations.
//!
//! In: the decoded manifest, the node's name, the manifest's location. Out: the pod with its identity filled
//! in. Invariants: the UID is a function of the written manifest (not of our defaults, so that a newer agent
//! does not restart the pod), the node and the path; comments, order of keys and layout do not matter.
//! Upstream: `applyDefaults` of pkg/kubelet/config/common.go. Differences: docs/decisions/static-pods.md.

use agent_types::pod::{CONFIG_HASH, CONFIG_SOURCE};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use orlop_config::fnv::{Fnv128, fnv128};
use serde_json::Value;

use super::Source;

/// Fill in UID, name, namespace, node, annotations, toleration and phase. `place` is the path or URL.
pub fn assign(pod: &mut Pod, raw: &Value, source: Source, node_name: &str, place: &str) {
    let meta = &mut pod.metadata;
    let uid = match meta.uid.take().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid,
        None => uid_of(raw, source, node_name, place),
    };
    meta.uid = Some(uid.clone());
    if let Some(name) = meta.name.take().filter(|name| !name.is_empty()) {
        meta.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    }
    if meta.namespace.as_deref().unwrap_or("").is_empty() {
        meta.namespace = Some("default".to_owned());
    }
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(CONFIG_HASH.to_owned(), uid);
    annotations.insert(CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if source == Source::File {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });
}

/// A file's pod tolerates every taint that the node gets.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let toleration = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    // One that is the same but for its time would end the pod after all.
    let same = |t: &Toleration| Toleration { toleration_seconds: None, ..t.clone() } == toleration;
    match tolerations.iter_mut().find(|t| same(t)) {
        Some(own) => *own = toleration,
        None => tolerations.push(toleration),
    }
}

fn uid_of(raw: &Value, source: Source, node_name: &str, place: &str) -> String {
    let mut hash = Fnv128::default();
    write_canonical(raw, &mut hash);
    match source {
        Source::Http => hash.write(format!("url:{place}").as_bytes()),
        Source::File | Source::Api => hash.write(format!("host:{node_name}file:{place}").as_bytes()),
    }
    format!("{:032x}", hash.finish())
}

/// The value with keys sorted and nulls left out. Lengths and type marks keep different values apart.
fn write_canonical(value: &Value, hash: &mut Fnv128) {
    match value {
        Value::Null => hash.write(b"n"),
        Value::Bool(flag) => hash.write(if *flag { b"t" } else { b"f" }),
        Value::Number(number) => write_text(b'#', &number.to_string(), hash),
        Value::String(text) => write_text(b's', text, hash),
        Value::Array(list) => {
            hash.write(format!("[{}:", list.len()).as_bytes());
            list.iter().for_each(|item| write_canonical(item, hash));
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            hash.write(format!("{{{}:", entries.len()).as_bytes());
            for (key, value) in entries {
                write_text(b'k', key, hash);
                write_canonical(value, hash);
            }
        }
    }
}

fn write_text(mark: u8, text: &str, hash: &mut Fnv128) {
    hash.write(&[mark]);
    hash.write(format!("{}:", text.len()).as_bytes());
    hash.write(text.as_bytes());
}

/// Digest of a manifest's bytes, to see that a file did not change.
#[must_use]
pub fn digest(bytes: &[u8]) -> u128 {
    fnv128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_source::decode::decode;
    use agent_types::pod;

    fn identified(text: &str, node: &str, place: &str) -> Pod {
        let decoded = decode(text.as_bytes()).unwrap();
        let mut pod = decoded.pod;
        assign(&mut pod, &decoded.raw, Source::File, node, place);
        pod
    }

    const MANIFEST: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";

    #[test]
    fn the_hash_is_fnv_1a_of_128_bits() {
        // Published test vectors.
        assert_eq!(digest(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(digest(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(digest(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn identity_is_filled_in() {
        let pod = identified(MANIFEST, "Node-1", "/m/web.yaml");
        assert_eq!(pod::full_name(&pod), "web-node-1_default");
        assert_eq!(pod::uid(&pod).len(), 32);
        assert_eq!(pod::annotation(&pod, CONFIG_HASH), Some(pod::uid(&pod)));
        assert_eq!(pod::annotation(&pod, CONFIG_SOURCE), Some("file"));
        assert!(pod::is_static(&pod));
        let spec = pod::spec(&pod);
        assert_eq!(spec.node_name.as_deref(), Some("Node-1"));
        let toleration = &spec.tolerations.as_ref().unwrap()[0];
        assert_eq!(
            (toleration.operator.as_deref(), toleration.effect.as_deref()),
            (Some("Exists"), Some("NoExecute"))
        );
        assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
    }

    #[test]
    fn the_uid_depends_on_meaning_node_and_place_only() {
        let base = identified(MANIFEST, "n", "/m/web.yaml");
        let reordered = "# comment\nkind: Pod\nspec:\n  containers:\n  - image: \"i\"\n    name: c\n    command: null\n\
                         metadata:\n  name: web\napiVersion: v1\n";
        assert_eq!(pod::uid(&base), pod::uid(&identified(reordered, "n", "/m/web.yaml")));
        let changed = MANIFEST.replace("image: i", "image: j");
        for other in [
            identified(&changed, "n", "/m/web.yaml"),
            identified(MANIFEST, "m", "/m/web.yaml"),
            identified(MANIFEST, "n", "/m/other.yaml"),
        ] {
            assert_ne!(pod::uid(&base), pod::uid(&other));
        }
    }

    #[test]
    fn a_toleration_of_taints_that_end_pods_knows_no_time() {
        for (own, count) in [
            ("{operator: Exists, effect: NoExecute, tolerationSeconds: 5}", 1),
            ("{operator: Exists, effect: NoExecute}", 1),
            ("{key: k, operator: Exists, effect: NoExecute, tolerationSeconds: 5}", 2),
        ] {
            let manifest = MANIFEST.replace("spec: {", &format!("spec: {{tolerations: [{own}], "));
            let pod = identified(&manifest, "n", "/m/web.yaml");
            let tolerations = pod.spec.unwrap().tolerations.unwrap();
            let all = |t: &Toleration| t.key.is_none() && t.toleration_seconds.is_none();
            assert!(tolerations.len() == count && tolerations.iter().any(all), "{own}: {tolerations:?}");
        }
    }

    #[test]
    fn a_uid_of_the_manifest_is_kept() {
        let named = MANIFEST.replace("{name: web}", "{name: web, uid: own, namespace: kube-system}");
        let pod = identified(&named, "n", "/m/web.yaml");
        assert_eq!((pod::uid(&pod), pod::namespace(&pod)), ("own", "kube-system"));
        assert_eq!(pod::annotation(&pod, CONFIG_HASH), Some("own"));
    }
}
