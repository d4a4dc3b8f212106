//! The cordon of an update: patches of the Node that set and take back `spec.unschedulable`.
//!
//! In: the Node as it is known. Out: a strategic merge patch, or none. Pure. Invariants: a node that somebody else has cordoned is
//! left as it is, before and after the update; a patch holds only for the version of the Node that was looked at.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::report::CORDONED;

/// Sets `spec.unschedulable` and the mark of the update; none if the node is unschedulable already, by whomever.
#[must_use]
pub fn cordon(node: &Node, update: &str) -> Option<Value> {
    let is_own = mark(node).is_some();
    match (is_unschedulable(node), is_own) {
        (true, true) if mark(node) == Some(update) => None,
        (true, false) => None,
        _ => {
            let spec = json!({"unschedulable": true});
            Some(json!({"metadata": guarded(node, json!(update)), "spec": spec}))
        }
    }
}

/// Takes both back; none if the node does not have the mark of an update.
#[must_use]
pub fn uncordon(node: &Node) -> Option<Value> {
    mark(node)?;
    Some(json!({"metadata": guarded(node, Value::Null), "spec": {"unschedulable": null}}))
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

fn mark(node: &Node) -> Option<&str> {
    node.metadata.annotations.as_ref()?.get(CORDONED).map(String::as_str)
}

fn guarded(node: &Node, mark: Value) -> Value {
    let meta = &node.metadata;
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": {CORDONED: mark}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, mark: Option<&str>) -> Node {
        let annotations = mark.map_or(json!({}), |mark| json!({CORDONED: mark}));
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"unschedulable": unschedulable}}))
            .expect("a node")
    }

    #[test]
    fn only_what_the_update_has_cordoned_is_uncordoned() {
        let patch = cordon(&node(false, None), "0.2.0-7").expect("schedulable");
        let want = json!({
            "metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"orlop.org/update-cordon": "0.2.0-7"}},
            "spec": {"unschedulable": true},
        });
        assert_eq!(patch, want);
        assert_eq!(cordon(&node(true, None), "0.2.0-7"), None, "somebody else's");
        assert_eq!(cordon(&node(true, Some("0.2.0-7")), "0.2.0-7"), None, "done already");
        // A mark of an earlier update, or a node that somebody has uncordoned in between.
        assert!(cordon(&node(true, Some("0.1.0-3")), "0.2.0-7").is_some());
        assert!(cordon(&node(false, Some("0.2.0-7")), "0.2.0-7").is_some());
        assert_eq!(uncordon(&node(true, None)), None);
        let patch = uncordon(&node(true, Some("0.2.0-7"))).expect("its own");
        assert_eq!(patch["spec"], json!({"unschedulable": null}));
        assert_eq!(patch["metadata"]["annotations"], json!({"orlop.org/update-cordon": null}));
    }
}
