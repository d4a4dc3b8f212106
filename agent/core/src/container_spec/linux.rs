//! Translates requests and limits to kernel values: the CRI message `LinuxContainerResources`.
//!
//! In: container, pod, node. Out: [`LinuxResources`]. Invariants: shares are between 2 and 262144; a quota is
//! at least 1 ms. The `oom_score_adj` comes from `agent_types::resources::oom_score`. Upstream:
//! pkg/kubelet/kuberuntime/kuberuntime_container_linux.go.

pub mod memory;

use std::collections::BTreeMap;

use agent_types::node_context::NodeContext;
use agent_types::resources::cpu::{cpu_quota_us, cpu_shares, kernel_page_size};
use agent_types::resources::exclusive_cpus::{is_pod_without_quota, is_without_quota};
use agent_types::resources::oom_score::oom_score_adj;
use agent_types::resources::requests::{
    CPU, HUGEPAGES_PREFIX, MEMORY, limit_in_pod, overhead, request, running_limit, running_request,
};
use agent_types::runtime::config::LinuxResources;
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Container, Pod};

/// The CRI's value for a container without a quota.
const NO_QUOTA: i64 = -1;

/// All resources of one container for the runtime.
#[must_use]
pub fn container_resources(pod: &Pod, container: &Container, node: &NodeContext) -> LinuxResources {
    let cpu_request = request(container, CPU);
    let cpu_limit = limit_in_pod(pod, container, CPU).unwrap_or_default();
    let memory_limit = limit_in_pod(pod, container, MEMORY).unwrap_or_default();
    let mut resources = cpu_and_memory(cpu_request, cpu_limit, memory_limit, node);
    if is_without_quota(pod, container, &node.cgroup) {
        remove_quota(&mut resources);
    }
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
    let mut resources =
        cpu_and_memory(cpu_request, running_limit(pod, CPU), running_limit(pod, MEMORY), node);
    if is_pod_without_quota(pod, &node.cgroup) {
        remove_quota(&mut resources);
    }
    resources
}

/// The period stays, as upstream leaves it. A node without quotas sets none at all.
fn remove_quota(resources: &mut LinuxResources) {
    if resources.cpu_period_us != 0 {
        resources.cpu_quota_us = NO_QUOTA;
    }
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
