//! Readiness of pods and nodes, from their conditions. Pure.

use k8s_openapi::api::core::v1::{Node, Pod};

/// The status of a node's condition; `None` without one.
#[must_use]
pub fn node_condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str())
}

/// True if the node is Ready.
#[must_use]
pub fn node(node: &Node) -> bool {
    node_condition(node, "Ready") == Some("True")
}

/// True if the pod is Ready and not being deleted.
#[must_use]
pub fn pod(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// The pod's phase; empty without one.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The address by which a Node is reached in the cluster.
#[must_use]
pub fn internal_ip(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    addresses.iter().find(|a| a.type_ == "InternalIP").map(|a| a.address.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_on_its_way_out_is_not_ready() {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let mut one: Pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
        assert!(pod(&one) && phase(&one) == "Running");
        one.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(!pod(&one));
    }

    #[test]
    fn a_node_is_ready_by_its_condition() {
        let of = |status: &str| -> Node {
            let conditions = json!([{"type": "Ready", "status": status}]);
            serde_json::from_value(json!({"metadata": {}, "status": {"conditions": conditions}})).unwrap()
        };
        assert!(node(&of("True")) && !node(&of("Unknown")) && !node(&Node::default()));
    }
}
