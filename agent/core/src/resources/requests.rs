//! Requests and limits of containers and of whole pods, as exact quantities.
//!
//! In: `ResourceRequirements`. Out: [`Quantity`]s. A text that does not parse counts as absent: validation has
//! refused such a pod long before. Pod sums follow upstream: regular containers and sidecars add up, an
//! ordinary init container counts only where it needs more than all that runs beside it; what the pod itself says
//! (`spec.resources`) goes before the sum; overhead is added.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::types::{Quantity, pod};

/// Resource name of CPU time.
pub const CPU: &str = "cpu";
/// Resource name of memory.
pub const MEMORY: &str = "memory";
/// Resource name of node-local scratch space.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Prefix of huge page resources: `hugepages-2Mi`.
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

type List = BTreeMap<String, ApiQuantity>;

fn get(list: Option<&List>, resource: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(resource)?.0).ok()
}

/// `resources.requests[resource]`.
#[must_use]
pub fn request(container: &Container, resource: &str) -> Option<Quantity> {
    get(container.resources.as_ref()?.requests.as_ref(), resource)
}

/// `resources.limits[resource]`.
#[must_use]
pub fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    get(container.resources.as_ref()?.limits.as_ref(), resource)
}

/// What the whole pod asks for at its peak.
#[must_use]
pub fn pod_request(pod: &Pod, resource: &str) -> Quantity {
    running_request(pod, resource).plus(overhead(pod, resource))
}

/// What the pod asks for at its peak; without overhead.
#[must_use]
pub fn running_request(pod: &Pod, resource: &str) -> Quantity {
    pod_level_request(pod, resource).unwrap_or_else(|| peak(pod, resource, request))
}

/// What the whole pod is limited to at its peak; zero if nothing limits it. Overhead is added only to a limit.
#[must_use]
pub fn pod_limit(pod: &Pod, resource: &str) -> Quantity {
    let limit = running_limit(pod, resource);
    if limit.is_zero() { limit } else { limit.plus(overhead(pod, resource)) }
}

/// What the pod is limited to at its peak; zero if nothing limits it. Without overhead.
#[must_use]
pub fn running_limit(pod: &Pod, resource: &str) -> Quantity {
    pod_level_limit(pod, resource).unwrap_or_else(|| peak(pod, resource, limit))
}

/// `spec.overhead[resource]`.
#[must_use]
pub fn overhead(pod: &Pod, resource: &str) -> Quantity {
    get(pod::spec(pod).overhead.as_ref(), resource).unwrap_or_default()
}

/// `spec.resources.requests[resource]`.
#[must_use]
pub fn pod_level_request(pod: &Pod, resource: &str) -> Option<Quantity> {
    get(pod::spec(pod).resources.as_ref()?.requests.as_ref(), resource)
}

/// `spec.resources.limits[resource]`.
#[must_use]
pub fn pod_level_limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    get(pod::spec(pod).resources.as_ref()?.limits.as_ref(), resource)
}

/// What the whole pod asks for of each size of huge pages, by resource name.
#[must_use]
pub fn hugepages_request(pod: &Pod) -> BTreeMap<String, Quantity> {
    let containers = pod::containers(pod).iter().chain(pod::init_containers(pod));
    let of_containers = containers.filter_map(|c| c.resources.as_ref()?.requests.as_ref());
    let spec = pod::spec(pod);
    let own = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let names = of_containers.chain(own).chain(spec.overhead.as_ref()).flat_map(BTreeMap::keys);
    let sizes = names.filter(|name| name.starts_with(HUGEPAGES_PREFIX));
    sizes.map(|name| (name.clone(), pod_request(pod, name))).collect()
}

fn peak(pod: &Pod, resource: &str, of: impl Fn(&Container, &str) -> Option<Quantity>) -> Quantity {
    let amount = |c: &Container| of(c, resource).unwrap_or_default();
    let mut sidecars = Quantity::ZERO;
    let mut init_peak = Quantity::ZERO;
    for container in pod::init_containers(pod) {
        if pod::is_sidecar(container) {
            sidecars = sidecars.plus(amount(container));
            init_peak = init_peak.larger(sidecars);
        } else {
            init_peak = init_peak.larger(sidecars.plus(amount(container)));
        }
    }
    let running = pod::containers(pod).iter().fold(sidecars, |sum, c| sum.plus(amount(c)));
    running.larger(init_peak)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn sums_follow_what_runs_at_the_same_time() {
        let pod = pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {
        "overhead": {"cpu": "10m"},
        "initContainers": [
            {"name": "first", "resources": {"requests": {"cpu": "900m"}}},
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"name": "second", "resources": {"requests": {"cpu": "850m"}}},
        ],
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "400m"}, "limits": {"memory": "1Mi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "100m"}}},
        ]}}));
        // Running: 400 + 100 + sidecar 100. While `second` runs: 850 + sidecar 100. First alone: 900.
        assert_eq!(pod_request(&pod, CPU).milli_value(), 960);
        assert_eq!(pod_limit(&pod, MEMORY).value(), 1024 * 1024);
        assert_eq!(pod_limit(&pod, CPU), Quantity::ZERO);
    }
}
