//! Is there room for a pod, and are its host ports free?
//!
//! In: a pod, the pods beside it, allocatable amounts. Out: yes, or `OutOf<resource>`, `NodePorts`. Invariant: exact
//! arithmetic; a resource that the pod does not ask for cannot refuse it. Upstream: scheduler noderesources.

use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use super::{AdmissionContext, Rejection};
use crate::resources::requests::{CPU, pod_request};
use crate::types::{Quantity, pod};

pub(super) fn room(pod: &Pod, active: &[&Pod], node: &AdmissionContext) -> Result<(), Rejection> {
    if let Some(max) = node.max_pods
        && u64::try_from(active.len()).is_ok_and(|used| used >= u64::from(max))
    {
        return Err(insufficient("pods", "1", &active.len().to_string(), &max.to_string()));
    }
    for (resource, capacity) in &node.allocatable {
        let asked = pod_request(pod, resource);
        let used = active.iter().fold(Quantity::ZERO, |sum, other| sum.plus(pod_request(other, resource)));
        if !asked.is_zero() && used.plus(asked) > *capacity {
            let number = |q: Quantity| if resource == CPU { q.milli_value() } else { q.value() }.to_string();
            return Err(insufficient(resource, &number(asked), &number(used), &number(*capacity)));
        }
    }
    Ok(())
}

fn insufficient(resource: &str, asked: &str, used: &str, capacity: &str) -> Rejection {
    let message = format!(
        "Node didn't have enough resource: {resource}, requested: {asked}, used: {used}, capacity: {capacity}"
    );
    Rejection::new(format!("OutOf{resource}"), message)
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
