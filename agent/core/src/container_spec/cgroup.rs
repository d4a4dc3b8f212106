//! The parent cgroup of a pod's sandbox.
//!
//! In: UID, QoS class, the node's cgroup settings. Out: the `cgroup_parent` of the sandbox. Invariant: a pod
//! has one parent, which depends on UID and class only. Upstream:
//! pkg/kubelet/cm/pod_container_manager_linux.go.

use agent_types::node_context::{CgroupContext, NodeContext};
use agent_types::resources::cgroups::pod as pod_cgroups;
use k8s_openapi::api::core::v1::Pod;

/// The pod's `cgroup_parent`: a full slice path for systemd, a directory for cgroupfs. Without
/// `cgroupsPerQOS` it is the configured root, and empty (the runtime's choice) if there is none.
#[must_use]
pub fn cgroup_parent(pod: &Pod, node: &NodeContext) -> String {
    if !node.cgroup.per_qos {
        return node.cgroup.root.clone();
    }
    pod_cgroups::name(pod, &node.cgroup).path(node.cgroup.driver)
}

/// The cgroup in which all pods' cgroups are; the root without `cgroupsPerQOS`, where the runtime chooses.
#[must_use]
pub fn kubepods(cgroup: &CgroupContext) -> String {
    match cgroup.per_qos {
        true => pod_cgroups::kubepods(&cgroup.root, cgroup.driver).path(cgroup.driver),
        false => "/".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use agent_types::node_context::CgroupDriver;

    fn pod(requests: serde_json::Value, limits: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": "12-ab"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]}}))
        .unwrap()
    }

    #[test]
    fn table() {
        let none = json!({});
        let some = json!({"cpu": "1"});
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = pod(full.clone(), full);
        let burstable = pod(some, none.clone());
        let best_effort = pod(none.clone(), none);
        let systemd = NodeContext::new("n");
        let mut cgroupfs = NodeContext::new("n");
        cgroupfs.cgroup.driver = CgroupDriver::Cgroupfs;
        let mut rooted = NodeContext::new("n");
        rooted.cgroup.root = "/top".into();
        let mut flat = NodeContext::new("n");
        flat.cgroup.per_qos = false;
        let table = [
            (&guaranteed, &systemd, "/kubepods.slice/kubepods-pod12_ab.slice"),
            (
                &burstable,
                &systemd,
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
            ),
            (
                &best_effort,
                &systemd,
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_ab.slice",
            ),
            (&guaranteed, &cgroupfs, "/kubepods/pod12-ab"),
            (&burstable, &cgroupfs, "/kubepods/burstable/pod12-ab"),
            (&best_effort, &cgroupfs, "/kubepods/besteffort/pod12-ab"),
            (&guaranteed, &rooted, "/top.slice/top-kubepods.slice/top-kubepods-pod12_ab.slice"),
            (&burstable, &flat, ""),
        ];
        for (pod, node, expected) in table {
            assert_eq!(cgroup_parent(pod, node), expected);
            let all = kubepods(&node.cgroup);
            assert!(!node.cgroup.per_qos || expected.starts_with(&format!("{all}/")), "{all}");
        }
    }
}
