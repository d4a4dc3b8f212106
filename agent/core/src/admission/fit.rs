//! Checks that the node has resources for a pod, and that its host ports are free.
//!
//! In: a pod, the other pods, allocatable amounts. Out: missing resources (`OutOf<resource>`), `NodePorts`.
//! Invariant: exact arithmetic; a resource that the pod does not request cannot reject it, nor can an
//! extended resource that the node does not have: another component counts it. Requests that a resource claim
//! provides do not count, as the claim's driver counts its devices. A device class that no claim provides is a
//! resource of which the node has none. Upstream:
//! pkg/scheduler/framework/plugins/noderesources, `removeMissingExtendedResources` of
//! pkg/kubelet/lifecycle/predicate.go.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use agent_types::resource_claims::{DEVICE_CLASS_PREFIX, extended, is_claimed};
use agent_types::resources::requests::{CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, pod_request};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use super::{AdmissionContext, Rejection};

/// The name under which pods themselves are counted.
const PODS: &str = "pods";

/// There is not enough of a resource; processor time in thousandths, all else in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: String,
    pub(super) requested: i64,
    pub(super) used: i64,
    pub(super) capacity: i64,
}

impl Shortage {
    /// How much is to become free.
    pub(super) fn missing(&self) -> i64 {
        self.used.saturating_add(self.requested).saturating_sub(self.capacity)
    }
}

impl From<&Shortage> for Rejection {
    fn from(short: &Shortage) -> Rejection {
        let Shortage { resource, requested, used, capacity } = short;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Rejection::new(format!("OutOf{resource}"), message)
    }
}

/// The pod's request, in the unit of [`Shortage`].
pub(super) fn request(pod: &Pod, resource: &str) -> i64 {
    if resource == PODS { 1 } else { in_units(pod_request(&without_claimed(pod), resource), resource) }
}

fn in_units(amount: Quantity, resource: &str) -> i64 {
    if resource == CPU { amount.milli_value() } else { amount.value() }
}

/// Resources that are short if the pod runs next to these.
pub(super) fn shortages(pod: &Pod, beside: &[&Pod], node: &AdmissionContext) -> Vec<Shortage> {
    let used = i64::try_from(beside.len()).unwrap_or(i64::MAX);
    let full = node.max_pods.map(i64::from).filter(|max| used >= *max);
    let of_pods = full.map(|capacity| Shortage { resource: PODS.to_owned(), requested: 1, used, capacity });
    let pod = without_claimed(pod);
    let beside: Vec<Cow<'_, Pod>> = beside.iter().map(|other| without_claimed(other)).collect();
    let of_resources = amounts(&pod, node).into_iter().filter_map(|(resource, capacity)| {
        let asked = pod_request(&pod, resource);
        let used = beside.iter().fold(Quantity::ZERO, |sum, other| sum.plus(pod_request(other, resource)));
        (!asked.is_zero() && used.plus(asked) > capacity).then(|| Shortage {
            resource: resource.to_owned(),
            requested: in_units(asked, resource),
            used: in_units(used, resource),
            capacity: in_units(capacity, resource),
        })
    });
    of_pods.into_iter().chain(of_resources).collect()
}

/// The pod without the requests of its containers that the claim of its extended resources provides.
fn without_claimed(pod: &Pod) -> Cow<'_, Pod> {
    if extended(pod).is_none() {
        return Cow::Borrowed(pod);
    }
    let mut own = pod.clone();
    let spec = own.spec.iter_mut();
    for container in
        spec.flat_map(|spec| spec.init_containers.iter_mut().flatten().chain(&mut spec.containers))
    {
        if let Some(requests) = container.resources.as_mut().and_then(|of| of.requests.as_mut()) {
            requests.retain(|name, _| !is_claimed(pod, &container.name, name));
        }
    }
    Cow::Owned(own)
}

/// The node's amount of each resource, in the order of messages: the well-known ones first, then the others
/// by name. A size of huge pages and a device class that only the pod names count as zero.
fn amounts<'a>(pod: &'a Pod, node: &'a AdmissionContext) -> Vec<(&'a str, Quantity)> {
    let none = absent_unless_named(pod).map(|name| (name, Quantity::ZERO));
    let has = node.allocatable.iter().map(|(name, amount)| (name.as_str(), *amount));
    let all: BTreeMap<&str, Quantity> = none.chain(has).collect();
    let rank =
        |name: &str| [CPU, MEMORY, EPHEMERAL_STORAGE].iter().position(|known| *known == name).unwrap_or(3);
    let mut all: Vec<(&str, Quantity)> = all.into_iter().collect();
    all.sort_by_key(|(name, _)| rank(name));
    all
}

/// Sizes of huge pages and device classes in the pod's requests, as resource names.
fn absent_unless_named(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod::init_containers(pod).iter().chain(pod::containers(pod));
    let resources = containers.filter_map(|c| c.resources.as_ref()).chain(pod::spec(pod).resources.as_ref());
    let lists = resources.filter_map(|r| r.requests.as_ref()).chain(pod::spec(pod).overhead.as_ref());
    let names: BTreeSet<&str> = lists.flat_map(|list| list.keys().map(String::as_str)).collect();
    names
        .into_iter()
        .filter(|name| name.starts_with(HUGEPAGES_PREFIX) || name.starts_with(DEVICE_CLASS_PREFIX))
}

pub(super) fn host_ports(pod: &Pod, active: &[&Pod]) -> Result<(), Rejection> {
    let taken: Vec<&ContainerPort> = active.iter().flat_map(|other| ports(other)).collect();
    if ports(pod).any(|port| taken.iter().any(|other| clash(port, other))) {
        let message =
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::new("NodePorts", message));
    }
    Ok(())
}

fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    let containers = sidecars.chain(pod::containers(pod));
    containers.flat_map(|c| c.ports.iter().flatten()).filter(|p| p.host_port.unwrap_or(0) > 0)
}

/// Same protocol and port, on the same address or on all addresses.
fn clash(a: &ContainerPort, b: &ContainerPort) -> bool {
    let protocol = |p: &ContainerPort| p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let ip = |p: &ContainerPort| {
        p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned())
    };
    let (ip_a, ip_b) = (ip(a), ip(b));
    let same_address = ip_a == ip_b || ip_a == "0.0.0.0" || ip_b == "0.0.0.0";
    a.host_port == b.host_port && protocol(a) == protocol(b) && same_address
}
