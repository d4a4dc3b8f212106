//! The order in which pods are evicted.
//!
//! In: pods, their usage, the signal. Out: the pods in the order of eviction. Invariants: pure; a total order
//! that does not depend on the order of the pods, because UID breaks ties; a pod without measurements comes
//! before others; a pod whose files could not all be counted is above its request, and further than all
//! others; critical pods have a rank like all, and the choice passes over them.
//!
//! Memory and disks: first the pods above their requests, then by priority, then by the amount above the
//! request. Process ids: by priority, then by the number of processes. Upstream:
//! pkg/kubelet/eviction/helpers.go.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::resources::observation::Layout;
use agent_types::resources::requests::{self, EPHEMERAL_STORAGE, MEMORY};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::eviction::Signal;

use super::threshold::Resource;
use super::usage::{Parts, PodUse};

/// What pods use, by UID.
pub type Uses = BTreeMap<PodUid, PodUse>;

/// Place in the order: class, priority, how much beyond the request, UID.
type EvictionRank = (u8, i32, Reverse<i64>, String);

/// The pods in the order of eviction, the first victim first.
#[must_use]
pub fn rank(pods: &[Arc<Pod>], uses: &Uses, signal: Signal, layout: Layout) -> Vec<Arc<Pod>> {
    let mut ranked: Vec<(EvictionRank, Arc<Pod>)> =
        pods.iter().map(|p| (place(p, uses.get(&pod::key(p).uid), signal, layout), Arc::clone(p))).collect();
    ranked.sort_by(|(a, _), (b, _)| a.cmp(b));
    ranked.into_iter().map(|(_, pod)| pod).collect()
}

fn place(p: &Pod, found: Option<&PodUse>, signal: Signal, layout: Layout) -> EvictionRank {
    let priority = pod::spec(p).priority.unwrap_or(0);
    let uid = pod::uid(p).to_owned();
    let resource = Resource::of(signal);
    let Some(found) = found else {
        // For processes, priority counts before the presence of measurements.
        let class = u8::from(resource == Resource::Pids);
        return (class, priority, Reverse(i64::MAX), uid);
    };
    let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let above = |used: i64, asked: Quantity| match used {
        // An amount without a known end is above every request.
        i64::MAX => i64::MAX,
        used => used.saturating_sub(asked.value()),
    };
    let (exceeds, beyond) = match resource {
        Resource::Memory => {
            let beyond = above(amount(found.memory.unwrap_or(0)), request(p, MEMORY));
            (beyond > 0, beyond)
        }
        Resource::EphemeralStorage => {
            let used = found.storage(parts(signal, layout)).amount(|used| used.bytes);
            let beyond = above(used, request(p, EPHEMERAL_STORAGE));
            (beyond > 0, beyond)
        }
        Resource::Inodes => {
            // No pod can request inodes, so each one counts; upstream subtracts the requested bytes from
            // their number.
            let used = found.storage(parts(signal, layout)).amount(|used| used.inodes);
            (used > 0, above(used, request(p, EPHEMERAL_STORAGE)))
        }
        Resource::Pids => return (1, priority, Reverse(amount(found.processes.unwrap_or(0))), uid),
    };
    (if exceeds { 1 } else { 2 }, priority, Reverse(beyond), uid)
}

/// The pod's request. With a request of the pod as a whole, those of its containers do not count; overhead
/// counts only on top of another request. Upstream: `GetResourceRequestQuantity` of
/// pkg/api/v1/resource/helpers.go.
pub(super) fn request(p: &Pod, resource: &str) -> Quantity {
    let asked = match whole_pod_request(p, resource) {
        Some(of_pod) => of_pod,
        None => requests::running_request(p, resource),
    };
    if asked.is_zero() { asked } else { asked.plus(requests::overhead(p, resource)) }
}

/// `spec.resources`, if it is set at all: a resource that it does not name is then zero.
fn whole_pod_request(p: &Pod, resource: &str) -> Option<Quantity> {
    let resources = pod::spec(p).resources.as_ref()?;
    let is_set = [&resources.requests, &resources.limits].into_iter().flatten().any(|list| !list.is_empty());
    is_set.then(|| requests::pod_level_request(p, resource).unwrap_or_default())
}

/// What of a pod is on the file system of the signal.
fn parts(signal: Signal, layout: Layout) -> Parts {
    let of_images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
    let of_node = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
    let [layers, logs, volumes] = match (layout.dedicated_images, layout.split_containers) {
        (true, false) if of_node => [false, true, true],
        (true, false) => [true, false, false],
        (true, true) if of_images => [false, false, false],
        _ => [true, true, true],
    };
    Parts { layers, logs, volumes }
}
