//! Downward API: values of a pod for its own containers (`fieldRef`, `resourceFieldRef`).
//!
//! In: a field path or resource name, the pod, its addresses, the node. Out: text. Invariants: a limit that
//! is not set reads as the pod's own limit, then as the node's allocatable amount; divisions round up.
//! Upstream: pkg/fieldpath, pkg/api/v1/resource/helpers.go.

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector};

use crate::node_context::NodeContext;
use crate::resources::requests::{CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, limit_in_pod, request};
use crate::spec_error::SpecError;
use crate::{ContainerRef, Quantity, pod};

/// Splits `metadata.labels['key']` into (`metadata.labels`, `key`).
#[must_use]
pub fn subscript(path: &str) -> Option<(&str, &str)> {
    let inner = path.strip_suffix("']")?;
    inner.split_once("['").filter(|(field, key)| !field.is_empty() && !key.is_empty())
}

/// True for the field paths that an environment variable may name.
#[must_use]
pub fn is_env_field(path: &str) -> bool {
    if let Some((field, _)) = subscript(path) {
        return matches!(field, "metadata.labels" | "metadata.annotations");
    }
    matches!(
        path,
        "metadata.name"
            | "metadata.namespace"
            | "metadata.uid"
            | "spec.nodeName"
            | "spec.serviceAccountName"
            | "status.hostIP"
            | "status.hostIPs"
            | "status.podIP"
            | "status.podIPs"
    )
}

/// Value of a `fieldRef`.
///
/// # Errors
/// A path that no variable may name, or a node address that is not known yet.
pub fn field(pod: &Pod, path: &str, pod_ips: &[String], node: &NodeContext) -> Result<String, SpecError> {
    if let Some((field, key)) = subscript(path) {
        let map = match field {
            "metadata.labels" => pod::labels(pod),
            "metadata.annotations" => pod::annotations(pod),
            _ => return Err(unknown(path)),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    // A host-network pod has the node's addresses.
    let pod_ips = if pod_ips.is_empty() && pod::host_network(pod) { &node.node_ips } else { pod_ips };
    let value = match path {
        "metadata.name" => pod::name(pod).to_owned(),
        "metadata.namespace" => pod::namespace(pod).to_owned(),
        "metadata.uid" => pod::uid(pod).to_owned(),
        "spec.nodeName" => node.node_name.clone(),
        "spec.serviceAccountName" => pod::spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => host_ips(path, node)?.first().cloned().unwrap_or_default(),
        "status.hostIPs" => host_ips(path, node)?.join(","),
        "status.podIP" => pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => pod_ips.join(","),
        _ => return Err(unknown(path)),
    };
    Ok(value)
}

fn host_ips<'n>(path: &str, node: &'n NodeContext) -> Result<&'n [String], SpecError> {
    if node.node_ips.is_empty() {
        return Err(SpecError::container(format!(
            "cannot resolve fieldRef {path}: the node has no address yet"
        )));
    }
    Ok(&node.node_ips)
}

fn unknown(path: &str) -> SpecError {
    SpecError::container(format!("unsupported fieldPath: {path}"))
}

/// Value of a `resourceFieldRef`; without a container name it refers to the container `own`.
///
/// # Errors
/// A container or resource that does not exist.
pub fn resource_field(
    pod: &Pod,
    own: ContainerRef<'_>,
    selector: &ResourceFieldSelector,
    node: &NodeContext,
) -> Result<String, SpecError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match named {
        None => own.find(pod),
        Some(name) => ContainerRef::Regular(name).find(pod).or_else(|| ContainerRef::Init(name).find(pod)),
    };
    let container = &*container.ok_or_else(|| {
        SpecError::container(format!("container {} not found", named.unwrap_or(own.name())))
    })?;
    let (kind, resource) = selector.resource.split_once('.').unwrap_or(("", ""));
    let amount = match kind {
        "limits" => {
            let there = |q: &Quantity| !q.is_zero();
            let own = limit_in_pod(pod, container, resource).filter(there);
            own.or_else(|| allocatable(resource, node))
        }
        "requests" => request(container, resource),
        _ => None,
    };
    let known =
        matches!(resource, CPU | MEMORY | EPHEMERAL_STORAGE) || resource.starts_with(HUGEPAGES_PREFIX);
    if !known || !matches!(kind, "limits" | "requests") {
        return Err(SpecError::container(format!("unsupported container resource : {}", selector.resource)));
    }
    let divisor = selector.divisor.as_ref().and_then(|d| Quantity::parse(&d.0).ok()).filter(|d| !d.is_zero());
    let divisor = divisor.unwrap_or(Quantity::from_units(1));
    let amount = amount.unwrap_or_default();
    let (amount, divisor) = if resource == CPU {
        (amount.milli_value(), divisor.milli_value())
    } else {
        (amount.value(), divisor.value())
    };
    Ok(divide_up(amount, divisor).to_string())
}

fn allocatable(resource: &str, node: &NodeContext) -> Option<Quantity> {
    match resource {
        CPU => Some(Quantity::from_milli(node.machine.allocatable_cpu_milli)),
        MEMORY => Some(Quantity::from_units(node.machine.allocatable_memory_bytes)),
        EPHEMERAL_STORAGE => Some(Quantity::from_units(node.machine.allocatable_ephemeral_storage_bytes)),
        _ => None,
    }
}

fn divide_up(amount: i64, divisor: i64) -> i64 {
    let (amount, divisor) = (amount.max(0), divisor.max(1));
    amount / divisor + i64::from(amount % divisor != 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "labels": {"app": "web"}, "annotations": {"a.b/c": "v"}},
            "spec": {"serviceAccountName": "sa", "containers": [
                {"name": "c", "resources": {"limits": {"memory": "64Mi", "hugepages-2Mi": "4Mi"},
                                            "requests": {"cpu": "250m"}}},
                {"name": "d"}]}}))
        .unwrap()
    }

    fn node() -> NodeContext {
        let mut node = NodeContext::new("node-1");
        node.node_ips = vec!["192.0.2.1".into(), "2001:db8::1".into()];
        node.machine.allocatable_cpu_milli = 1900;
        node.machine.allocatable_memory_bytes = 1 << 30;
        node
    }

    #[test]
    fn fields() {
        let ips = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
        let table = [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['a.b/c']", "v"),
            ("spec.nodeName", "node-1"),
            ("spec.serviceAccountName", "sa"),
            ("status.hostIP", "192.0.2.1"),
            ("status.hostIPs", "192.0.2.1,2001:db8::1"),
            ("status.podIP", "10.0.0.2"),
            ("status.podIPs", "10.0.0.2,fd00::2"),
        ];
        for (path, expected) in table {
            assert!(is_env_field(path), "{path}");
            assert_eq!(field(&pod(), path, &ips, &node()).unwrap(), expected, "{path}");
        }
        for path in ["status.phase", "metadata.labels", "spec.x['y']", "", "['x']"] {
            assert!(!is_env_field(path), "{path}");
            assert!(field(&pod(), path, &ips, &node()).is_err(), "{path}");
        }
    }

    #[test]
    fn addresses_of_the_host_network_and_of_a_node_without_any() {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().host_network = Some(true);
        assert_eq!(field(&pod, "status.podIP", &[], &node()).unwrap(), "192.0.2.1");
        let error = field(&pod, "status.hostIP", &[], &NodeContext::new("n")).unwrap_err();
        assert_eq!(error.reason, "CreateContainerConfigError");
    }

    fn resource(selector: Value) -> Result<String, SpecError> {
        let selector = serde_json::from_value(selector).unwrap();
        resource_field(&pod(), ContainerRef::Regular("c"), &selector, &node())
    }

    #[test]
    fn resources() {
        let table = [
            (json!({"resource": "requests.cpu"}), "1"), // rounded up
            (json!({"resource": "requests.cpu", "divisor": "1m"}), "250"),
            (json!({"resource": "limits.cpu", "divisor": "1m"}), "1900"), // node's allocatable
            (json!({"resource": "limits.memory", "divisor": "1Mi"}), "64"),
            (json!({"resource": "limits.memory", "divisor": "0"}), "67108864"),
            (json!({"resource": "requests.memory"}), "0"),
            (json!({"resource": "limits.memory", "containerName": "d", "divisor": "1Gi"}), "1"),
            (json!({"resource": "limits.hugepages-2Mi"}), "4194304"),
        ];
        for (selector, expected) in table {
            assert_eq!(resource(selector.clone()).unwrap(), expected, "{selector}");
        }
        for bad in [
            json!({"resource": "limits.x"}),
            json!({"resource": "cpu"}),
            json!({"resource": "limits.cpu", "containerName": "none"}),
        ] {
            assert!(resource(bad.clone()).is_err(), "{bad}");
        }
    }
}
