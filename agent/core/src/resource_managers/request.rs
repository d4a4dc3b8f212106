//! A Pod as a request to the managers.
//!
//! In: a pod with its allocated amounts. Out: [`PodRequest`]. Invariant: ephemeral containers do not count, as upstream.

use std::collections::BTreeMap;

use agent_managers::request::{ContainerRequest, DeviceLimits, Kind, PodRequest};
use agent_types::Quantity;
use agent_types::pod;
use agent_types::resources::exclusive_cpus::may_have_exclusive;
use agent_types::resources::requests::{
    CPU, HUGEPAGES_PREFIX, MEMORY, is_extended, is_pod_level_set, request,
};
use agent_types::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};

/// The pod's request to the managers.
#[must_use]
pub fn pod_request(p: &Pod) -> PodRequest {
    let init = pod::init_containers(p).iter().map(|c| {
        let kind = if pod::is_sidecar(c) { Kind::Sidecar } else { Kind::Init };
        container_request(p, c, kind)
    });
    let apps = pod::containers(p).iter().map(|c| container_request(p, c, Kind::App));
    let request = PodRequest {
        uid: pod::uid(p).to_owned(),
        guaranteed: qos_class(p) == QosClass::Guaranteed,
        pod_level: is_pod_level_set(p),
        containers: init.chain(apps).collect(),
    };
    debug_assert_eq!(request.is_eligible(), may_have_exclusive(p), "one rule for assignment and quota");
    request
}

fn container_request(p: &Pod, c: &Container, kind: Kind) -> ContainerRequest {
    let requests = c.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let is_memory = |name: &&String| *name == MEMORY || name.starts_with(HUGEPAGES_PREFIX);
    let bytes = |name: &str| request(c, name).and_then(|amount| u64::try_from(amount.value()).ok());
    let named = requests.into_iter().flat_map(BTreeMap::keys).filter(is_memory);
    ContainerRequest {
        name: c.name.clone(),
        kind,
        cpu_milli: request(c, CPU).and_then(|amount| u64::try_from(amount.milli_value()).ok()).unwrap_or(0),
        memory: named.filter_map(|name| Some((name.clone(), bytes(name)?))).collect(),
        devices: device_limits(p, c),
    }
}

/// The limits of extended resources, and those among them that a resource claim provides.
fn device_limits(p: &Pod, c: &Container) -> DeviceLimits {
    let limits = c.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let limits = limits.filter(|(name, _)| is_extended(name)).filter_map(|(name, text)| {
        let amount = Quantity::parse(&text.0).ok()?;
        Some((name.clone(), u64::try_from(amount.value()).ok()?))
    });
    let claim = p.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let mappings = claim.iter().flat_map(|claim| &claim.request_mappings);
    let claimed =
        mappings.filter(|mapping| mapping.container_name == c.name).map(|of| of.resource_name.clone());
    DeviceLimits { limits: limits.collect(), claimed: claimed.collect() }
}
