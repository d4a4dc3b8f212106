//! Exclusive processors of a container under the static CPU manager policy.
//!
//! In: a pod and one of its containers. Out: their number. Invariant: one rule serves admission, which assigns the processors, and the
//! limits of containers, sandboxes and pod cgroups, which have no quota then. Upstream: `guaranteedCPUs` of
//! pkg/kubelet/cm/cpumanager/policy_static.go, KEP-3570; the quota: gate DisableCPUQuotaWithExclusiveCPUs.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::requests::{CPU, is_pod_level_set, request};
use super::{QosClass, qos_class};
use crate::node_context::CgroupContext;
use crate::pod;

const MILLI: i64 = 1000;

/// True if containers of the pod may have exclusive processors or memory: its class is Guaranteed, and it has no pod-level requests
/// (these need the gate PodLevelResourceManagers, which the agent does not have).
#[must_use]
pub fn may_have_exclusive(pod: &Pod) -> bool {
    qos_class(pod) == QosClass::Guaranteed && !is_pod_level_set(pod)
}

/// Number of exclusive processors; 0 for a container on the shared ones.
#[must_use]
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> u64 {
    let milli = request(container, CPU).unwrap_or_default().milli_value();
    if milli % MILLI != 0 || !may_have_exclusive(pod) {
        return 0;
    }
    u64::try_from(milli / MILLI).unwrap_or(0)
}

/// True if the container has no quota, because it has exclusive processors.
#[must_use]
pub fn is_without_quota(pod: &Pod, container: &Container, cgroup: &CgroupContext) -> bool {
    cgroup.no_quota_with_exclusive_cpus && exclusive_cpus(pod, container) > 0
}

/// True if the pod's cgroup and sandbox have no quota, because one of its containers has none.
#[must_use]
pub fn is_pod_without_quota(p: &Pod, cgroup: &CgroupContext) -> bool {
    let mut all = pod::init_containers(p).iter().chain(pod::containers(p));
    all.any(|container| is_without_quota(p, container, cgroup))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod_of(cpus: &str, spec: &Value) -> Pod {
        let amounts = json!({"cpu": cpus, "memory": "1Mi"});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {
            "containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}});
        if !spec.is_null() {
            pod["spec"]["resources"] = spec.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn whole_processors_of_guaranteed_pods() {
        for (cpus, expected) in [("2", 2), ("2000m", 2), ("1500m", 0), ("0", 0), ("1.0001", 0)] {
            let pod = pod_of(cpus, &Value::Null);
            assert_eq!(exclusive_cpus(&pod, &pod::containers(&pod)[0]), expected, "{cpus}");
        }
        let mut burstable = pod_of("2", &Value::Null);
        burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
        assert_eq!(exclusive_cpus(&burstable, &pod::containers(&burstable)[0]), 0);
        let pod_level = pod_of(
            "2",
            &json!({"limits": {"cpu": "2", "memory": "1Mi"}, "requests": {"cpu": "2", "memory": "1Mi"}}),
        );
        assert_eq!(exclusive_cpus(&pod_level, &pod::containers(&pod_level)[0]), 0);
    }

    #[test]
    fn the_quota_goes_only_with_the_policy() {
        let pod = pod_of("2", &Value::Null);
        let mut cgroup = crate::node_context::NodeContext::new("n").cgroup;
        assert!(!is_pod_without_quota(&pod, &cgroup));
        cgroup.no_quota_with_exclusive_cpus = true;
        assert!(is_pod_without_quota(&pod, &cgroup));
    }
}
