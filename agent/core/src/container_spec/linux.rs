//! Translates requests and limits to kernel values: the CRI message `LinuxContainerResources`.
//!
//! In: container, pod, node. Out: [`LinuxResources`]. Invariants: shares are between 2 and 262144; a quota is
//! at least 1 ms; `oom_score_adj` of Guaranteed is below Burstable, and Burstable below BestEffort. Upstream:
//! pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, pkg/kubelet/qos.

pub mod memory;

use std::collections::BTreeMap;

use agent_types::node_context::NodeContext;
use agent_types::resources::cpu::{cpu_quota_us, cpu_shares, kernel_page_size};
use agent_types::resources::requests::{
    CPU, HUGEPAGES_PREFIX, MEMORY, limit_in_pod, overhead, peak_request, pod_level_request, request,
    running_limit, running_request,
};
use agent_types::resources::{QosClass, qos_class};
use agent_types::runtime::config::LinuxResources;
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Container, Pod};

const OOM_GUARANTEED: i64 = -997;
const OOM_BEST_EFFORT: i64 = 1000;
/// Scores below are reserved for processes that the node cannot lose.
const OOM_BURSTABLE_MIN: i64 = 1000 + OOM_GUARANTEED;
const OOM_BURSTABLE_MAX: i64 = OOM_BEST_EFFORT - 1;

/// All resources of one container for the runtime.
#[must_use]
pub fn container_resources(pod: &Pod, container: &Container, node: &NodeContext) -> LinuxResources {
    let cpu_request = request(container, CPU);
    let cpu_limit = limit_in_pod(pod, container, CPU).unwrap_or_default();
    let memory_limit = limit_in_pod(pod, container, MEMORY).unwrap_or_default();
    let mut resources = cpu_and_memory(cpu_request, cpu_limit, memory_limit, node);
    resources.oom_score_adj = oom_score_adj(pod, container, node.machine.memory_capacity_bytes);
    resources.hugepage_limits = hugepage_limits(pod, container, &node.machine.hugepage_sizes);
    if node.cgroup.v2 {
        if !node.cgroup.single_process_oom_kill {
            resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
        }
        if node.cgroup.swap_controller {
            let swap = memory::swap_limit(pod, container, node);
            resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
        }
        resources.unified.extend(memory::qos(pod, container, node));
    } else if resources.memory_limit_bytes > 0 {
        // cgroup v1 counts memory plus swap: the same number leaves no swap.
        resources.memory_swap_limit_bytes = resources.memory_limit_bytes;
    }
    resources
}

/// The sum of the pod's containers, for runtimes that size a sandbox by it.
#[must_use]
pub fn sandbox_resources(pod: &Pod, node: &NodeContext) -> LinuxResources {
    let cpu_request = Some(running_request(pod, CPU)).filter(|q| !q.is_zero());
    cpu_and_memory(cpu_request, running_limit(pod, CPU), running_limit(pod, MEMORY), node)
}

/// Resources of the sandbox itself, in addition to its containers: request and limit at once. Zero for a pod
/// without overhead.
#[must_use]
pub fn sandbox_overhead(pod: &Pod, node: &NodeContext) -> LinuxResources {
    if pod::spec(pod).overhead.is_none() {
        return LinuxResources::default();
    }
    let cpu = overhead(pod, CPU);
    cpu_and_memory(Some(cpu), cpu, overhead(pod, MEMORY), node)
}

fn cpu_and_memory(
    cpu_request: Option<Quantity>,
    cpu_limit: Quantity,
    memory_limit: Quantity,
    node: &NodeContext,
) -> LinuxResources {
    let weighed = cpu_request.unwrap_or(cpu_limit);
    let mut resources = LinuxResources {
        cpu_shares: cpu_shares(weighed.milli_value()),
        memory_limit_bytes: memory_limit.value(),
        ..LinuxResources::default()
    };
    if node.cgroup.cpu_cfs_quota {
        let period = node.cgroup.cpu_cfs_quota_period_us;
        resources.cpu_quota_us = cpu_quota_us(cpu_limit.milli_value(), period);
        resources.cpu_period_us = period;
    }
    resources
}

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

/// A limit for every page size of the kernel: sizes that neither the container nor its pod requests are
/// forbidden.
fn hugepage_limits(pod: &Pod, container: &Container, sizes: &[String]) -> BTreeMap<String, u64> {
    let mut limits: BTreeMap<String, u64> = sizes.iter().map(|size| (size.clone(), 0)).collect();
    let both = [pod::spec(pod).resources.as_ref(), container.resources.as_ref()];
    for (name, quantity) in both.into_iter().flatten().filter_map(|r| r.limits.as_ref()).flatten() {
        let Some(size) = name.strip_prefix(HUGEPAGES_PREFIX).and_then(kernel_page_size) else { continue };
        let bytes = Quantity::parse(&quantity.0).unwrap_or_default().value();
        limits.insert(size, u64::try_from(bytes).unwrap_or(0));
    }
    limits
}

#[cfg(test)]
mod tests;
