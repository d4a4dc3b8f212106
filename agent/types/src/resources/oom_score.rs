//! `oom_score_adj` of a container: which processes the kernel ends first when the machine has no memory left.
//!
//! In: pod, container, the machine's memory. Out: a number from -997 to 1000. Invariant: the score of Guaranteed is below that of
//! Burstable, and the score of Burstable is below that of BestEffort. Upstream: pkg/kubelet/qos.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::qos::{QosClass, qos_class};
use super::requests::{MEMORY, peak_request, pod_level_request, request};
use crate::pod;

const OOM_GUARANTEED: i64 = -997;
const OOM_BEST_EFFORT: i64 = 1000;
/// Scores below are reserved for processes that the node cannot lose.
const OOM_BURSTABLE_MIN: i64 = 1000 + OOM_GUARANTEED;
const OOM_BURSTABLE_MAX: i64 = OOM_BEST_EFFORT - 1;

/// `oom_score_adj` of a container; `capacity` is the machine's memory in bytes.
#[must_use]
pub fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    let node_critical = pod::spec(pod).priority_class_name.as_deref() == Some(pod::SYSTEM_NODE_CRITICAL);
    match qos_class(pod) {
        _ if node_critical => OOM_GUARANTEED,
        QosClass::Guaranteed => OOM_GUARANTEED,
        QosClass::BestEffort => OOM_BEST_EFFORT,
        QosClass::Burstable => {
            let spare = spare_memory(pod);
            let mut score = score_of(memory_request(container).saturating_add(spare), capacity);
            if pod::is_sidecar(container) {
                // A sidecar must not be the victim before the container it serves.
                let smallest = pod::containers(pod).iter().map(memory_request).min().unwrap_or(0);
                score = score.min(score_of(smallest.saturating_add(spare), capacity));
            }
            score.clamp(OOM_BURSTABLE_MIN, OOM_BURSTABLE_MAX)
        }
    }
}

/// Each container's share of the pod's own request beyond the sum of its containers' requests, bytes
/// (KEP-2837).
fn spare_memory(pod: &Pod) -> i64 {
    let Some(own) = pod_level_request(pod, MEMORY).filter(|q| !q.is_zero()) else { return 0 };
    let containers = pod::containers(pod).len() + pod::init_containers(pod).len();
    let spare = own.value().saturating_sub(peak_request(pod, MEMORY).value());
    spare / i64::try_from(containers).unwrap_or(i64::MAX).max(1)
}

fn memory_request(container: &Container) -> i64 {
    request(container, MEMORY).unwrap_or_default().value()
}

fn score_of(request: i64, capacity: i64) -> i64 {
    // Widened: 1000 times a large request does not fit 64 bits.
    let share = i128::from(request) * 1000 / i128::from(capacity.max(1));
    1000 - i64::try_from(share.clamp(0, 2000)).expect("clamped to a small range")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: i64 = 1 << 30;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}))
            .unwrap()
    }

    fn burstable(memory: &str) -> Value {
        json!({"name": memory, "resources": {"requests": {"memory": memory}}})
    }

    #[test]
    fn oom_scores() {
        let capacity = 4 * GIB;
        let spec = json!({"containers": [burstable("1Gi"), burstable("4Gi"), burstable("1")],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}]});
        let pod_burstable = pod(spec);
        let score = |pod: &Pod, c: &Container| oom_score_adj(pod, c, capacity);
        let regular: Vec<i64> =
            pod::containers(&pod_burstable).iter().map(|c| score(&pod_burstable, c)).collect();
        assert_eq!(regular, [750, 3, 999]);
        let init: Vec<i64> =
            pod::init_containers(&pod_burstable).iter().map(|c| score(&pod_burstable, c)).collect();
        assert_eq!(init, [999, 999]);

        let with_sidecar = pod(json!({"containers": [burstable("1Gi"), burstable("2Gi")],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}]}));
        assert_eq!(score(&with_sidecar, &pod::init_containers(&with_sidecar)[0]), 750);

        let best_effort = pod(json!({"containers": [{"name": "c"}]}));
        assert_eq!(score(&best_effort, &pod::containers(&best_effort)[0]), 1000);
        let critical =
            pod(json!({"priorityClassName": "system-node-critical", "containers": [{"name": "c"}]}));
        assert_eq!(score(&critical, &pod::containers(&critical)[0]), -997);
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed =
            pod(json!({"containers": [{"name": "c", "resources": {"requests": full, "limits": full}}]}));
        assert_eq!(score(&guaranteed, &pod::containers(&guaranteed)[0]), -997);
        // A machine whose memory is unknown must not divide by zero, and huge requests must not overflow.
        assert_eq!(oom_score_adj(&pod_burstable, &pod::containers(&pod_burstable)[0], 0), 3);
        let huge = pod(json!({"containers": [burstable("8Ei")]}));
        assert_eq!(score(&huge, &pod::containers(&huge)[0]), 3);
    }
}
