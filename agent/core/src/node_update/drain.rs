//! Which pods leave a node before its reboot, and what is still awaited.
//!
//! In: the pods that the node wants, and those that it still has. Out: evictions, or what the drain waits for. Pure. As kubectl's
//! drain: pods of a DaemonSet, static pods and pods that have ended stay. A pod that is being deleted is waited for.

use std::collections::BTreeSet;

use agent_types::api::ObjectName;
use agent_types::pod::is_static;
use k8s_openapi::api::core::v1::Pod;

/// A pod to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictedPod {
    /// Namespace and name.
    pub pod: ObjectName,
    /// Its UID, so that no other pod of this name is evicted.
    pub uid: String,
}

/// What a drain has to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainStep {
    /// To be evicted, in the order of their names.
    pub evict: Vec<EvictedPod>,
    /// Pods that are about to end, namespace and name.
    pub leaving: BTreeSet<String>,
}

impl DrainStep {
    /// Nothing is left to do and to wait for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.evict.is_empty() && self.leaving.is_empty()
    }
}

/// A pod of this node.
#[derive(Clone, Copy, Debug)]
pub struct DrainedPod<'p> {
    /// As the API server has it, or as its manifest says.
    pub pod: &'p Pod,
    /// Its phase, as its worker knows it; empty before the worker has said it.
    pub phase: &'p str,
}

/// Looks at all pods that the node wants. `ending` are pods that it does not want any more and still has, namespace and name.
#[must_use]
pub fn drain_step<'p>(pods: impl IntoIterator<Item = DrainedPod<'p>>, ending: BTreeSet<String>) -> DrainStep {
    let mut step = DrainStep { leaving: ending, ..DrainStep::default() };
    for DrainedPod { pod, phase } in pods {
        let has_ended = matches!(phase, "Succeeded" | "Failed");
        if has_ended || is_static(pod) || is_of_daemon_set(pod) {
            continue;
        }
        let meta = &pod.metadata;
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
        if meta.deletion_timestamp.is_some() {
            step.leaving.insert(format!("{namespace}/{name}"));
        } else {
            let pod = ObjectName { namespace: namespace.into(), name: name.into() };
            step.evict.push(EvictedPod { pod, uid: meta.uid.clone().unwrap_or_default() });
        }
    }
    step.evict.sort_by(|a, b| a.pod.cmp(&b.pod));
    step
}

fn is_of_daemon_set(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, more: serde_json::Value) -> Pod {
        let mut metadata = json!({"namespace": "ns", "name": name, "uid": format!("u-{name}")});
        for (key, value) in more.as_object().expect("a map") {
            metadata[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
    }

    #[test]
    fn pods_that_another_node_can_run_leave() {
        let owner = |kind: &str| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "x", "controller": true}]});
        let pods = [
            (pod("web", owner("ReplicaSet")), "Running"),
            (pod("alone", json!({})), "Pending"),
            (pod("agent", owner("DaemonSet")), "Running"),
            (pod("job", owner("Job")), "Succeeded"),
            (pod("etcd", json!({"annotations": {"kubernetes.io/config.source": "file"}})), "Running"),
            (pod("goes", json!({"deletionTimestamp": "2026-11-30T12:00:00Z"})), "Running"),
        ];
        let step = drain_step(pods.iter().map(|(pod, phase)| DrainedPod { pod, phase }), BTreeSet::new());
        let names: Vec<&str> = step.evict.iter().map(|evicted| &*evicted.pod.name).collect();
        assert_eq!(names, ["alone", "web"]);
        assert_eq!(step.evict[1].uid, "u-web");
        assert_eq!(step.leaving, BTreeSet::from(["ns/goes".to_owned()]));
        assert!(!step.is_done());
        let rest = pods[2..5].iter().map(|(pod, phase)| DrainedPod { pod, phase });
        assert!(drain_step(rest, BTreeSet::new()).is_done());
        let ending = BTreeSet::from(["ns/was-here".to_owned()]);
        assert_eq!(drain_step([], ending.clone()), DrainStep { leaving: ending, ..DrainStep::default() });
    }
}
