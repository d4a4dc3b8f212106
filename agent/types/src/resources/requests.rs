//! Requests and limits of containers and of whole pods, as exact quantities.
//!
//! In: `ResourceRequirements`. Out: [`Quantity`]s. A text that does not parse counts as absent: validation
//! has rejected such a pod long before. Pod sums follow upstream: regular containers and sidecars add up; an
//! ordinary init container counts only where it needs more than the sum of the containers that run at the
//! same time; the pod's own amount (`spec.resources`) wins over the sum; overhead is added.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::{Quantity, pod};

/// Resource name of CPU time.
pub const CPU: &str = "cpu";
/// Resource name of memory.
pub const MEMORY: &str = "memory";
/// Resource name of node-local scratch space.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Prefix of huge page resources: `hugepages-2Mi`.
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

type List = BTreeMap<String, ApiQuantity>;

/// A negative amount counts as absent: otherwise other pods would get resources that do not exist. The API
/// server rejects it, but a static pod does not pass there.
fn get(list: Option<&List>, resource: &str) -> Option<Quantity> {
    Some(Quantity::parse(&list?.get(resource)?.0).ok()?.max(Quantity::ZERO))
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

/// Request of the whole pod at its peak.
#[must_use]
pub fn pod_request(pod: &Pod, resource: &str) -> Quantity {
    running_request(pod, resource).plus(overhead(pod, resource))
}

/// Request of the pod at its peak, without overhead.
#[must_use]
pub fn running_request(pod: &Pod, resource: &str) -> Quantity {
    pod_level_request(pod, resource).unwrap_or_else(|| peak_request(pod, resource))
}

/// Request of the pod's containers at its peak; the pod's own request does not count.
#[must_use]
pub fn peak_request(pod: &Pod, resource: &str) -> Quantity {
    peak(pod, resource, request)
}

/// Limit of the pod's containers at its peak; the pod's own limit does not count.
#[must_use]
pub fn peak_limit(pod: &Pod, resource: &str) -> Quantity {
    peak(pod, resource, limit)
}

/// Limit of the whole pod at its peak; zero if nothing limits it. Overhead is added only to a limit.
#[must_use]
pub fn pod_limit(pod: &Pod, resource: &str) -> Quantity {
    let limit = running_limit(pod, resource);
    if limit.is_zero() { limit } else { limit.plus(overhead(pod, resource)) }
}

/// Limit of the pod at its peak, without overhead; zero if nothing limits it.
#[must_use]
pub fn running_limit(pod: &Pod, resource: &str) -> Quantity {
    pod_level_limit(pod, resource).unwrap_or_else(|| peak_limit(pod, resource))
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

/// Amount of the pod itself (`spec.resources`).
#[must_use]
pub fn is_pod_level_set(pod: &Pod) -> bool {
    let filled = |list: Option<&List>| list.is_some_and(|l| !l.is_empty());
    let own = pod::spec(pod).resources.as_ref();
    own.is_some_and(|r| filled(r.requests.as_ref()) || filled(r.limits.as_ref()))
}

/// Limit of a container; a container without a limit of cpu or memory has its pod's own limit (KEP-2837).
#[must_use]
pub fn limit_in_pod(pod: &Pod, container: &Container, resource: &str) -> Option<Quantity> {
    let own = limit(container, resource);
    let inherits = matches!(resource, CPU | MEMORY) && own.is_none_or(Quantity::is_zero);
    if inherits { pod_level_limit(pod, resource).or(own) } else { own }
}

/// The container's `resources` with the limits of its pod where it has none ([`limit_in_pod`]).
#[must_use]
pub fn resources_in_pod(pod: &Pod, container: &Container) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    let own = pod::spec(pod).resources.as_ref().and_then(|r| r.limits.as_ref());
    for name in [CPU, MEMORY] {
        let inherited =
            own.and_then(|l| l.get(name)).filter(|_| limit(container, name).is_none_or(Quantity::is_zero));
        if let Some(limit) = inherited {
            resources.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    resources
}

/// Peak request of every resource that is named: by containers, by the pod itself, by its overhead.
#[must_use]
pub fn all_requests(pod: &Pod) -> BTreeMap<String, Quantity> {
    names(pod, requests_of).into_iter().map(|name| (name.to_owned(), pod_request(pod, name))).collect()
}

/// Peak limit of every resource that has one.
#[must_use]
pub fn all_limits(pod: &Pod) -> BTreeMap<String, Quantity> {
    names(pod, limits_of).into_iter().map(|name| (name.to_owned(), pod_limit(pod, name))).collect()
}

fn requests_of(resources: &ResourceRequirements) -> Option<&List> {
    resources.requests.as_ref()
}

fn limits_of(resources: &ResourceRequirements) -> Option<&List> {
    resources.limits.as_ref()
}

/// The resources that are named in the lists of containers and of the pod, and in its overhead.
fn names(pod: &Pod, of: fn(&ResourceRequirements) -> Option<&List>) -> BTreeSet<&str> {
    let spec = pod::spec(pod);
    let containers = pod::containers(pod).iter().chain(pod::init_containers(pod));
    let resources = containers.filter_map(|c| c.resources.as_ref()).chain(&spec.resources);
    let lists = resources.filter_map(of).chain(&spec.overhead);
    lists.flat_map(|list| list.keys().map(String::as_str)).collect()
}

/// Request of the whole pod for each size of huge pages, by resource name.
#[must_use]
pub fn hugepages_request(pod: &Pod) -> BTreeMap<String, Quantity> {
    let pages = names(pod, requests_of).into_iter().filter(|name| name.starts_with(HUGEPAGES_PREFIX));
    pages.map(|name| (name.to_owned(), pod_request(pod, name))).collect()
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

/// Resources outside Kubernetes' own names, for example of device plugins.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    let own = |domain: &str| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    let quota = name.strip_prefix("requests.").is_some();
    name.split_once('/').is_some_and(|(domain, _)| !own(domain)) && !quota
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_amount_below_zero_makes_no_room() {
        let pod = pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {
        "overhead": {"cpu": "-1e400"},
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "400m", "memory": "-1Gi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "-300m", "memory": "1Mi"}}},
        ]}}));
        assert_eq!(pod_request(&pod, CPU).milli_value(), 400);
        assert_eq!(pod_request(&pod, MEMORY).value(), 1 << 20);
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
        assert_eq!(all_requests(&pod).len(), 1);
        assert!(!is_pod_level_set(&pod));
    }

    #[test]
    fn what_the_pod_says_goes_before_the_sum_and_limits_those_that_are_not() {
        let pod = pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {
        "overhead": {"cpu": "10m"},
        "resources": {"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "400m", "memory": "1Mi", "ephemeral-storage": "1Mi"}, "limits": {"memory": "64Mi"}}},
            {"name": "b", "resources": {"limits": {"cpu": "0"}}},
        ]}}));
        assert!(is_pod_level_set(&pod));
        assert_eq!(pod_request(&pod, CPU).milli_value(), 1010);
        assert_eq!(pod_request(&pod, MEMORY).value(), 1 << 20, "the sum where the pod says nothing");
        assert_eq!(pod_limit(&pod, MEMORY).value(), 1 << 30);
        let [a, b] = pod::containers(&pod) else { panic!() };
        assert_eq!(limit_in_pod(&pod, a, MEMORY).unwrap().value(), 64 << 20);
        assert_eq!(limit_in_pod(&pod, b, MEMORY).unwrap().value(), 1 << 30);
        assert_eq!(limit_in_pod(&pod, b, CPU).unwrap().milli_value(), 2000, "zero is none");
        assert_eq!(limit_in_pod(&pod, a, "hugepages-2Mi"), None);
        let limits = |c| serde_json::to_value(resources_in_pod(&pod, c).limits).unwrap();
        assert_eq!(limits(a), json!({"cpu": "2", "memory": "64Mi"}));
        assert_eq!(limits(b), json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(all_requests(&pod).len(), 4);
        assert_eq!(all_limits(&pod).keys().collect::<Vec<_>>(), ["cpu", "hugepages-2Mi", "memory"]);
        let pages = hugepages_request(&pod);
        assert_eq!((pages.len(), pages["hugepages-2Mi"].value()), (1, 4 << 20));
    }
}
