//! The order of the shutdown: priority groups from the configuration, and the pods of each group.
//!
//! In: the configuration, the node's pods. Out: stages in the order in which they end. Invariants: the lowest
//! priority first; every pod is in exactly one stage; no stage is empty; the budget is the sum of all groups'
//! periods. Upstream: `migrateConfig` and `groupByPriority` of
//! pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::pod::{self, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL};
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::KubeletConfiguration;

use super::LeavingPod;

/// Priority of `system-node-critical`, above `system-cluster-critical`.
const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// The pod's place in the order of a shutdown: its priority, 0 if it has none. No API server computes the priority of a
/// static pod; one of a system's class has the priority of this class, so that a control plane outlives the pods
/// whose statuses it is to get. Upstream ends such a pod in the first group.
#[must_use]
pub fn priority(p: &Pod) -> i32 {
    let spec = pod::spec(p);
    let of_class = || match spec.priority_class_name.as_deref().filter(|_| pod::is_static(p))? {
        SYSTEM_NODE_CRITICAL => Some(NODE_CRITICAL_PRIORITY),
        "system-cluster-critical" => Some(SYSTEM_CRITICAL_PRIORITY),
        _ => None,
    };
    spec.priority.or_else(of_class).unwrap_or(0)
}

/// Pods of one range of priorities and the time that they have together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The lowest priority of the range; the first group also takes lower ones.
    pub priority: i32,
    /// From the first stop to the next group.
    pub period: Duration,
}

/// Pods that end at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What they have together.
    pub period: Duration,
    /// Pods of the stage.
    pub pods: Vec<LeavingPod>,
}

/// The groups of a configuration, ascending; none if pods are not waited for. `by_priority`: the gate
/// GracefulNodeShutdownBasedOnPodPriority.
#[must_use]
pub fn groups(kubelet: &KubeletConfiguration, by_priority: bool) -> Vec<Group> {
    let entries = kubelet.shutdown_grace_period_by_pod_priority.iter().filter(|_| by_priority);
    let mut groups: Vec<Group> = entries
        .map(|entry| Group {
            priority: entry.priority,
            period: Duration::from_secs(u64::try_from(entry.shutdown_grace_period_seconds).unwrap_or(0)),
        })
        .collect();
    let total = kubelet.shutdown_grace_period.to_std();
    if groups.is_empty() && !total.is_zero() {
        let critical = kubelet.shutdown_grace_period_critical_pods.to_std().min(total);
        groups.push(Group { priority: 0, period: total - critical });
        groups.push(Group { priority: SYSTEM_CRITICAL_PRIORITY, period: critical });
    }
    groups.sort_by_key(|group| group.priority);
    groups
}

/// All the time there is.
#[must_use]
pub fn budget(groups: &[Group]) -> Duration {
    groups.iter().map(|group| group.period).sum()
}

/// The pods in the order in which they end: each in the highest group whose priority it reaches, or in the
/// lowest.
#[must_use]
pub fn stages(groups: &[Group], pods: Vec<LeavingPod>) -> Vec<Stage> {
    let mut stages: BTreeMap<usize, Vec<LeavingPod>> = BTreeMap::new();
    for pod in pods {
        let above = groups.partition_point(|group| group.priority <= pod.priority);
        stages.entry(above.saturating_sub(1)).or_default().push(pod);
    }
    stages
        .into_iter()
        .map(|(index, pods)| Stage {
            period: groups.get(index).map_or(Duration::ZERO, |group| group.period),
            pods,
        })
        .collect()
}
