//! Texts about an evicted pod: the message of its status and the annotations of its event.
//!
//! In: the pod, its usage, the starved resource. Out: message and annotations, word for word as upstream's,
//! trailing blanks included. Pure. Upstream: `evictionMessage` of pkg/kubelet/eviction/helpers.go.

use std::collections::BTreeMap;
use std::fmt::Write;

use agent_types::pod;
use agent_types::quantity_text::binary;
use agent_types::resources::observation::Observation;
use agent_types::resources::requests::{self, MEMORY};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::threshold::{Resource, Threshold};
use super::usage::{ContainerUse, PodUse};

/// Reason of the Node's event.
pub const THRESHOLD_MET: &str = "EvictionThresholdMet";

/// Message and annotations.
pub(super) type EvictionMessage = (String, BTreeMap<String, String>);

/// The message for a pod that ends because `resource` is short.
pub(super) fn of_pressure(
    p: &Pod,
    found: Option<&PodUse>,
    resource: Resource,
    met: Option<(&Threshold, Observation)>,
) -> EvictionMessage {
    let name = resource.as_str();
    let mut message = format!("The node was low on resource: {name}. ");
    if let Some((threshold, observed)) = met {
        let quantity = threshold.value.text(observed.capacity);
        let available = resource.text(observed.available);
        // Writing to a string cannot fail.
        let _ = write!(message, "Threshold quantity: {quantity}, available: {available}. ");
    }
    let Some(found) = found else { return (message, BTreeMap::new()) };
    let mut annotations = BTreeMap::new();
    if let (Resource::Memory, Some(asked), Some(used)) = (resource, of_whole_pod(p), found.memory) {
        let used = binary(i64::try_from(used).unwrap_or(i64::MAX));
        let _ = write!(message, "Pod {} was using {used}, ", pod::name(p));
        let _ = write!(message, "request is {asked}, has larger consumption of {name}. ");
        annotations.insert("offending_pod".to_owned(), pod::name(p).to_owned());
        annotations.insert("offending_pod_usage".to_owned(), used);
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    let containers = || pod::containers(p).iter().chain(pod::init_containers(p));
    for of in &found.containers {
        let Some(container) = containers().find(|c| c.name == of.name) else { continue };
        let Some(used) = used(of, resource) else { continue };
        let (value, text) = asked(container, name);
        if used <= value {
            continue;
        }
        let used = binary(used);
        let _ = write!(message, "Container {} was using {used}, request is {text}, ", container.name);
        let _ = write!(message, "has larger consumption of {name}. ");
        names.push(container.name.clone());
        usages.push(used);
    }
    annotations.insert("offending_containers".to_owned(), names.join(","));
    annotations.insert("offending_containers_usage".to_owned(), usages.join(","));
    annotations.insert("starved_resource".to_owned(), name.to_owned());
    (message, annotations)
}

fn used(of: &ContainerUse, resource: Resource) -> Option<i64> {
    let used = match resource {
        Resource::Memory => of.memory?,
        Resource::EphemeralStorage => of.layer?.bytes.saturating_add(of.logs?.bytes),
        Resource::Inodes | Resource::Pids => return None,
    };
    Some(i64::try_from(used).unwrap_or(i64::MAX))
}

/// The request and its text; the API server has made the text canonical.
fn asked(container: &Container, resource: &str) -> (i64, String) {
    let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let text = list.and_then(|list| list.get(resource)).map_or_else(|| "0".to_owned(), |q| q.0.clone());
    (requests::request(container, resource).unwrap_or_default().value(), text)
}

fn of_whole_pod(p: &Pod) -> Option<&str> {
    Some(pod::spec(p).resources.as_ref()?.requests.as_ref()?.get(MEMORY)?.0.as_str())
}
