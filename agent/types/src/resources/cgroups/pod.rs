//! Values of a pod's own cgroup. Upstream: `ResourceConfigForPod` of pkg/kubelet/cm/helpers_linux.go,
//! pkg/kubelet/cm/pod_container_manager_linux.go.

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use super::super::requests::{
    CPU, MEMORY, hugepages_request, limit, pod_level_limit, pod_limit, pod_request,
};
use super::super::{QosClass, qos_class};
use super::name::{BEST_EFFORT, BURSTABLE, KUBEPODS};
use super::values::{hugetlb, units, weight_of};
use super::{CgroupName, CgroupValues, CpuMax};
use crate::node_context::{CgroupContext, CgroupDriver, MemoryQos, NodeContext};
use crate::pod;
use crate::resources::cpu::cpu_quota_us;
use crate::resources::exclusive_cpus::is_pod_without_quota;

/// The cgroup of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCgroup {
    /// Name of the pod's cgroup.
    pub name: CgroupName,
    /// Values of its files.
    pub values: CgroupValues,
}

/// The cgroup of all pods, below `cgroupRoot`.
#[must_use]
pub fn kubepods(root: &str, driver: CgroupDriver) -> CgroupName {
    CgroupName::of_root(root, driver).child(KUBEPODS)
}

/// The cgroup of all pods of a class.
#[must_use]
pub fn of_class(kubepods: &CgroupName, class: QosClass) -> CgroupName {
    match class {
        QosClass::Guaranteed => kubepods.clone(),
        QosClass::Burstable => kubepods.child(BURSTABLE),
        QosClass::BestEffort => kubepods.child(BEST_EFFORT),
    }
}

/// Component of the name of the cgroup of the pod `uid`.
#[must_use]
pub fn component(uid: &str) -> String {
    format!("pod{uid}")
}

/// Possible cgroups of the pod `uid`, whose class is not known any more.
#[must_use]
pub fn places(kubepods: &CgroupName, uid: &str) -> [CgroupName; 3] {
    [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
        .map(|class| of_class(kubepods, class).child(&component(uid)))
}

/// For a directory among the cgroups of pods: its component, and the pod's UID in the form of
/// [`crate::resources::cgroups::name::key`]. `None` if the cgroup is not a pod's.
#[must_use]
pub fn of_directory(directory: &str) -> Option<(&str, String)> {
    let uid = crate::resources::cgroups::name::pod_of(directory)?;
    let component = match directory.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next()?,
        None => directory,
    };
    Some((component, uid))
}

/// Name of the pod's cgroup.
#[must_use]
pub fn name(p: &Pod, cgroup: &CgroupContext) -> CgroupName {
    let above = of_class(&kubepods(&cgroup.root, cgroup.driver), qos_class(p));
    above.child(&component(pod::uid(p)))
}

/// The pod's cgroup; `None` on a node without pod cgroups (`cgroupsPerQOS: false`).
#[must_use]
pub fn pod_cgroup(p: &Pod, node: &NodeContext) -> Option<PodCgroup> {
    if !node.cgroup.per_qos {
        return None;
    }
    Some(PodCgroup { name: name(p, &node.cgroup), values: values(p, node) })
}

fn values(p: &Pod, node: &NodeContext) -> CgroupValues {
    let class = qos_class(p);
    let milli = pod_request(p, CPU).milli_value();
    let mut values = CgroupValues {
        cpu_weight: Some(weight_of(if class == QosClass::BestEffort { 0 } else { milli })),
        pids_max: node.cgroup.pids_limit,
        hugetlb: hugetlb(
            hugepages_request(p).iter().map(|(name, q)| (name.as_str(), *q)),
            &node.machine.hugepage_sizes,
        ),
        ..CgroupValues::default()
    };
    let limited = |resource| class == QosClass::Guaranteed || is_limited(p, resource);
    if class != QosClass::BestEffort && limited(CPU) {
        let limit = if is_pod_without_quota(p, &node.cgroup) { 0 } else { pod_limit(p, CPU).milli_value() };
        values.cpu_max = Some(cpu_max(limit, &node.cgroup));
    }
    if class != QosClass::BestEffort && limited(MEMORY) {
        values.memory_max = Some(units(pod_limit(p, MEMORY)));
    }
    let request = units(pod_request(p, MEMORY));
    if node.cgroup.memory_qos == MemoryQos::Tiered && request > 0 {
        match class {
            QosClass::Guaranteed => values.memory_min = Some(request),
            // A BestEffort pod has no requests, but its overhead may have some.
            QosClass::Burstable | QosClass::BestEffort => values.memory_low = Some(request),
        }
    }
    values
}

fn cpu_max(limit_milli: i64, cgroup: &CgroupContext) -> CpuMax {
    let period_us = u64::try_from(cgroup.cpu_cfs_quota_period_us).unwrap_or_default();
    let quota_us = cgroup.cpu_cfs_quota.then(|| cpu_quota_us(limit_milli, cgroup.cpu_cfs_quota_period_us));
    let quota_us = quota_us.and_then(|quota| u64::try_from(quota).ok()).filter(|quota| *quota > 0);
    let rounded = |quota: u64| match cgroup.driver {
        CgroupDriver::Cgroupfs => quota,
        CgroupDriver::Systemd => whole_percents(quota, period_us),
    };
    CpuMax { quota_us: quota_us.map(rounded), period_us }
}

/// systemd counts hundredths of a processor: fractions round up, so that containers get their full quota.
fn whole_percents(quota_us: u64, period_us: u64) -> u64 {
    const SECOND_US: u64 = 1_000_000;
    const PERCENT_US: u64 = SECOND_US / 100;
    let a_second = quota_us.saturating_mul(SECOND_US).checked_div(period_us).unwrap_or_default();
    if a_second.is_multiple_of(PERCENT_US) {
        return quota_us;
    }
    a_second.div_ceil(PERCENT_US).saturating_mul(PERCENT_US).saturating_mul(period_us) / SECOND_US
}

/// True if the whole pod is limited: by itself, or because each of its containers is.
#[must_use]
pub fn is_limited(p: &Pod, resource: &str) -> bool {
    let has = |c: &Container| limit(c, resource).is_some_and(|limit| !limit.is_zero());
    let by_itself = pod_level_limit(p, resource).is_some_and(|limit| !limit.is_zero());
    by_itself || pod::containers(p).iter().chain(pod::init_containers(p)).all(has)
}
